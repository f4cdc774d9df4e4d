"""Advice on task vectors: effects with their intervals from the recorded results.

An effect is a mean difference at the same seeds and tasks. Its interval is that of a verdict on
tasks in general: over seeds of fine-tuning and over tasks (`records.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tasklab.records import intervals
from tasklab.records.intervals import Interval
from tasklab.records.matched import best_for_the_sum
from tasklab.study.results import recorded

_OWN = {"nonlinear": 8e-4, "linearized": 1.6e-3}  # rates of the recipe, best alone


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One line of advice.

    Attributes:
        case: The reader's situation: `you have vectors and no images`.
        advice: What to do.
        effects: Name of the comparison -> its effect in points, with its interval.
        note: A limitation; may be empty.
    """

    case: str
    advice: str
    effects: dict[str, Interval]
    note: str = ""

    @property
    def numbers(self) -> str:
        """The effects in words: `in the sum +2.7 (0.8 to 4.6)`."""
        return "; ".join(f"{name} {_said(effect)}" for name, effect in self.effects.items())


def answers() -> tuple[Answer, ...]:
    """Return the advice whose runs are recorded."""
    found = []
    for answer in _ANSWERS:
        try:
            found.append(answer())
        except LookupError:  # a part, a rate or a merge that is not recorded
            continue
    return tuple(found)


def advice_table(found: Iterable[Answer]) -> str:
    """Return answers as a table in Markdown."""
    lines = ["| if … | then … | effect in points (95 % interval) |", "|---|---|---|"]
    for one in found:
        note = f" *{one.note}*" if one.note else ""
        lines.append(f"| {one.case} | {one.advice}{note} | {one.numbers} |")
    return "\n".join(lines)


def _said(effect: Interval) -> str:
    mean, low, high = (round(x, 1) + 0.0 for x in effect)  # no negative zero
    told = f"{mean:+.1f}"
    if low == low:  # not NaN
        told += f" ({low:.1f} to {high:.1f})"
    return told.replace("-", "−")


def _rows(chapter: str, part: str, **chosen: Any) -> pd.DataFrame:
    rows = recorded(chapter, part)[0]
    for name, value in {"split": "test", **chosen}.items():
        if name not in rows:
            raise LookupError(name)
        rows = rows[(rows[name] == value).fillna(False).astype(bool)]
    if rows.empty:
        raise LookupError(f"{chapter} {part}")
    return rows


def _over(left: pd.DataFrame, right: pd.DataFrame) -> Interval:
    """Return the mean difference of two tables at the same seeds and tasks."""
    keys = ["seed", "task"]
    both = left[[*keys, "value"]].merge(right[[*keys, "value"]], on=keys, suffixes=("", "_right"))
    if both.empty:
        raise LookupError("no common seeds and tasks")
    both["value"] -= both["value_right"]
    by = [both.groupby(name)["value"].mean() for name in keys]
    effect = float(by[0].mean())
    if len(by[0]) < 2:
        return Interval(effect, float("nan"), float("nan"))
    return intervals.interval(
        effect, [intervals.of_means(name, each) for name, each in zip(keys, by, strict=True)]
    )


def _merged(method: str, lr: float, merge: str = "arithmetic") -> pd.DataFrame:
    return _rows("merging", "rates", method=method, lr=lr, metric="absolute", merge=merge)


def _rate() -> Answer:
    own, low = _OWN["nonlinear"], _OWN["nonlinear"] / 4
    alone = [
        _rows("merging", "rates", method="nonlinear", lr=r, metric="single") for r in (low, own)
    ]
    names = {"in the sum": "arithmetic", "with TSV-M": "tsv_m", "with RegMean": "regmean"}
    effects = {"on single tasks": _over(*alone)}
    for name, merge in names.items():
        effects[name] = _over(_merged("nonlinear", low, merge), _merged("nonlinear", own, merge))
    return Answer(
        case="you fine-tune models to add or merge their vectors",
        advice="use a quarter of the learning rate that is best for single tasks",
        effects=effects,
        note="We read the factor off test images of these runs.",
    )


def _vectors_alone() -> Answer:
    merges = [
        _rows("merging", "editing", metric="absolute", merge=m) for m in ("tsv_m", "arithmetic")
    ]
    return Answer(
        case="you have vectors and no images",
        advice="merge with TSV-M instead of the sum",
        effects={"eight tasks": _over(*merges)},
    )


def _images() -> Answer:
    merges = [_rows("merging", "editing", metric="absolute", merge=m) for m in ("regmean", "tsv_m")]
    return Answer(
        case="you also have a few hundred training images of each task",
        advice="merge with RegMean instead of TSV-M",
        effects={"eight tasks": _over(*merges)},
        note="Measured with 256 images a task and a small feature width.",
    )


