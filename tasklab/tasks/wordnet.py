"""The data of the third world: definitions from WordNet 3.0, sixteen tasks and a control.

    FOLDER/<task>.xz       a line per text: split, synset, label, definition
    FOLDER/tasks.json      classes with their synsets, sizes of the splits
    FOLDER/sets.json       sets of tasks, drawn before any method was compared on them
    FOLDER/NOTICE.txt      WordNet's licence

`python -m pretraining.wordnet` makes these files from Debian's package wordnet-base.
"""

from __future__ import annotations

import functools
import json
import lzma
import re
from pathlib import Path
from typing import Any, NamedTuple

from tasklab.errors import TasklabError, choose
from tasklab.storage import shipped

VERSION = "wordnet-1"
FOLDER = Path(__file__).with_name("wordnet_data")
TABLE, SETS = "tasks.json", "sets.json"
SPLITS = ("train", "validation", "test")

TASKS = (
    "Animals", "Plants", "People", "Artifacts", "Foods", "Substances", "Places", "Communication",
    "Actions", "Body", "Conditions", "Buildings", "Groups", "Cognition", "Attributes", "Events",
)  # fmt: skip
CONTROL = "Verbs"  # that nobody trains on
#: The default of a lab: the eight tasks of lowest zero-shot accuracy on validation texts.
DEFAULT = (
    "Plants", "Places", "Communication", "Actions", "Conditions", "Buildings", "Groups",
    "Cognition",
)  # fmt: skip
#: Prompts, with the name of a class for `{}`.
TEMPLATES = ("{}", "a kind of {}", "an example of {}")


class Text(NamedTuple):
    """A definition of a task."""

    split: str  #: One of `SPLITS`
    synset: str  #: The noun or verb that it defines, such as `n02084071`
    label: int  #: Index of its class
    text: str  #: The definition without WordNet's examples


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    entries = json.loads(shipped.content(FOLDER / TABLE))["tasks"]
    return {entry["name"]: entry for entry in entries}


def _entry(task: str) -> dict[str, Any]:
    choose("task of the suite 'wordnet'", task, (*TASKS, CONTROL))
    return _table()[task]


def classes(task: str) -> tuple[str, ...]:
    """Return the names of a task's classes; the index is the label."""
    return tuple(_entry(task)["classes"])


def sizes(task: str) -> dict[str, int]:
    """Return the number of texts of each split of a task."""
    return dict(_entry(task)["sizes"])


@functools.cache
def rows(task: str) -> tuple[Text, ...]:
    """Return all texts of a task: training, validation and test."""
    _entry(task)
    file = FOLDER / f"{task}.xz"
    try:
        lines = lzma.decompress(shipped.content(file)).decode().split("\n")
    except lzma.LZMAError as error:
        raise TasklabError(f"{file} cannot be read ({error}): reinstall tasklab.") from error
    split = (line.split("\t") for line in lines)
    return tuple(Text(name, synset, int(label), text) for name, synset, label, text in split)


def texts(task: str, split: str) -> tuple[list[str], list[int]]:
    """Return the definitions of a split of a task, and the label of each.

    >>> [len(texts(CONTROL, split)[0]) for split in SPLITS]
    [0, 1000, 2000]
    """
    choose("split", split, SPLITS)
    found = [row for row in rows(task) if row.split == split]
    return [row.text for row in found], [row.label for row in found]


@functools.cache
def sets() -> dict[int, tuple[tuple[str, ...], ...]]:
    """Return the sets of tasks drawn beforehand, by number of tasks.

    >>> {size: len(some) for size, some in sets().items()}
    {2: 20, 4: 20, 8: 24, 12: 20}
    """
    drawn = json.loads(shipped.content(FOLDER / SETS))
    return {int(n): tuple(map(tuple, some)) for n, some in drawn.items()}


def words(text: str) -> frozenset[str]:
    """Return the words of a definition, by which near copies are found.

    >>> sorted(words("a small dog; a Dog's small kin"))
    ['a', 'dog', 'kin', 's', 'small']
    """
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))
