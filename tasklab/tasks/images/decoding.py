"""Decode images: what is done to one, the files it is written to, and the threads that do it.

A thread decodes a chunk of the data at a time, and holds a few encoded images and one decoded one.
Pillow lets other threads run while it decodes and resizes, nine tenths of the time of a photograph.
MNIST's and SVHN's own files are held whole: 47 MB and 217 MB. Nothing here needs torch.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.tasks.images import formats

JOB = "job.json"
BAD = 20  # images that cannot be decoded: then no more are looked for
# what a damaged file raises
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError)
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
        self.lock = threading.Lock()  # of the places in the files
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
                f"{where}: there is too little memory to decode it. Decode with fewer threads "
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
        left = memoryview(values).cast("B")
        with self.lock:
            file = self._seek(name, offset)
            while left:  # a disk that is full may take a part
                left = left[file.write(left) :]

    def _seek(self, name: str, offset: int) -> BinaryIO:
        self.files[name].seek(self.starts[name] + offset)
        return self.files[name]


def decoded(job: Job, chunks: Iterable[int], jobs: int) -> Generator[tuple[int, str, list[str]]]:
    """Decode chunks in threads; yield each one's number, checksum and errors once it is done.

    Raises:
        OSError: If images cannot be written.
    """

    def one(chunk: int) -> tuple[int, str, list[str]]:
        try:
            return chunk, job.decode(chunk), []
        except BadImagesError as error:
            return chunk, "", [*error.lines]

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(one, chunk) for chunk in chunks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
