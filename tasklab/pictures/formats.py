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
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasklab.errors import TasklabError

CHUNK = 256  # images, where the format has no parts of its own
_ROWS = 16  # rows of a parquet file in memory at a time; a photograph has up to megabytes
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")


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

    def stamp(self) -> list[Any]:
        """Return what changes when the files do: names, sizes and times."""
        parts = []
        for file in self.files:
            state = os.stat(file)
            time = 0 if self.kind == "parquet" else state.st_mtime_ns  # a cache has its own times
            parts.append([Path(file).name, state.st_size, time])
        return [self.kind, self.column, parts, list(self.names or ())]


def image_files(files: Sequence[Path], labels: Sequence[int], names: Sequence[str] | None) -> Split:
    """Return a split of image files with given labels."""
    bounds = (*range(0, len(files), CHUNK), len(files))
    return Split(
        kind="files",
        files=tuple(str(file) for file in files),
        labels=np.asarray(labels, dtype=np.int64),
        names=None if names is None else tuple(names),
        bounds=bounds,
    )


def class_folders(root: Path) -> Split | None:
    """Return a split of a folder with one folder of images per class, or `None` if it has none.

    The classes are in alphabetical order, as torchvision's `ImageFolder` numbers them. A folder
    without images is no class; folders within a class are searched too.
    """
    files: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    for folder in sorted(path for path in root.iterdir() if _visible(path) and path.is_dir()):
        found = sorted(
            Path(place, name)
            for place, _, inside in os.walk(folder, followlinks=True)
            for name in inside
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        )
        if found:
            files += found
            labels += [len(names)] * len(found)
            names.append(folder.name)
    return image_files(files, labels, names) if len(names) > 1 else None


