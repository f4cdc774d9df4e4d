"""Images as data sets hold them: parquet files of the hub, image files, and two raw formats.

A `Split` says where the images of a split are and gives their labels; images are read in chunks,
each of which a process of its own can read, and one at a time. Nothing here needs torch, and
nothing is unpickled: data-set scripts of the hub are never run.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.tasks.images import tables
from tasklab.tasks.images.opening import absent, rgb, sound

CHUNK = 256  # images, where the format has no parts of its own
_IDX, _MAT = "a whole file of MNIST's format", "a whole file of SVHN's format"


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a split, not decoded.

    Attributes:
        kind: `"files"`, `"parquet"`, `"idx"` (MNIST) or `"mat"` (SVHN).
        files: Absolute paths: of the images, or of the files that hold them.
        labels: (N,) as the data have them.
        names: Names of the classes as the data have them, or `None` if they have none.
        bounds: Chunk i has the images from bounds[i] to bounds[i + 1].
        column: Of a parquet file: the images'.
        groups: Of parquet files: number of the file, and row group in it, of each chunk.
    """

    kind: str
    files: tuple[str, ...]
    labels: np.ndarray
    names: tuple[str, ...] | None
    bounds: tuple[int, ...]
    column: str = "image"
    groups: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def description(self) -> dict[str, Any]:
        """Return what `read` needs, as JSON can hold it."""
        return {
            "kind": self.kind,
            "files": list(self.files),
            "bounds": list(self.bounds),
            "column": self.column,
            "groups": [list(group) for group in self.groups],
        }


def image_files(files: Sequence[Path], labels: Sequence[int], names: Sequence[str] | None) -> Split:
    """Return a split of image files with given labels.

    Raises:
        TasklabError: If files are missing; it names the first few.
    """
    if gone := [file for file in files if not os.path.exists(file)]:
        raise absent(gone, len(files))
    return files_split(files, labels, names)


def files_split(files: Sequence[Path], labels: Sequence[int], names: Sequence[str] | None) -> Split:
    """Return a split of image files that were seen to be there."""
    bounds = (*range(0, len(files), CHUNK), len(files))
    return Split(
        kind="files",
        files=tuple(str(file) for file in files),
        labels=np.asarray(labels, dtype=np.int64),
        names=None if names is None else tuple(names),
        bounds=bounds,
    )


def parquet(files: Sequence[Path], *, image: str = "image", label: str = "label") -> Split:
    """Return a split of parquet files as the hub has them.

    The column of images holds structs of `bytes` and `path`, or plain bytes. The names of classes
    are in the files' metadata, or else in `classes.txt` (one per line) or `README.md` beside or
    above them. A column of texts as labels is numbered alphabetically.

    Raises:
        TasklabError: If a file is damaged, a column is missing or holds something else, or the
            files name their classes differently.
    """
    table = tables.table(files, image, label)
    return Split(
        kind="parquet",
        files=tuple(str(file) for file in files),
        labels=table.labels,
        names=table.names,
        bounds=(0, *np.cumsum(table.sizes, dtype=int).tolist()),
        column=image,
        groups=table.groups,
    )


def idx(images: Path, labels: Path) -> Split:
    """Return a split in MNIST's format, compressed or not. Its classes are the digits.

    Raises:
        TasklabError: If a file is not whole, or there are not as many images as labels.
    """
    numbers = _idx(labels, 1).astype(np.int64)
    with sound(images, _IDX), _stream(images) as stream:
        shape, size = _head(stream, 3), _size(images)
        wanted = stream.tell() + int(np.prod(shape))
        if size % 2**32 != wanted % 2**32:  # what a compressed file says of its size
            raise ValueError("its size is not the one that its head tells")
    _as_many(images, shape[0], len(numbers))
    bounds = (*range(0, len(numbers), CHUNK), len(numbers))
    return Split("idx", (str(images),), numbers, tuple("0123456789"), bounds)


def mat(file: Path) -> Split:
    """Return a split in SVHN's format, a MATLAB file; its label 10 is the digit 0.

    Raises:
        TasklabError: If the file is not whole, or there are not as many images as labels.
    """
    from scipy.io import loadmat, whosmat

    with sound(file, _MAT):
        shape = {name: shape for name, shape, _ in whosmat(file)}["X"]
        numbers = loadmat(file, variable_names=["y"])["y"].reshape(-1).astype(np.int64) % 10
        if len(shape) != 4 or shape[2] != 3:
            raise ValueError(f"X has the shape {shape}")
    _as_many(file, shape[3], len(numbers))
    bounds = (*range(0, len(numbers), CHUNK), len(numbers))
    return Split("mat", (str(file),), numbers, tuple("0123456789"), bounds)


