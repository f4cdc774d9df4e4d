"""Whether a copy of a data set is what the papers used: its sizes and the order of its labels.

Copies differ: RESISC45 and SUN397 circulate with other label orders, SUN397 with two splits, DTD
with two notions of its training set. What is right stands in `data/paper_tasks.json`. Labels of
another order are renumbered by the names of their classes; anything else is an error that shows
both.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasklab.errors import TasklabError
from tasklab.pictures import formats
from tasklab.pictures.formats import Split
from tasklab.tasks import Task, known

_SHOWN = 4  # names in a message
_ALIKE = 0.95  # of the names in their places, where two classes share one


def facts(task: Task) -> dict[str, Any]:
    """Return what is known of a task's data set; nothing, if it is not one of the papers'."""
    name = task.source.known if task.source else None
    return known()[name] if name else {}


def checked(task: Task, splits: Mapping[str, Split], folder: Path) -> dict[str, Split]:
    """Return the splits as the papers take them, with labels in the order of the task's classes.

    Args:
        task: The task.
        splits: By the data set's own names, as they were found.
        folder: Where, for messages.

    Raises:
        TasklabError: If sizes or classes are not what they should be; it shows both.
    """
    return {k: _ordered(task, split, folder) for k, split in arrange(task, splits).items()}


def arrange(task: Task, splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits `train`, `test` and perhaps `val` of a data set, or the one split `all`.

    Raises:
        TasklabError: If their sizes are not those that the papers use; it shows both.
    """
    entry, splits = facts(task), dict(splits)
    if not entry:
        return _arrange_own(task, splits)
    sizes, has = entry["sizes"], {name: len(split) for name, split in splits.items()}
    if "unsplit" in entry and list(has.values()) == [entry["unsplit"]]:
        return {"all": next(iter(splits.values()))}
    if entry.get("merge") and has.get("train", 0) + has.get("val", 0) == sizes["train"]:
        if "val" in splits:
            splits["train"] = formats.join(splits["train"], splits.pop("val"))
    for other in ("val", "all"):  # some copies call their test images so
        if "test" not in splits and has.get(other) == sizes["test"]:
            splits["test"] = splits.pop(other)
    wanted = {name: splits[name] for name in sizes if name in splits}
    got = {name: len(split) for name, split in wanted.items()}
    if any(got.get(name) != sizes[name] for name in ("train", "test") if name in sizes):
        raise TasklabError(_sizes_differ(task, entry, has))
    if got.get("val") != sizes.get("val"):
        wanted.pop("val", None)
    return wanted


def _arrange_own(task: Task, splits: dict[str, Split]) -> dict[str, Split]:
    if "all" in splits or {"train", "test"} <= splits.keys():
        return splits
    if {"train", "val"} <= splits.keys():  # data sets whose test labels are not public
        return {"train": splits["train"], "test": splits["val"]}
    if "train" in splits:
        return {"all": splits["train"]}
    raise TasklabError(f"{task.name} has only the split {', '.join(splits)}, and none to train on.")


def _sizes_differ(task: Task, entry: Mapping[str, Any], has: Mapping[str, int]) -> str:
    def write(sizes: Mapping[str, Any]) -> str:
        order = [name for name in ("all", "train", "val", "test") if name in sizes]
        return ", ".join(f"{name} {sizes[name]:,}" for name in order)

    same = [one for one in entry.get("other", []) if one["train"] in has.values()]
    hint = f" It looks like {same[0]['what']}." if same else ""
    return (
        f"{task.name}: this copy has {write(has)} images; the papers' has {write(entry['sizes'])} "
        f"({entry['sizes_from']}).{hint} {entry['hub']['repo']} on the hub is a copy that fits."
    )


def _ordered(task: Task, split: Split, folder: Path) -> Split:
    """Return the split with its labels in the order of the task's classes."""
    count = len(split.names) if split.names is not None else len(task.classes)
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= count:
        raise TasklabError(
            f"{task.name}: labels in {folder} go from {low} to {high}; they should be from 0 to "
            f"{count - 1}. A split whose labels are hidden (-1) is of no use."
        )
    if not facts(task):
        if count != len(task.classes):
            raise TasklabError(
                f"{task.name} was made with {len(task.classes)} classes, and {folder} now has "
                f"{count}: make the task again."
            )
        return split
    if split.names is None:
        if not all(name.isdigit() for name in task.classes):
            raise TasklabError(
                f"{task.name}: the files in {folder} do not name their classes, so that the order "
                "of labels cannot be checked. Put a file classes.txt beside them, one name a line."
            )
        return split
    order = label_order(task, split.names)
    return dataclasses.replace(split, labels=order[split.labels])


def label_order(task: Task, names: Sequence[str]) -> np.ndarray:
    """Return, for each label of a copy, the label of that class here.

    Args:
        task: The task, with its classes and, for the papers' data sets, other names of them.
        names: The copy's class names; spelling is compared without case and punctuation.

    Raises:
        TasklabError: If the classes are not the same; it shows both.
    """
    keys = [
        {_key(name), *map(_key, others)}
        for name, others in zip(task.classes, _aliases(task), strict=True)
    ]
    if task.repeats and len(names) == len(keys):  # a shared name does not tell which: its place may
        pairs = zip(names, keys, strict=True)
        fits = [not own.isdisjoint({_key(n), _key(n.partition(",")[0])}) for n, own in pairs]
        if sum(fits) >= _ALIKE * len(keys):
            return np.arange(len(keys))
    numbers = {key: label for label in reversed(range(len(keys))) for key in keys[label]}
    found = [numbers.get(_key(name)) for name in names]
    if None not in found and sorted(found) == list(range(len(keys))):
        return np.array(found, dtype=np.int64)
    strange = [name for name, label in zip(names, found, strict=True) if label is None]
    absent = [name for label, name in enumerate(task.classes) if label not in found]
    raise TasklabError(
        f"{task.name}: the labels cannot be matched. This copy has {len(names)} classes "
        f"({_some(names)}), here are {len(task.classes)} ({_some(task.classes)}). Only there: "
        f"{_some(strange) or 'none'}; only here: {_some(absent) or 'none'}."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


def _key(name: str) -> str:
    """Return a class name without case, punctuation, zeros in front, and SUN397's first letter."""
    name = re.sub(r"^/?[a-z]/", "", name.lower())
    key = re.sub(r"[^a-z0-9]+", " ", name).strip()
    return str(int(key)) if key.isdigit() else key


@functools.lru_cache(maxsize=32)
def _aliases(task: Task) -> list[list[str]]:
    entry = facts(task)
    if entry.get("classes") == "open_clip":  # timm keeps ImageNet's synsets, in order
        from timm.data import ImageNetInfo

        info = ImageNetInfo()
        return [[wnid, info.label_name_to_description(wnid)] for wnid in info.label_names()]
    return entry.get("aliases") or [[] for _ in task.classes]
