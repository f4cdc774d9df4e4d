"""Images as data sets hold them: parquet files of the hub, image files, and two raw formats.

A `Split` says where the images of a split are and gives their labels; images are read in chunks,
each of which a thread of its own can read, and one at a time. Nothing here needs torch, and
nothing is unpickled: data-set scripts of the hub are never run.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images.checks import absent, class_names, sound
from tasklab.tasks.images.pictures import rgb

if TYPE_CHECKING:
    import pyarrow as pa


CHUNK = 256  # images, where the format has no parts of its own
_ARRAY = threading.Lock()
_ROWS = 16  # rows of a parquet file in memory at a time; a photograph has up to megabytes
_PARQUET = "a whole parquet file"
_IDX, _MAT = "a whole file of MNIST's format", "a whole file of SVHN's format"


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a split, not decoded."""

    kind: str  #: `"files"`, `"parquet"`, `"idx"` (MNIST) or `"mat"` (SVHN)
    files: tuple[str, ...]  #: Absolute paths: of the images, or of the files that hold them
    labels: np.ndarray  #: (N,) as the data have them
    #: Names of the classes as the data have them, or `None` if they have none.
    names: tuple[str, ...] | None
    bounds: tuple[int, ...]  #: Chunk i has the images from bounds[i] to bounds[i + 1]
    column: str = "image"  #: Of a parquet file: the images'
    #: Of parquet files: number of the file, and row group in it, of each chunk.
    groups: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def description(self) -> dict[str, Any]:
        """Return the arguments of `read`, as JSON can hold them."""
        return {
            "kind": self.kind,
            "files": list(self.files),
            "bounds": list(self.bounds),
            "column": self.column,
            "groups": [list(group) for group in self.groups],
        }

    def joined(self, other: Split) -> Split:
        """Return this split and another of the same format and classes as one."""
        if (self.kind, self.names, self.column) != (other.kind, other.names, other.column):
            raise TasklabError(
                f"splits of different formats or classes cannot be joined: {self.kind} "
                f"{self.names} and {other.kind} {other.names}."
            )
        shift = len(self.files)
        return dataclasses.replace(
            self,
            files=self.files + other.files,
            labels=np.concatenate([self.labels, other.labels]),
            bounds=self.bounds + tuple(len(self) + bound for bound in other.bounds[1:]),
            groups=self.groups + tuple((file + shift, group) for file, group in other.groups),
        )


def image_files(
    files: Sequence[Path], labels: Sequence[int], names: Sequence[str] | None, *, seen: bool = False
) -> Split:
    """Return a split of image files."""
    if gone := [] if seen else [file for file in files if not os.path.exists(file)]:
        raise absent(gone, len(files))
    names = None if names is None else tuple(names)
    paths, numbers = tuple(map(str, files)), np.asarray(labels, dtype=np.int64)
    return Split("files", paths, numbers, names, _bounds(len(files)))


def _bounds(count: int) -> tuple[int, ...]:
    return (*range(0, count, CHUNK), count)


def parquet(files: Sequence[Path], *, image: str = "image", label: str = "label") -> Split:
    """Return a split of parquet files as the hub has them.

    The column of images holds structs of `bytes` and `path`, or plain bytes. The names of classes
    are in the files' metadata, or else in `classes.txt` (one per line) or `README.md` beside or
    above them. A column of texts as labels is numbered alphabetically.
    """
    from pyarrow import parquet as pq

    labels, groups, sizes = [], [], []
    named: dict[tuple[str, ...] | None, Path] = {}
    for number, file in enumerate(files):
        with sound(file, _PARQUET), pq.ParquetFile(file) as opened:
            _check_columns(file, opened.schema_arrow, image, label)
            parts = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
            sizes += parts
            groups += [(number, group) for group in range(len(parts))]
            if opened.metadata.num_rows:
                named.setdefault(_names_inside(opened.schema_arrow.metadata, label), file)
                labels.append(_values(file, opened.read(columns=[label])[label], label))
    if len(named) > 1:
        (first, one), (second, other) = (
            ("classes without names" if names is None else abridged(names, 4), file)
            for names, file in list(named.items())[:2]
        )
        raise TasklabError(
            f"files of one split have different labels: {one} numbers {first}, {other} {second}. "
            "They are not of the same data set: fetch them again."
        )
    joined, names = np.zeros(0, dtype=np.int64), next(iter(named), None)
    kinds = {values.dtype.kind for values in labels}
    if len(kinds) > 1:
        raise TasklabError(f"labels in {files[0].parent} are texts in some files only.")
    if labels:
        joined = np.concatenate(labels)
    if kinds == {"U"}:
        words, joined = np.unique(joined, return_inverse=True)
        names = tuple(words.tolist())
    names = names or class_names(files[0], label)
    return Split(
        kind="parquet",
        files=tuple(str(file) for file in files),
        labels=joined.astype(np.int64),
        names=names,
        bounds=(0, *np.cumsum(sizes, dtype=int).tolist()),
        column=image,
        groups=tuple(groups),
    )


