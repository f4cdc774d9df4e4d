"""Advice on task vectors: effects with their intervals from the recorded runs of all worlds.

An effect is a mean difference at the same seeds and tasks. Its interval is about other tasks, as
that of a verdict on tasks in general (`records.targets`).

`answers.csv` has the advice, one row per effect in a world. A side is a recorded part and the
values of columns; `best` is the rate or the strength at which the sum is best.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tasklab.evidence.records import targets
from tasklab.evidence.records.intervals import Interval, in_words
from tasklab.evidence.records.matched import best_for_the_sum
from tasklab.evidence.records.table import where
from tasklab.evidence.study.results import recorded
from tasklab.storage import shipped

WORLDS = ("synthetic images", "real drawings", "texts")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One line of advice."""

    case: str  #: The reader's situation: `you have vectors and no images`
    advice: str  #: What to do
    #: World -> name of the comparison -> its effect in points, with its interval.
    effects: Mapping[str, Mapping[str, Interval]]
    note: str = ""  #: A limitation

    @property
    def agrees(self) -> bool:
        """Whether no world contradicts it.

        A world contradicts another one if their effects have opposite signs and the other's
        interval excludes 0.
        """
        sides: dict[str, list[Interval]] = {}
        for effects in self.effects.values():
            for name, effect in effects.items():
                sides.setdefault(name, []).append(effect)
        return not any(
            (one.low > 0 and other.effect < 0) or (one.high < 0 and other.effect > 0)
            for several in sides.values() for one in several for other in several
        )  # fmt: skip

    def numbers(self, world: str = WORLDS[0]) -> str:
        """Return a world's effects in words: `in the sum +2.7 (0.8 to 4.6)`."""
        found = self.effects.get(world, {})
        return "; ".join(f"{name} {_said(effect)}" for name, effect in found.items())

    def in_each_world(self) -> str:
        """Return the first effect that the worlds share, in each: `synthetic images +2.7 (…)`."""
        names = [set(effects) for effects in self.effects.values()]
        shared = [
            name for name in next(iter(self.effects.values())) if all(name in n for n in names)
        ]
        texts = (f"{world} {_said(effects[shared[0]])}" for world, effects in self.effects.items())
        return f"{shared[0]}: {', '.join(texts)}" if shared else ""


def answers() -> tuple[Answer, ...]:
    """Return the advice whose runs are recorded."""
    found = []
    text = shipped.content(Path(__file__).with_suffix(".csv"))
    table = pd.read_csv(io.BytesIO(text), keep_default_na=False)
    for (case, advice, note), rows in table.groupby(["case", "advice", "note"], sort=False):
        effects: dict[str, dict[str, Interval]] = {}
        for row in rows.itertuples():
            try:
                effect = _over(selected(row.left), selected(row.right))
            except LookupError:  # a part, a rate or a merge that is not recorded
                continue
            effects.setdefault(row.world, {})[row.effect] = effect
        if effects:
            found.append(Answer(case=case, advice=advice, effects=effects, note=note))
    return tuple(found)


def advice_table(found: Iterable[Answer]) -> str:
    """Return answers as a table in Markdown."""
    effect = "effect in points (95 % interval over seeds and tasks)"
    lines = [f"| if … | then … | {effect} |", "|---|---|---|"]
    for one in found:
        note = f". *{one.note}*" if one.note else ""
        told = {world: one.numbers(world) for world in WORLDS}
        numbers = [f"*{world}:* {text}" for world, text in told.items() if text]
        if lacking := [world for world, text in told.items() if not text]:
            numbers.append(f"*not recorded:* {', '.join(lacking)}")
        # a column a world would be too wide for a phone
        lines.append(f"| {one.case} | {one.advice}{note} | {'<br>'.join(numbers)} |")
    return "\n".join(lines)


def _said(effect: Interval) -> str:
    return in_words(*effect, named=False)


def selected(side: str) -> pd.DataFrame:
    """Return recorded test records of a part with values of columns: `merging/rates lr=2e-4`.

    `lr=` without a value selects records without one.

    Raises:
        LookupError: If there are none.
    """
    part, *chosen = side.split()
    rows = recorded(*part.split("/"))[0]
    for name, _, text in (one.partition("=") for one in (*chosen, "split=test")):
        if name not in rows or rows.empty:
            raise LookupError(f"{side}: {name}")
        value = best_for_the_sum(rows[rows[name] > 0], name) if text == "best" else text
        if value and pd.api.types.is_numeric_dtype(rows[name]):
            value = float(value)
        rows = rows[rows[name].isna()] if value == "" else where(rows, **{name: value})
    if rows.empty:
        raise LookupError(side)
    return rows


def _over(left: pd.DataFrame, right: pd.DataFrame) -> Interval:
    """Return the mean difference of two tables at the same seeds, tasks and sets of tasks."""
    keys = ["seed", "task", "subset"]
    both = left[[*keys, "value"]].merge(
        right[[*keys, "value"]], on=keys, suffixes=("", "_right"), validate="1:1"
    )
    if both.empty:
        raise LookupError("no common seeds and tasks")
    differences = both.assign(difference=both["value"] - both["value_right"])
    return targets.interval(differences, targets.TASKS)
