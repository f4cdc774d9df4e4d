"""Advice on task vectors: effects with their intervals from the recorded runs of both worlds.

An effect is a mean difference at the same seeds and tasks. Its interval is that of a verdict on
tasks in general: over seeds of fine-tuning and over tasks, or over sets of tasks where many were
drawn (`records.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tasklab.records import intervals
from tasklab.records.intervals import Interval
from tasklab.records.matched import best_for_the_sum
from tasklab.study.results import recorded

WORLDS = ("synthetic images", "real drawings")
Side = Callable[[int], pd.DataFrame]  # rows on test images, of a world
_MANY = 10  # so many sets of tasks are drawn, and not their tasks
# What is compared -> the part of each world that has it; a world may lack it.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "merges": ("merging editing", "merging icons"),
    "joint": ("merging joint", "merging icons"),
    "sets": ("merging fewer", "merging sets"),
    "rates": ("merging rates", "tangent icons_budgets"),
    "nonlinear": ("tangent budgets", "tangent icons_budgets"),
    "linearized": ("tangent budgets", "tangent icons_budgets"),
    "attention": ("linear_layers budgets", "tangent icons_budgets"),
    "probes": ("closed_vocab editing", "closed_vocab icons"),
    "strengths": ("merging strengths",),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One line of advice.

    Attributes:
        case: The reader's situation: `you have vectors and no images`.
        advice: What to do.
        effects: World -> name of the comparison -> its effect in points, with its interval.
        note: A limitation; may be empty.
    """

    case: str
    advice: str
    effects: Mapping[str, Mapping[str, Interval]]
    note: str = ""

    def numbers(self, world: str = WORLDS[0]) -> str:
        """Return a world's effects in words: `in the sum +2.7 (0.8 to 4.6)`."""
        found = self.effects.get(world, {})
        return "; ".join(f"{name} {_said(effect)}" for name, effect in found.items())


def answers() -> tuple[Answer, ...]:
    """Return the advice whose runs are recorded."""
    found = []
    for case, advice, compared, note in _ADVICE:
        effects: dict[str, dict[str, Interval]] = {}
        for at, world in enumerate(WORLDS):
            for name, (left, right) in compared.items():
                try:
                    effects.setdefault(world, {})[name] = _over(left(at), right(at))
                except LookupError:  # a part, a rate or a merge that is not recorded
                    continue
        if any(effects.values()):
            found.append(Answer(case=case, advice=advice, effects=effects, note=note))
    return tuple(found)


def advice_table(found: Iterable[Answer]) -> str:
    """Return answers as a table in Markdown."""
    lines = [f"| if … | then … | {' | '.join(WORLDS)} |", "|---|---|---|---|"]
    for one in found:
        note = f" *{one.note}*" if one.note else ""
        numbers = " | ".join(one.numbers(world) or "not recorded" for world in WORLDS)
        lines.append(f"| {one.case} | {one.advice}{note} | {numbers} |")
    return "\n".join(lines)


def _said(effect: Interval) -> str:
    mean, low, high = (round(x, 1) + 0.0 for x in effect)  # no negative zero
    told = f"{mean:+.1f}"
    if low == low:  # not NaN
        told += f" ({low:.1f} to {high:.1f})"
    return told.replace("-", "−")


def _recorded(kind: str, world: int) -> pd.DataFrame:
    return recorded(*_PARTS[kind][world].split())[0]  # an IndexError is a LookupError


def _where(rows: pd.DataFrame, **chosen: Any) -> pd.DataFrame:
    for name, value in {"split": "test", **chosen}.items():
        if name not in rows:
            raise LookupError(name)
        rows = rows[(rows[name] == value).fillna(False).astype(bool)]
    if rows.empty:
        raise LookupError(str(chosen))
    return rows


def _of(kind: str, metric: str = "absolute", **chosen: Any) -> Side:
    return lambda world: _where(_recorded(kind, world), metric=metric, **chosen)


def _merged(merge: str, **chosen: Any) -> Side:
    return _of("sets" if chosen else "merges", merge=merge, **chosen)


def _rated(method: str, lr: float, merge: str = "arithmetic", metric: str = "absolute") -> Side:
    """Return the side of a learning rate; some parts have the sum alone and name no merge."""

    def side(world: int) -> pd.DataFrame:
        rows = _recorded("rates", world)
        named = {"merge": merge} if "merge" in rows or merge != "arithmetic" else {}
        return _where(rows, method=method, lr=lr, metric=metric,
                      **(named if metric == "absolute" else {}))  # fmt: skip

    return side


def _at_best(method: str, metric: str) -> Side:
    """Return the side of a method at the rate that is best for its sum, on test images."""

    def side(world: int) -> pd.DataFrame:
        grid = _where(_recorded(method, world), method=method, steps=240)
        return _where(grid, metric=metric, lr=best_for_the_sum(grid, "test"))

    return side


def _penalised(metric: str) -> Side:
    """Return the side of τJp, at the strength that is best for the sum of validation images."""

    def side(world: int) -> pd.DataFrame:
        every = _recorded("strengths", world)
        mine = every[(every["method"] == "tau_jp") & every["penalty"].gt(0)]
        told = _where(mine, split="validation", metric="absolute")
        strength = told.groupby("penalty")["value"].mean().idxmax()
        return _where(mine, penalty=strength, metric=metric)

    return side


