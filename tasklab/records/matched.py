"""Two ways of fine-tuning compared where they learnt as much, or went as far.

A larger learning rate usually raises the accuracy alone and the length of a task vector, and may
lower what is left of the accuracy in a sum. So one method may seem to add better because it learnt
less. The methods that headlines compare are recorded over a grid of rates (experiment `budget`);
along it, what is compared becomes a function of the accuracy alone, or of the length of the
vectors, both as means over tasks. **The side that went further is taken back along its rates to
where the other one ends**, by linear interpolation between two neighbours, for each seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

MEASURES = {"equal accuracy": "single", "equal length": "norm"}
METRICS = ("absolute", "normalised", "target", "xi_classifier_box")
_KEYS = ["seed", "task", "subset"]


def at_setting(
    records: pd.DataFrame, setting: str, metric: str, sides: tuple[str, str], method: str
) -> pd.DataFrame:
    """Return a method's records of a metric where two methods are equal in what a setting names.

    Args:
        records: Of one model.
        setting: Of `MEASURES`.
        metric: Of `METRICS`.
        sides: Both methods.
        method: One of them.

    Returns:
        A row a seed and task; none where a grid does not reach that far, or was not recorded.
    """
    grid = records[records["experiment"] == "budget"]
    if grid.empty or metric not in METRICS:
        return grid.iloc[:0]
    grid = usual(grid)
    ways = {name: walk(grid, name, MEASURES[setting]) for name in sides}
    rows = values(grid[grid["method"] == method], metric)
    parts = [rows.iloc[:0]]
    for seed in sorted(set.intersection(*(set(way["seed"]) for way in ways.values()))):
        mine = {name: way[way["seed"] == seed] for name, way in ways.items()}
        level = min(way["x"].iloc[-1] for way in mine.values())
        parts.append(interpolated(rows[rows["seed"] == seed], mine[method], level))
    return pd.concat(parts)


def merges_at_equal_accuracy(df: pd.DataFrame) -> pd.DataFrame:
    """Return what ways of fine-tuning reach when merged, where they learnt equally much alone.

    The level is the accuracy alone at which the way that learns least ends; the others are taken
    back to it along their rates, by linear interpolation, for each seed.

    Args:
        df: Records of the experiment `merging_rates`, of one model.

    Returns:
        Columns method, merge, seed, alone (the level) and value; none where a way's rates do not
        reach down to the level.
    """
    rows = df[(df["experiment"] == "merging_rates") & (df["split"] == "test")]
    columns = ["method", "merge", "seed", "alone", "value"]
    if rows.empty:
        return pd.DataFrame(columns=columns)
    keys = ["method", "seed", "lr"]
    alone = rows[rows["metric"] == "single"].groupby(keys)["value"].mean().rename("alone")
    merged = rows[rows["metric"] == "absolute"].groupby([*keys, "merge"])["value"].mean()
    both = merged.reset_index().join(alone, on=keys).sort_values("lr")
    levelled = []
    for seed, part in both.groupby("seed"):
        level = part.groupby("method")["alone"].last().min()  # sorted by rate: where each ends
        for (method, merge), way in part.groupby(["method", "merge"], sort=False):
            x, y = way["alone"].to_numpy(float), way["value"].to_numpy(float)
            upper = _crossing(x, level)
            if upper is not None:
                ends = [max(upper - 1, 0), upper]
                value = np.interp(level, x[ends], y[ends])
                levelled.append(
                    dict(zip(columns, (method, merge, seed, level, value), strict=True))
                )
    return pd.DataFrame(levelled, columns=columns)


def usual(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the records on rates: those at the number of steps that most rates were tried with."""
    rates = grid.groupby("steps")["lr"].nunique()
    return grid[grid["steps"] == rates.idxmax()]


def values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return one metric of a method's test records; a normalised accuracy is made of two.

    Args:
        rows: Of one method, at one number of steps.
        metric: Of `METRICS`.
    """
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
    """Return a method's way along its rates, from the least to the chosen one.

    The chosen one has the highest accuracy alone on validation images, as a mean over tasks and
    seeds.

    Args:
        grid: Records of the experiment `budget`, at one number of steps.
        method: Its name.
        measure: `single` or `norm`.

    Returns:
        Columns seed, lr and x, the measure on test images as a mean over tasks; ascending in lr.
    """
    mine = grid[grid["method"] == method]
    alone = mine[(mine["metric"] == "single") & (mine["split"] == "validation")]
    if alone.empty:
        return pd.DataFrame(columns=["seed", "lr", "x"])
    chosen = alone.groupby("lr")["value"].mean().idxmax()
    way = mine[(mine["metric"] == measure) & (mine["split"] == "test") & (mine["lr"] <= chosen)]
    return way.groupby(["seed", "lr"])["value"].mean().rename("x").reset_index()


def interpolated(rows: pd.DataFrame, way: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return records at a level of the measure, between two rates of the grid.

    Args:
        rows: Records of one method, seed and metric, at every rate.
        way: The same seed's rows of `walk`.
        level: Of the measure; at most that at the way's end.

    Returns:
        One row a task, as at the upper rate but for its value; none if the grid does not reach down
        to the level.
    """
    x, lr = way["x"].to_numpy(float), way["lr"].to_numpy(float)
    upper = _crossing(x, level)
    if upper is None:
        return rows.iloc[:0]
    lower = max(upper - 1, 0)
    width = x[upper] - x[lower]
    share = (level - x[lower]) / width if width else 1.0
    ends = [rows[np.isclose(rows["lr"], lr[i], rtol=1e-6)] for i in (lower, upper)]
    both = ends[1].merge(ends[0][[*_KEYS, "value"]], on=_KEYS, suffixes=("", "_lower"))
    value = both["value_lower"] + share * (both["value"] - both["value_lower"])
    return both.assign(value=value).drop(columns="value_lower")


def _crossing(x: Sequence[float], level: float) -> int | None:
    """Return the first place, from the end, at or above a level whose predecessor is below it."""
    place = len(x) - 1
    while place > 0 and x[place - 1] >= level:
        place -= 1
    return place if place > 0 or np.isclose(x[place], level) else None
