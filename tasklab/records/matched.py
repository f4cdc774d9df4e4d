"""Two ways of fine-tuning compared where they learnt as much, or went as far.

A larger learning rate, or more steps, raises the accuracy alone and the length of a task vector,
and lowers what is left of the accuracy in a sum. So one method may seem to add better because it
learnt less. Every method is recorded over a grid of rates (experiment `rates`); along it, what is
compared becomes a function of the accuracy alone, or of the length of the vectors, both as means
over tasks. **The side that went further is taken back along its grid to where the other one ends**,
by linear interpolation between two neighbours, for each seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

MEASURES = {"equal accuracy": "single", "equal length": "norm"}
KEYS = ["seed", "task", "subset"]
METRICS = ("absolute", "normalised", "target")


def at_setting(claim, method: str, records: pd.DataFrame) -> pd.DataFrame:
    """Return one side of a claim where both sides are equal in what its setting names.

    Args:
        claim: A claim in such a setting.
        method: One of its sides.
        records: Of the model.
    """
    grid = records[records["experiment"] == "rates"] if "lr" in records else records.iloc[:0]
    if grid.empty or claim.metric not in METRICS:
        return records.iloc[:0]
    measure = MEASURES[claim.setting]
    curves = {name: walk(grid, name, measure) for name in (claim.left, claim.right)}
    parts = []
    for seed in sorted(set.intersection(*(set(c["seed"]) for c in curves.values()))):
        mine = {name: curve[curve["seed"] == seed] for name, curve in curves.items()}
        level = min(curve["x"].iloc[-1] for curve in mine.values())
        rows = grid[(grid["method"] == method) & (grid["seed"] == seed)]
        parts.append(interpolated(rows[rows["metric"] == claim.metric], mine[method], level))
    return pd.concat(parts) if parts else grid.iloc[:0]


def walk(grid: pd.DataFrame, method: str, measure: str) -> pd.DataFrame:
    """Return a method's way along its learning rates, from the least to the chosen one.

    The chosen one is the rate with the highest accuracy alone as a mean over tasks and seeds.

    Args:
        grid: Records of the experiment `rates`.
        method: Its name.
        measure: `single` or `norm`.

    Returns:
        Columns seed, lr and x, the measure as a mean over tasks; ascending in lr.
    """
    mine = grid[grid["method"] == method]
    alone = mine[mine["metric"] == "single"].groupby("lr")["value"].mean()
    if alone.empty:
        return pd.DataFrame(columns=["seed", "lr", "x"])
    way = mine[(mine["metric"] == measure) & (mine["lr"] <= alone.idxmax())]
    return way.groupby(["seed", "lr"])["value"].mean().rename("x").reset_index()


def interpolated(rows: pd.DataFrame, way: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return records at a level of the measure, between two rates of the grid.

    Args:
        rows: Records of one method, seed and metric, at every rate.
        way: The same seed's rows of `walk`.
        level: Of the measure; at most that at the way's end.

    Returns:
        One row a task and subset, as at the upper rate but for its value; none if the grid does not
        reach down to the level.
    """
    x, lr = way["x"].to_numpy(float), way["lr"].to_numpy(float)
    upper = _crossing(x, level)
    if upper is None:
        return rows.iloc[:0]
    lower = max(upper - 1, 0)
    width = x[upper] - x[lower]
    share = (level - x[lower]) / width if width else 1.0
    ends = [rows[np.isclose(rows["lr"], lr[i], rtol=1e-6)] for i in (lower, upper)]
    both = ends[1].merge(ends[0][[*KEYS, "value"]], on=KEYS, suffixes=("", "_lower"))
    value = both["value_lower"] + share * (both["value"] - both["value_lower"])
    return both.assign(value=value).drop(columns="value_lower")


def _crossing(x: Sequence[float], level: float) -> int | None:
    """Return the last place at or above a level whose predecessor is below it, from the end."""
    place = len(x) - 1
    while place > 0 and x[place - 1] >= level:
        place -= 1
    reached = place > 0 or np.isclose(x[place], level)
    return place if reached else None
