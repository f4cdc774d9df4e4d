"""The verdict on a claim: its effect, its 95 % interval, and what follows.

**Verdicts on the embedded default (`mini`) are about orderings and effects, not about absolute
values**: its world, model and pre-training are far smaller than the papers'.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError
from tasklab.models.zoo import family
from tasklab.records import images, intervals, matched
from tasklab.records.claims import CLAIMS, Claim
from tasklab.records.comparisons import COMPARISONS, NETWORKS
from tasklab.records.intervals import Interval, Source
from tasklab.records.table import one_model, select

ABOUT_VERDICTS = (
    "Verdicts on the embedded benchmark are about orderings and effects, not about absolute "
    "values: its world is not the papers'. Intervals are at 95 %."
)
OUTCOMES = ("holds", "does not hold", "undecided", "not tested")
REPLICA = re.compile(r"_seed\d+$")  # names of models that differ in their seed of pre-training
SHARE = re.compile(r"_(\d+)$")  # ... and in how many per cent of the samples they have seen
NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What our records say about a claim.

    Attributes:
        claim: The claim.
        outcome: One of `OUTCOMES`.
        interval: Effect, positive in the claimed direction (of a claim of equality: left minus
            right), and its 95 % interval.
        sources: What the interval takes into account: seeds, images, tasks.
        here: The same for the tasks that were tried, where the claim is about tasks in general.
        pretrainings: Mean over several pre-trainings, with an interval over their seeds.
        n_pretrainings: Number of pre-trained models behind the widest of them.
        p: Two-sided p-value that belongs to the interval.
        by_seed: The difference of each seed of fine-tuning.
        by_task: That of each task (pair of tasks, threshold), as the mean over seeds.
    """

    claim: Claim
    outcome: str = "not tested"
    interval: Interval = NOTHING
    sources: tuple[str, ...] = ()
    here: Interval = NOTHING
    pretrainings: Interval = NOTHING
    n_pretrainings: int = 0
    p: float = math.nan
    by_seed: Mapping[int, float] = field(default_factory=dict)
    by_task: Mapping[str, float] = field(default_factory=dict)

    @property
    def n_seeds(self) -> int:
        """Number of seeds of fine-tuning."""
        return len(self.by_seed)

    @property
    def n_tasks(self) -> int:
        """Number of tasks, or of what stands for them."""
        return len(self.by_task)

    @property
    def tasks_as_claimed(self) -> int:
        """In how many of them the difference is as claimed."""
        if self.claim.relation == "=":
            return sum(abs(value) <= self.claim.margin for value in self.by_task.values())
        return sum(value > 0 for value in self.by_task.values())

    @property
    def strength(self) -> float:
        """How far it is on the claimed side, in half-widths of its interval; 0 without one."""
        half = (self.interval.high - self.interval.low) / 2
        far = _towards(self.claim, self.interval.effect)
        return far / half if half > 0 else 0.0

    @property
    def text(self) -> str:
        """The verdict with its numbers in one sentence."""
        if self.outcome == "not tested":
            return "not tested: no records of both sides."
        told = f"{self.interval.effect:+.3g} {self.claim.unit}".rstrip()
        if math.isfinite(self.interval.low):
            told += f" [{self.interval.low:.3g}, {self.interval.high:.3g}]"
        seeds = f"{self.n_seeds} seed" + "s" * (self.n_seeds != 1)
        counted = f", {self.tasks_as_claimed} of {self.n_tasks} tasks as claimed"
        return f"{self.outcome}: {told}, {seeds}{counted if self.n_tasks > 1 else ''}."


def _towards(claim: Claim, effect: float) -> float:
    """Return how far an effect is on the claimed side of the border between holding and not."""
    return claim.margin - abs(effect) if claim.relation == "=" else effect


def judged(interval: Interval, margin: float = math.nan) -> str:
    """Return the outcome of an interval: on which side of no effect it lies.

    Args:
        interval: Positive as claimed.
        margin: Of a claim of equality: it holds if the interval lies within.
    """
    effect, low, high = interval
    if math.isnan(low):
        return "undecided"
    if not math.isnan(margin):
        outside = low > margin or high < -margin
        return "holds" if -margin < low and high < margin else _against(outside)
    return "holds" if low > 0 else _against(high < 0)


