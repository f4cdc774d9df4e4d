"""Words for the classes of your own data in prompts, and their match with folders."""

from __future__ import annotations

import collections
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

from tasklab import errors
from tasklab.errors import TasklabError, abridged, shown
from tasklab.tasks.suites import Written, spoken

Words = Sequence[str] | Mapping[str | int, str]  # in the order of the names, or by name
Template = str | Callable[[str], str]
Templates = Sequence[Template] | Template | Mapping[str, str | Sequence[str]]
_MOST = 200  # prompts of a class: the text tower reads each


def words_for(names: Sequence[str] | None, classes: Words, where: str) -> tuple[str, ...]:
    """Return the name of each class in prompts.

    Args:
        names: The classes as the data have them, in the order of the labels; `None` if these are
            numbers from 0 on.
        classes: A list in this order, in which names of the classes themselves may have any; or a
            mapping from names (of classes that are called by numbers: from these) to words, from
            labels to words, or the other way round.
        where: Name of the data, in messages.
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


def templates_for(
    names: Sequence[str] | None, words: Sequence[str], templates: Templates, where: str
) -> tuple[str | Written, ...]:
    """Return the templates of a task.

    Args:
        names: The classes as the data have them.
        words: The classes as prompts call them, in the same order.
        templates: Texts with one `{}`; functions, which are called with each word; or a mapping
            from each class, by its name or word, to its prompts. Where classes have different
            numbers of prompts, each is repeated so that their mean stays the same.
        where: Name of the data, in messages.
    """
    if isinstance(templates, Mapping):
        return _by_class(words if names is None else names, words, templates, where)
    listed = [templates] if callable(templates) or isinstance(templates, str) else templates
    if isinstance(listed, Set) or not isinstance(listed, Iterable):
        raise TasklabError(f"templates must be a list of prompts, not {shown(templates)}.")
    made = [_written(one, words) if callable(one) else one for one in listed]
    errors.texts("templates", [one for one in made if not isinstance(one, Written)] or ["{}"])
    if not made:
        raise TasklabError("templates is empty: give at least one prompt.")
    return tuple(made)


def _written(template: Callable[[str], str], words: Sequence[str]) -> str | Written:
    """Return the prompts that a function writes, as a text with `{}` where it is one."""

    def called(word: str) -> str:
        try:
            text = template(word)
        except Exception as error:  # the user's own
            raise TasklabError(
                f"a function of templates= fails for the class {word!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(text, str) or not text.strip():
            raise TasklabError(
                f"a function of templates= returns {shown(text)} for the class {word!r}: it must "
                "return the prompt."
            )
        return text

    texts = [called(word) for word in words]
    head, _, tail = texts[0].partition(words[0])
    plain = all(text == f"{head}{word}{tail}" for text, word in zip(texts, words, strict=True))
    if plain and not any(mark in head + tail for mark in "{}"):
        return f"{head}{{}}{tail}"
    return Written(tuple(zip(words, texts, strict=True)))


def _by_class(
    names: Sequence[str], words: Sequence[str], templates: Mapping[str, Any], where: str
) -> tuple[Written, ...]:
    known = {_plain(text): n for texts in (names, words) for n, text in enumerate(texts)}
    found: dict[int, list[str]] = {}
    for key, value in templates.items():
        label = known.get(_plain(key)) if isinstance(key, str) else None
        if label is None or label in found:
            problem = "are given twice" if label in found else "belong to none of them"
            raise TasklabError(f"{where} has {_listed(names)}; prompts of {shown(key)} {problem}.")
        listed = errors.texts(f"templates of {key!r}", value)
        found[label] = [text.replace("{}", words[label]) for text in listed]
    if lacking := [name for label, name in enumerate(names) if label not in found]:
        raise TasklabError(f"templates= has no prompts of {abridged(lacking, 4)}: write them.")
    count = math.lcm(*map(len, found.values()))
    if count > _MOST:
        raise TasklabError(
            f"templates= has {min(map(len, found.values()))} to {max(map(len, found.values()))} "
            "prompts a class: write the same number for each."
        )
    return tuple(
        Written(tuple((words[k], found[k][n % len(found[k])]) for k in range(len(words))))
        for n in range(count)
    )


def as_words(name: str) -> str:
    """Return a folder's name as a prompt has it: with spaces instead of `_`."""
    return " ".join(name.replace("_", " ").split())


def by_order(names: Sequence[str] | None, classes: Words, words: Sequence[str]) -> list[str]:
    """Return the pairs of names and words that only the order of a list has joined.

    Args:
        names: Names of the classes in the data, such as folders; `None` without any.
        classes: The argument `classes`: a list, or a mapping from names to words, which joins all.
        words: What prompts call the classes.

    Returns:
        Texts "name = word" of pairs without a common part.
    """
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
            return [*map(as_words, names)]
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
