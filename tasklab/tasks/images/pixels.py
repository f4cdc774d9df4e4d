"""Images decoded once: a memory-mapped uint8 array with its labels and a manifest.

    FOLDER/x.npy          uint8 (N, 3, H, W)
           y.npy          int64 (N,)
           sizes.npy      int32 (N, 2), width and height before resizing
           rows.npy       int64 (N,), which row of the data each image is
           manifest.json  sizes, class names, origin, checksums: of itself, of the labels, and of
                          the pixels of every `BLOCK` images

Threads write each image to its place; what is finished is written down, so that a decoding that
was killed goes on where it was. The folder gets its name when all of it is there. Pixels are
compared with their checksums once a process, a block at a time, before they are used.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import logging
import math
import operator
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.progress import bar
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256, state
from tasklab.tasks.images import decoding, formats
from tasklab.tasks.images.decoding import BAD, JOB, UNREADABLE, BadImagesError, Job, Transform

VERSION = 1  # of the arrays: raise it when the same images give other pixels
_ALONE = 512  # images that are not worth a second thread
BLOCK = 256  # images that have a checksum together
PARTIAL = ".partial"  # ends the name of a folder of which not all is there
_MANIFEST, _DONE = "manifest.json", "done.jsonl"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """A decoded split; `x` is memory-mapped, copy on write."""

    x: np.ndarray  #: uint8 (N, 3, H, W)
    y: np.ndarray  #: int64 (N,), the labels
    sizes: np.ndarray  #: int32 (N, 2), width and height before resizing
    manifest: dict[str, Any]  #: What is known of them
    folder: Path

    def damaged(self, count: int | None = None) -> list[int]:
        """Return the numbers of the blocks whose pixels are not those that were decoded."""
        sound = _SOUND.setdefault((self.folder, *state(self.folder / "x.npy")), set())
        left = set(range(-(-(len(self.x) if count is None else count) // BLOCK))) - sound
        with concurrent.futures.ThreadPoolExecutor() as pool:  # hashing lets other threads run
            hashes = pool.map(lambda n: _block_sha256(self.x, n), sorted(left))
            same = map(operator.eq, hashes, (self.manifest["blocks"][n] for n in sorted(left)))
            sound |= {n for n, whole in zip(sorted(left), same, strict=True) if whole}
        return sorted(left - sound)


_SOUND: dict[tuple, set[int]] = {}  # blocks that were compared in this process, of a file's state


def opened(folder: Path) -> Arrays | None:
    """Return the arrays decoded into a folder; `None` if not there, not whole or damaged.

    Labels and sizes are compared with their checksum; pixels are by `Arrays.damaged`.
    """
    if folder.name.endswith(PARTIAL):
        return None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        x = np.load(folder / "x.npy", mmap_mode="c", allow_pickle=False)
        y, sizes = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("y", "sizes"))
        whole = (
            manifest["folder"] == folder.name  # not another one's contents
            and manifest.pop("sha256") == _sha256(json.dumps(manifest).encode())
            and [*x.shape] == manifest["shape"]
            and x.dtype == np.uint8
            and (folder / "x.npy").stat().st_size == x.offset + x.nbytes
            and manifest["labels"] == _labels_sha256(y, sizes)
        )
    except Exception:  # what is damaged raises nearly everything
        return None
    return Arrays(x, y, sizes, manifest, folder) if whole else None


def discard(arrays: Arrays) -> None:
    """Mark decoded images as damaged, so that they are decoded again."""
    with contextlib.suppress(OSError):
        (arrays.folder / _MANIFEST).rename(arrays.folder / f"{_MANIFEST}.damaged")


def _sha256(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _block_sha256(x: np.ndarray, number: int) -> str:
    return _sha256(np.ascontiguousarray(x[number * BLOCK : (number + 1) * BLOCK]).data)


def _labels_sha256(y: np.ndarray, sizes: np.ndarray) -> str:
    shapes = f"{y.dtype} {y.shape} {sizes.dtype} {sizes.shape}"
    return _sha256(shapes.encode(), *(np.ascontiguousarray(part).data for part in (y, sizes)))


def contents(files: Sequence[str], memory: Path) -> list[str]:
    """Return the SHA-256 of files, reading those that changed since they were last read.

    Args:
        memory: File of what was found before; a file of the same size, place and times is the same.

    Raises:
        OSError: If a file cannot be read.
    """
    try:
        kept = {k: v for k, v in json.loads(memory.read_text("utf-8")).items() if len(v) == 6}
    except UNREADABLE:
        kept = {}
    states = {file: [*state(Path(file))] for file in files}
    changed = [file for file in states if kept.get(file, [])[:-1] != states[file]]
    if changed:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            hashes = pool.map(file_sha256, map(Path, changed))
            kept |= {file: [*states[file], sha] for file, sha in zip(changed, hashes, strict=True)}
        with contextlib.suppress(OSError):  # then they are read again the next time
            memory.parent.mkdir(parents=True, exist_ok=True)
            for draft in atomic.abandoned(memory.parent):
                atomic.remove(draft)
            atomic.write(memory, json.dumps(kept))
    return [kept[file][-1] for file in files]


def decode(
    folder: Path,
    split: formats.Split,
    rows: np.ndarray,
    transform: Transform,
    *,
    note: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool = True,
    title: str = "decode",
) -> Arrays:
    """Decode rows of a split into a folder, with a `note` in its manifest, or return what is there.

    Of several processes that ask for the same folder, the first decodes and the others wait.

    Args:
        rows: (N,) which of its images, in the order in which to keep them.
        jobs: Threads; `None` is one a core, and one alone for few images.

    Raises:
        BadImagesError: If images cannot be decoded; it names all of them, up to twenty.
        TasklabError: If the disk is too small or cannot be written. What was decoded
            is kept for the next call.
    """
    if arrays := opened(folder):
        return arrays
    work = _work(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        what = "%s: waiting for another process that decodes the same images"
        waiting = functools.partial(_log.warning, what, title)
        with atomic.alone(folder.with_name(f"{folder.name}.lock"), waiting):
            if arrays := opened(folder):
                return arrays
            shutil.rmtree(folder, ignore_errors=True)  # it is damaged, or it would be returned
            _prepare(folder, split, rows, transform)
            hashes, seconds = _run(work, len(rows), jobs, progress, title)
            _finish(work, folder, split, rows, transform, hashes, seconds, dict(note or {}))
    except OSError as error:
        raise TasklabError(
            f"cannot write decoded images to {folder.parent}: {error.strerror or error}. Choose "
            "another folder with TASKLAB_DATA, or free some space."
        ) from error
    if (arrays := opened(folder)) is None:
        raise TasklabError(f"{folder} was damaged while it was written.")
    return arrays


def needed(folder: Path, images: int, transform: Transform) -> int:
    """Return the further bytes that decoded images will take, `0` if they are there."""
    if opened(folder):
        return 0
    taken = 0
    with contextlib.suppress(OSError):  # begun before; a file has holes where nothing is yet
        taken = getattr((_work(folder) / "x.npy").stat(), "st_blocks", 0) * 512
    return max(0, images * 3 * transform.side**2 - taken)


def check_space(folder: Path, needed: int) -> None:
    """Raise a `TasklabError` if that many bytes do not fit on the disk of a folder."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if needed > (free := shutil.disk_usage(there).free):
        raise TasklabError(
            f"{needed / 1e9:.1f} GB are needed in {folder} and {free / 1e9:.1f} GB are free. "
            "Choose another folder with TASKLAB_DATA."
        )


