"""What prompts call the classes of your own data: which word belongs to which folder."""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

from tasklab import errors
from tasklab.errors import TasklabError, abridged, shown
from tasklab.tasks.suites import spoken

Words = Sequence[str] | Mapping[str | int, str]  # in the order of the names, or by name


def words_for(names: Sequence[str] | None, classes: Words, where: str) -> tuple[str, ...]:
    """Return the name of each class in prompts.

    Args:
        names: The classes as the data have them, in the order of the labels; `None` if these are
            numbers from 0 on.
        classes: A list in this order, in which names of the classes themselves may have any; or a
            mapping from names (of classes that are called by numbers: from these) to words, from
            labels to words, or the other way round.
    """
    if isinstance(classes, str):
        raise TasklabError(f"classes= is a list of names, one for each class, not {classes!r}.")
    if hasattr(classes, "items") and not isinstance(classes, Mapping):  # a series of pandas
        listed = dict(classes.items())
        classes = [*listed.values()] if [*listed] == [*range(len(listed))] else listed
    if isinstance(classes, Set):
        raise TasklabError("classes= is a set, which has no order: give a list or a mapping.")
    if names is None and not isinstance(classes, Mapping):
        return errors.texts("classes", classes)
    names = list(map(str, range(len(classes)))) if names is None else names
    if isinstance(classes, Mapping):
        return errors.texts("classes", _mapped(names, classes, where))
    words = errors.texts("classes", classes)
    if len(words) != len(names):
        raise TasklabError(f"{where} has {_listed(names)}, not {len(words)}.")
    own, given = ([_plain(text) for text in texts] for texts in (names, words))
    if sorted(own) == sorted(given) and len(set(own)) == len(own):
        return tuple(words[given.index(name)] for name in own)
    for word, name, other in zip(words, names, _meant(own, given), strict=True):
        if other is not None:
            raise TasklabError(
                f"{where} has {_listed(names)}. In this order {word!r} would name {name!r}, and it "
                f"reads like {names[other]!r}: give {_form(names)}"
            )
    if not _in_one_order(names):
        raise TasklabError(
            f"{where} has {_listed(names)}, in alphabetical order; by number, or without upper "
            f"case and accents, the order is another one. Give {_form(names)}"
        )
    return words


def read(name: str) -> str:
    """Return a folder's name as a prompt has it: with spaces instead of `_`."""
    return " ".join(name.replace("_", " ").split())


def by_order(names: Sequence[str] | None, classes: Words, words: Sequence[str]) -> list[str]:
    """Return the pairs of names and words that only the order of a list has joined."""
    if names is None or hasattr(classes, "items") or all(name.isdecimal() for name in names):
        return []
    pairs = zip(names, words, strict=True)
    return [f"{name} = {word}" for name, word in pairs if not _parts(name) & _parts(word)]


def _mapped(names: Sequence[str], classes: Mapping[Any, Any], where: str) -> list[Any]:
    known = {unicodedata.normalize("NFC", name): name for name in names}
    numbers = collections.Counter(int(name) for name in names if name.isdecimal())

    def name_of(key: object) -> str | None:
        if isinstance(key, str):
            return known.get(unicodedata.normalize("NFC", key))
        if isinstance(key, bool) or not isinstance(key, Integral) or numbers[int(key)] != 1:
            return None
        return next(name for name in names if name.isdecimal() and int(name) == key)

    def are(texts: Iterable[object]) -> bool:
        return sorted(map(str, map(name_of, texts))) == sorted(names)

    pairs = list(classes.items())
    if not are(classes) and (are(classes.values()) or _labels(classes.values(), names)):
        pairs = [(value, key) for key, value in pairs]
    keys = [key for key, _ in pairs]
    if are(keys):
        by_name = {name_of(key): word for key, word in pairs}
        if not numbers and _labels(by_name.values(), names):  # torchvision's `class_to_idx`
            return [*map(read, names)]
        return [by_name[name] for name in names]
    if not numbers and (labels := _labels(keys, names)):
        listed = [word for _, word in sorted(zip(labels, (w for _, w in pairs), strict=True))]
        return [*words_for(names, listed, where)]
    strange = [key for key in keys if name_of(key) is None]
    lacking = set(names) - set(map(name_of, keys))
    problems = [
        f"{what} {abridged(map(shown, one), 4)}"
        for what, one in (("it lacks", sorted(lacking)), ("unknown are", strange))
        if one
    ]
    raise TasklabError(
        f"{where} has {_listed(names)}; classes= must map each to its word: "
        f"{' and '.join(problems)}."
    )


def _labels(keys: Iterable[object], names: Sequence[str]) -> list[int] | None:
    """Return keys as numbers if they are 0, 1, ... as many as names, in any order."""
    kinds = str | Integral  # also numpy's
    texts = [str(key) for key in keys if isinstance(key, kinds) and not isinstance(key, bool)]
    if sorted(texts) != sorted(map(str, range(len(names)))):
        return None
    return list(map(int, texts))


def _meant(names: Sequence[str], words: Sequence[str]) -> list[int | None]:
    """Return for each word which other name it shares a part with, and with its own none."""
    parts = [_parts(name) for name in names]
    counted = collections.Counter(part for one in parts for part in one)
    marks = [{part for part in one if counted[part] == 1} for one in parts]
    others = []
    for label, word in enumerate(words):
        shared = [n for n, one in enumerate(marks) if one & _parts(word)]
        others.append(shared[0] if shared and label not in shared else None)
    return others


def _parts(text: str) -> set[str]:
    """Return numbers, and words of three letters and more without the plural's ending."""
    parts = re.findall(r"\d+|[^\W\d_]{3,}", _plain(text))
    return {str(int(one)) if one.isdecimal() else one.removesuffix("s") for one in parts}


def _in_one_order(names: Sequence[str]) -> bool:
    """Return whether names are not sorted, or are however one sorts them."""

    def natural(name: str) -> list[str | int]:
        plain = unicodedata.normalize("NFKD", name).casefold()
        plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
        return [int(one) if n % 2 else one for n, one in enumerate(re.split(r"(\d+)", plain))]

    listed = list(names)
    if listed != sorted(listed):
        return True
    try:
        return listed == sorted(listed, key=float)
    except ValueError:
        return listed == sorted(listed, key=natural)


def _plain(text: str) -> str:
    return spoken(text.replace("_", " "))


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} classes ({abridged(map(str, names), 12)})"


def _form(names: Sequence[str]) -> str:
    return f"a mapping from each class, such as classes={{{names[0]!r}: '...', ...}}."
