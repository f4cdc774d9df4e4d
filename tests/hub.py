"""A hub of our own: a server with the routes of the Hugging Face hub, and faults on demand.

    with serve() as hub:
        hub.put("owner/name", "folder/file.pt", content)
        hub.faults["folder/file.pt"] = ["stall", "break"]  # one a transfer, then none

`python tests/hub.py WORDS...` is the command line with a small CLIP registered (`register`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import io
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import huggingface_hub
import torch

COMMIT = "c0ffee" * 6 + "c0ff"  # of every repository
PAGE = b"<!DOCTYPE html><title>Log in to the network</title>" * 9
SMALL = 4096  # bytes: smaller files are in git, larger ones in LFS, behind a redirect
MODEL = "tiny"
CLASSES, TRAIN, TEST = 4, 40, 8  # of the papers' data sets here
CONFIG = {
    "embed_dim": 16, "quick_gelu": True,
    "vision_cfg": {
        "image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32,
    },
    "text_cfg": {
        "context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1,
    },
}  # fmt: skip


@dataclasses.dataclass
class Hub:
    """Repositories, and what goes wrong when they are asked."""

    url: str = ""
    cdn: str = ""  #: The same server as another host, to which large files are redirected
    files: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
    #: By path: wrong, stall, break, slow, long, ignore (the range), page, portal (pages), escape;
    #: an answer such as 404, or cdn-403 of the host to which large files are redirected.
    faults: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)  #: Of answers about files
    told: dict[str, str] = dataclasses.field(default_factory=dict)  #: Other `sha`, `oid` of lists
    sent: dict[str, list[int]] = dataclasses.field(default_factory=dict)  #: First bytes asked for
    slow: float = 0.0  #: Seconds between two parts of a transfer with the fault `slow`
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    def put(self, repository: str, path: str, content: bytes | Mapping[str, Any]) -> None:
        """Add a file: bytes, or what `torch.save` writes."""
        if not isinstance(content, bytes):
            stream = io.BytesIO()
            torch.save(content, stream)
            content = stream.getvalue()
        self.files.setdefault(repository, {})[path] = content

    def fault(self, path: str, *kinds: str) -> str:
        """Take the next fault of a path if it is one of some kinds."""
        waiting = self.faults.get(path, [])
        own = bool(waiting) and waiting[0].rstrip("0123456789") in kinds
        return waiting.pop(0) if own else ""


def handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the class that answers for a hub."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20  # seconds that a connection may be idle

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):
                self.answer(unquote(self.path.partition("?")[0]))

        def answer(self, path: str) -> None:
            if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/.*)?", path):
                return self.listing(match[2], tree="/tree/" in (match[3] or ""))
            resolve = r"/(?:datasets/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)"
            if match := re.fullmatch(resolve, path):
                return self.resolve(match[1], match[2])
            if match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
                return self.transfer(match[2], hub.files[match[1]][match[2]])
            return self.small(404)

        def small(self, code: int, content: bytes = b"", **headers: str) -> None:
            about = {name.replace("_", "-"): value for name, value in headers.items()}
            about |= hub.headers if "/resolve/" in self.path else {}
            self.send_response(code)
            for name, value in about.items():
                self.send_header(name, value)
            self.send_header("Content-Length", about.get("Size") or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def listing(self, repository: str, *, tree: bool) -> None:
            if repository not in hub.files:
                return self.small(404, X_Error_Code="RepoNotFound")
            if tree:
                large = {"oid": hub.told.get("oid"), "size": 7, "pointerSize": 100}
                entries = [
                    {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                    | ({"lfs": large} if large["oid"] else {})
                    for path, content in hub.files[repository].items()
                ]
                return self.small(200, json.dumps(entries).encode())
            files = [
                {"rfilename": path, "size": len(content), "blobId": "0" * 40}
                | ({"lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 134}}
                   if len(content) > SMALL else {})
                for path, content in hub.files[repository].items()
            ]  # fmt: skip
            told = {
                "id": repository,
                "sha": hub.told.get("sha", COMMIT),
                "siblings": files,
                "private": False,
            }
            return self.small(200, json.dumps(told).encode(), Content_Type="application/json")

        def resolve(self, repository: str, path: str) -> None:
            content = hub.files.get(repository, {}).get(path)
            fault = hub.fault(path, "", "portal", "escape")
            if content is None or fault == "404":
                return self.small(404, X_Error_Code="EntryNotFound")
            if fault.isdigit():
                return self.small(int(fault))
            if fault == "portal":
                return self.small(200, PAGE, ETag='"page"', Content_Type="text/html")
            headers = {"X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
            if fault == "escape":
                return self.small(200, content, ETag='"../../../../../escaped"', **headers)
            if len(content) <= SMALL:
                made = hashlib.sha1(f"blob {len(content)}\0".encode() + content)
                return self.small(200, content, ETag=f'"{made.hexdigest()}"', **headers)
            headers |= {
                "X_Linked_Size": str(len(content)),
                "X_Linked_ETag": f'"{_sha256(content)}"',
            }
            return self.small(302, Location=f"{hub.cdn}/cdn/{repository}/{path}", **headers)

        def transfer(self, path: str, content: bytes) -> None:
            if self.command == "HEAD" or self.headers.get("Range") == "bytes=0-0":
                return self.small(200, content[:1])
            fault = hub.fault(
                path, "wrong", "stall", "break", "slow", "long", "ignore", "cdn-", "page"
            )
            if fault.startswith("cdn-"):
                return self.small(int(fault[4:]))
            if fault == "page":
                return self.small(200, PAGE, Content_Type="text/html")
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            first = int(asked[1]) if asked and fault != "ignore" else 0
            hub.sent.setdefault(path, []).append(first)
            if first >= len(content):
                return self.small(416)
            whole = len(content)
            content = content[first:] + b"more" * (fault == "long")
            if fault == "wrong":
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{whole - 1}/{whole}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            half = len(content) // 2
            if fault in ("stall", "break"):
                self.wfile.write(content[:half])
                self.wfile.flush()
                if fault == "stall":
                    hub.over.wait(30)
                self.close_connection = True
                return None
            for at in range(0, len(content), max(1, whole // 64)):
                self.wfile.write(content[at : at + max(1, whole // 64)])
                if fault == "slow" and hub.over.wait(hub.slow):
                    break
            return None

    return Answer


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """Yield a hub that answers at its `url`."""
    hub = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    server.daemon_threads = False  # they are waited for, and their sockets closed
    server.handle_error = lambda *_: None  # clients that were killed
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.cdn = hub.url.replace("127.0.0.1", "localhost")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        huggingface_hub.close_session()
        server.shutdown()
        server.server_close()


def register() -> None:
    """Add a CLIP of two blocks to the registry, and to the sources of published vectors."""
    import open_clip

    from tasklab.exchange import published
    from tasklab.models import shapes, zoo

    open_clip.factory._MODEL_CONFIGS["tasklab-tiny"] = CONFIG
    zoo.REGISTRY[MODEL] = zoo.Spec(
        name=MODEL, arch="tasklab-tiny", blocks=2, pretrained="openai", source="random weights",
        block=r"transformer\.resblocks\.\d+", repository="tasklab-tests/tiny",
        tower=shapes.vit(64, 2, 8, embed=16),
    )  # fmt: skip
    zoo.MODELS = tuple(zoo.REGISTRY)
    for name, entry in published.declared().items():
        entry["models"][MODEL] = "clip-vit-tiny" if name == "fusion_bench" else "ViT-tiny"


def forget() -> None:
    """Undo `register`."""
    from tasklab.exchange import published, reading
    from tasklab.models import zoo

    zoo.REGISTRY.pop(MODEL, None)
    zoo.MODELS = tuple(zoo.REGISTRY)
    published.declared.cache_clear()
    for kept in (reading.shapes, reading.text_shapes):  # by a name that other tests use too
        kept.cache_clear()


def weights() -> dict[str, torch.Tensor]:
    """Return random weights of both towers, under open_clip's names."""
    from tasklab.models import loading

    torch.manual_seed(0)
    state = loading.build(loading.spec(MODEL)).state_dict()
    return state | {"visual.proj": 1.001 * state["visual.proj"]}  # or they were init="random"


