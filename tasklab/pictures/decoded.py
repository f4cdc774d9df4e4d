"""Images decoded once: a memory-mapped uint8 array with its labels and a manifest.

    FOLDER/x.npy          uint8 (N, 3, H, W)
           y.npy          int64 (N,)
           sizes.npy      int32 (N, 2), width and height before resizing
           rows.npy       int64 (N,), which row of the data each image is
           manifest.json  sizes, class names, origin, checksums

Processes decode a chunk of the data at a time and write each image to its place; what is finished
is written down, so that a decoding that was killed goes on where it was. The folder gets its name
when all of it is there. A process holds a few encoded images and one decoded one, whatever the size
of the data. Nothing here needs torch, so that the processes start in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import PIL
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.pictures import formats
from tasklab.progress import bar

VERSION = 1  # of the arrays: raise it when the same images give other pixels
KINDS = ("centre", "whole", "native")
_ALONE = 512  # images that are not worth a second process
_MANIFEST, _DONE, _JOB = "manifest.json", "done.jsonl", "job.json"


@dataclasses.dataclass(frozen=True)
class Transform:
    """What is done to an image before it is kept.

    Attributes:
        kind: `"centre"`: the shorter side is resized to `side` (bicubic) and the centre cut out,
            open_clip's transform for evaluation, bit for bit; `"whole"`: the whole image is resized
            to a square, for crops to be drawn from; `"native"`: all images are squares of `side`
            already.
        side: Height and width of what is kept.
    """

    kind: str
    side: int

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Return uint8 (3, side, side) of an RGB image.

        Raises:
            TasklabError: If the image is not of the size that `"native"` asks for.
        """
        side, (width, height) = self.side, image.size
        if self.kind == "whole":
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        elif self.kind == "centre":
            short = min(width, height)
            size = int(side * width / short), int(side * height / short)
            if image.size != size:
                image = image.resize(size, Image.Resampling.BICUBIC)
            left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
            image = image.crop((left, top, left + side, top + side))
        elif (width, height) != (side, side):
            raise TasklabError(f"an image is {width} x {height}; all should be {side} x {side}.")
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """A decoded split; `x` and `sizes` are memory-mapped, copy on write."""

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    manifest: dict[str, Any]