def _as_many(file: Path, images: int, labels: int) -> None:
    if images != labels:
        raise TasklabError(
            f"{file} has {images:,} images, and there are {labels:,} labels. Fetch both again."
        )


def join(first: Split, second: Split) -> Split:
    """Return two splits of the same format and classes as one.

    Raises:
        TasklabError: If they differ in format or classes.
    """
    if (first.kind, first.names, first.column) != (second.kind, second.names, second.column):
        raise TasklabError(
            f"splits of different formats or classes cannot be joined: {first.kind} "
            f"{first.names} and {second.kind} {second.names}."
        )
    shift = len(first.files)
    return dataclasses.replace(
        first,
        files=first.files + second.files,
        labels=np.concatenate([first.labels, second.labels]),
        bounds=first.bounds + tuple(len(first) + bound for bound in second.bounds[1:]),
        groups=first.groups + tuple((file + shift, group) for file, group in second.groups),
    )


def read(
    description: Mapping[str, Any], chunk: int, wanted: set[int]
) -> Iterator[tuple[int, Image.Image]]:
    """Yield the number and the RGB image of each wanted row of a chunk, one at a time.

    Args:
        description: As `Split.description` gives it.
        chunk: Its number.
        wanted: Rows, counted from the beginning of the split.

    Raises:
        TasklabError: If an image or its file cannot be read; it names them.
    """
    rows = range(*description["bounds"][chunk : chunk + 2])
    kind, files = description["kind"], description["files"]
    if wanted.isdisjoint(rows):
        return
    if kind == "parquet":
        yield from _read_parquet(description, chunk, rows, wanted)
        return
    for row in rows:
        if row not in wanted:
            continue
        if kind == "files":
            yield row, rgb(files[row], files[row])
            continue
        with sound(files[0], _IDX if kind == "idx" else _MAT):
            pixels = _array(kind, files[0], os.stat(files[0]).st_mtime_ns)
            pixels = pixels[row] if kind == "idx" else np.ascontiguousarray(pixels[..., row])
            image = Image.fromarray(pixels).convert("RGB")
        yield row, image


def where(description: Mapping[str, Any], row: int) -> str:
    """Return the file of an image, and its row in it if the file has several, for messages."""
    files, bounds = description["files"], description["bounds"]
    if description["kind"] == "files":
        return files[row]
    if description["kind"] != "parquet":
        return f"{files[0]}, row {row}"
    chunk = int(np.searchsorted(bounds, row, side="right")) - 1
    numbers = [number for number, _ in description["groups"]]
    return f"{files[numbers[chunk]]}, row {row - bounds[numbers.index(numbers[chunk])]}"


def _read_parquet(
    description: Mapping[str, Any], chunk: int, rows: range, wanted: set[int]
) -> Iterator[tuple[int, Image.Image]]:
    number, group = description["groups"][chunk]
    file = description["files"][number]
    for row, data in zip(rows, tables.cells(file, group, description["column"]), strict=False):
        if row in wanted:
            name, again = where(description, row), f"Fetch {file} again."
            if not data:
                raise TasklabError(f"{name}: there are no bytes of an image. {again}")
            yield row, rgb(io.BytesIO(data), name, again)


@functools.lru_cache(maxsize=1)
def _array(kind: str, file: str, time: int) -> np.ndarray:
    """Return all images of a file, whose `time` tells whether it is still the same."""
    if kind == "idx":
        return _idx(Path(file), 3)
    from scipy.io import loadmat

    return loadmat(file, variable_names=["X"])["X"]


def _idx(file: Path, axes: int) -> np.ndarray:
    with sound(file, _IDX), _stream(file) as stream:
        shape = _head(stream, axes)
        return np.frombuffer(stream.read(), np.uint8).reshape(shape)


def _head(stream: BinaryIO, axes: int) -> tuple[int, ...]:
    """Read the shape at the beginning of a file in MNIST's format."""
    if stream.read(4) != bytes([0, 0, 8, axes]):
        raise ValueError("it does not begin as one")
    return tuple(np.frombuffer(stream.read(4 * axes), ">i4", axes).tolist())


def _stream(file: Path) -> BinaryIO:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _size(file: Path) -> int:
    """Return the size of a file, unpacked: its last four bytes tell, modulo 2**32."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(-4, os.SEEK_END)
        return int.from_bytes(stream.read(4), "little")
