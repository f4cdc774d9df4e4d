"""Which drawings become which task: classes by name, splits by family, no near copies.

A drawing belongs to a class if its name says exactly so; a family is on one side of the split, so
that no hand that drew a test picture drew a training picture.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretraining.icons import clean, names
from pretraining.icons.render import Drawings

TABLE = Path(__file__).with_name("tasks.txt")
LEVEL = 17  # grey values of a level: 16 of them ship
CONTROL = "Documents"
SPLITS = ("train", "val", "test")
TEST_SHARE = 0.5  # of the drawings, by families
VAL_SHARE = 0.125  # of the other side's
CLASSES = 32  # at most, those with the most drawings
LEAST = {"train": 10, "test": 10}  # drawings of a class
MOST = {"train": 1200, "val": 150, "test": 850}  # drawings of a task
CONTROL_MOST = {"train": 0, "val": 600, "test": 2000}
# Names that are also firms', and whose drawings are nearly all the firm's mark.
MARKS = frozenset(("bluetooth", "atom", "apple", "square", "circle"))


class Class(NamedTuple):
    """A class of a task by its names, the first of which is said in prompts."""

    task: str
    label: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Drawings in the order in which they are shipped."""

    rows: NDArray[np.int64]  #: Which of the world's drawings
    labels: NDArray[np.int64]


class World:
    """All rendered drawings in one order, by set and name.

    Args:
        sets: As `render.read` returns them.
        brands: Names that are trade marks.
        spoken: Names that classes have: these are words as well.
    """

    def __init__(
        self, sets: list[Drawings], brands: Iterable[str], spoken: Iterable[str] = ()
    ) -> None:
        self.sets = sets
        marks = set(brands) - {"-".join(name.split()) for name in spoken} | MARKS
        self.names = [name for one in sets for name in one.names]
        self.of = np.repeat(np.arange(len(sets)), [len(one.names) for one in sets])
        self.first = np.cumsum([0, *(len(one.names) for one in sets)])
        self.concepts = [names.concept(name) for name in self.names]
        self.marked = np.array(
            [names.trademark(name, marks) or bool(names.SKIN.search(name)) for name in self.names]
        )

    def family(self, row: int) -> str:
        """Return the family of a drawing."""
        return self.sets[self.of[row]].about["family"]

    def said(self, row: int) -> str:
        """Return a drawing's full name, set and all."""
        return f"{self.sets[self.of[row]].about['prefix']}:{self.names[row]}"

    def pictures(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures (n, 3, S, S)."""
        found = [
            self.sets[s].pictures[row - self.first[s]]
            for s, row in zip(self.of[rows], rows, strict=True)
        ]
        shape = 3, *self.sets[0].pictures.shape[2:]
        whole = [np.broadcast_to(x, shape) for x in found]
        return np.stack(whole) if whole else np.zeros((0, *shape), np.uint8)

    def grey(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return brightness (n, S, S) in the levels that ship."""
        result = np.empty((len(rows), *self.sets[0].pictures.shape[2:]), np.uint8)
        for at in range(0, len(rows), 4096):
            result[at : at + 4096] = LEVEL * levels(clean.grey(self.pictures(rows[at : at + 4096])))
        return result


def classes(text: str | None = None) -> tuple[list[Class], dict[str, str]]:
    """Return the classes of the table `tasks.txt`, and what each task's pictures are called."""
    text = TABLE.read_text("utf-8") if text is None else text
    result, kinds = [], {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            task, kinds_of = lines[0].split(" | ")
            kinds[task] = kinds_of
            for line in lines[1:]:
                label, _, others = line.partition(":")
                more = [one.strip() for one in others.split(",") if one.strip()]
                result.append(Class(task, label, (label, *more)))
    counted = collections.Counter(name for one in result for name in one.names)
    if twice := [name for name, n in counted.items() if n > 1]:
        raise ValueError(f"names of two classes: {', '.join(twice)}")
    return result, kinds


def levels(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return grey values as levels from 0 to 15."""
    return ((values.astype(np.uint16) + LEVEL // 2) // LEVEL).astype(np.uint8)


def order(*said: object) -> str:
    """Return a text that sorts like random numbers, and everywhere in the same way."""
    return hashlib.sha256("/".join(map(str, said)).encode()).hexdigest()


def sides(sizes: Mapping[str, int], share: float = TEST_SHARE) -> set[str]:
    """Return the families of the test side: in random order, each to the side that lacks more."""
    test: set[str] = set()
    counted = [0, 0]
    for family in sorted(sizes, key=lambda name: order("family", name)):
        side = counted[1] * (1 - share) <= counted[0] * share
        counted[side] += sizes[family]
        if side:
            test.add(family)
    return test


def by_meaning(world: World, table: list[Class]) -> dict[str, tuple[list[str], dict[str, Part]]]:
    """Return the class names and splits of the tasks by meaning.

    Drawings of the test side come first when near copies are removed, so that a training drawing
    that copies a test drawing goes.
    """
    label = {name: index for index, one in enumerate(table) for name in one.names}
    rows = np.array(
        [
            row
            for row, concept in enumerate(world.concepts)
            if concept in label and not world.marked[row]
        ]
    )
    families = [world.family(row) for row in rows]
    test = sides(collections.Counter(families))
    tested = np.array([family in test for family in families])
    rows = np.concatenate([rows[tested], rows[~tested]])
    tested = np.arange(len(rows)) < tested.sum()
    keep = clean.distinct(world.grey(rows))
    rows, tested = rows[keep], tested[keep]
    labels = np.array([label[world.concepts[row]] for row in rows])
    result = {}
    for task in dict.fromkeys(one.task for one in table):
        members = [i for i, one in enumerate(table) if one.task == task]
        most = CONTROL_MOST if task == CONTROL else MOST
        found = {i: (rows[(labels == i) & ~tested], rows[(labels == i) & tested]) for i in members}
        found = {
            i: both
            for i, both in found.items()
            if len(both[0]) >= LEAST["train"] and len(both[1]) >= LEAST["test"]
        }
        ranked = sorted(found, key=lambda i: (-min(map(len, found[i])), i))[:CLASSES]
        chosen = sorted(ranked)
        share = 1.0 if task == CONTROL else VAL_SHARE
        parts = {
            split: _part(world, {k: found[i] for k, i in enumerate(chosen)}, split, most, share)
            for split in SPLITS
        }
        result[task] = [table[i].label for i in chosen], parts
    return result


def _part(
    world: World,
    found: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]],
    split: str,
    most: Mapping[str, int],
    val_share: float,
) -> Part:
    chosen: list[tuple[int, int]] = []
    per_class = {}
    for label, (train, test) in found.items():
        shuffled = sorted(train, key=lambda row: order("row", world.said(row)))
        n_val = round(val_share * len(shuffled))
        pool = {"val": shuffled[:n_val], "train": shuffled[n_val:]}.get(split)
        if pool is None:
            pool = sorted(test, key=lambda row: order("row", world.said(row)))
        per_class[label] = pool
    # Classes with many drawings give up theirs first.
    cap = max(map(len, per_class.values()), default=0)
    while cap and sum(min(cap, len(pool)) for pool in per_class.values()) > most[split]:
        cap -= 1
    for label, pool in per_class.items():
        chosen += [(row, label) for row in pool[:cap]]
    chosen.sort(key=lambda pair: order(split, world.said(pair[0])))
    return Part(
        np.array([row for row, _ in chosen], np.int64), np.array([y for _, y in chosen], np.int64)
    )
