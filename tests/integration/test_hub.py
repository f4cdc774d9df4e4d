"""A hostile mirror of the hub writes nothing outside of the cache."""

import http.server
import json
import threading

import huggingface_hub
import pytest
from huggingface_hub.utils import _http

from tasklab.errors import TasklabError
from tasklab.storage import hub
from tests.helpers import refuses

COMMIT, SHA256 = "1" * 40, "2" * 64
OUT = "../../../../out"


@pytest.fixture
def mirror():
    headers = {"ETag": f'"{SHA256}"', "X-Repo-Commit": COMMIT}
    lists: dict[str, object] = {}
    status = {"file": 200}

    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):  # noqa: N802
            content = b"weights"
            code = status["file"]
            if "/api/" in self.path:
                code, content = 200, json.dumps(lists[self.path.split("?")[0]]).encode()
            self.send_response(code)
            for name, value in headers.items() if "/api/" not in self.path else ():
                self.send_header(name, value)
            if code == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", headers, lists, status
        server.shutdown()


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    before = _http._GLOBAL_CLIENT_FACTORY
    hub.guard.cache_clear()
    hub.guard()
    yield
    huggingface_hub.set_client_factory(before)
    hub.guard.cache_clear()


def files(folder):
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


def download(address, tmp_path):
    cache = tmp_path / "a" / "cache"
    return huggingface_hub.hf_hub_download("o/n", "m.bin", endpoint=address, cache_dir=cache)


def test_an_honest_mirror_is_read(mirror, tmp_path):
    address, headers, _, _ = mirror
    for etag in (f'"{SHA256}"', f'W/"{SHA256}"', '"5d41402abc4b2a76b9719d911017c592-12"'):
        headers["ETag"] = etag
        with open(download(address, tmp_path), "rb") as stream:
            assert stream.read() == b"weights"
    assert files(tmp_path) == {"a", *(name for name in files(tmp_path) if name.startswith("a/"))}


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
@pytest.mark.parametrize("value", [OUT, "/{}/out", "..", "a/../../x", ".hidden", "", "a\\..\\b"])
def test_a_header_names_no_file_outside(mirror, tmp_path, header, value, status):
    address, headers, _, state = mirror
    headers[header], state["file"] = value.format(tmp_path), status
    refuses(rf"answers with a {header} that names no file", download, address, tmp_path)
    assert files(tmp_path) <= {"a", "a/cache"}


@pytest.mark.parametrize("field", ["sha", "oid"])
def test_a_list_of_files_names_none_outside(mirror, tmp_path, field):
    address, _, lists, _ = mirror
    told = {"sha": COMMIT, "oid": SHA256, field: OUT}
    lists["/api/models/o/n/revision/main"] = {
        "id": "o/n", "sha": told["sha"], "siblings": [{"rfilename": "m.bin"}],
    }  # fmt: skip
    lists[f"/api/models/o/n/tree/{told['sha']}"] = lists[f"/api/models/o/n/tree/{COMMIT}"] = [
        {"type": "file", "path": "m.bin", "size": 7, "oid": COMMIT, "xetHash": SHA256,
         "lfs": {"oid": told["oid"], "size": 7, "pointerSize": 100}},
    ]  # fmt: skip
    with pytest.raises(TasklabError, match=rf"answers with a {field} that names no file"):
        huggingface_hub.snapshot_download("o/n", endpoint=address, cache_dir=tmp_path / "a" / "c")
    assert not any(name.startswith("out") for name in files(tmp_path))


def test_a_new_connection_is_guarded_too(mirror, tmp_path):
    address, headers, _, _ = mirror
    _http.close_session()
    headers["ETag"] = OUT
    refuses("ETag", download, address, tmp_path)