def _against(clear: bool) -> str:
    return "does not hold" if clear else "undecided"


def verdict(
    claim: Claim, df: pd.DataFrame, *, n_tasks: int = 8, model: str | None = None
) -> Verdict:
    """Judge a claim by paired differences: the same seed, tasks and images on both sides.

    - *holds*: the 95 % interval lies on the claimed side of no effect (of a claim of equality:
      within the margin);
    - *does not hold*: it lies on the other side (outside the margin);
    - *undecided*: it contains no effect, or there is only one seed, or seeds and images make no
      difference at all, which is a measure too coarse to tell.

    The interval has the spread over seeds of fine-tuning, the sampling of images where what is
    compared was counted on images, and that of tasks where the claim is about tasks in general.
    It speaks of this pre-trained model; what other seeds of pre-training say is given apart.

    Args:
        claim: What to judge.
        df: Tidy records.
        n_tasks: Number of added tasks for claims on addition.
        model: Which model the claim is about, if there are records of several.

    Raises:
        TasklabError: The records mix several models and none is named, or the claim's comparison is
            registered by a module that was not imported.
    """
    table = _grown(claim, df, model, n_tasks) if claim.grows else _pairs(claim, df, model, n_tasks)
    if table.empty:
        return Verdict(claim=claim)
    by_seed = table.groupby("seed")["difference"].mean()
    by_task = table.groupby("task", sort=False)["difference"].mean()
    effect = float(by_seed.mean())
    found, here = {}, NOTHING
    if len(by_seed) > 1:
        sources = [intervals.of_means("seeds", by_seed), *_of_images(claim, table)]
        here = intervals.interval(effect, sources)
        if claim.general and len(by_task) > 2:  # a task has images of its own: they are in there
            sources = [sources[0], intervals.of_means("tasks", by_task)]
        found = {
            "interval": intervals.interval(effect, sources),
            "sources": tuple(source.name for source in sources),
            "p": intervals.p_value(_towards(claim, effect), sources),
        }
    found.setdefault("interval", Interval(effect, math.nan, math.nan))
    replicas = _replicas(claim, df, n_tasks) if not claim.grows else ()
    return Verdict(
        claim=claim,
        outcome=judged(found["interval"], claim.margin),
        here=here,
        pretrainings=_over_pretrainings(replicas),
        n_pretrainings=max(1, len(replicas)),
        by_seed={int(seed): float(value) for seed, value in by_seed.items()},
        by_task={str(task): float(value) for task, value in by_task.items()},
        **found,
    )


def verdicts(
    df: pd.DataFrame,
    paper: str | None = None,
    table: str | None = None,
    *,
    n_tasks: int = 8,
    model: str | None = None,
) -> list[Verdict]:
    """Judge all claims, or those of one paper or table, in the papers' order.

    Args:
        df: Tidy records.
        paper: Only its claims.
        table: Only those of this table, as printed.
        n_tasks: Number of added tasks for claims on addition.
        model: Which model the claims are about, if there are records of several.
    """
    chosen = [c for c in CLAIMS if paper in (None, c.paper) and table in (None, c.table)]
    parts = dict(iter(df.groupby("experiment", sort=False)))  # a claim looks at few of the rows
    needed = functools.cache(
        lambda names: pd.concat([df.iloc[:0], *(parts[n] for n in names if n in parts)])
    )
    return [verdict(c, needed(_experiments(c)), n_tasks=n_tasks, model=model) for c in chosen]


def _experiments(claim: Claim) -> tuple[str, ...]:
    """Return whose records a claim is judged by."""
    if claim.setting != "chosen":
        return ("budget",)
    alone = ("single",) if claim.metric == "normalised" else ()
    return tuple(dict.fromkeys((claim.experiment, *alone)))


class Side(NamedTuple):
    """One side of a claim.

    Attributes:
        method: The method, or the side's name in the claim's comparison.
        rows: Its records.
        records: All records of its model.
    """

    method: str
    rows: pd.DataFrame
    records: pd.DataFrame


