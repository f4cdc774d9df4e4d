"""Columns of a record: the common ones, and those that each experiment adds.

A record is one row per (experiment, model, suite, init, method, task, subset, split, n_tasks,
seed, metric, alpha) and the experiment's own columns: one `value` measured on `n` images. Rows are
per task; averages over tasks are computed when they are needed, so there are no rows for means.
**Accuracies are in percent** (0 to 100), as in the papers' tables. Where several groups of the same
number of tasks are added, `subset` names the group. `hits` holds per-image correctness, of a
pair's maps the images of either task whose prediction changed (`images.packed`).

Records are declared in the room `declared`, or by the experiment itself (`experiments.experiment`);
`EXPERIMENTS` and `COMPARISONS` collect the declarations. `table.tidy` refuses undeclared rows.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tasklab.errors import TasklabError
from tasklab.tuning.methods import EDITS

COLUMNS = (
    "experiment", "model", "suite", "init", "method", "task", "subset", "split", "n_tasks", "seed",
    "metric", "alpha", "value", "n",
)  # fmt: skip
METHODS = ("pretrained", *EDITS, "probe")
FORMER_MERGES = ("breadcrumbs_tensor", "lot")  # in recorded files alone: no table lists them
# Merges beside the sum whose losses are crossed with all metrics: masks, singular directions, two
# quadratic distances (with images and without), and the best on the span.
LEADING_MERGES = ("ties", "tsv_m", "regmean", "wudi_exact", "best_span")
LEADING = ("arithmetic", *LEADING_MERGES)  # one of each sort, where there is no time for all
MEASURED = (  # columns that do not say which run a row is of
    "value", "n", "hits", "low", "middle", "high", "trials", "option", "size", "curvature",
    "distance", "bound", "second_order",
)  # fmt: skip
ACCURACIES = ("single", "absolute", "target", "control")  # proportions of n images, in percent
NETWORKS = ("mlp", "resnet18")  # trained from scratch, and studied beside any model


@dataclasses.dataclass(frozen=True)
class Rows:
    """One sort of records."""

    name: str  #: In the column `experiment`
    row: str  #: What a row is
    measured: str  #: Its metrics, each with its unit if it has one: `"absolute %, lambda"`
    further: str = ""  #: Further columns than `COLUMNS`: `"lr, hits"`
    figure: str = ""  #: The function in `tasklab.evidence.figures` that draws a table of them

    @functools.cached_property
    def metrics(self) -> dict[str, str]:
        """The metrics with their units; no unit is the empty string."""
        return {
            name: unit for name, _, unit in (one.partition(" ") for one in _list(self.measured))
        }

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The further columns."""
        return tuple(_list(self.further))

    def __str__(self) -> str:
        units = (f"`{name}`" + f" ({unit})" * bool(unit) for name, unit in self.metrics.items())
        further = f"; columns {', '.join(self.columns)}" * bool(self.columns)
        return f"{self.row}. Metrics: {', '.join(units)}{further}."


def _list(text: str) -> list[str]:
    return text.split(", ") if text else []


Entry = TypeVar("Entry")


class Declared(Mapping[str, Entry], Generic[Entry]):
    """Entries by name that modules declare; asking for others imports these modules.

    Args:
        load: Imports all modules that declare entries.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        self._entries: dict[str, Entry] = {}
        self._homes: dict[str, str] = {}
        self._load = load

    def declare(self, name: str, entry: Entry, home: str) -> None:
        """Add an entry, or replace that of the same module, as a notebook's cell may.

        Args:
            name: Of the entry.
            entry: The declaration.
            home: The module that declares it.

        Raises:
            TasklabError: If another module declares a different entry of this name.
        """
        there = self._homes.setdefault(name, home)
        if there == home:
            self._entries[name] = entry
        elif self._entries[name] != entry:
            raise TasklabError(f"{name!r} of {home} is declared in {there} already: rename one.")

    def homes(self) -> set[str]:
        """Return the modules that declare entries."""
        self._all()
        return set(self._homes.values())

    def _all(self) -> dict[str, Entry]:
        self._load()
        return self._entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name] if name in self._entries else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


_LOADS: list[Callable[[], object]] = []  # of the rooms above, which register themselves


def declarations(load: Callable[[], object]) -> None:
    """Register a function that imports modules with declarations; it runs when one is needed."""
    _LOADS.append(load)


def _load() -> None:
    for load in _LOADS:
        load()


# (a claim, records of its experiment and of the side's model, all records) -> tables by side
Comparison = Callable[[Any, Any, Any], Mapping[str, Any]]
EXPERIMENTS: Declared[Rows] = Declared(_load)  # sorts of records, by their name in `experiment`
COMPARISONS: Declared[Comparison] = Declared(_load)  # of what claims compare beside two methods


def declare(rows: Rows, sides: Mapping[str, Comparison] | None = None, home: str = "") -> Rows:
    """Declare a sort of records, and return it.

    Args:
        rows: Its name, metrics and columns.
        sides: Functions from records to sides of claims, by the name in claims.
        home: The module that declares it; by default that of the call.
    """
    home = home or str(sys._getframe(1).f_globals["__name__"])
    EXPERIMENTS.declare(rows.name, rows, home)
    for name, comparison in (sides or {}).items():
        COMPARISONS.declare(name, comparison, home)
    return rows


def unit(metric: str) -> str:
    """Return a metric's unit; no unit, or no such metric, is the empty string."""
    return next((r.metrics[metric] for r in EXPERIMENTS.values() if metric in r.metrics), "")
