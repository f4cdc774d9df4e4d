"""Images that are tested and also trained or validated on: the same bytes in two splits."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from tasklab.tasks.images import formats

if TYPE_CHECKING:
    from tasklab.tasks.images.finding import Part

_PIECE = 4096  # bytes from the middle of a file, before all of it is read
_MOST = 4 << 30  # bytes of parquet files that are read for this
_log = logging.getLogger(__name__)


def tell(task: str, parts: Mapping[str, Part]) -> None:
    """Log how many images of the test are also among those to train or validate on.

    Image files are compared by size, then a piece, then all bytes; rows of parquet files by their
    bytes, in files of up to 4 GiB together. MNIST's and SVHN's own files are not compared.

    Args:
        task: Its name.
        parts: The images of each split.
    """
    tested = parts["test"]
    others = [part for name, part in parts.items() if name != "test"]
    compare = {"files": _same_files, "parquet": _same_rows}.get(tested.split.kind)
    if compare is None or any(part.split.kind != tested.split.kind for part in others):
        return
    same: dict[str, str] = {}
    with contextlib.suppress(OSError):  # what cannot be read is told where it is decoded
        same = compare(tested, others)
    if same:
        one, other = next(iter(same.items()))
        _log.warning(
            "%s: %s of %s test images are the same, byte for byte, as images to train or validate "
            "on (%s and %s): remove one of each two, or their accuracy is no test",
            task, f"{len(same):,}", f"{len(tested.rows):,}", one, other,
        )  # fmt: skip


def _same_files(tested: Part, others: list[Part]) -> dict[str, str]:
    """Return files of the test with a file of the others that has the same bytes."""
    mine = {tested.split.files[row]: () for row in tested.rows.tolist()}
    theirs = {part.split.files[row]: () for part in others for row in part.rows.tolist()}
    for look in (os.path.getsize, _piece, _whole):
        mine, theirs = _alike(mine, theirs, look)
    places = {seen: file for file, seen in theirs.items()}
    return {file: places[seen] for file, seen in mine.items()}


def _alike(
    mine: dict[str, tuple], theirs: dict[str, tuple], look: Callable[[str], Hashable]
) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """Return the files of both that look like one of the others, with what was seen of them."""
    seen = [{file: (*before, look(file)) for file, before in one.items()} for one in (mine, theirs)]
    both = set(seen[0].values()) & set(seen[1].values())
    first, second = ({file: x for file, x in one.items() if x in both} for one in seen)
    return first, second


def _piece(file: str) -> bytes:
    with open(file, "rb") as stream:
        stream.seek(os.fstat(stream.fileno()).st_size // 2)
        return stream.read(_PIECE)


def _whole(file: str) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _same_rows(tested: Part, others: list[Part]) -> dict[str, str]:
    """Return rows of the test with a row of the others that has the same bytes."""
    splits = {id(part.split): part.split for part in (tested, *others)}
    if sum(os.path.getsize(file) for one in splits.values() for file in one.files) > _MOST:
        return {}
    facts = {key: split.description() for key, split in splits.items()}
    hashes = {
        key: [
            hashlib.sha256(data or b"").digest()
            for chunk in range(len(split.bounds) - 1)
            for data in formats.encoded(facts[key], chunk)
        ]
        for key, split in splits.items()
    }

    def digests(part: Part) -> dict[int, bytes]:
        return {row: hashes[id(part.split)][row] for row in part.rows.tolist()}

    theirs = {x: (id(part.split), row) for part in others for row, x in digests(part).items()}
    found = {row: theirs[x] for row, x in digests(tested).items() if x in theirs}
    mine = facts[id(tested.split)]
    return {
        formats.location(mine, row): formats.location(facts[key], other)
        for row, (key, other) in found.items()
    }