def sides_of(claim: Claim, df: pd.DataFrame, model: str | None, n_tasks: int) -> list[Side]:
    """Return both sides of a claim.

    Args:
        claim: What to judge.
        df: Tidy records.
        model: Which model it is about, if there are records of several.
        n_tasks: Number of added tasks for claims on addition.
    """
    return [_side(claim, side, df, model, n_tasks) for side in (claim.left, claim.right)]


def _side(claim: Claim, side: str, df: pd.DataFrame, model: str | None, n_tasks: int) -> Side:
    method, _, role = side.partition("@")
    init = "random" if role == "random" else "pretrained"
    if role in NETWORKS:
        records = df[df["model"] == role]
    elif model is not None:
        records = df[df["model"] == (model if role in ("", "random") else family(model)[role])]
    else:
        records = df.iloc[:0] if role not in ("", "random") else df[~df["model"].isin(NETWORKS)]
    mine = one_model(records, init)
    if claim.setting != "chosen":
        both = (claim.left, claim.right)
        return Side(
            method, matched.at_setting(mine, claim.setting, claim.metric, both, method), mine
        )
    if not claim.comparison:
        return Side(method, select(mine, claim.experiment, claim.metric, method, n_tasks), mine)
    rows = records[records["experiment"] == claim.experiment]
    if rows.empty:
        return Side(method, rows, mine)
    if claim.comparison not in COMPARISONS:
        raise TasklabError(
            f"comparison {claim.comparison!r} is not registered: import tasklab.study."
        )
    sides = COMPARISONS[claim.comparison](claim, rows, df)
    return Side(method, sides.get(method, rows.iloc[:0]), mine)


def _pairs(claim: Claim, df: pd.DataFrame, model: str | None, n_tasks: int) -> pd.DataFrame:
    """Return a row a seed, task and subset that both sides have, with their difference."""
    both = sides_of(claim, df, model, n_tasks)
    if any(side.rows.empty for side in both):
        return pd.DataFrame()
    left, right = (_told(claim, side) for side in both)
    keys = ["seed", "task", "subset"]
    if claim.right.partition("@")[0] != "pretrained":
        table = left.merge(right, on=keys, suffixes=("", "_right"))
    else:  # one model for all seeds, however often it was recorded ...
        same = right.drop(columns="seed").groupby(["task", "subset"], as_index=False).first()
        same["value"] = right.groupby(["task", "subset"])["value"].mean().to_numpy()
        table = left.merge(same, on=["task", "subset"], suffixes=("", "_right"))
        if table.empty and len(right):  # ... or once for all targets
            alone = right.iloc[0].drop(keys).add_suffix("_right").to_dict()
            table = left.assign(**alone | {"value_right": right["value"].mean()})
    sign = -1 if claim.relation == "<" else 1
    return table.assign(difference=sign * (table["value"] - claim.factor * table["value_right"]))


def _told(claim: Claim, side: Side) -> pd.DataFrame:
    """Return a side's rows with what tells how images make up their value."""
    rows = side.rows.fillna({"seed": 0, "subset": ""})
    absolute = None
    if claim.metric == "normalised" and "error" not in rows and len(rows):
        absolute = _behind(rows, side.records)
    error = images.standard_errors(rows, claim.metric, absolute)
    told = rows[["seed", "task", "subset", "value"]].assign(error=error)
    for name in ("n", "hits"):
        told[name] = rows[name] if name in rows else None
    if claim.metric == "normalised":  # a ratio: whose images' contributions need both parts
        told["hits"] = None
        parts = {"top": absolute, "base": _alone(rows, side)}
        for name, part in parts.items():
            known = part is not None and "hits" in part
            told[name] = part["hits"].to_numpy() if known else None
    return told


