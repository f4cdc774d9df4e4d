"""Images decoded once: a memory-mapped uint8 array with its labels and a manifest.

    FOLDER/x.npy          uint8 (N, 3, H, W)
           y.npy          int64 (N,)
           sizes.npy      int32 (N, 2), width and height before resizing
           rows.npy       int64 (N,), which row of the data each image is
           manifest.json  sizes, class names, origin, checksums

Processes decode a chunk of the data at a time and write each image to its place; what is finished
is written down, so that a decoding that was killed goes on where it was. The folder gets its name
when all of it is there. What cannot be read of it counts as not there, and is decoded again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import PIL

from tasklab.errors import TasklabError
from tasklab.progress import bar
from tasklab.tasks.images import formats, processes
from tasklab.tasks.images.chunks import BAD, JOB, UNREADABLE, BadImagesError, Job, Transform, write

VERSION = 1  # of the arrays: raise it when the same images give other pixels
_ALONE = 512  # images that are not worth a second process
_SAMPLE = 16  # images whose pixels are checked whenever the arrays are opened
PARTIAL = ".partial"  # ends the name of a folder of which not all is there
_MANIFEST, _DONE = "manifest.json", "done.jsonl"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """A decoded split; `x` and `sizes` are memory-mapped, copy on write."""

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    manifest: dict[str, Any]


def opened(folder: Path) -> Arrays | None:
    """Return what was decoded into a folder, or `None` if it is not there, not whole or damaged.

    Of the pixels only a sample is checked, which takes no time; `damaged` checks all.
    """
    if folder.name.endswith(PARTIAL):
        return None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        load = {"mmap_mode": "c", "allow_pickle": False}
        x, sizes = (np.load(folder / f"{name}.npy", **load) for name in ("x", "sizes"))
        y = np.load(folder / "y.npy", allow_pickle=False)
        whole = list(x.shape) == manifest["shape"] and len(y) == len(sizes) == len(x)
        whole = whole and manifest.keys() >= {"chunks", "digest", "job", "written"}
        whole = whole and manifest.get("sample", "") in ("", _sample(x, y, sizes))
    except UNREADABLE:
        return None
    return Arrays(x, y, sizes, manifest) if whole else None


def _sample(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> str:
    """Return a checksum of a few images, and of all labels and sizes."""
    digest = hashlib.sha256(np.ascontiguousarray(y))
    digest.update(np.ascontiguousarray(sizes))
    for row in np.linspace(0, len(x) - 1, min(len(x), _SAMPLE)).astype(int):
        digest.update(np.ascontiguousarray(x[row]))
    return digest.hexdigest()


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
    """Decode rows of a split into a folder, or return what is there.

    Of several processes that ask for the same folder, the first decodes and the others wait.

    Args:
        folder: Where to.
        split: The data, with labels in the order that is wanted.
        rows: (N,) which of its images, in the order in which to keep them.
        transform: What is done to each image.
        note: What else to write into the manifest.
        jobs: Processes; `None` is one a core, and one alone for few images.
        progress: Whether to show a progress bar.
        title: What the bar says.

    Raises:
        BadImagesError: If images cannot be decoded; it names all of them, up to twenty.
        TasklabError: If the disk is too small or cannot be written, or a process ends. What was
            decoded is kept for the next call.
    """
    if found := opened(folder):
        return found
    work = _work(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, title):
            if found := opened(folder):
                return found
            shutil.rmtree(folder, ignore_errors=True)  # it is damaged, or it would be returned
            _prepare(folder, split, rows, transform)
            hashes, seconds = _run(work, len(rows), jobs, progress, title)
            _finish(work, folder, split, rows, transform, hashes, seconds, dict(note or {}))
    except OSError as error:
        raise TasklabError(
            f"cannot write decoded images to {folder.parent}: {error.strerror or error}. Choose "
            "another folder with TASKLAB_DATA, or free some space."
        ) from error
    if (found := opened(folder)) is None:
        raise TasklabError(f"{folder} was damaged while it was written.")
    return found


def damaged(folder: Path) -> list[int]:
    """Return the numbers of the chunks whose pixels are not those that were decoded.

    Raises:
        TasklabError: If `opened` returns nothing.
    """
    if (found := opened(folder)) is None:
        raise TasklabError(f"{folder} holds no decoded images that can be read.")
    with Job(folder, found.manifest["job"]) as job:
        return [int(n) for n, sha in found.manifest["chunks"].items() if job.digest(int(n)) != sha]


def needed(folder: Path, images: int, transform: Transform) -> int:
    """Return how many more bytes the decoded images will take, `0` if they are there."""
    if opened(folder):
        return 0
    taken = 0
    with contextlib.suppress(OSError):  # begun before; a file has holes where nothing is yet
        taken = getattr((_work(folder) / "x.npy").stat(), "st_blocks", 0) * 512
    return max(0, images * 3 * transform.side**2 - taken)


def check_space(folder: Path, needed: int) -> None:
    """Raise a `TasklabError` if that many bytes do not fit on the disk of a folder."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    free = shutil.disk_usage(there).free
    if needed > free:
        raise TasklabError(
            f"{needed / 1e9:.1f} GB are needed in {folder} and {free / 1e9:.1f} GB are free. "
            "Choose another folder with TASKLAB_DATA."
        )