def _visible(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def parquet(files: Sequence[Path], *, image: str = "image", label: str = "label") -> Split:
    """Return a split of parquet files as the hub has them.

    The column of images holds structs of `bytes` and `path`, or plain bytes. The names of classes
    are in the files' metadata, or else in `classes.txt` (one per line) or `README.md` beside or
    above them. A column of texts as labels is numbered alphabetically.

    Raises:
        TasklabError: If a file is damaged, or a column is missing; it names those that are there.
    """
    import pyarrow as pa
    from pyarrow import parquet as pq

    labels: list[np.ndarray] = []
    groups: list[tuple[int, int]] = []
    bounds, names = [0], None
    for number, file in enumerate(files):
        try:
            opened = pq.ParquetFile(file)
            schema = opened.schema_arrow
            if image not in schema.names or label not in schema.names:
                raise TasklabError(
                    f"{file} has the columns {', '.join(schema.names)}: image={image!r} and "
                    f"label={label!r} must be two of them."
                )
            names = names or _names_inside(schema.metadata, label)
            values = opened.read(columns=[label])[label].combine_chunks()
            opened.close()
        except (OSError, pa.ArrowException) as error:
            raise TasklabError(f"{file} is not a whole parquet file ({error}).") from error
        labels.append(values.to_numpy(zero_copy_only=False))
        for group in range(opened.metadata.num_row_groups):
            groups.append((number, group))
            bounds.append(bounds[-1] + opened.metadata.row_group(group).num_rows)
    joined = np.concatenate(labels)
    if joined.dtype.kind in "OU":
        words, joined = np.unique(joined.astype(str), return_inverse=True)
        names = tuple(words.tolist())
    return Split(
        kind="parquet",
        files=tuple(str(file) for file in files),
        labels=joined.astype(np.int64),
        names=names or _names_beside(Path(files[0]), label),
        bounds=tuple(bounds),
        column=image,
        groups=tuple(groups),
    )


def _names_inside(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Return class names from what the library `datasets` writes into a parquet file."""
    try:
        info = json.loads((metadata or {})[b"huggingface"])
        return tuple(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _names_beside(file: Path, label: str) -> tuple[str, ...] | None:
    """Return class names from `classes.txt` or the data set's card, at most three folders up."""
    for folder in list(file.parents)[:4]:
        listed = folder / "classes.txt"
        if listed.is_file():
            return tuple(listed.read_text("utf-8").split("\n")[: _lines(listed)])
        card = folder / "README.md"
        if card.is_file() and (found := _names_of_card(card, label)):
            return found
    return None


def _lines(file: Path) -> int:
    return len(file.read_text("utf-8").rstrip("\n").split("\n"))


def _names_of_card(card: Path, label: str) -> tuple[str, ...] | None:
    import yaml

    head = card.read_text("utf-8").split("---")
    try:
        info = yaml.safe_load(head[1])["dataset_info"]
        for one in info if isinstance(info, list) else [info]:
            for feature in one["features"]:
                if feature["name"] == label and "class_label" in feature["dtype"]:
                    names = feature["dtype"]["class_label"]["names"]
                    if isinstance(names, dict):
                        names = [names[key] for key in sorted(names, key=int)]
                    return tuple(str(name) for name in names)
    except (IndexError, KeyError, TypeError, ValueError, yaml.YAMLError):
        pass
    return None


def idx(images: Path, labels: Path) -> Split:
    """Return a split in MNIST's format, compressed or not. Its classes are the digits."""
    numbers = _idx(str(labels)).astype(np.int64)
    bounds = (*range(0, len(numbers), CHUNK), len(numbers))
    return Split("idx", (str(images),), numbers, tuple("0123456789"), bounds)


def mat(file: Path) -> Split:
    """Return a split in SVHN's format, a MATLAB file; its label 10 is the digit 0."""
    from scipy.io import loadmat

    numbers = loadmat(file, variable_names=["y"])["y"].reshape(-1).astype(np.int64) % 10
    bounds = (*range(0, len(numbers), CHUNK), len(numbers))
    return Split("mat", (str(file),), numbers, tuple("0123456789"), bounds)


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
        TasklabError: If an image cannot be decoded; it names the image.
    """
    rows = range(*description["bounds"][chunk : chunk + 2])
    if wanted.isdisjoint(rows):
        return
    if description["kind"] == "parquet":
        yield from _read_parquet(description, chunk, rows, wanted)
        return
    for row in rows:
        if row not in wanted:
            continue
        if description["kind"] == "files":
            file = description["files"][row]
            yield row, _decode(file, file)
        elif description["kind"] == "idx":
            yield row, Image.fromarray(_idx(description["files"][0])[row]).convert("RGB")
        else:
            pixels = _mat(description["files"][0])[..., row]
            yield row, Image.fromarray(np.ascontiguousarray(pixels))


def _read_parquet(
    description: Mapping[str, Any], chunk: int, rows: range, wanted: set[int]
) -> Iterator[tuple[int, Image.Image]]:
    from pyarrow import parquet as pq

    number, group = description["groups"][chunk]
    file, column = description["files"][number], description["column"]
    with pq.ParquetFile(file) as opened:
        row = rows.start
        for part in opened.iter_batches(_ROWS, [group], [column], use_threads=False):
            for cell in part.column(0):
                if row in wanted:
                    value = cell.as_py()
                    data = value.get("bytes") if isinstance(value, dict) else value
                    if not data:
                        raise TasklabError(f"{file}, row {row}: there are no bytes of an image.")
                    yield row, _decode(io.BytesIO(data), f"{file}, row {row}")
                row += 1


def _decode(source: str | io.BytesIO, where: str) -> Image.Image:
    try:
        with Image.open(source) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise TasklabError(
            f"{where} is not an image that can be decoded ({error}). Remove or replace it."
        ) from error


@functools.lru_cache(maxsize=2)
def _idx(file: str) -> np.ndarray:
    with gzip.open(file) if file.endswith(".gz") else open(file, "rb") as stream:
        data = stream.read()
    axes = data[3]
    shape = np.frombuffer(data, ">i4", axes, offset=4)
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if data[:3] != b"\x00\x00\x08" or body.size != shape.prod(dtype=np.int64):
        raise TasklabError(f"{file} is not a whole file of MNIST's format.")
    return body.reshape(shape)


@functools.lru_cache(maxsize=1)
def _mat(file: str) -> np.ndarray:
    from scipy.io import loadmat

    return loadmat(file, variable_names=["X"])["X"]
