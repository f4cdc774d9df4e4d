"""The verdict on a claim: its effect, its 95 % interval, and its outcome.

The embedded benchmark (`mini`) is synthetic and far smaller than the papers': its verdicts are
about rankings and effects, not about absolute numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.records import images, intervals, targets
from tasklab.evidence.records.claims import CLAIMS, Claim
from tasklab.evidence.records.intervals import Interval, Source
from tasklab.evidence.records.pairing import Split, growth, pairs
from tasklab.evidence.records.schema import COLUMNS, EXPERIMENTS, LEADING_MERGES
from tasklab.models.zoo import replicas

ABOUT_VERDICTS = (
    "The benchmark is synthetic: compare rankings and effects, not absolute numbers. Intervals are "
    "at 95 %."
)
OUTCOMES = ("holds", "does not hold", "outside the band", "no gain", "undecided", "not tested")
DECIDED = OUTCOMES[:4]
COUNTED = ("peak_memory", "memory_ratio", "trainable")  # come out the same each time
NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict of our records on a claim."""

    claim: Claim
    outcome: str = "not tested"  #: One of `OUTCOMES`
    #: Effect, positive in the claimed direction (of a claim of equality: left minus right), and its
    #: 95 % interval.
    interval: Interval = NOTHING
    sources: tuple[str, ...] = ()  #: What the interval takes into account: seeds, images, tasks
    #: The same for the tasks that were tried alone: without another draw of tasks.
    here: Interval = NOTHING
    #: Mean over several pre-trainings, with an interval over their seeds.
    pretrainings: Interval = NOTHING
    n_pretrainings: int = 0  #: Number of pre-trained models behind the widest of them
    p: float = math.nan  #: Two-sided p-value that belongs to the interval
    p_here: float = math.nan  #: That of `here`
    #: The difference of each seed of fine-tuning.
    by_seed: Mapping[int, float] = field(default_factory=dict)
    #: That of each task (pair of tasks, threshold), as the mean over seeds.
    by_task: Mapping[str, float] = field(default_factory=dict)
    value: float = math.nan  #: What the left side has, as the mean over seeds
    bound: float = math.nan  #: What it is compared with: the factor times the right side
    #: The interval with tasks drawn by the studentised bootstrap in place of Student's t
    #: (`intervals.bootstrap_t`), which errs less where their effects are skewed.
    robust: Interval = NOTHING
    #: The corrections for many tests that its statement survives (`statements.FAMILIES`); `None`
    #: where they were not made.
    survives: tuple[str, ...] | None = None

    @property
    def on_these_tasks(self) -> Verdict | None:
        """The verdict on the tasks that were tried alone; none where no others are meant."""
        if "tasks" not in self.sources:
            return None
        outcome = _outcome(self.claim, self.here)
        return dataclasses.replace(
            self, interval=self.here, outcome=outcome, p=self.p_here, sources=("seeds", "images")
        )

    @property
    def robustly(self) -> str:
        """The outcome by the studentised bootstrap over tasks; empty without one."""
        return "" if math.isnan(self.robust.low) else _outcome(self.claim, self.robust)

    @property
    def over_pretrainings(self) -> str:
        """The outcome by the mean over several pre-trainings; empty for a single one."""
        several = self.n_pretrainings > 1 and self.outcome != "not tested"
        return _outcome(self.claim, self.pretrainings) if several else ""

    @property
    def n_seeds(self) -> int:
        """Number of seeds of fine-tuning."""
        return len(self.by_seed)

    @property
    def n_tasks(self) -> int:
        """Number of tasks (or pairs, or cases)."""
        return len(self.by_task)

    @property
    def counted(self) -> str:
        """Unit of its effects: `tasks`, `pairs` of them, or other `cases`."""
        if all(re.search(r"[+|]", name) for name in self.by_task):
            return "pairs"
        return "cases" if any(re.match(r"[\d.]", name) for name in self.by_task) else "tasks"

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
        far = towards(self.claim, self.interval.effect)
        if half == 0:  # no error
            return math.copysign(math.inf, far)
        return far / half if half > 0 else 0.0

    @property
    def too_few(self) -> bool:
        """Whether it is about tasks in general, and was measured on too few pairs for that."""
        return "tasks" in self.sources and self.n_seeds > 1 and math.isnan(self.interval.low)


