"""Images that are tested and are somewhere else as well, byte for byte: in any split or class.

Copies of other bytes, such as resized or saved anew, are not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasklab.storage.checksums import file_sha256

if TYPE_CHECKING:
    from tasklab.tasks.images.finding import Part

_PIECE = 4096  # bytes from the middle of a file, before all of it is read
_MOST = 4 << 30  # bytes of parquet files that are read for this
_NAMED = 3  # pairs that are named
_log = logging.getLogger(__name__)


class _Image(NamedTuple):
    place: str
    split: str
    label: int


def tell_twins(task: str, parts: Mapping[str, Part]) -> None:
    """Log which test images have the bytes of a training image, or of another test image.

    Image files are compared by size, then a piece, then all bytes; rows of parquet files by their
    bytes, in files of up to 4 GiB together. Archives that hold pixels (MNIST's) are not compared.
    """
    kinds = {part.split.kind for part in parts.values()}
    alike = {"files": _same_files, "parquet": _same_rows}.get(kinds.pop())
    if kinds or alike is None:
        return
    groups: list[list[_Image]] = []
    with contextlib.suppress(OSError):  # what cannot be read is told where it is decoded
        groups = alike(parts)
    remove = "remove one of each two, or"
    for what, why, differ in (
        (
            "train or validate on",
            f"{remove} their accuracy is no test",
            lambda a, b: a.split != b.split,
        ),
        (
            "test in another class",
            f"{remove} one of the two is wrong",
            lambda a, b: a.split == b.split and a.label != b.label,
        ),
        (
            "test in the same class",
            "accuracies count each copy, their intervals each image once",
            lambda a, b: a.split == b.split and a.label == b.label and a.place != b.place,
        ),
    ):
        pairs = [
            (one, other)
            for group in groups
            for one in group
            if one.split == "test"
            and (other := next((x for x in group if differ(one, x)), None)) is not None
        ]
        if pairs:
            _log.warning(
                "%s: %s of %s test images are the same, byte for byte, as images to %s (%s): %s",
                task, f"{len(pairs):,}", f"{len(parts['test'].rows):,}", what,
                "; ".join(f"{one.place} and {other.place}" for one, other in pairs[:_NAMED]), why,
            )  # fmt: skip


def _same_files(parts: Mapping[str, Part]) -> list[list[_Image]]:
    groups = [
        [
            _Image(part.split.files[row], name, label)
            for name, part in parts.items()
            for row, label in zip(part.rows.tolist(), part.labels.tolist(), strict=True)
        ]
    ]
    looks: tuple[Callable[[str], Hashable], ...] = (
        os.path.getsize, _piece, lambda file: file_sha256(Path(file)),
    )  # fmt: skip
    for look in looks:
        groups = [one for group in groups for one in _divided(group, look)]
    return groups


def _divided(group: list[_Image], look: Callable[[str], Hashable]) -> list[list[_Image]]:
    seen: dict[Hashable, list[_Image]] = {}
    for one in group:
        seen.setdefault(look(one.place), []).append(one)
    return [
        some for some in seen.values() if len(some) > 1 and any(x.split == "test" for x in some)
    ]


def _piece(file: str) -> bytes:
    with open(file, "rb") as stream:
        stream.seek(os.fstat(stream.fileno()).st_size // 2)
        return stream.read(_PIECE)


def _same_rows(parts: Mapping[str, Part]) -> list[list[_Image]]:
    splits = {id(part.split): part.split for part in parts.values()}
    if sum(os.path.getsize(file) for one in splits.values() for file in one.files) > _MOST:
        return []
    hashes: dict[str, bytes] = {}
    images = []
    for key, split in splits.items():
        data = (x for n in range(len(split.bounds) - 1) for x in split.encoded(n))
        places = [split.location(row) for row in range(len(split))]
        hashes |= {p: hashlib.sha256(x or b"").digest() for p, x in zip(places, data, strict=True)}
        for name, part in parts.items():
            if id(part.split) == key:
                rows = zip(part.rows.tolist(), part.labels.tolist(), strict=True)
                images += [_Image(places[row], name, label) for row, label in rows]
    return _divided(images, hashes.__getitem__)