def _over(left: pd.DataFrame, right: pd.DataFrame) -> Interval:
    """Return the mean difference of two tables at the same seeds, tasks and sets of tasks."""
    keys = ["seed", "task", "subset"]
    both = left[[*keys, "value"]].merge(right[[*keys, "value"]], on=keys, suffixes=("", "_right"))
    if both.empty:
        raise LookupError("no common seeds and tasks")
    both["value"] -= both["value_right"]
    drawn = ["subset"] if both["subset"].nunique() >= _MANY else keys[:2]
    by = {name: both.groupby(name)["value"].mean() for name in drawn}
    effect = float(by[drawn[0]].mean())
    if any(len(each) < 2 for each in by.values()):
        return Interval(effect, float("nan"), float("nan"))
    return intervals.interval(effect, [intervals.of_means(name, each) for name, each in by.items()])


def _probed(method: str, *models: str) -> Side:
    def side(world: int) -> pd.DataFrame:
        return _of("probes", model=models[world], experiment="addition", method=method)(world)

    return side


_OWN, _HIGH = 8e-4, 1.6e-3  # best alone: of non-linear and of linearized fine-tuning
_LOW = _OWN / 4
Compared = Mapping[str, tuple[Side, Side]]
_ADVICE: tuple[tuple[str, str, Compared, str], ...] = (
    (
        "you fine-tune models to add or merge their vectors",
        "choose the learning rate by the accuracy of the sum on validation images; try a quarter "
        "of the rate that is best for single tasks",
        {
            "a quarter of that rate, on single tasks": (
                _rated("nonlinear", _LOW, metric="single"),
                _rated("nonlinear", _OWN, metric="single"),
            ),
            "in the sum": (_rated("nonlinear", _LOW), _rated("nonlinear", _OWN)),
            "with TSV-M": (_rated("nonlinear", _LOW, "tsv_m"), _rated("nonlinear", _OWN, "tsv_m")),
        },
        "We read the factor off test images of the synthetic tasks. On drawings it hurts.",
    ),
    (
        "you have vectors and no images",
        "merge with TSV-M instead of the sum",
        {"eight tasks": (_merged("tsv_m"), _merged("arithmetic"))},
        "",
    ),
    (
        "you also have a few hundred training images of each task",
        "try Essential Subspace and RegMean++, and let validation images choose",
        {
            "Essential Subspace over TSV-M": (_merged("essential"), _merged("tsv_m")),
            "RegMean++ over TSV-M": (_merged("regmean_plusplus"), _merged("tsv_m")),
        },
        "Measured with 256 images a task and a small feature width; the two were picked by their "
        "test accuracy.",
    ),
    (
        "you control fine-tuning and have unlabelled images of the other tasks",
        "fine-tune the linearized model with the penalty τJp, not the non-linear model",
        {
            "in the sum": (_penalised("absolute"), _merged("arithmetic")),
            "on single tasks": (
                _penalised("single"),
                _of("merges", "single", method="nonlinear"),
            ),
        },
        "Validation images chose its strength.",
    ),
    (
        "you consider linearized fine-tuning for a better sum",
        "tune the learning rate first; with a modern merge little of the gain remains",
        {
            "over non-linear at its best single-task rate": (
                _rated("linearized", _HIGH), _rated("nonlinear", _OWN)
            ),
            "over non-linear at a quarter of it": (
                _rated("linearized", _HIGH), _rated("nonlinear", _LOW)
            ),
            "the same with TSV-M": (
                _rated("linearized", _HIGH, "tsv_m"), _rated("nonlinear", _LOW, "tsv_m")
            ),
        },
        "",
    ),
    (
        "you want a model to forget a task",
        "subtract a linearized vector that was trained at a high learning rate",
        {
            "target accuracy, against non-linear": (
                _of("linearized", "target", method="linearized", lr=_HIGH, steps=240),
                _of("nonlinear", "target", method="nonlinear", lr=_OWN, steps=240),
            ),
            "against linearized at a low rate": (
                _of("linearized", "target", method="linearized", lr=_HIGH, steps=240),
                _of("linearized", "target", method="linearized", lr=_LOW, steps=240),
            ),
        },
        "Lower is better; the control task keeps 95 %.",
    ),
    (
        "fine-tuning all weights is too expensive",
        "train only the attention's linear layers; the sum gains nothing",
        {
            "in the sum": (_at_best("attention", "absolute"), _at_best("nonlinear", "absolute")),
            "on single tasks": (_at_best("attention", "single"), _at_best("nonlinear", "single")),
        },
        "Each method at its best rate for the sum, read off test images.",
    ),
    (
        "your model has no text tower",
        "fit linear probes; vectors added on top gain little, if anything, and only for a CLIP",
        {
            name: (_probed("nonlinear", *models), _probed("probe", *models))
            for name, models in (
                ("supervised", ("mini_few",)), ("DINO", ("mini_dino",)),
                ("CLIP", ("mini_clip_more", "icons_s")),
            )
        },
        "",
    ),
    (
        "you choose how many tasks to add",
        "merge with TSV-M from two tasks on; it gains most over the sum with four or more",
        {
            f"TSV-M over the sum, {n} tasks": (
                _merged("tsv_m", n_tasks=n), _merged("arithmetic", n_tasks=n)
            )
            for n in (2, 4, 8)
        },
        "Of drawings, an interval is over sets of tasks, which overlap.",
    ),
    (
        "you have the training images of all tasks",
        "train one model on all of them instead of merging",
        {
            f"over {name}": (
                _of("joint", experiment="joint", method="nonlinear"), _merged(merge)
            )
            for name, merge in (("the sum", "arithmetic"), ("TSV-M", "tsv_m"))
        },
        "",
    ),
)  # fmt: skip