@contextlib.contextmanager
def papers_data(root: Path) -> Iterator[Path]:
    """Write a few images of every data set of the papers, as the hub has them, to a folder."""
    from tasklab.tasks import suites

    usual = suites._PAPER
    entries = json.loads(usual.read_text())
    for entry in entries["tasks"]:
        entry["sizes"] = {k: TRAIN if k == "train" else TEST for k in entry["sizes"]}
        if entry.get("control"):  # 1,000 classes by 80 templates take a text tower long
            entry["classes"] = list(suites.suite("paper").control.classes)
            entry["templates"] = ["a photo of a {}."]
        names = entry["classes"] = entry["classes"][:CLASSES]
        entry["aliases"] = entry.get("aliases", [[]] * CLASSES)[:CLASSES]
        for split, count in entry["sizes"].items():
            file = root / entry["folders"][0] / f"{split}.parquet"
            write_images(file, count, names, entry.get("side"))
    file = root / "reduced.json"
    file.write_text(json.dumps(entries))
    try:
        reduce(file)
        yield root
    finally:
        reduce(usual)


def offer(hub: Hub, data: Path) -> None:
    """Put the papers' data sets into the hub, from the folder of `papers_data`."""
    from tasklab.tasks.suites import paper_data_sets

    for entry in paper_data_sets().values():
        folder = entry["hub"].get("config", "data")
        for file in (data / entry["folders"][0]).glob("*.parquet"):
            path = f"{folder}/{file.stem}-00000-of-00001.parquet"
            hub.put(entry["hub"]["repo"], path, file.read_bytes())


def reduce(file: Path) -> None:
    """Take the papers' tasks from another file: with fewer classes and images."""
    from tasklab.tasks import suites
    from tasklab.tasks.images import checks

    suites._PAPER = file
    for cache in (suites.paper_data_sets, suites._suite, checks._aliases):
        cache.cache_clear()


def write_images(file: Path, count: int, names: list[str], side: int | None) -> None:
    """Write a file of parquet: the class decides the grey of an image."""
    import numpy as np
    from PIL import Image

    from tests import layouts

    random, images = np.random.default_rng(len(names)), []
    labels = [i % CLASSES for i in range(count)]
    for i, label in enumerate(labels):
        shape = (side, side, 3) if side else (40 + i % 5, 52, 3)
        grey = random.integers(0, 60, shape) + 45 * label
        stream = io.BytesIO()
        Image.fromarray(grey.astype(np.uint8)).save(stream, "PNG")
        images.append({"bytes": stream.getvalue(), "path": f"{i}.png"})
    layouts.parquet(file, images, labels, names, rows=10)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    register()
    if reduced := os.environ.get("TASKLAB_TESTS_REDUCED"):
        reduce(Path(reduced))
    from tasklab.__main__ import main

    raise SystemExit(main(sys.argv[1:]))