def opened(folder: Path) -> Arrays | None:
    """Return what was decoded into a folder, or `None` if nothing or not all of it is there."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        load = {"mmap_mode": "c", "allow_pickle": False}
        x, sizes = (np.load(folder / f"{name}.npy", **load) for name in ("x", "sizes"))
        y = np.load(folder / "y.npy", allow_pickle=False)
    except (OSError, ValueError):
        return None
    whole = list(x.shape) == manifest["shape"] and len(y) == len(sizes) == len(x)
    return Arrays(x, y, sizes, manifest) if whole else None


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
        TasklabError: If an image cannot be decoded, the disk is too small or cannot be written, or
            a process ends. What was decoded is kept for the next call.
    """
    if found := opened(folder):
        return found
    work = folder.with_name(f"{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(f"{folder.name}.lock")):
            if found := opened(folder):
                return found
            shutil.rmtree(folder, ignore_errors=True)  # it is damaged, or it would be returned
            _prepare(work, split, rows, transform)
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
    """Return the numbers of the chunks whose pixels are not those that were decoded."""
    manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
    with _Job(folder, manifest["job"]) as job:
        return [int(n) for n, sha in manifest["chunks"].items() if job.digest(int(n)) != sha]


def _prepare(work: Path, split: formats.Split, rows: np.ndarray, transform: Transform) -> None:
    """Make the files to write into, unless the same job was begun before."""
    job = {
        "version": VERSION,
        "transform": dataclasses.asdict(transform),
        "data": split.description(),
        "rows": hashlib.sha256(np.ascontiguousarray(rows)).hexdigest(),
        "stamp": split.stamp(),
    }
    side = transform.side
    if (work / _JOB).is_file():
        if json.loads((work / _JOB).read_text("utf-8")) == json.loads(json.dumps(job)):
            return
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    needed, free = len(rows) * 3 * side * side, shutil.disk_usage(work).free
    if needed > free:
        raise TasklabError(
            f"{needed / 1e9:.1f} GB are needed in {work.parent} and {free / 1e9:.1f} GB are free. "
            "Choose another folder with TASKLAB_DATA."
        )
    arrays = {"x": ((len(rows), 3, side, side), np.uint8), "sizes": ((len(rows), 2), np.int32)}
    for name, (shape, dtype) in arrays.items():
        np.lib.format.open_memmap(work / f"{name}.npy", "w+", dtype, shape).flush()
    np.save(work / "rows.npy", rows.astype(np.int64))
    np.save(work / "y.npy", split.labels[rows].astype(np.int64))
    (work / _JOB).write_text(json.dumps(job), "utf-8")  # last: it says that the others are there


class _Job:
    """The files of one decoding, as a process sees them."""

    def __init__(self, work: Path, job: Mapping[str, Any] | None = None) -> None:
        job = job or json.loads((work / _JOB).read_text("utf-8"))
        self.data, self.transform = job["data"], Transform(**job["transform"])
        self.rows = np.load(work / "rows.npy", allow_pickle=False)
        self.position = np.full(self.data["bounds"][-1], -1)
        self.position[self.rows] = np.arange(len(self.rows))
        self.files: dict[str, BinaryIO] = {}
        self.starts: dict[str, int] = {}
        for name in ("x", "sizes"):
            mapped = np.load(work / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            self.starts[name] = mapped.offset
            writable = (work / _JOB).is_file()
            mode = "r+b" if writable else "rb"
            self.files[name] = (work / f"{name}.npy").open(mode, buffering=0)

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()

    def wanted(self, chunk: int) -> list[int]:
        """Return the rows of a chunk that are kept."""
        start, stop = self.data["bounds"][chunk : chunk + 2]
        return (np.flatnonzero(self.position[start:stop] >= 0) + start).tolist()

    def chunks(self) -> list[int]:
        """Return the numbers of the chunks that hold anything."""
        return [n for n in range(len(self.data["bounds"]) - 1) if self.wanted(n)]

    def decode(self, chunk: int) -> str:
        """Write the images of a chunk to their places and return the checksum of their pixels."""
        digest = hashlib.sha256()
        for row, image in formats.read(self.data, chunk, set(self.wanted(chunk))):
            pixels, place = self.transform(image), int(self.position[row])
            self._write("x", place * pixels.nbytes, pixels)
            self._write("sizes", place * 8, np.array(image.size, dtype=np.int32))
            digest.update(pixels)
        return digest.hexdigest()

    def digest(self, chunk: int) -> str:
        """Return the checksum of the pixels that are there."""
        digest, size = hashlib.sha256(), 3 * self.transform.side**2
        for row in self.wanted(chunk):
            digest.update(self._seek("x", int(self.position[row]) * size).read(size))
        return digest.hexdigest()

    def _write(self, name: str, offset: int, values: np.ndarray) -> None:
        file, left = self._seek(name, offset), memoryview(values).cast("B")
        while left:  # a disk that is full may take a part
            left = left[file.write(left) :]

    def _seek(self, name: str, offset: int) -> BinaryIO:
        self.files[name].seek(self.starts[name] + offset)
        return self.files[name]


def _run(
    work: Path, images: int, jobs: int | None, progress: bool, title: str
) -> tuple[dict[int, str], float]:
    """Decode every chunk that is not done yet; return the checksums of all, and the seconds."""
    began = time.perf_counter()
    with _Job(work) as job:
        done, before = _resume(work, job)
        counts = {chunk: len(job.wanted(chunk)) for chunk in job.chunks()}
        left = [chunk for chunk in counts if chunk not in done]
        if jobs is None:
            jobs = min(_cores(), -(-images // _ALONE))
        jobs = max(1, min(jobs, len(left)))
        with (
            bar(
                images, title, done=sum(counts[c] for c in done), unit="image", on=progress
            ) as shown,
            (work / _DONE).open("a", encoding="utf-8") as log,
        ):

            def finished(chunk: int, sha: str) -> None:
                done[chunk] = sha
                seconds = before + time.perf_counter() - began
                log.write(json.dumps({"chunk": chunk, "sha256": sha, "seconds": seconds}) + "\n")
                log.flush()
                shown.update(counts[chunk])

            if jobs == 1:
                for chunk in left:
                    finished(chunk, job.decode(chunk))
            else:
                _spread(work, left, jobs, finished)
    return done, before + time.perf_counter() - began


def _resume(work: Path, job: _Job) -> tuple[dict[int, str], float]:
    """Return the chunks that an earlier call finished, if their pixels are still there."""
    done, seconds = {}, 0.0
    if (work / _DONE).is_file():
        for line in (work / _DONE).read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError):  # the last line may be half a line
                entry = json.loads(line)
                if job.digest(entry["chunk"]) == entry["sha256"]:
                    done[entry["chunk"]] = entry["sha256"]
                seconds = entry["seconds"]
    return done, seconds


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _spread(work: Path, chunks: list[int], jobs: int, finished: Callable[[int, str], None]) -> None:
    """Let processes decode chunks.

    They are commands of their own that read the number of a chunk and answer with its checksum:
    neither forked, which does not go with the threads of torch, nor started by `multiprocessing`,
    which would run the user's script again.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for chunk in chunks:
        todo.put(chunk)
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    command = [sys.executable, "-m", "tasklab.pictures.decoded", str(work)]
    home = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        for _ in range(jobs):
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
            )
            stack.callback(_end, process)  # runs before Popen waits for it
            threading.Thread(target=_feed, args=(process, todo, answers), daemon=True).start()
        for _ in chunks:
            answer = answers.get()
            if "error" in answer:
                raise TasklabError(answer["error"])
            finished(answer["chunk"], answer["sha256"])


def _end(process: subprocess.Popen) -> None:
    process.kill()
    with contextlib.suppress(OSError):  # a number that it never read
        process.stdin.close()


def _feed(process: subprocess.Popen, todo: queue.SimpleQueue, answers: queue.SimpleQueue) -> None:
    """Hand one process a chunk after the other."""
    while True:
        try:
            chunk = todo.get_nowait()
        except queue.Empty:
            return
        try:
            process.stdin.write(f"{chunk}\n")
            process.stdin.flush()
            answers.put(json.loads(process.stdout.readline()))
        except (OSError, ValueError):
            code = process.poll()
            answers.put(
                {
                    "error": f"a process that decodes images ended (exit status {code}). What is "
                    "decoded is kept: start again, and if memory was short, with fewer jobs."
                }
            )
            return


def _answers(work: Path, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    with _Job(work) as job:
        for line in lines:
            try:
                yield {"chunk": int(line), "sha256": job.decode(int(line))}
            except (TasklabError, OSError) as error:
                yield {"error": str(error)}


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
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **note,
    }
    (work / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
    for name in ("x.npy", "sizes.npy", "y.npy", "rows.npy", _MANIFEST):
        with (work / name).open("rb") as file:
            os.fsync(file.fileno())
    for name in (_DONE, _JOB):
        (work / name).unlink()
    work.rename(folder)


if __name__ == "__main__":
    for _answer in _answers(Path(sys.argv[1]), iter(sys.stdin)):
        print(json.dumps(_answer), flush=True)
