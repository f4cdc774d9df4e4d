"""Decode images: their transform, the files of their pixels, and the threads.

A thread decodes a chunk of the data at a time, and holds a few encoded images and one decoded one.
Pillow lets other threads run while it decodes and resizes, nine tenths of the time of a photograph.
Archives of MNIST's kind are held whole: 47 MB of MNIST, 217 MB of SVHN. Only their reading needs
torch.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.progress import bar
from tasklab.storage import atomic
from tasklab.tasks.images.formats import AS_STORED, LEVEL, Split

_log = logging.getLogger(__name__)
VERSION = 1  # of the pixels: raise it when the same images give others
JOB, DONE = "job.json", "done.jsonl"
_ALONE = 512  # images that are not worth a second thread
BAD = 20  # images that cannot be decoded: then no more are looked for
# what a damaged file raises
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError)
_DIM, _DARK = 1 << 14, 1 << 12  # levels of 16 bits that all images reach, and nearly every one
_LONG = 16  # sides that an image is long, from which on it is a strip


class BadImagesError(TasklabError):
    """Images that cannot be decoded; `lines` has a message for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclasses.dataclass(frozen=True)
class Transform:
    """The transform of an image before it is stored."""

    #: `"centre"`: the shorter side is resized to `shorter` (bicubic) and the centre cut out,
    #: open_clip's transform for evaluation, bit for bit; of a strip, more than 16 times as long as
    #: wide, only the centre is resized, which differs by the rounding between two passes;
    #: `"whole"`: the whole image is resized to a square, for crops to be drawn from; `"native"`:
    #: all images are squares of `side` already.
    kind: str
    side: int  #: Height and width of what is kept
    shorter: int | None = None  #: `None` is `side`
    #: Of a centre, other words of a card: `"bilinear"` for bicubic, `"squash"` where both sides are
    #: resized to `shorter`, or both words.
    resize: str | None = None

    def description(self) -> dict[str, Any]:
        """Return its fields, without those that have no value."""
        return {name: x for name, x in dataclasses.asdict(self).items() if x is not None}

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
        short, shorter = min(width, height), self.shorter or side
        size = int(shorter * width / short), int(shorter * height / short)
        how = Image.Resampling.BICUBIC
        if self.resize and "squash" in self.resize:
            size = shorter, shorter
        if self.resize and "bilinear" in self.resize:
            how = Image.Resampling.BILINEAR
        left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
        edges = left, top, left + side, top + side
        if max(size) > _LONG * side:  # all of it resized could be larger than the memory
            scale = (width / size[0], height / size[1]) * 2
            box = tuple(edge * by for edge, by in zip(edges, scale, strict=True))
            return image.resize((side, side), how, box)
        if image.size != size:
            image = image.resize(size, how)
        return image.crop(edges)