def _work(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{PARTIAL}")


def _prepare(folder: Path, split: formats.Split, rows: np.ndarray, transform: Transform) -> None:
    job = {
        "version": VERSION,
        "transform": dataclasses.asdict(transform),
        "data": split.description(),
        "rows": _sha256(np.ascontiguousarray(rows).data),
    }
    work, side = _work(folder), transform.side
    labels = split.labels[rows].astype(np.int64)
    arrays = {"x": ((len(rows), 3, side, side), np.uint8), "sizes": ((len(rows), 2), np.int32)}
    try:
        load = {"mmap_mode": "r", "allow_pickle": False}
        begun = (
            json.loads((work / JOB).read_text("utf-8")) == json.loads(json.dumps(job))
            and all(np.load(work / f"{k}.npy", **load).shape == v[0] for k, v in arrays.items())
            and np.array_equal(np.load(work / "rows.npy", allow_pickle=False), rows)
            and np.array_equal(np.load(work / "y.npy", allow_pickle=False), labels)
        )
    except UNREADABLE:
        begun = False
    if begun:
        return
    shutil.rmtree(work, ignore_errors=True)
    check_space(folder.parent, needed(folder, len(rows), transform))
    work.mkdir()
    for name, (shape, dtype) in arrays.items():
        np.lib.format.open_memmap(work / f"{name}.npy", "w+", dtype, shape).flush()
    np.save(work / "rows.npy", rows.astype(np.int64))
    np.save(work / "y.npy", labels)
    atomic.write(work / JOB, json.dumps(job))  # last: it says that the others are there


def _run(
    work: Path, images: int, jobs: int | None, progress: bool, title: str
) -> tuple[dict[int, str], float]:
    began, bad = time.perf_counter(), []
    with Job(work) as job:
        counts = {chunk: len(job.wanted(chunk)) for chunk in job.chunks()}
        done, before = _resume(work, job, counts)
        left = [chunk for chunk in counts if chunk not in done]
        if jobs is None:
            jobs = min(math.ceil(machine.cores()), -(-images // _ALONE))
        jobs = max(1, min(jobs, len(left)))
        finished = decoding.decoded(job, left, jobs)
        already = sum(counts[chunk] for chunk in done)
        with (
            contextlib.closing(finished),
            bar(images, title, done=already, unit="image", on=progress) as shown,
            (work / _DONE).open("a", encoding="utf-8") as log,
        ):
            for chunk, sha256, lines in finished:
                bad += lines
                if len(bad) >= BAD:
                    break
                if sha256:
                    done[chunk], seconds = sha256, before + time.perf_counter() - began
                    note = {"chunk": chunk, "sha256": sha256, "seconds": seconds}
                    log.write(json.dumps(note) + "\n")
                    log.flush()
                shown.update(counts[chunk])
    if bad:
        more = ["There may be more: this many are enough to stop."] if len(bad) >= BAD else []
        raise BadImagesError([*dict.fromkeys(bad), *more])
    return done, before + time.perf_counter() - began


def _resume(work: Path, job: Job, counts: Mapping[int, int]) -> tuple[dict[int, str], float]:
    done, seconds = {}, 0.0
    if (work / _DONE).is_file():
        for line in (work / _DONE).read_text("utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # half a line, or damaged
                entry = json.loads(line)
                chunk, seconds = entry["chunk"], float(entry["seconds"])
                if chunk in counts and job.digest(chunk) == entry["sha256"]:
                    done[chunk] = entry["sha256"]
    return done, seconds


def _finish(
    work: Path,
    folder: Path,
    split: formats.Split,
    rows: np.ndarray,
    transform: Transform,
    hashes: Mapping[int, str],
    seconds: float,
    note: dict[str, Any],
) -> None:
    y, side = split.labels[rows].astype(np.int64), transform.side
    x = np.load(work / "x.npy", mmap_mode="r")
    order = [hashes[chunk] for chunk in sorted(hashes)]
    what = [VERSION, dataclasses.asdict(transform), rows.tolist(), y.tolist(), order]
    manifest = {
        "folder": folder.name,
        "version": VERSION,
        "images": len(rows),
        "shape": [len(rows), 3, side, side],
        "transform": dataclasses.asdict(transform),
        "digest": _sha256(json.dumps(what).encode()),
        "seconds": round(seconds, 2),
        "pillow": PIL.__version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "blocks": [_block_sha256(x, n) for n in range(-(-len(rows) // BLOCK))],
        "labels": _labels_sha256(y, np.load(work / "sizes.npy")),
        **note,
    }
    manifest = json.loads(json.dumps(manifest))
    manifest["sha256"] = _sha256(json.dumps(manifest).encode())
    atomic.write(work / _MANIFEST, json.dumps(manifest, indent=1))
    for name in (_DONE, JOB):
        (work / name).unlink()
    atomic.publish(work, folder)
