"""Images as data sets hold them: parquet files of the hub, image files, and raw archives.

A `Split` says where the images of a split are and gives their labels; images are read in chunks,
each of which a thread of its own can read, and one at a time. Data-set scripts of the hub are never
run. Only torchvision's classes (`archives`) need torch; the pickles that CIFAR consists of are the
one kind that is unpickled, after their checksum was compared with torchvision's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, features

from tasklab import machine
from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images import archives
from tasklab.tasks.images.soundness import absent, class_names, is_pointer, sound

if TYPE_CHECKING:
    import pyarrow as pa


SUFFIXES = (  # of the files that are taken for images
    *(".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *([".avif"] if "avif" in features.modules and features.check_module("avif") else []),
)
# What they may hold. Pillow knows more; for some it starts other programs.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "AVIF")
_SIXTEEN = (("I", "PNG"), ("I", "PPM"))  # read into 32 bits, but from 0 to 65,535
LEVEL, AS_STORED = "level", "as stored"  # entries of an image's `info`
CHUNK = 256  # images, where the format has no parts of its own
_ORIENTATION = 0x0112  # tag of EXIF
_ARCHIVE = threading.Lock()
_LARGE = threading.Lock()  # of Pillow's limit of pixels, and of the memory that they take
_MOST_PIXELS = 1 << 30
_ROWS = 16  # rows of a parquet file in memory at a time; a photograph has up to megabytes
_PARQUET = "a whole parquet file"


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a split, not decoded."""

    kind: str  #: `"files"`, `"parquet"` or `"archive"`
    files: tuple[str, ...]  #: Absolute paths: of the images, or of the files that hold them
    labels: np.ndarray  #: (N,) as the data have them
    #: Names of the classes as the data have them, or `None` if they have none.
    names: tuple[str, ...] | None
    bounds: tuple[int, ...]  #: Chunk i has the images from bounds[i] to bounds[i + 1]
    #: Of a parquet file, the images'; of an archive, its name and split, with a slash between.
    column: str = "image"
    #: Of parquet files: number of the file, and row group in it, of each chunk.
    groups: tuple[tuple[int, int], ...] = ()
    root: str = ""  #: Of an archive: the folder that torchvision's class takes

    def __len__(self) -> int:
        return len(self.labels)

    def description(self) -> dict[str, Any]:
        """Return where the images are, as JSON can hold it."""
        return {
            "kind": self.kind, "files": [*self.files], "bounds": [*self.bounds],
            "column": self.column, "groups": [[*group] for group in self.groups],
        }  # fmt: skip

    def read(self, chunk: int, wanted: set[int]) -> Iterator[tuple[int, Image.Image]]:
        """Yield the number and the RGB image of each wanted row of a chunk, one at a time."""
        rows = [row for row in range(*self.bounds[chunk : chunk + 2]) if row in wanted]
        if self.kind == "parquet" and rows:
            file = self.files[self.groups[chunk][0]]
            again, encoded = f"Fetch {file} again.", self.encoded(chunk)
            with sound(file, _PARQUET):
                for row, data in enumerate(encoded, self.bounds[chunk]):
                    if row in wanted:
                        name = self.location(row)
                        if not data:
                            raise TasklabError(f"{name}: there are no bytes of an image. {again}")
                        yield row, rgb(io.BytesIO(data), name, again)
        elif self.kind == "archive" and rows:
            name, split = self.column.split("/")
            with _ARCHIVE:  # one thread reads it for all
                dataset = _opened_archive(name, split, Path(self.root))
            for row in rows:
                yield row, dataset[row][0].convert("RGB")
        else:
            for row in rows:
                yield row, rgb(self.files[row], self.files[row])

    def encoded(self, chunk: int) -> Iterator[bytes | None]:
        """Yield the bytes of each image in a chunk of a parquet file."""
        from pyarrow import parquet as pq

        number, group = self.groups[chunk]
        with pq.ParquetFile(self.files[number]) as opened:
            for batch in opened.iter_batches(_ROWS, [group], [self.column], use_threads=False):
                for cell in batch.column(0):
                    value = cell.as_py()
                    yield value.get("bytes") if isinstance(value, dict) else value

    def location(self, row: int) -> str:
        """Return the file of an image, and its row in it if the file has several, for messages."""
        if self.kind == "files":
            return self.files[row]
        if self.kind == "archive":
            return f"{self.root}, {self.column}, image {row}"
        numbers = [number for number, _ in self.groups]
        number = numbers[int(np.searchsorted(self.bounds, row, side="right")) - 1]
        return f"{self.files[number]}, row {row - self.bounds[numbers.index(number)]}"

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
    """Return a split of image files.

    Args:
        files: N paths.
        labels: Their classes, from 0.
        names: Names of the classes; `None` where they are not known.
        seen: Whether the files are known to exist.

    Raises:
        TasklabError: If files are missing.
    """
    if gone := [] if seen else [file for file in files if not os.path.exists(file)]:
        raise absent(gone, len(files))
    names = None if names is None else tuple(names)
    paths, numbers = tuple(map(str, files)), np.asarray(labels, dtype=np.int64)
    return Split("files", paths, numbers, names, _bounds(len(files)))