class Job:
    """A decoding under way: images of a split, in files of a folder.

    Args:
        work: The folder.
        split: Images of the data set.
        rows: Indices (N,) of images of the split, in the stored order.
        transform: Of each image.
    """

    def __init__(self, work: Path, split: Split, rows: np.ndarray, transform: Transform) -> None:
        self.work, self.split, self.rows, self.transform = work, split, rows, transform
        self.labels = split.labels[rows].astype(np.int64)
        self.position = np.full(len(split), -1)
        self.position[rows] = np.arange(len(rows))
        self.chunks: dict[int, list[int]] = {}  # number -> the rows that are kept
        for chunk, (start, stop) in enumerate(zip(split.bounds, split.bounds[1:], strict=False)):
            if len(kept := np.flatnonzero(self.position[start:stop] >= 0)):
                self.chunks[chunk] = (kept + start).tolist()
        self.told = set[str]()  # what of images is not read, and a line says so
        self.lock = threading.Lock()  # of the places in the files
        self.files: dict[str, BinaryIO] = {}
        self.starts: dict[str, int] = {}
        count, side = len(rows), transform.side
        self.arrays = {"x": ((count, 3, side, side), np.uint8), "sizes": ((count, 2), np.int32)}

    def __len__(self) -> int:
        return len(self.rows)

    def _note(self) -> dict[str, Any]:
        note = {
            "version": VERSION,
            "transform": self.transform.description(),
            "data": self.split.description(),
            "rows": hashlib.sha256(np.ascontiguousarray(self.rows).data).hexdigest(),
        }
        return json.loads(json.dumps(note))

    def begun(self) -> bool:
        """Return whether files of the same, interrupted decoding exist."""

        def load(name: str, **how: Any) -> np.ndarray:
            return np.load(self.work / f"{name}.npy", allow_pickle=False, **how)

        try:
            return (
                json.loads((self.work / JOB).read_text("utf-8")) == self._note()
                and all(load(k, mmap_mode="r").shape == v[0] for k, v in self.arrays.items())
                and np.array_equal(load("rows"), self.rows)
                and np.array_equal(load("y"), self.labels)
            )
        except UNREADABLE:
            return False

    def begin(self) -> None:
        """Create the folder and its files."""
        self.work.mkdir(exist_ok=True)
        for name, (shape, dtype) in self.arrays.items():
            np.lib.format.open_memmap(self.work / f"{name}.npy", "w+", dtype, shape).flush()
        np.save(self.work / "rows.npy", self.rows.astype(np.int64))
        np.save(self.work / "y.npy", self.labels)
        atomic.write(self.work / JOB, json.dumps(self._note()))  # last: all others are there

    def run(self, jobs: int | None, progress: bool, title: str) -> tuple[list[str], float]:
        """Decode the remaining images, in threads.

        Args:
            jobs: Number of threads; `None` for one per core, fewer for few images.
            progress: Whether to show a bar.
            title: Its name.

        Returns:
            Checksums of the chunks in their order, and the seconds of this and earlier attempts.

        Raises:
            BadImagesError: If images cannot be decoded; the others of their chunks are written.
            OSError: If images cannot be written.
        """
        began, bad = time.perf_counter(), list[str]()
        with contextlib.ExitStack() as stack:
            for name in self.arrays:
                file = self.work / f"{name}.npy"
                self.starts[name] = np.load(file, mmap_mode="r", allow_pickle=False).offset
                self.files[name] = stack.enter_context(file.open("r+b", buffering=0))
            done, before = self._resume()
            left = [chunk for chunk in self.chunks if chunk not in done]
            already = sum(len(self.chunks[chunk]) for chunk in done)
            progress_bar = bar(len(self), title, done=already, unit="image", on=progress)
            shown = stack.enter_context(progress_bar)
            log = stack.enter_context((self.work / DONE).open("a", encoding="utf-8"))
            if jobs is None:
                jobs = min(math.ceil(machine.cores()), -(-len(self) // _ALONE))
            pool = ThreadPoolExecutor(max(1, min(jobs, len(left))))
            stack.callback(pool.shutdown, cancel_futures=True)
            for chunk, future in [(chunk, pool.submit(self.decode, chunk)) for chunk in left]:
                try:
                    done[chunk], seconds = future.result(), before + time.perf_counter() - began
                except BadImagesError as error:
                    bad += error.lines
                    if len(bad) >= BAD:
                        bad.append("There may be more: this many are enough to stop.")
                        break
                else:
                    note = {"chunk": chunk, "sha256": done[chunk], "seconds": seconds}
                    note["sizes"] = self._sizes(chunk)
                    log.write(json.dumps(note) + "\n")
                    log.flush()
                shown.update(len(self.chunks[chunk]))
        if bad:
            raise BadImagesError([*dict.fromkeys(bad)])
        return [done[chunk] for chunk in sorted(done)], before + time.perf_counter() - began

    def _resume(self) -> tuple[dict[int, str], float]:
        """Return the checksums of chunks that were decoded before and are whole, and seconds."""
        done, seconds = {}, 0.0
        if (self.work / DONE).is_file():
            for line in (self.work / DONE).read_text("utf-8", errors="replace").splitlines():
                with contextlib.suppress(
                    ValueError, KeyError, TypeError
                ):  # half a line, or damaged
                    entry = json.loads(line)
                    chunk, seconds = entry["chunk"], float(entry["seconds"])
                    found = chunk in self.chunks and (self._digest(chunk), self._sizes(chunk))
                    if found == (entry["sha256"], entry["sizes"]):
                        done[chunk] = entry["sha256"]
        return done, seconds

    def decode(self, chunk: int) -> str:
        """Write the images of a chunk to their places and return the checksum of their pixels.

        Raises:
            BadImagesError: If some cannot be decoded; they are named, and the others written.
            OSError: If they cannot be written.
        """
        digest, bad = hashlib.sha256(), list[str]()
        levels: dict[int, int] = {}  # row of an image of 16 bits -> its brightest level
        ignored: dict[str, list[int]] = {}  # what of images is not read -> their rows
        left = collections.deque(self.chunks[chunk])
        images = self.split.read(chunk, set(left))
        while left and len(bad) < BAD:
            row = left.popleft()
            try:
                pixels, size, about = self._next(images, row)
            except TasklabError as error:
                if str(error) in bad:  # it is not about an image
                    break
                bad.append(str(error))
                images = self.split.read(chunk, set(left))
                continue
            place = int(self.position[row])
            self._write("x", place * pixels.nbytes, pixels)
            self._write("sizes", place * 8, np.array(size, dtype=np.int32))
            digest.update(pixels)
            levels |= {row: about[LEVEL]} if about.get(LEVEL) else {}
            for what in about.get(AS_STORED, ()):
                ignored.setdefault(what, []).append(row)
        if levels and (top := max(levels.values())) < _DIM:
            few = f"{self.split.location(min(levels))} and all other images of 16 bits near it"
            bad.append(
                f"{few} have levels up to {top:,} of 65,535, as if of {top.bit_length()} bits, and "
                "would be read too dark: save them with 8 bits, or with levels up to 65,535."
            )
        if bad:
            raise BadImagesError(bad)
        if dark := [row for row, level in levels.items() if level < _DARK]:
            _log.warning(
                "%s: its 16 bits have levels below %d alone, so that it is read nearly black (and "
                "so are %d others): is it of 12 bits?",
                self.split.location(dark[0]), _DARK, len(dark) - 1,
            )  # fmt: skip
        for what in ignored.keys() - self.told:
            self.told.add(what)
            _log.warning(
                "%s has %s, as by torchvision's ImageFolder; so have %d of %d others. Convert them "
                "if the model was fine-tuned on what viewers show.",
                self.split.location(ignored[what][0]), what, len(ignored[what]) - 1,
                len(self.chunks[chunk]) - 1,
            )  # fmt: skip
        return digest.hexdigest()

    def _next(
        self, images: Iterator[tuple[int, Image.Image]], row: int
    ) -> tuple[np.ndarray, tuple[int, int], dict[str, Any]]:
        where = self.split.location(row)
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
            return self.transform(image), image.size, dict(image.info)
        except (TasklabError, MemoryError, ValueError) as error:
            raise TasklabError(f"{where}: {error or type(error).__name__}") from error

    def _digest(self, chunk: int) -> str:
        """Return the checksum of the stored pixels."""
        digest, size = hashlib.sha256(), 3 * self.transform.side**2
        for row in self.chunks[chunk]:
            digest.update(self._seek("x", int(self.position[row]) * size).read(size))
        return digest.hexdigest()

    def _sizes(self, chunk: int) -> int:
        """Return a checksum of the stored sizes."""
        places = (int(self.position[row]) for row in self.chunks[chunk])
        with self.lock:
            return zlib.crc32(b"".join(self._seek("sizes", 8 * at).read(8) for at in places))

    def _write(self, name: str, offset: int, values: np.ndarray) -> None:
        left = memoryview(values).cast("B")
        with self.lock:
            file = self._seek(name, offset)
            while left:  # a disk that is full may take a part
                left = left[file.write(left) :]

    def _seek(self, name: str, offset: int) -> BinaryIO:
        self.files[name].seek(self.starts[name] + offset)
        return self.files[name]