def _work(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{PARTIAL}")


@contextlib.contextmanager
def _alone(folder: Path, title: str) -> Iterator[None]:
    """Hold the lock of a folder, and say so if another process has it for long."""
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=1)
    except filelock.Timeout:
        _log.warning("%s: waiting for another process that decodes the same images", title)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _prepare(folder: Path, split: formats.Split, rows: np.ndarray, transform: Transform) -> None:
    """Make the files to write into, unless the same job was begun before and they are whole."""
    job = {
        "version": VERSION,
        "transform": dataclasses.asdict(transform),
        "data": split.description(),
        "rows": hashlib.sha256(np.ascontiguousarray(rows)).hexdigest(),
        "stamp": split.stamp(),
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
    write(work / JOB, json.dumps(job))  # last: it says that the others are there


def _run(
    work: Path, images: int, jobs: int | None, progress: bool, title: str
) -> tuple[dict[int, str], float]:
    """Decode every chunk that is not done yet; return the checksums of all, and the seconds."""
    began, bad = time.perf_counter(), []
    with Job(work) as job:
        counts = {chunk: len(job.wanted(chunk)) for chunk in job.chunks()}
        done, before = _resume(work, job, counts)
        left = [chunk for chunk in counts if chunk not in done]
        if jobs is None:
            jobs = min(_cores(), -(-images // _ALONE))
        jobs = max(1, min(jobs, len(left)))
        answers = processes.answers(job, left) if jobs == 1 else processes.spread(work, left, jobs)
        already = sum(counts[chunk] for chunk in done)
        with (
            contextlib.closing(answers),
            bar(images, title, done=already, unit="image", on=progress) as shown,
            (work / _DONE).open("a", encoding="utf-8") as log,
        ):
            for answer in answers:
                if "errno" in answer:
                    raise OSError(answer["errno"], answer["error"])
                if "error" in answer:
                    raise TasklabError(answer["error"])
                bad += answer.get("bad", [])
                if len(bad) >= BAD:
                    break
                if "sha256" in answer:
                    seconds = before + time.perf_counter() - began
                    done[answer["chunk"]] = answer["sha256"]
                    log.write(json.dumps({**answer, "seconds": seconds}) + "\n")
                    log.flush()
                shown.update(counts[answer["chunk"]])
    if bad:
        more = ["There may be more: this many are enough to stop."] if len(bad) >= BAD else []
        raise BadImagesError([*dict.fromkeys(bad), *more])
    return done, before + time.perf_counter() - began


def _resume(work: Path, job: Job, counts: Mapping[int, int]) -> tuple[dict[int, str], float]:
    """Return the chunks that an earlier call finished, if their pixels are still there."""
    done, seconds = {}, 0.0
    if (work / _DONE).is_file():
        for line in (work / _DONE).read_text("utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # half a line, or damaged
                entry = json.loads(line)
                chunk, seconds = entry["chunk"], float(entry["seconds"])
                if chunk in counts and job.digest(chunk) == entry["sha256"]:
                    done[chunk] = entry["sha256"]
    return done, seconds


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


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
    """Write the manifest and give the folder its name."""
    y, side = split.labels[rows], transform.side
    order = [hashes[chunk] for chunk in sorted(hashes)]
    what = [VERSION, dataclasses.asdict(transform), rows.tolist(), y.tolist(), order]
    manifest = {
        "version": VERSION,
        "images": len(rows),
        "shape": [len(rows), 3, side, side],
        "transform": dataclasses.asdict(transform),
        "digest": hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        "chunks": {str(chunk): hashes[chunk] for chunk in sorted(hashes)},
        "job": {"data": split.description(), "transform": dataclasses.asdict(transform)},
        "seconds": round(seconds, 2),
        "pillow": PIL.__version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "sample": _sample(
            *(np.load(work / f"{k}.npy", mmap_mode="r") for k in ("x", "y", "sizes"))
        ),
        **note,
    }
    for name in ("x.npy", "sizes.npy", "y.npy", "rows.npy"):
        with (work / name).open("rb") as file:
            os.fsync(file.fileno())
    write(work / _MANIFEST, json.dumps(manifest, indent=1))
    for name in (_DONE, JOB):
        (work / name).unlink()
    work.rename(folder)
