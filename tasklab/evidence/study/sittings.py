"""A part that is recorded in several sittings, some seeds in each, perhaps on several machines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tasklab.errors import TasklabError
from tasklab.evidence.records import table as records
from tasklab.evidence.records.schema import MEASURED

if TYPE_CHECKING:
    from tasklab.evidence.experiments import Lab

_ASKED = ("steps", "lr")  # choices of a recipe that a call may name: compared before all others
NAMES = ("model", "init", "head", "method")  # what a recipe is called by, if runs differ in it
# What a sitting may add at the same seeds.
_ADDED = ("model", "method", "lr", "experiment", "merge")
_SPENT = ("fine_tuning", "measuring")
# What all sittings of a part have in common, and what is told of each.
_SAME = ("preset", "model", "init", "suite", "weights", "images")
_OWN = (
    "seeds",
    "only",
    "commit",
    "utc",
    "python",
    "torch",
    "machine",
    "data",
    "precision",
    *_SPENT,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """The records of earlier sittings with their provenance."""

    table: pd.DataFrame
    origin: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, lab: Lab) -> Earlier:
        """Read a file of records to which `lab` may add seeds.

        Raises:
            TasklabError: If there is no such file, or it was made of another model, suite, preset,
                other images, or in other steps.
        """
        table, origin = records.read(path)
        here = lab.provenance()
        other = [name for name in _SAME if origin.get(name) != here[name]]
        if other:
            raise TasklabError(
                f"{path.name} was recorded with another choice of {', '.join(other)}: nothing can "
                "be added to it; record it anew."
            )
        asked = {name: getattr(lab.parameters, name) for name in _ASKED}
        _agree(origin, {"recipe": {k: v for k, v in asked.items() if v is not None}})
        return cls(table=table, origin=origin)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that are recorded, in the order in which they were."""
        return tuple(self.origin["seeds"])

    def seeds_of(
        self, model: str, method: str, sorts: Iterable[str], where: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Return those that are recorded of a model, in the same order.

        Args:
            model: Short name of the model.
            method: Of this method alone; of every record if it is empty, since what compares no
                methods may name its own.
            sorts: Of a method's records of any of these sorts.
            where: Of those with these values in their columns.
        """
        rows, asked = self.table, {"model": model}
        if method:
            asked |= {"method": method, **where}
            rows = rows[rows["experiment"].isin(list(sorts))]
        for name, value in asked.items():
            rows = rows[rows[name] == value] if name in rows else rows.iloc[:0]
        there = set(rows["seed"])
        return tuple(seed for seed in self.seeds if seed in there)

    def joined(
        self, table: pd.DataFrame, origin: Mapping[str, Any]
    ) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Return these records with those of a further sitting, and the provenance of both.

        Returns:
            The records, what does not depend on a seed as it was recorded first; and the latest
            provenance with all seeds, seconds of all sittings, and an entry for each of these.

        Raises:
            TasklabError: If the recipes differ in more than the precision.
        """
        _agree(self.origin, origin)
        both = pd.concat([self.table, table], ignore_index=True)
        again = both.duplicated([name for name in both if name not in MEASURED])
        new = both[~again & (both.index >= len(self.table))]
        fresh = [seed for seed in origin["seeds"] if seed in set(new["seed"])]
        last = {**origin, "seeds": fresh}
        if fresh and set(fresh) <= set(self.seeds):
            last["only"] = self._only(new)
        each = [*each_of(self.origin), _sitting(last)]
        seeds = list(dict.fromkeys([*self.seeds, *fresh]))
        whole = {**origin, "seeds": seeds, "sittings": each}
        if "recipe" in self.origin and "recipe" in origin:
            whole |= _recipes(self.origin, origin)
        for name in _SPENT:
            told = [one[name] for one in each if name in one]
            if len(told) == len(each):
                whole[name] = {k: round(sum(one[k] for one in told), 1) for k in told[0]}
            else:
                whole.pop(name, None)
        return records.tidy(both[~again]), whole

    def _only(self, new: pd.DataFrame) -> str:
        """Return the models, methods, ... that are new, or else those that alone have new rows."""
        here = {name: list(map(str, new[name].dropna().unique())) for name in _ADDED if name in new}
        there = {name: set(map(str, self.table.get(name, ()))) for name in here}
        for alone in (False, True):
            for name, told in here.items():
                more = told if alone else [x for x in told if x not in there[name]]
                if more and (not alone or set(told) < there[name]):
                    return ", ".join(more)
        return ", ".join(here["model"])


def former_images(sitting: Mapping[str, Any]) -> bool:
    """Return whether a sitting's images differ from today's in some grey values.

    Until 26 November 2026 drawings depended on the processor: 810 grey values in 26 splits differed
    by 1 on some. Versions of these images end in a hash, and nothing draws them any more.

    >>> former_images({"data": "mini-2/Vehicles/test/1000/b20eeece66a2"})
    True
    >>> former_images({"data": "wordnet-1/Plants/test/141d8de3ab8b/52c7c3c3ac02"})
    False
    """
    data = str(sitting.get("data") or "")
    return data.startswith("mini") and data.count("/") > 3


def rows_of(sitting: Mapping[str, Any], rows: pd.DataFrame) -> pd.Series:
    """Return whether records are of a sitting, by its seeds and its own entries (`only`)."""
    own = rows["seed"].isna() | rows["seed"].isin(sitting["seeds"])
    if "only" in sitting:
        told = re.split(", | and ", sitting["only"])
        columns = [rows[name].astype(str).isin(told) for name in _ADDED if name in rows]
        own &= pd.concat(columns, axis=1).any(axis=1)
    return own.astype(bool)


def each_of(origin: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one provenance entry per recording session."""
    return list(origin.get("sittings") or [_sitting(origin)])


def _sitting(origin: Mapping[str, Any]) -> dict[str, Any]:
    told = {**origin, "precision": (origin.get("recipe") or {}).get("precision")}
    return {name: told[name] for name in _OWN if told.get(name) is not None}


def _recipes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that runs of both share, and their differences by model and method."""
    shared, shared_now = (one["recipe"] or {} for one in (before, now))
    both = {k: v for k, v in shared.items() if k in shared_now and shared_now[k] == v}
    varied: dict[str, Any] = {}
    for one in (now, before):  # what is kept was recorded first
        apart = {k: v for k, v in (one["recipe"] or {}).items() if k not in (*both, "precision")}
        model, *rest = (str(apart.get(name, "")) for name in NAMES)
        for name, own in (one.get("recipes") or {}).items():
            alike = model and name == both.get("method")  # a name of runs that share all of theirs
            words = [model, "" if alike else name, *(word for word in rest if word != name)]
            full = " ".join(filter(None, words))
            plain = {k: v for k, v in apart.items() if k not in NAMES}
            known = varied.get(full, {})
            gone_over = {  # rates of both sittings
                k: sorted({*_listed(known[k]), *_listed(v)})
                for k, v in own.items()
                if k in known and (isinstance(v, list) or isinstance(known[k], list))
            }
            varied[full] = known | plain | own | gone_over
    return {"recipe": both, "recipes": {name: own for name, own in varied.items() if own}}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _agree(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a `TasklabError` if two provenances differ in a choice that both record."""
    pairs = [(one.get("recipe") or {}, one.get("recipes") or {}) for one in (before, now)]
    (shared, varied), (shared_now, varied_now) = pairs
    told = shared.keys() & shared_now.keys() & set(NAMES)
    if any(shared[name] != shared_now[name] for name in told):
        return  # of other runs
    others = [(varied[name], varied_now[name]) for name in varied.keys() & varied_now.keys()]
    for one, other in [(shared, shared_now), *others]:
        for name in sorted(one.keys() & other.keys() - {"precision"}):
            if isinstance(one[name], list) or isinstance(other[name], list):
                continue  # the part goes over it: a sitting tells what it made, the rows tell all
            if one[name] != other[name]:
                raise TasklabError(
                    f"the records that are there were made with {name} = {one[name]}, not "
                    f"{other[name]}: record all seeds anew."
                )