def _bounds(count: int) -> tuple[int, ...]:
    return (*range(0, count, CHUNK), count)


def parquet(files: Sequence[Path], *, image: str = "image", label: str = "label") -> Split:
    """Return a split of parquet files as the hub has them.

    Names of classes are in the files' metadata, or else in `classes.txt` (one per line) or
    `README.md` beside or above them. A column of texts as labels is numbered alphabetically.

    Args:
        files: The parts of the split, in their order.
        image: Column of structs of `bytes` and `path`, or of plain bytes.
        label: Column of numbers or texts.

    Raises:
        TasklabError: If a file is damaged or lacks a column, or files number classes differently.
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
    paths, bounds = tuple(map(str, files)), (0, *np.cumsum(sizes, dtype=int).tolist())
    return Split("parquet", paths, joined.astype(np.int64), names, bounds, image, tuple(groups))


def archive(name: str, root: Path, split: str) -> Split:
    """Return a split of an archive that torchvision's class reads.

    Args:
        name: Key of `archives.ARCHIVES`.
        root: As the class takes it.
        split: One of the archive's.

    Raises:
        TasklabError: If it is damaged or incomplete.
    """
    dataset = _opened_archive(name, split, root)
    labels, listed = archives.labels(dataset), archives.images(dataset)
    if len(dataset) != len(labels):
        raise TasklabError(
            f"{root / archives.ARCHIVES[name].mark} has {len(dataset):,} {split} images and "
            f"{len(labels):,} labels: fetch both again."
        )
    names = archives.names(dataset, int(labels.max(initial=-1)) + 1)
    if listed is not None:
        return image_files(listed, labels, names)
    paths = tuple(map(str, archives.files(name, root, split)))
    bounds, column = _bounds(len(labels)), f"{name}/{split}"
    return Split("archive", paths, labels, names, bounds, column, root=str(root))


def _opened_archive(name: str, split: str, root: Path) -> Any:
    files = archives.files(name, root, split)
    kind, mark, _ = archives.ARCHIVES[name]
    stamps = tuple(file.stat().st_mtime_ns for file in files)
    try:
        return archives.opened(name, str(root), split, stamps)
    except Exception:
        blamed = next(filter(is_pointer, files), root / mark)
        with sound(blamed, f"the {split} images as torchvision's {kind} reads them"):
            raise


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
            f"{file}: column {label!r} holds {column.type}, not whole numbers or texts."
        )
    return values.astype(np.int64)


def _names_inside(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Return class names in the metadata that the library `datasets` writes into parquet files."""
    try:
        info = json.loads((metadata or {})[b"huggingface"])
        return tuple(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def rgb(source: str | io.BytesIO, where: str, advice: str = "Remove or replace it.") -> Image.Image:
    """Return an image as RGB, as torchvision's `default_loader` does.

    Transparency is dropped and the orientation that a camera notes (EXIF) is not applied, as there;
    what an image has of these is in its `info`, as `AS_STORED`.
    Grey levels of 16 bits are scaled to 8 bits; Pillow by itself would cut them off at 255. The
    brightest level of an image of 16 bits is in its `info`, as `LEVEL`.

    Args:
        source: Path, or the file's bytes.
        where: Name of the image, in messages.
        advice: What to do with a damaged one, in the message.

    Raises:
        TasklabError: If it cannot be decoded, or has pixels of 32 bits.
    """
    with sound(where, "an image that can be decoded", advice), _opened(source, where) as image:
        # before Pillow reads it; "BGR;16" are colours of 16 bits in all, in BMP
        deep = any(";16" in (raw := str(tile[-1])) and "BGR" not in raw for tile in image.tile)
        if image.mode.startswith("I;16") or (image.mode, image.format) in _SIXTEEN:
            grey = np.asarray(image).astype(np.float64)
            made = Image.fromarray(np.rint(grey / 257).astype(np.uint8)).convert("RGB")
            made.info[LEVEL] = int(grey.max())
            return made  # 65,535 became 255
        if image.mode in ("I", "F"):
            raise TasklabError(
                f"{where} has pixels of 32 bits (Pillow's mode {image.mode}), whose range is not "
                "known: save it with 8 or 16 bits."
            )
        kept = _ignored(image)
        made = image.convert("RGB")
        made.info[AS_STORED] = kept
        if deep:  # of colours Pillow keeps the upper 8 bits
            made.info[LEVEL] = 256 * int(np.asarray(made).max()) + 255
        return made


def _ignored(image: Image.Image) -> tuple[str, ...]:
    """Return the properties of an image that `rgb` ignores: its rotation, its transparency."""
    found: list[str] = []
    with contextlib.suppress(Exception):  # of damaged notes, which nothing reads
        if image.getexif().get(_ORIENTATION, 1) in range(2, 9):
            found.append("a note to turn it (EXIF), which is not followed")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA").getchannel("A").getextrema()
        if clear[0] < 255:
            found.append("transparent parts, which are read in the colours beneath")
    return tuple(found)


@contextlib.contextmanager
def _opened(source: str | io.BytesIO, where: str) -> Iterator[Image.Image]:
    """Open an image, also one above Pillow's limit of 179 megapixels: these one after another."""
    try:
        image = Image.open(source, formats=_known_formats())
    except Image.DecompressionBombError:
        pass
    else:
        with image:
            yield image
        return
    if isinstance(source, io.BytesIO):
        source.seek(0)
    with _LARGE:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, _MOST_PIXELS // 2  # it takes twice
        try:
            with Image.open(source, formats=_known_formats()) as image:
                pixels, room = math.prod(image.size), machine.memory().available
                if room is not None and 8 * pixels > room:  # as it is, and as RGB
                    takes, free = machine.too_large(8 * pixels, room)
                    raise TasklabError(
                        f"{where} has {pixels / 1e6:,.0f} megapixels, which take {takes} of "
                        f"memory, and {free} are free: make it smaller."
                    )
                yield image
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def is_image(file: Path) -> bool:
    """Return whether a file begins as an image of a supported format; its name does not count."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its size, which is told where it is decoded
            Image.open(file, formats=_known_formats()).close()
    except Image.DecompressionBombError:
        return True
    except Exception:  # readers raise what they like
        return False
    return True


@functools.cache
def _known_formats() -> tuple[str, ...]:
    """Return those of `FORMATS` that this Pillow can read; `Image.init` fills its list."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)
