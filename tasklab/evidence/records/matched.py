"""Two ways of fine-tuning compared along the curve of their learning rates.

A larger learning rate usually raises the accuracy alone and the length of a task vector, and may
lower what is left of the accuracy in a sum. So one method may seem to add better because it learnt
less. The methods that headlines compare are recorded over a grid of rates (experiment `budget`).

The curve is *one rate*: both sides at each of `RATES`, as in the papers. Two rules choose a rate
for each side on validation images: *plateau rates* are the best alone (the smallest rate within one
standard error of the best accuracy alone), *best for the sum* the best rate for the sum, of rates
that are as good the most accurate alone.

*Equal accuracy* and *equal length* are read off the curve (`between`), because claims `…@accuracy`
and `…@length` and their recorded verdicts name them. **The side that went further is taken back
along its rates to where the other one ends**, by linear interpolation between two neighbours, for
each seed, in the mean accuracy alone or the mean norm. A side ends at the rate that was chosen for
it, as the protocol has it.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from tasklab.models.zoo import REGISTRY
from tasklab.tuning.methods import TABLE

RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)  # that all methods are recorded at
ONE_RATE, PLATEAU, BEST = "one rate", "plateau rates", "best for the sum"
MEASURES = {"equal accuracy": "single", "equal length": "norm"}
METRICS = ("absolute", "normalised", "target", "xi_classifier_box")
_KEYS = ["seed", "task", "subset"]


def at_setting(
    records: pd.DataFrame,
    setting: str,
    metric: str,
    sides: tuple[str, str],
    method: str,
    rate: float = math.nan,
) -> pd.DataFrame:
    """Return a method's records of a metric where two methods match in accuracy, norm or rate.

    Args:
        records: All records of a model; those of the experiment `budget` are used.
        setting: `"equal accuracy"`, `"equal length"`, `"one rate"`, `"plateau rates"` or
            `"best for the sum"`.
        metric: One of `METRICS`.
        sides: Both methods.
        method: The one of them whose records are returned.
        rate: The common learning rate of `"one rate"`.

    Returns:
        One row per seed and task; empty where a grid does not reach that far, or was not recorded.
    """
    grid = _only(records, records["experiment"] == "budget")
    if grid.empty or metric not in METRICS:
        return grid.iloc[:0]
    grid = usual(grid)
    grid = _only(grid, grid["method"].isin({*sides, method}))
    if setting not in MEASURES:
        mine = grid[grid["method"] == method]
        if setting == PLATEAU:
            rate = plateau(mine)
        elif setting == BEST:
            rate = best_for_the_sum(mine)
        return values(mine[np.isclose(mine["lr"], rate, rtol=1e-6)], metric)
    ways = {name: walk(grid, name, MEASURES[setting]) for name in sides}
    rows = values(grid[grid["method"] == method], metric)
    parts = [rows.iloc[:0]]
    for seed in sorted(set.intersection(*(set(way["seed"]) for way in ways.values()))):
        mine = {name: way[way["seed"] == seed] for name, way in ways.items()}
        level = min(way["x"].iloc[-1] for way in mine.values())
        parts.append(interpolated(rows[rows["seed"] == seed], mine[method], level))
    return pd.concat(parts)


def plateau(grid: pd.DataFrame) -> float:
    """Return the smallest rate within one standard error of the best accuracy alone.

    The error is that of the best rate's mean over seeds, on validation images; of one seed it is
    the best rate. NaN where nothing was measured on validation images.
    """
    rows = grid[(grid["metric"] == "single") & (grid["split"] == "validation")]
    if rows.empty:
        return math.nan
    by_seed = rows.groupby(["lr", "seed"])["value"].mean().unstack()
    means = by_seed.mean(axis=1)
    error = by_seed.sem(axis=1).fillna(0.0)[means.idxmax()]
    return float(means[means >= means.max() - error].index.min())


def best_for_the_sum(grid: pd.DataFrame, by: str = "lr") -> float:
    """Return the rate whose sum of all vectors is best, the more accurate alone among equals.

    Equals are within one standard error of the best sum (`as_good`); of them the rate with the
    highest accuracy alone is taken, both on validation images.

    Args:
        grid: Records of one method and number of steps.
        by: Column of the rate, or of another setting.

    Returns:
        The rate; NaN if no seed has a sum at every rate.
    """
    rates = as_good(grid, by)
    alone = grid[(grid["metric"] == "single") & (grid["split"] == "validation")]
    alone = alone.groupby(by)["value"].mean().reindex(rates).dropna()
    if alone.empty:
        return rates[0] if rates else math.nan
    return float(alone.sort_index().idxmax())


def as_good(grid: pd.DataFrame, by: str = "lr") -> list[float]:
    """Return the rates whose sum is within one standard error of the best one, which is first.

    The error is that of the best rate's mean over seeds and validation images. Arguments and seeds
    are those of `best_for_the_sum`.
    """
    rows = grid[(grid["metric"] == "absolute") & (grid["split"] == "validation")]
    sums = rows.groupby(["seed", by])["value"].mean().unstack()
    sums = sums.reindex(columns=grid[by].dropna().unique()).dropna()
    if sums.empty:
        return []
    means = sums.mean().sort_index()
    best = means.idxmax()
    images = float(rows.groupby("task")["n"].first().astype(float).sum())
    seeds = sums[best].sem() if len(sums) > 1 else 0.0
    error = math.sqrt(seeds**2 + means[best] * (100 - means[best]) / images)
    near = means[means >= means[best] - error].sort_values(ascending=False, kind="stable")
    return [float(rate) for rate in near.index]


def is_flat(grid: pd.DataFrame, by: str = "lr") -> bool:
    """Return whether the sum is as good at every rate of the grid (`as_good`)."""
    return len(as_good(grid, by)) == grid[by].nunique() > 1


def merges_at_equal_accuracy(df: pd.DataFrame) -> pd.DataFrame:
    """Return merged accuracies of methods where they are equally accurate alone.

    The level is the accuracy alone at which the way that learns least ends; the others are taken
    back to it along their rates, by linear interpolation, for each seed.

    Returns:
        Columns method, merge, n_tasks, seed, alone (the level) and value, a mean over tasks; none
        where a way's rates do not reach down to the level.
    """
    rows = df[(df["experiment"] == "merging_rates") & (df["split"] == "test")]
    columns = ["method", "merge", "n_tasks", "seed", "alone", "value"]
    if rows.empty:
        return pd.DataFrame(columns=columns)
    keys = ["method", "seed", "lr"]
    alone = rows[rows["metric"] == "single"].groupby(keys)["value"].mean().rename("alone")
    merged = rows[rows["metric"] == "absolute"]
    merged = merged.groupby([*keys, "n_tasks", "merge"])["value"].mean()
    both = merged.reset_index().join(alone, on=keys).sort_values("lr")
    levelled = []
    for seed, part in both.groupby("seed"):
        level = part.groupby("method")["alone"].last().min()  # sorted by rate: where each ends
        for kind, way in part.groupby(["method", "merge", "n_tasks"], sort=False):
            if near := between(way["alone"].to_numpy(float), level):
                (lower, upper), share = (way["value"].iloc[[*near[:2]]], near[2])
                value = lower + share * (upper - lower)
                levelled.append(dict(zip(columns, (*kind, seed, level, value), strict=True)))
    return pd.DataFrame(levelled, columns=columns)


def gaps_at_equal_accuracy(df: pd.DataFrame, over: str = "nonlinear") -> pd.DataFrame:
    """Return the gain of other methods' merges over those of one, seed by seed.

    Returns:
        The columns of `merges_at_equal_accuracy` without those of `over`, with its value as `base`
        and the difference as `gap`, in points.
    """
    table, same = merges_at_equal_accuracy(df), ["merge", "n_tasks", "seed"]
    base = table[table["method"] == over].set_index(same)["value"].rename("base")
    others = table[table["method"] != over].join(base, on=same, how="inner")
    return others.assign(gap=others["value"] - others["base"])


def usual(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the records on rates: those at the number of steps that most rates were tried with."""
    rates = grid.groupby("steps")["lr"].nunique()
    return _only(grid, grid["steps"] == rates.idxmax())


