"""Decode images: what is done to one, the files it is written to, and the processes that do it.

A process decodes a chunk of the data at a time, and holds a few encoded images and one decoded one.
MNIST's and SVHN's own files are held whole by each process: 47 MB and 217 MB.

Processes are commands of their own that read the number of a chunk and answer with its checksum:
forks do not go with the threads of torch, and `multiprocessing` would run the user's script again.
Ctrl-C is for the process that started them; when it ends, so do they. Nothing here needs torch.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

import numpy as np
from PIL import Image

import tasklab
from tasklab.errors import TasklabError
from tasklab.tasks.images import formats

JOB = "job.json"
BAD = 20  # images that cannot be decoded: then no more are looked for
# what a damaged file raises
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError)
Answer = dict[str, Any]  # `chunk` and `sha256` or `bad`; or `error`, with `errno` if it has one
_PATIENCE = 10  # seconds that a process which answers no more may take to end
_LONG = 16  # sides that an image is long, from which on it is a strip


class BadImagesError(TasklabError):
    """Images that cannot be decoded, one line each.

    Attributes:
        lines: Their messages.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclasses.dataclass(frozen=True)
class Transform:
    """What is done to an image before it is kept."""

    #: `"centre"`: the shorter side is resized to `side` (bicubic) and the centre cut out,
    #: open_clip's transform for evaluation, bit for bit; of a strip, more than 16 times as long as
    #: wide, only the centre is resized, which differs by the rounding between two passes;
    #: `"whole"`: the whole image is resized to a square, for crops to be drawn from; `"native"`:
    #: all images are squares of `side` already.
    kind: str
    side: int  #: Height and width of what is kept

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Return uint8 (3, side, side) of an RGB image."""
        side, (width, height) = self.side, image.size
        if self.kind == "whole":
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        elif self.kind == "centre":
            image = self._centre(image)
        elif (width, height) != (side, side):
            raise TasklabError(f"an image is {width} x {height}; all should be {side} x {side}.")
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    def _centre(self, image: Image.Image) -> Image.Image:
        side, (width, height) = self.side, image.size
        short = min(width, height)
        size = int(side * width / short), int(side * height / short)
        left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
        edges = left, top, left + side, top + side
        if max(size) > _LONG * side:  # all of it resized could be larger than the memory
            scale = (width / size[0], height / size[1]) * 2
            box = tuple(edge * by for edge, by in zip(edges, scale, strict=True))
            return image.resize((side, side), Image.Resampling.BICUBIC, box)
        if image.size != size:
            image = image.resize(size, Image.Resampling.BICUBIC)
        return image.crop(edges)


class Job:
    """The files of one decoding."""

    def __init__(self, work: Path) -> None:
        job = json.loads((work / JOB).read_text("utf-8"))
        self.data, self.transform = job["data"], Transform(**job["transform"])
        self.rows = np.load(work / "rows.npy", allow_pickle=False)
        self.position = np.full(self.data["bounds"][-1], -1)
        self.position[self.rows] = np.arange(len(self.rows))
        self.files: dict[str, BinaryIO] = {}
        self.starts: dict[str, int] = {}
        for name in ("x", "sizes"):
            mapped = np.load(work / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            self.starts[name] = mapped.offset
            self.files[name] = (work / f"{name}.npy").open("r+b", buffering=0)

    def __enter__(self) -> Job:
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
        """Write the images of a chunk to their places and return the checksum of their pixels.

        Raises:
            BadImagesError: If some cannot be decoded; they are named, and the others written.
            OSError: If they cannot be written.
        """
        digest, bad = hashlib.sha256(), list[str]()
        left = collections.deque(self.wanted(chunk))
        images = formats.read(self.data, chunk, set(left))
        while left and len(bad) < BAD:
            row = left.popleft()
            try:
                pixels, size = self._next(images, row)
            except TasklabError as error:
                if str(error) in bad:  # it is not about an image
                    break
                bad.append(str(error))
                images = formats.read(self.data, chunk, set(left))
                continue
            place = int(self.position[row])
            self._write("x", place * pixels.nbytes, pixels)
            self._write("sizes", place * 8, np.array(size, dtype=np.int32))
            digest.update(pixels)
        if bad:
            raise BadImagesError(bad)
        return digest.hexdigest()

    def _next(
        self, images: Iterator[tuple[int, Image.Image]], row: int
    ) -> tuple[np.ndarray, tuple[int, int]]:
        where = formats.location(self.data, row)
        try:
            _, image = next(images)
        except TasklabError:
            raise  # it says where
        except MemoryError as error:
            raise TasklabError(
                f"{where}: there is too little memory to decode it. Decode with fewer processes "
                "(tasklab decode, --jobs)."
            ) from error
        except Exception as error:  # readers of images and of parquet files raise what they like
            raise TasklabError(
                f"{where} cannot be read ({type(error).__name__}: {error})."
            ) from error
        try:
            return self.transform(image), image.size
        except (TasklabError, MemoryError, ValueError) as error:
            raise TasklabError(f"{where}: {error or type(error).__name__}") from error

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


def answers(job: Job, chunks: Iterable[int]) -> Generator[Answer]:
    """Decode one chunk after the other in this process, and yield how it went."""
    for chunk in chunks:
        try:
            yield {"chunk": chunk, "sha256": job.decode(chunk)}
        except BadImagesError as error:
            yield {"chunk": chunk, "bad": list(error.lines)}
        except OSError as error:
            yield {"errno": error.errno, "error": error.strerror or str(error)}


def spread(work: Path, chunks: Sequence[int], jobs: int) -> Generator[Answer]:
    """Decode chunks in processes of their own; yield each answer as it comes."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for chunk in chunks:
        todo.put(chunk)
    coming: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    command = [sys.executable, "-m", __name__, str(work)]
    home = str(Path(tasklab.__file__).resolve().parents[1])  # wherever the user's script runs
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
                    start_new_session=True,  # the terminal's Ctrl-C is not for them
                )
            )
            stack.callback(_end, process)  # runs before Popen waits for it
            threading.Thread(target=_feed, args=(process, todo, coming), daemon=True).start()
        for _ in chunks:
            yield coming.get()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    with contextlib.suppress(OSError):  # a number that it never read
        _pipes(process)[0].close()


def _pipes(process: subprocess.Popen) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise ValueError("a process without pipes")
    return process.stdin, process.stdout


def _feed(process: subprocess.Popen, todo: queue.SimpleQueue, coming: queue.SimpleQueue) -> None:
    while True:
        try:
            chunk = todo.get_nowait()
        except queue.Empty:
            return
        try:
            asked, answered = _pipes(process)
            print(chunk, file=asked, flush=True)
            coming.put(json.loads(answered.readline()))
        except (OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            coming.put({"error": _ended(process.returncode)})
            return


def _ended(code: int | None) -> str:
    how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    memory = ", and if memory was short, with fewer jobs" if code == -9 else ""
    kept = "What is decoded is kept: start again"
    return f"a process that decodes images ended ({how}). {kept}{memory}."


def _serve(work: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, todo), daemon=True).start()
    try:
        with Job(work) as job:
            for answer in answers(job, iter(todo.get, None)):
                print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        pass
    except Exception as error:
        message = f"a process that decodes images failed ({type(error).__name__}: {error})."
        print(json.dumps({"error": message}), flush=True)
    os._exit(1)  # without a last word to a pipe that nobody reads


def _listen(lines: TextIO, todo: queue.SimpleQueue) -> None:
    for line in lines:
        todo.put(int(line))
    os._exit(0)  # whoever asked has ended


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
