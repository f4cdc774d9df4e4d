"""Roles of the columns of a list: which one names images, which one splits, which one classes.

Every column is scored for every role. A role needs one column that is better than all others;
where two columns could have it and differ, the list is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images.formats import SUFFIXES
from tasklab.tasks.images.trees import note, split_named

Rows = Sequence[Sequence[str]]
ImagesOf = Callable[[str], Sequence[Path | str]]  # the images that an entry names, or the entry

_IMAGE = re.compile(r"(image|img|file|photo|picture|pic|path)s?(file|path|id|url)?(name)?s?")
_KEY = re.compile(r"(id|key|name|uid|uuid)s?")
_COUNT = re.compile(r"|index|idx|(level|unnamed)\d*|row(number|id)?|no|nr|number")  # pandas' first
_LABEL = re.compile(r"(class|label|category|target)(e?s|name|label|id|idx|index|number)?")
_SPLIT = re.compile(r"(data)?(split|set|subset|partition|phase|usage|fold)")
_ONE_SPLIT = re.compile(r"(?:is)?(train|test|(?<=is)val)(?:ing|id|idation)?(?:set|image|img)?")
_YES, _NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}


@dataclasses.dataclass(frozen=True)
class Roles:
    """The columns of a list by their role."""

    images: int
    classes: int | None  #: `None` if no column is left for them
    split: int | None
    words: list[str | None]  #: Split of each row
    named: bool  #: Whether the header calls the column of classes so
    #: How each role is found, for a message: images, classes, split.
    told: tuple[str, str, str]


def of_images(file: Path, rows: Rows, images_of: ImagesOf) -> int | None:
    """Return the column that names images, or `None` if no column does.

    A candidate names images in at least half of the rows. Its signs are the suffix of its entries,
    its name, and that no entry occurs twice. It must be as good as all others in each sign and
    better in one, unless the others name the same images.

    Args:
        file: The list, for the message.
        rows: Its rows; the first may be a header.
        images_of: Maps an entry to the paths that it may name, or to the reason why it names none.

    Raises:
        TasklabError: If several columns name different images.
    """
    signs: dict[int, tuple[int, ...]] = {}
    for column in range(len(rows[0]) if rows else 0):
        entries = [row[column].strip() for row in rows[1:] if len(row) > column]
        different = {*entries, rows[0][column].strip()}
        count = sum(isinstance(images_of(one)[0], Path) for one in different)
        if count and 2 * count >= len(rows) - 1:
            suffixes = sum(one.lower().endswith(SUFFIXES) for one in entries)
            once = len({*entries}) == len(entries)
            signs[column] = (2 * suffixes >= len(rows), _called(rows[0][column]), once)
    best = [
        column
        for column, mine in signs.items()
        if not any(other != mine and _at_least(other, mine) for other in signs.values())
    ]
    if not best:
        return None
    first = {n: set(map(str, images_of(row[best[0]]))) for n, row in enumerate(rows[1:])}
    pairs = ((n, row, one) for n, row in enumerate(rows[1:]) for one in best[1:])
    if any(first[n].isdisjoint(map(str, images_of(row[one]))) for n, row, one in pairs):
        which = abridged((title(rows[0], one) for one in best), 6)
        raise TasklabError(
            f"{file} has columns that could each name the images ({which}), and they name "
            "different ones: call one of them filename, or write its entries with their suffix."
        )
    return best[0]


def headed(rows: Rows, images: int, images_of: ImagesOf) -> bool:
    """Return whether the first row is a header.

    It is one if its entry names no image, or if it calls a column of classes or splits by a word
    that the column does not have again.

    Args:
        rows: Rows of a list.
        images: The column that names images.
        images_of: Maps an entry to the paths that it may name, or to the reason why it names none.
    """
    first = rows[0][images].strip()
    if first.lower().endswith(SUFFIXES):
        return False
    if isinstance(images_of(first)[0], str):
        return True
    return any(
        (_LABEL.fullmatch(_plain(name)) or _SPLIT.fullmatch(_plain(name)))
        and not any(row[column] == name for row in rows[1:] if len(row) > column)
        for column, name in enumerate(rows[0])
    )


def roles_of(file: Path, head: Sequence[str], rows: Rows, images: int) -> Roles:
    """Return the roles of all columns, given that of the images.

    Args:
        file: The list, for messages.
        head: The names of the columns; empty if the list has none.
        rows: The rows below them, all of one length.
        images: The column that names images.
    """
    names = list(map(_plain, head))
    others = [column for column in range(len(rows[0])) if column != images]
    labels = [column for column in others if names and _LABEL.fullmatch(names[column])]
    split, words, how = _of_splits(file, head, rows, others, labels)
    others = [
        column
        for column in others
        if column != split and not (names and len(others) > 1 and _SPLIT.fullmatch(names[column]))
    ]
    classes = _of_classes(file, head, rows, others) if others else None
    told = (title(head, images), "" if classes is None else title(head, classes), how)
    return Roles(images, classes, split, words, classes in labels, told)


def _of_splits(
    file: Path, head: Sequence[str], rows: Rows, others: Sequence[int], labels: Sequence[int]
) -> tuple[int | None, list[str | None], str]:
    """Return the column of splits, the split of each row, and how it was read."""
    found: list[tuple[bool, int, list[str | None], str]] = []
    for column in others:
        entries = [row[column].strip() for row in rows]
        name = _plain(head[column]) if head else ""
        called = bool(_SPLIT.fullmatch(name))
        words, lower = [split_named(one) for one in entries], {one.lower() for one in entries}
        if None not in words and (len({*words}) > 1 or called):
            found.append((called, column, words, title(head, column)))
            continue
        if called and any(words):
            odd = abridged(sorted({x for x, word in zip(entries, words, strict=True) if not word}))
            raise TasklabError(f"{file}: as a split, {odd} names none: write train, val or test.")
        if called and len(others) > 1:
            some = abridged(sorted({*entries}), 4)
            note(f"{file}: {some} of the column {head[column]} name no splits; it is not read.")
        one = _ONE_SPLIT.fullmatch(name)
        # `test` may be a result too: it is a split beside a column that is called label
        sure = name.startswith("is") or name.endswith(("set", "image", "img")) or bool(labels)
        if one and sure and len(others) > 1 and len(lower) > 1 and lower <= _YES | _NO:
            other = "test" if one[1] == "train" else "train"
            words = [one[1] if entry.lower() in _YES else other for entry in entries]
            yes = next(entry for entry in entries if entry.lower() in _YES)
            found.append((True, column, words, f"{title(head, column)} ({yes} is {one[1]})"))
    if not found:
        return None, [None] * len(rows), ""
    best = [one for one in found if one[0] == max(found)[0]]
    if any(words != best[0][2] for _, _, words, _ in best):
        which = abridged((title(head, column) for _, column, _, _ in best), 6)
        raise TasklabError(
            f"{file} has columns that name different splits ({which}): leave one of them."
        )
    return best[0][1:]


def _of_classes(file: Path, head: Sequence[str], rows: Rows, others: Sequence[int]) -> int:
    """Return the column of classes: by its name, or as the only candidate.

    Of two columns with the same labels, in words and in numbers, it is the one in words; if both
    are in words, these are equal in each row, or are none of each other's, as in two languages. A
    column with the same entry in all rows, or another one in each, has no classes.
    """
    values = {one: [row[one].strip() for row in rows] for one in others}
    called = [one for one in others if head and _LABEL.fullmatch(_plain(head[one]))]
    usable = [one for one in others if 1 < len({*values[one]}) < len(rows)]
    meant = called or usable or list(others)
    if len(called) > 1:
        pairs = set(zip(*(values[one] for one in called), strict=True))
        if all(len({*values[one]}) == len(pairs) for one in called):
            texts = [one for one in called if not all(x.isdecimal() for x in values[one])]
            first = values[texts[0]] if texts else []
            if all(values[one] == first or {*first}.isdisjoint(values[one]) for one in texts):
                meant = texts[:1] or called[:1]
    if len(meant) != 1:
        which = abridged((title(head, one) for one in meant), 6)
        raise TasklabError(
            f"{file} lists images, and which of {which} has their classes is not clear: call one "
            "column label, or leave only files and classes."
        )
    return meant[0]


def title(head: Sequence[str], column: int) -> str:
    """Return the name of a column, or its number if it has none."""
    return (head[column].strip() if head else "") or f"column {column + 1}"


def _called(name: str) -> int:
    """Score a header for images: 2 for a file, 1 for a key, -1 for a count of rows."""
    plain = _plain(name)
    patterns = ((_IMAGE, 2), (_KEY, 1), (_COUNT, -1))
    return next((score for pattern, score in patterns if pattern.fullmatch(plain)), 0)


def _at_least(one: Sequence[int], other: Sequence[int]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