def _of_seeds(
    claim: Claim, table: pd.DataFrame, names: pd.Series, effect: float, by_task: pd.Series
) -> dict[str, Any]:
    """Return intervals and p-values for these tasks and for the claim's target."""
    rows, far = table.assign(task=names, subset=""), towards(claim, effect)
    sources = [*targets.sources(rows, targets.THESE), *_of_images(claim, table)]
    on: dict[str, Any] = {
        "here": intervals.interval(effect, sources),
        "p_here": intervals.p_value(far, sources),
    }
    # one or two tasks stand for themselves; one or two pairs decide nothing
    if claim.general and (len(by_task) > 2 or re.search(r"[+|]", str(names.iloc[0]))):
        sources = targets.sources(rows, targets.TASKS)  # a task has its images in it
        seeds, drawn = sources
        if drawn.freedom == len(by_task) - 1:  # as they are, not by the jackknife
            squared = seeds.variance * intervals.quantile(0.025, seeds.freedom) ** 2
            ends = intervals.bootstrap_t(effect, by_task.to_numpy(float), squared)
            on["robust"] = Interval(effect, *map(float, ends))
    return on | {
        "interval": intervals.interval(effect, sources),
        "sources": tuple(source.name for source in sources),
        "p": intervals.p_value(far, sources),
    }


def _of_rounds(claim: Claim, table: pd.DataFrame, effect: float) -> dict[str, Any]:
    """Return the interval of a cost over the rounds of its measurement; memory's has no width."""
    errors = table["error"] ** 2 + (claim.factor * table["error_right"]) ** 2
    freedom = float(table["n"].astype(float).min()) - 1
    rounds = [Source(name="rounds", variance=float(errors.sum()), freedom=freedom)]
    if claim.metric in COUNTED:
        return {"interval": Interval(effect, effect, effect), "p": 0.0}
    if not freedom > 0:
        return {}
    result = {"interval": intervals.interval(effect, rounds), "sources": ("rounds",)}
    return result | {"p": intervals.p_value(effect, rounds)}


def towards(claim: Claim, effect: float) -> float:
    """Return an effect's distance from the border between holding and not; claimed is positive."""
    return claim.margin - abs(effect) if claim.relation == "=" else effect


def judged(interval: Interval, margin: float = math.nan) -> str:
    """Return the outcome of an interval, positive where the claim is right.

    A claim of equality has a margin: it holds if the interval lies within.
    """
    effect, low, high = interval
    if math.isnan(low):
        return "undecided"
    if not math.isnan(margin):
        outside = low > margin or high < -margin
        return "holds" if -margin < low and high < margin else _against(outside)
    return "holds" if low > 0 else _against(high < 0)


def _outcome(claim: Claim, interval: Interval) -> str:
    outcome = judged(interval, claim.margin)
    return "outside the band" if claim.band and outcome == "does not hold" else outcome


def _against(clear: bool) -> str:
    return "does not hold" if clear else "undecided"