def _behind(rows: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame | None:
    """Return the accuracies that normalised ones were made of, row by row."""
    return _partners(rows, records[records["metric"] == "absolute"], _OF_A_RATIO)


def _alone(rows: pd.DataFrame, side: Side) -> pd.DataFrame | None:
    """Return the accuracies alone that normalised ones were divided by, row by row."""
    alone = side.records[side.records["metric"] == "single"]
    return _partners(rows, alone, ["method", "task", "seed", "split"])


_OF_A_RATIO = ["experiment", "method", "task", "subset", "split", "n_tasks", "seed"]


def _partners(rows: pd.DataFrame, others: pd.DataFrame, keys: list[str]) -> pd.DataFrame | None:
    if rows.empty or not set(keys) <= set(rows):
        return None
    others = others.drop_duplicates(keys).drop(columns=[k for k in rows if k in ("lr", "steps")],
                                               errors="ignore")  # fmt: skip
    found = rows[keys].merge(others, on=keys, how="left")
    return found.set_index(rows.index) if found["value"].notna().all() else None


def _of_images(claim: Claim, table: pd.DataFrame) -> list[Source]:
    """Return the images as a source of error, where what is compared was counted on images."""
    sets = images.sets_of(table, claim.metric)
    names = ("top", "base") if claim.metric == "normalised" else ("hits",)
    columns = [name + end for name in names for end in ("", "_right")]
    variance = math.nan
    if set(columns) <= set(table) and table[columns].notna().all(axis=None):
        variance = images.crossed(table, sets, lambda row: _contributions(claim, row))
    if math.isnan(variance):
        variance = images.bounded(table, sets, claim.factor)
    return [] if math.isnan(variance) else [Source(name="images", variance=variance)]


def _contributions(claim: Claim, row: Mapping) -> np.ndarray:
    """Return what each image adds to a row's difference, times their number, but for a constant."""
    both = []
    for end, times in (("", 1.0), ("_right", claim.factor)):
        hits = lambda name, end=end: 100.0 * images.unpacked(row[name + end], int(row["n" + end]))  # noqa: E731
        if claim.metric == "normalised":  # to first order: the ratio's relative change
            top, base = hits("top"), hits("base")
            share = top / max(top.mean(), 0.1) - base / max(base.mean(), 0.1)
            both.append(times * row["value" + end] * share)
        else:
            both.append(times * hits("hits"))
    return both[0] - both[1]


def _replicas(claim: Claim, df: pd.DataFrame, n_tasks: int) -> tuple[float, ...]:
    """Return a claim's effect on each of several pre-trainings that differ in their seed alone."""
    if any("@" in side for side in (claim.left, claim.right)):
        return ()
    names = [name for name in df["model"].unique() if REPLICA.search(name)]
    tables = [_pairs(claim, df, name, n_tasks) for name in names]
    means = [t.groupby("seed")["difference"].mean().mean() for t in tables if len(t)]
    return tuple(float(mean) for mean in means)


def _over_pretrainings(effects: tuple[float, ...]) -> Interval:
    if len(effects) < 2:
        return NOTHING
    return intervals.interval(
        float(np.mean(effects)), [intervals.of_means("pre-trainings", effects)]
    )


def _grown(claim: Claim, df: pd.DataFrame, model: str | None, n_tasks: int) -> pd.DataFrame:
    """Return by how much a difference grows for every tenfold of the samples of pre-training.

    The slope of a least-squares line over the logarithm of the samples, for each seed and task.
    """
    name = model or "mini"
    shares = {name: 100.0}
    for other in df["model"].unique():
        if (found := SHARE.search(other)) and other == f"{name}_{found[1]}":
            shares[other] = float(found[1])
    tables = {m: _pairs(claim, df, m, n_tasks) for m in shares if m in set(df["model"])}
    keys = ["seed", "task", "subset"]
    parts = [t.assign(x=math.log10(shares[m])) for m, t in tables.items() if len(t)]
    if len(parts) < 3:
        return pd.DataFrame(columns=[*keys, "difference"])
    points = pd.concat(parts)
    points = points[points.groupby(keys)["x"].transform("size") == len(parts)]
    centred = points["x"] - points.groupby(keys)["x"].transform("mean")
    weight = centred / (centred**2).groupby([points[k] for k in keys]).transform("sum")
    scaled = {"difference": weight * points["difference"]}
    squares = {c: (weight * points[c].astype(float)) ** 2 for c in ("error", "error_right")}
    rows = points[keys].assign(**scaled, **squares).groupby(keys, as_index=False).sum(min_count=1)
    return rows.assign(**{c: np.sqrt(rows[c]) for c in squares})
