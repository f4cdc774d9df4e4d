"""Compare a copy of a data set with the papers' one.

Copies differ: RESISC45 and SUN397 circulate with other label orders, SUN397 with two splits, DTD
with two notions of its training set. The right ones are in `paper_tasks.json`. Labels of another
order are renumbered by the names of their classes; anything else is an error that shows both.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.suites import Task, paper_data_sets

if TYPE_CHECKING:
    from tasklab.tasks.images.formats import Split


_STRANGE = 0.05  # of ImageNet's names may be spelled in a way of their own, in their places
_ALIKE = 0.75  # of the letters, for such a name


def facts(task: Task) -> dict[str, Any]:
    """Return the facts of a task's data set; none, if it is not one of the papers'."""
    name = task.source.data_set if task.source else None
    return paper_data_sets()[name] if name else {}


def checked(task: Task, splits: Mapping[str, Split], folder: Path) -> dict[str, Split]:
    """Return the splits as the papers take them, with labels in the order of the task's classes.

    Args:
        task: One of the papers' tasks.
        splits: Splits as found in a folder.
        folder: The folder, for messages.

    Raises:
        TasklabError: If classes or numbers of images are not the papers', or a class of another
            split is not in `train`.
    """
    arranged = arrange(task, splits)
    ordered = {name: _ordered(task, name, split, folder) for name, split in arranged.items()}
    for name, split in ordered.items() if "train" in ordered else ():
        if extra := np.setdiff1d(split.labels, ordered["train"].labels).tolist():
            listed = abridged((repr(task.classes[n]) for n in extra), 4)
            raise TasklabError(f"{task.name}: {listed} are in {name} and not in train: {folder}.")
    return ordered


def arrange(task: Task, splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits `train`, `test` and perhaps `val` of a data set, or the one split `all`."""
    entry, splits = facts(task), dict(splits)
    if not entry:
        return _arrange_own(task, splits)
    sizes, has = entry["sizes"], {name: len(split) for name, split in splits.items()}
    if "unsplit" in entry and list(has.values()) == [entry["unsplit"]]:
        return {"all": next(iter(splits.values()))}
    if entry.get("merge") and has.get("train", 0) + has.get("val", 0) == sizes["train"]:
        if "val" in splits:
            splits["train"] = splits["train"].joined(splits.pop("val"))
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
    """Return a copy's possible names of the test images, the likeliest first.

    ImageNet's are its validation images; other splits are ignored. Copies of some data sets call
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
        hint += f" Of split {' and '.join(absent)}, no images with their classes were found in "
        hint += f"parquet files, {entry['layout']}, or a folder for each class."
    return (
        f"{task.name}: this copy has {write(has)} images; the papers' has {write(entry['sizes'])} "
        f"({entry['sizes_from']}).{hint} {entry['hub']['repo']} on the hub is a copy that fits."
    )


def _ordered(task: Task, name: str, split: Split, folder: Path) -> Split:
    count = len(split.names) if split.names is not None else len(task.classes)
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= count:
        raise TasklabError(
            f"{task.name}: the labels of {name} in {folder} go from {low} to {high}; they should "
            f"be from 0 to {count - 1}.{_why(split.labels, count)}"
        )
    _check_classes(task, name, split, folder, count)
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


def _check_classes(task: Task, name: str, split: Split, folder: Path, count: int) -> None:
    """Raise a `TasklabError` if labels cannot be those of a split: hidden ones are of one class.

    All classes are in each of the papers' splits, which have ten images a class or more.
    """
    there = np.unique(split.labels).tolist()
    if len(there) < (count if facts(task) and len(split) >= 10 * count else 2):
        listed = abridged((repr(split.names[n]) if split.names else str(n) for n in there), 3)
        raise TasklabError(
            f"{task.name}: all {len(split):,} labels of {name} in {folder} are of {len(there):,} "
            f"of {count:,} classes ({listed}). They are not the true ones: get the labels of "
            f"{name}, or remove this split."
        )


def _why(labels: np.ndarray, count: int) -> str:
    low, high, hidden = int(labels.min()), int(labels.max()), int((labels == -1).sum())
    if low == -1 and high < count:
        which = "All" if hidden == len(labels) else f"{hidden:,} of {len(labels):,}"
        return f" {which} are -1, which is hidden or unknown: such images are of no use here."
    if low == 1 and high == count:
        return " They seem to be counted from 1: subtract 1 from each."
    return ""


def label_order(task: Task, names: Sequence[str]) -> np.ndarray:
    """Return, for each label of a copy, the label of that class here.

    Where classes share a name, as two cranes and two missiles of ImageNet do, each goes to its own
    place, or else they are taken in order. Names are compared without case and punctuation.
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
    matches = _matched(fits, len(keys))
    if task.repeats and len(names) == len(keys):
        matches = _spelled_alike(names, keys, matches)
    found = [label for label in matches if label is not None]
    if len(found) == len(matches) and sorted(found) == list(range(len(keys))):
        return np.array(found, dtype=np.int64)
    strange = [name for name, label in zip(names, matches, strict=True) if label is None]
    absent = [name for label, name in enumerate(task.classes) if label not in matches]
    lists = names, task.classes, strange, absent
    theirs, ours, only_there, only_here = (abridged(map(repr, one), 4) or "none" for one in lists)
    raise TasklabError(
        f"{task.name}: the labels cannot be matched. This copy has {len(names)} classes "
        f"({theirs}), here are {len(task.classes)} ({ours}). Only there: {only_there}; only here: "
        f"{only_here}."
    )


def _matched(fits: Sequence[Collection[int]], count: int) -> list[int | None]:
    """Return for each name one of the labels that fit it, none twice; `None` if none is left.

    As many names as can be get a label, of these as many as can be that of their own place, and the
    others are in order.
    """
    from scipy.optimize import linear_sum_assignment

    cost = np.full((len(fits), count), 2.0 * count)
    for place, labels in enumerate(fits):
        for label in labels:
            cost[place, label] = (place != label) + ((place - label) / count) ** 2 / (2 * count)
    found = dict(zip(*(part.tolist() for part in linear_sum_assignment(cost)), strict=True))
    return [found.get(place) if found.get(place) in fit else None for place, fit in enumerate(fits)]


def _spelled_alike(
    names: Sequence[str], keys: Sequence[set[str]], matches: list[int | None]
) -> list[int | None]:
    """Return the labels with those of a few unknown names, if all others are in their places.

    The class in its place must be the one of those left that is spelled most like it.
    """
    left = [place for place, label in enumerate(matches) if label is None]
    if len(left) > _STRANGE * len(keys) or any(n not in (i, None) for i, n in enumerate(matches)):
        return matches

    def alike(place: int, label: int) -> float:
        name = _key(names[place])
        return max(difflib.SequenceMatcher(None, name, key).ratio() for key in keys[label])

    for place in left:
        if alike(place, place) >= max(_ALIKE, *(alike(place, label) for label in left)):
            matches[place] = place
    return matches


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