def _control() -> Answer:
    every = recorded("merging", "strengths")[0]
    if every.empty:
        raise LookupError("strengths")
    mine = every[(every["method"] == "tau_jp") & every["penalty"].gt(0)]
    told = mine[(mine["split"] == "validation") & (mine["metric"] == "absolute")]
    strength = told.groupby("penalty")["value"].mean().idxmax()
    sums = mine[(mine["penalty"] == strength) & (mine["split"] == "test")]
    effects = {
        name: _over(sums[sums["metric"] == metric], right)
        for name, metric, right in (
            ("in the sum", "absolute", _rows("merging", "editing", metric="absolute",
                                             merge="arithmetic")),
            ("on single tasks", "single",
             _rows("merging", "editing", metric="single", method="nonlinear")),
        )
    }  # fmt: skip
    return Answer(
        case="you control fine-tuning and have unlabelled images of the other tasks",
        advice="fine-tune the linearized model with the penalty τJp, not the non-linear model",
        effects=effects,
        note="Validation images chose its strength.",
    )


def _linearize() -> Answer:
    usual = _OWN["nonlinear"]
    sums = {r: _merged("nonlinear", r) for r in (usual, usual / 4)}
    own = _OWN["linearized"]
    return Answer(
        case="you consider linearized fine-tuning for a better sum",
        advice="tune the learning rate first; with a modern merge little of the gain remains",
        effects={
            "over non-linear at its best single-task rate": _over(
                _merged("linearized", own), sums[usual]
            ),
            "over non-linear at a quarter of it": _over(
                _merged("linearized", own), sums[usual / 4]
            ),
            "the same with TSV-M": _over(
                _merged("linearized", own, "tsv_m"), _merged("nonlinear", usual / 4, "tsv_m")
            ),
        },
    )


def _forget() -> Answer:
    def target(method: str, lr: float) -> pd.DataFrame:
        return _rows("tangent", "budgets", method=method, lr=lr, metric="target", steps=240)

    high, low = 1.6e-3, 2e-4
    return Answer(
        case="you want a model to forget a task",
        advice="subtract a linearized vector that was trained at a high learning rate",
        effects={
            "target accuracy, against non-linear": _over(
                target("linearized", high), target("nonlinear", _OWN["nonlinear"])
            ),
            "against linearized at a low rate": _over(
                target("linearized", high), target("linearized", low)
            ),
        },
        note="Lower is better; the control task keeps 95 %.",
    )


def _attention() -> Answer:
    ends = {}
    for method, part in (("attention", "linear_layers"), ("nonlinear", "tangent")):
        grid = _rows(part, "budgets", method=method, steps=240)
        ends[method] = grid[grid["lr"] == best_for_the_sum(grid, "test")]
    effects = {
        name: _over(*(rows[rows["metric"] == metric] for rows in ends.values()))
        for name, metric in (("in the sum", "absolute"), ("on single tasks", "single"))
    }
    return Answer(
        case="fine-tuning all weights is too expensive",
        advice="train only the attention's linear layers; the sum gains nothing",
        effects=effects,
        note="Each method at its best rate for the sum, read off test images.",
    )


def _probe() -> Answer:
    effects = {}
    for role, name in (("sup_few", "supervised"), ("dino", "DINO"), ("clip_more", "CLIP")):
        model = {"sup_few": "mini_few"}.get(role, f"mini_{role}")
        sums = [
            _rows("closed_vocab", "editing", model=model, experiment="addition", method=method,
                  metric="absolute")
            for method in ("nonlinear", "probe")
        ]  # fmt: skip
        effects[name] = _over(*sums)
    return Answer(
        case="your model has no text tower",
        advice="fit linear probes; add vectors only if the model is a CLIP",
        effects=effects,
    )


def _tasks() -> Answer:
    effects = {}
    for n, words in ((2, "two"), (4, "four")):
        sums = [
            _rows("merging", "fewer", n_tasks=n, metric="absolute", merge=merge)
            for merge in ("tsv_m", "arithmetic")
        ]
        effects[f"TSV-M over the sum, {words} tasks"] = _over(*sums)
    return Answer(
        case="you choose how many tasks to add",
        advice="add two tasks by a plain sum; merge four or more with TSV-M",
        effects=effects,
    )


def _joint() -> Answer:
    joint = _rows("merging", "joint", method="nonlinear", metric="absolute")
    sums = [
        _rows("merging", "editing", metric="absolute", merge=m) for m in ("arithmetic", "tsv_m")
    ]
    return Answer(
        case="you have the training images of all tasks",
        advice="train one model on all of them instead of merging",
        effects={"over the sum": _over(joint, sums[0]), "over TSV-M": _over(joint, sums[1])},
    )


_ANSWERS: tuple[Callable[[], Answer], ...] = (
    _rate, _vectors_alone, _images, _control, _linearize, _forget, _attention, _probe, _tasks,
    _joint,
)  # fmt: skip