def idx(images: Path, labels: Path) -> Split:
    """Return a split in MNIST's format, compressed or not. Its classes are the digits."""
    numbers = _idx(labels, 1).astype(np.int64)
    with sound(images, _IDX), _stream(images) as stream:
        shape, size = _head(stream, 3), _size(images)
        wanted = stream.tell() + int(np.prod(shape))
        if size % 2**32 != wanted % 2**32:  # what a compressed file says of its size
            raise ValueError("its size is not the one that its head tells")
    _check_counts(images, shape[0], len(numbers))
    return Split("idx", (str(images),), numbers, tuple("0123456789"), _bounds(len(numbers)))


def mat(file: Path) -> Split:
    """Return a split in SVHN's format, a MATLAB file; its label 10 is the digit 0."""
    from scipy.io import loadmat, whosmat

    with sound(file, _MAT):
        shape = {name: shape for name, shape, _ in whosmat(file)}["X"]
        numbers = loadmat(file, variable_names=["y"])["y"].reshape(-1).astype(np.int64) % 10
        if len(shape) != 4 or shape[2] != 3:
            raise ValueError(f"X has the shape {shape}")
    _check_counts(file, shape[3], len(numbers))
    return Split("mat", (str(file),), numbers, tuple("0123456789"), _bounds(len(numbers)))


def _check_counts(file: Path, images: int, labels: int) -> None:
    if images != labels:
        raise TasklabError(
            f"{file} has {images:,} images, and there are {labels:,} labels. Fetch both again."
        )


def read(
    description: Mapping[str, Any], chunk: int, wanted: set[int]
) -> Iterator[tuple[int, Image.Image]]:
    """Yield the number and the RGB image of each wanted row of a chunk, one at a time."""
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
            with _ARRAY:  # one thread reads it for all
                pixels = _array(kind, files[0], os.stat(files[0]).st_mtime_ns)
            pixels = pixels[row] if kind == "idx" else np.ascontiguousarray(pixels[..., row])
            image = Image.fromarray(pixels).convert("RGB")
        yield row, image


def location(description: Mapping[str, Any], row: int) -> str:
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
    file = description["files"][description["groups"][chunk][0]]
    with sound(file, _PARQUET):
        for row, data in zip(rows, encoded(description, chunk), strict=False):
            if row in wanted:
                name, again = location(description, row), f"Fetch {file} again."
                if not data:
                    raise TasklabError(f"{name}: there are no bytes of an image. {again}")
                yield row, rgb(io.BytesIO(data), name, again)


def encoded(description: Mapping[str, Any], chunk: int) -> Iterator[bytes | None]:
    """Yield the bytes of each image in a chunk of a parquet file."""
    from pyarrow import parquet as pq

    number, group = description["groups"][chunk]
    with pq.ParquetFile(description["files"][number]) as opened:
        batches = opened.iter_batches(_ROWS, [group], [description["column"]], use_threads=False)
        for batch in batches:
            for cell in batch.column(0):
                value = cell.as_py()
                yield value.get("bytes") if isinstance(value, dict) else value


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


def _head(stream: gzip.GzipFile | IO[bytes], axes: int) -> tuple[int, ...]:
    if stream.read(4) != bytes([0, 0, 8, axes]):
        raise ValueError("it does not begin as one")
    return tuple(np.frombuffer(stream.read(4 * axes), ">i4", axes).tolist())


def _stream(file: Path) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _size(file: Path) -> int:
    """Return the size of a file, unpacked: its last four bytes tell, modulo 2**32."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(-4, os.SEEK_END)
        return int.from_bytes(stream.read(4), "little")


def _check_columns(file: Path, schema: pa.Schema, image: str, label: str) -> None:
    import pyarrow as pa

    if image not in schema.names or label not in schema.names:
        raise TasklabError(
            f"{file} has the columns {', '.join(schema.names)}: image={image!r} and "
            f"label={label!r} must be two of them. `own.from_hub` takes other names; for a data "
            "set of the papers rename the columns, or fetch a copy with `tasklab decode --fetch`."
        )
    kind = schema.field(image).type
    if pa.types.is_struct(kind):
        kind = next((one.type for one in kind if one.name == "bytes"), kind)
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind)):
        raise TasklabError(
            f"{file}: the column {image!r} holds {kind}, not images. It should have the bytes of "
            "image files, plain or in structs of `bytes` and `path`."
        )


def _values(file: Path, column: pa.ChunkedArray, label: str) -> np.ndarray:
    if column.null_count:
        raise TasklabError(f"{file}: {column.null_count:,} rows have no {label!r}.")
    values = column.combine_chunks().to_numpy(zero_copy_only=False)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return values.astype(str)
    if values.dtype.kind not in "iufb" or not np.array_equal(values, values.astype(np.int64)):
        raise TasklabError(
            f"{file}: the column {label!r} holds {column.type}; labels are whole numbers or texts."
        )
    return values.astype(np.int64)


def _names_inside(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Return class names from what the library `datasets` writes into a parquet file."""
    try:
        info = json.loads((metadata or {})[b"huggingface"])
        return tuple(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
