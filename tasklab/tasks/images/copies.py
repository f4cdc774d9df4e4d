"""Whether a copy of a data set is what the papers used: its sizes and the order of its labels.

Copies differ: RESISC45 and SUN397 circulate with other label orders, SUN397 with two splits, DTD
with two notions of its training set. What is right stands in `data/paper_tasks.json`. Labels of
another order are renumbered by the names of their classes; anything else is an error that shows
both.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasklab.errors import TasklabError, some
from tasklab.tasks.images import formats
from tasklab.tasks.images.formats import Split
from tasklab.tasks.suites import Task, paper_data_sets

_STRANGE = 0.05  # of ImageNet's names may be spelled in a way of their own, in their places
_ALIKE = 0.75  # of the letters, for such a name


def facts(task: Task) -> dict[str, Any]:
    """Return what is known of a task's data set; nothing, if it is not one of the papers'."""
    name = task.source.data_set if task.source else None
    return paper_data_sets()[name] if name else {}


def checked(task: Task, splits: Mapping[str, Split], folder: Path) -> dict[str, Split]:
    """Return the splits as the papers take them, with labels in the order of the task's classes.

    Args:
        task: The task.
        splits: By the data set's own names, as they were found.
        folder: Where, for messages.

    Raises:
        TasklabError: If sizes or classes are not what they should be; it shows both.
    """
    arranged = arrange(task, splits)
    return {name: _ordered(task, name, split, folder) for name, split in arranged.items()}


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
    for name in _test_names(entry):
        if name in splits and len(splits[name]) == sizes["test"]:
            splits["test"] = splits.pop(name)
            break
    wanted = {name: splits[name] for name in sizes if name in splits}
    got = {name: len(split) for name, split in wanted.items()}
    if any(got.get(name) != sizes[name] for name in ("train", "test") if name in sizes):
        raise TasklabError(_sizes_differ(task, entry, has))
    if got.get("val") != sizes.get("val"):
        wanted.pop("val", None)
    return wanted


def _test_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a copy may call the test images, first what it does if it has several splits.

    ImageNet's are its validation images, whatever else is there. Copies of some data sets call
    the test images `val`; where validation images of the same number exist, these may be meant.
    """
    sizes = entry["sizes"]
    both = entry.get("unused_val", sizes.get("val")) == sizes["test"]
    own = entry.get("splits", {}).get("test", ())
    return (*own, "test", "all") if both else (*own, "test", "val", "all")


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
    names = {name: entry.get("splits", {}).get(name, [name])[0] for name in entry["sizes"]}
    absent = [names[one] for one in ("train", "test") if one in names and names[one] not in has]
    if absent and "all" not in has:
        hint += f" Its split {' and '.join(absent)} is missing."
    return (
        f"{task.name}: this copy has {write(has)} images; the papers' has {write(entry['sizes'])} "
        f"({entry['sizes_from']}).{hint} {entry['hub']['repo']} on the hub is a copy that fits."
    )


def _ordered(task: Task, name: str, split: Split, folder: Path) -> Split:
    """Return the split with its labels in the order of the task's classes."""
    count = len(split.names) if split.names is not None else len(task.classes)
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= count:
        raise TasklabError(
            f"{task.name}: the labels of {name} in {folder} go from {low} to {high}; they should "
            f"be from 0 to {count - 1}.{_why(split.labels, count)}"
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


def _why(labels: np.ndarray, count: int) -> str:
    """Return what labels out of range may mean, if that can be told."""
    low, high, hidden = int(labels.min()), int(labels.max()), int((labels == -1).sum())
    if low == -1 and high < count:
        which = "All" if hidden == len(labels) else f"{hidden:,} of {len(labels):,}"
        return f" {which} are -1, which is hidden or unknown: such images are of no use here."
    if low == 1 and high == count:
        return " They seem to be counted from 1: subtract 1 from each."
    return ""


def label_order(task: Task, names: Sequence[str]) -> np.ndarray:
    """Return, for each label of a copy, the label of that class here.

    Where classes share a name, as two cranes and two missiles of ImageNet do, the others are
    matched first; what is left goes to its own place, or else is taken in order.

    Args:
        task: The task, with its classes and, for the papers' data sets, other names of them.
        names: The copy's class names; spelling is compared without case and punctuation.

    Raises:
        TasklabError: If the classes are not the same; it shows both.
    """
    keys = [
        {_key(part) for one in (name, *others) for part in (one, *one.split(","))}
        for name, others in zip(task.classes, _aliases(task), strict=True)
    ]
    places: dict[str, set[int]] = {}
    for label, own in enumerate(keys):
        for key in own:
            places.setdefault(key, set()).add(label)
    fits = [places.get(_key(n)) or places.get(_key(n.partition(",")[0]), set()) for n in names]
    found = _matched(fits)
    if task.repeats and len(names) == len(keys):
        found = _spelled_alike(names, keys, found)
    if None not in found and sorted(found) == list(range(len(keys))):
        return np.array(found, dtype=np.int64)
    strange = [name for name, label in zip(names, found, strict=True) if label is None]
    absent = [name for label, name in enumerate(task.classes) if label not in found]
    lists = names, task.classes, strange, absent
    theirs, ours, only_there, only_here = (some(map(repr, one), 4) or "none" for one in lists)
    raise TasklabError(
        f"{task.name}: the labels cannot be matched. This copy has {len(names)} classes "
        f"({theirs}), here are {len(task.classes)} ({ours}). Only there: {only_there}; only here: "
        f"{only_here}."
    )


def _matched(fits: Sequence[Collection[int]]) -> list[int | None]:
    """Return a label for each name, none twice, of those that fit it; `None` if none is left."""
    found: list[int | None] = [None] * len(fits)
    free = set().union(*fits)

    def settle(place: int, label: int) -> None:
        found[place] = label
        free.discard(label)

    changed = True
    while changed:  # a label that is taken may leave one for another name
        changed = False
        for place, labels in enumerate(fits):
            if found[place] is None and len(left := free.intersection(labels)) == 1:
                settle(place, left.pop())
                changed = True
    for home in (True, False):
        for place, labels in enumerate(fits):
            if found[place] is None and (left := free.intersection(labels)):
                if place in left or not home:
                    settle(place, place if place in left else min(left))
    return found


def _spelled_alike(
    names: Sequence[str], keys: Sequence[set[str]], found: list[int | None]
) -> list[int | None]:
    """Return the labels with those of a few unknown names, if all others are in their places.

    The class in its place must be the one of those left that is spelled most like it.
    """
    left = [place for place, label in enumerate(found) if label is None]
    if len(left) > _STRANGE * len(keys) or any(n not in (i, None) for i, n in enumerate(found)):
        return found

    def alike(place: int, label: int) -> float:
        name = _key(names[place])
        return max(difflib.SequenceMatcher(None, name, key).ratio() for key in keys[label])

    for place in left:
        if alike(place, place) >= max(_ALIKE, *(alike(place, label) for label in left)):
            found[place] = place
    return found


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