def _only(rows: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """Return some rows; where they are all, the table itself: a copy of its hits takes long."""
    return rows if wanted.all() else rows[wanted]


def values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return one metric of a method's test records; a normalised accuracy is made of two."""
    rows = rows[rows["split"] == "test"]
    if metric != "normalised":
        return rows[rows["metric"] == metric]
    top = rows[rows["metric"] == "absolute"]
    keys = ["lr", "seed", "task"]
    base = rows.loc[rows["metric"] == "single", [*keys, "value"]].rename(columns={"value": "base"})
    both = top.merge(base, on=keys)
    share = 100 * both["value"] / both["base"].clip(lower=1e-9)
    n = both["n"].astype(float)
    odds = [(100 / p.clip(0.5, 99.5) - 1) / n for p in (both["value"], both["base"])]
    return both.assign(value=share, error=share * np.sqrt(sum(odds))).drop(columns="base")


def walk(grid: pd.DataFrame, method: str, measure: str) -> pd.DataFrame:
    """Return the mean measure of a method at its rates, from the lowest to the chosen one.

    Args:
        grid: Records of `budget` on one model.
        method: One of its methods.
        measure: `"single"` (accuracy in %) or `"norm"`, on test images, a mean over tasks.

    Returns:
        Columns `seed`, `lr` (ascending) and `x`, the measure.
    """
    way = grid[(grid["method"] == method) & (grid["metric"] == measure) & (grid["split"] == "test")]
    way = way[way["lr"] <= end_of(grid, method) * (1 + 1e-6)]
    return way.groupby(["seed", "lr"])["value"].mean().rename("x").reset_index()


def end_of(grid: pd.DataFrame, method: str) -> float:
    """Return the rate at which a method's way ends, the chosen one; NaN where none is known.

    It is the recipe's, of the recorded search. Where that lies outside of the grid, or a model has
    none, it is the rate with the highest accuracy alone on validation images of the first seed, the
    mean over tasks.
    """
    mine = grid[(grid["method"] == method) & (grid["metric"] == "single")]
    alone = mine[(mine["split"] == "validation") & (mine["seed"] == mine["seed"].min())]
    if alone.empty:
        return float("nan")
    entry, tried = REGISTRY.get(alone["model"].iloc[0]), alone["lr"].unique()
    way = TABLE[method]
    given = entry.rates.get(way.vectors or way.rates or method) if entry else None
    near = [rate for rate in tried if given and np.isclose(rate, given, rtol=1e-6)]
    return float(near[0] if near else alone.groupby("lr")["value"].mean().idxmax())


def interpolated(rows: pd.DataFrame, way: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return one seed's records at a level of the measure, interpolated between two rates.

    Args:
        rows: Records of a method and metric at all rates.
        way: The measure `x` by `lr`, of `walk`.
        level: Value of `x`.

    Returns:
        One row per task, from the upper rate with the interpolated value; empty if the grid does
        not reach down to the level.
    """
    near = between(way["x"].to_numpy(float), level)
    if near is None:
        return rows.iloc[:0]
    *ends, share = near
    lower, upper = (rows[np.isclose(rows["lr"], way["lr"].iloc[i], rtol=1e-6)] for i in ends)
    both = upper.merge(lower[[*_KEYS, "value"]], on=_KEYS, suffixes=("", "_lower"))
    value = both["value_lower"] + share * (both["value"] - both["value_lower"])
    return both.assign(value=value).drop(columns="value_lower")


def between(x: np.ndarray, level: float) -> tuple[int, int, float] | None:
    """Return the two places of a curve between which it last rises to a level, and the share.

    >>> between(np.array([60.0, 80.0, 70.0, 90.0]), 75.0)
    (2, 3, 0.25)

    Args:
        x: The measure at ascending rates.
        level: Of the measure, at most its last value.

    Returns:
        Lower and upper place, and the share of the way from one to the other; `None` if the curve
        does not reach down to the level.
    """
    upper = len(x) - 1
    while upper > 0 and x[upper - 1] >= level:
        upper -= 1
    if upper == 0:
        return (0, 0, 1.0) if np.isclose(x[0], level) else None
    width = x[upper] - x[upper - 1]
    return upper - 1, upper, float((level - x[upper - 1]) / width) if width else 1.0