def verdict(
    claim: Claim, df: pd.DataFrame | Split, *, n_tasks: int = 8, model: str | None = None
) -> Verdict:
    """Judge a claim by paired differences: the same seed, tasks and images on both sides.

    - *holds*: the 95 % interval lies on the claimed side of no effect (of a claim of equality:
      within the margin);
    - *does not hold*: it lies on the other side (outside the margin); *outside the band*, where
      this book set how much is near;
    - *no gain*: both sides are the same model at every seed, as where validation chooses the
      coefficient 0. A comparison of a number with a multiple of itself is not tested;
    - *undecided*: it contains no effect, or there is only one seed, or the claim is about tasks in
      general and fewer than three pairs were measured.

    The interval's target (`targets`) is other tasks where the claim is about tasks in general, else
    these tasks: the spread over seeds of fine-tuning and, for metrics that are counted on images,
    their sampling. It is about this pre-trained model; other seeds of pre-training are reported
    apart. Costs have no seeds: their interval is over rounds of timing.

    Args:
        claim: A row of `claims.csv`.
        df: Tidy records of every experiment that the claim compares.
        n_tasks: Number of tasks in a sum or merge that the claim speaks of.
        model: The model that is judged; by default the claim's.

    Returns:
        The verdict; its outcome is empty if a side has no records.
    """
    df = Split.of(df)
    table = (growth if claim.grows else pairs)(claim, df, model, n_tasks)
    if table.empty:
        return Verdict(claim=claim)
    by_seed = table.groupby("seed")["difference"].mean()
    names = table["task"]
    if claim.experiment == "cosines":  # of a task and another
        names = names + "+" + table["subset"]
    by_task = table.groupby(names, sort=False)["difference"].mean()
    effect, statistics = float(by_seed.mean()), {}
    seen: dict[str, Any] = {
        "by_seed": {int(seed): float(value) for seed, value in by_seed.items()},
        "by_task": {str(task): float(value) for task, value in by_task.items()},
    }
    if not claim.grows:
        left, right = table["value"].to_numpy(float), table["value_right"].to_numpy(float)
        seen |= {"value": float(left.mean()), "bound": claim.factor * float(right.mean())}
    if not claim.grows and len(by_seed) > 1 and np.array_equal(left, right):
        same = "no gain" if claim.factor == 1 else "not tested"
        return Verdict(
            claim=claim, outcome=same, interval=Interval(0.0, math.nan, math.nan), **seen
        )
    if claim.experiment == "cost":
        statistics = _of_rounds(claim, table, effect)
    elif len(by_seed) > 1:
        statistics = _of_seeds(claim, table, names, effect, by_task)
    statistics.setdefault("interval", Interval(effect, math.nan, math.nan))
    if claim.band and len(by_seed) > 1 and by_seed.nunique() == 1:  # all seeds on one side of it
        statistics["interval"] = Interval(effect, effect, effect)
    alike = _over_pretrainings(claim, df, model, n_tasks)
    return Verdict(
        claim=claim,
        outcome=_outcome(claim, statistics["interval"]),
        pretrainings=intervals.of_mean(alike) if len(alike) > 1 else NOTHING,
        n_pretrainings=max(1, len(alike)),
        **seen,
        **statistics,
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
        df: Records.
        paper: Only claims of this paper: the name of its chapter.
        table: Only claims of this table or figure.
        n_tasks: Number of added tasks that claims are judged at.
        model: The model that claims are about; needed where the records have several.
    """
    if paper is not None:
        choose("paper", paper, dict.fromkeys(claim.paper for claim in CLAIMS))
    chosen = [c for c in CLAIMS if paper in (None, c.paper) and table in (None, c.table)]
    return of_claims(chosen, df, n_tasks=n_tasks, model=model)


def of_claims(
    claims: Iterable[Claim], df: pd.DataFrame, *, n_tasks: int = 8, model: str | None = None
) -> list[Verdict]:
    """Return the verdicts on some claims.

    Args:
        claims: Rows of `claims.csv`.
        df: Tidy records of all experiments.
        n_tasks: Number of tasks in a sum or merge.
        model: The model that is judged; by default the claims'.
    """
    needed = _needed(df)
    return [verdict(c, needed(experiments(c)), n_tasks=n_tasks, model=model) for c in claims]


def gains(
    df: pd.DataFrame, *, over: str = "arithmetic", metric: str = "absolute", model: str = "mini"
) -> pd.DataFrame:
    """Return each merge's gain over another one, with the interval that a verdict has.

    It is that of the mean difference over tasks, at the same seeds and with the same vectors: the
    spread over seeds of fine-tuning and over tasks (`judgement.verdict`). Beside it stands that
    over pre-trainings which differ in their seed, where several are recorded.

    Args:
        df: Records with merges.
        over: The merge that others are compared with.
        metric: `"absolute"` or `"normalised"`, in %.
        model: Its name in the records.

    Returns:
        Columns n_tasks, merge, effect, low, high, seeds, and effect, low, high of the others
        (`others_effect`, ...) with their number `pretrainings`; NaN where there is no interval.
    """
    choose("metric", metric, ("absolute", "normalised"))
    df = df[df["experiment"].isin(("merging", "single"))]
    merged, rows = df["experiment"] == "merging", []
    known = list(df["merge"].dropna().unique()) if merged.any() else []
    choose("merge", over, dict.fromkeys(("arithmetic", *LEADING_MERGES, *known)))
    names = [name for name in known if name != over]
    for n in sorted(df.loc[merged, "n_tasks"].dropna().unique()):
        part = df[(merged & (df["n_tasks"] == n).fillna(False)) | ~merged]
        for name in names:
            claim = Claim(
                id=f"{name}-{n}", entry=name, paper="merging", statement=name, table="",
                experiment="merging", comparison="merges", metric=metric, left=name,
                relation=">", right=over,
            )  # fmt: skip
            found = verdict(claim, part, model=model)
            if not found.n_seeds:
                continue
            row = {"n_tasks": int(n), "merge": name, **found.interval._asdict()}
            row |= {"seeds": found.n_seeds}
            row |= {f"others_{end}": x for end, x in found.pretrainings._asdict().items()}
            rows.append({**row, "pretrainings": found.n_pretrainings})
    return pd.DataFrame(rows)


def _needed(df: pd.DataFrame) -> Callable[[tuple[str, ...]], Split]:
    rows_of = df.groupby("experiment", sort=False).indices

    @functools.cache
    def needed(experiments: tuple[str, ...]) -> Split:
        own = {name for e in experiments for name in (*COLUMNS, *EXPERIMENTS[e].columns)}
        places = [place for e in experiments for place in rows_of.get(e, ())]
        return Split(df[[name for name in df if name in own]].iloc[places])

    return needed


def experiments(claim: Claim) -> tuple[str, ...]:
    """Return the experiments whose records judge a claim."""
    if claim.setting != "chosen":
        return ("budget",)
    alone = claim.metric == "normalised" or claim.comparison == "over_start"
    return tuple(dict.fromkeys((claim.experiment, *(["single"] * alone))))


def _of_images(claim: Claim, table: pd.DataFrame) -> list[Source]:
    """Return the images as a source of error, where both sides were counted on images."""
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
    both = []
    for end, times in (("", 1.0), ("_right", claim.factor)):
        hits = lambda name, end=end: 100.0 * images.given(row[name + end], int(row["n" + end]))  # noqa: E731
        if claim.metric == "normalised":  # to first order: the ratio's relative change
            top, base = hits("top"), hits("base")
            share = top / max(top.mean(), 0.1) - base / max(base.mean(), 0.1)
            both.append(times * row["value" + end] * share)
        else:
            both.append(times * hits("hits"))
    return both[0] - both[1]


def _over_pretrainings(
    claim: Claim, df: Split, model: str | None, n_tasks: int
) -> tuple[float, ...]:
    if claim.grows or any("@" in side for side in (claim.left, claim.right)):
        return ()
    alike = replicas(model or "mini")
    tables = [pairs(claim, df, name, n_tasks) for name in df.models() if name in alike]
    means = [t.groupby("seed")["difference"].mean().mean() for t in tables if len(t)]
    return tuple(float(mean) for mean in means)
