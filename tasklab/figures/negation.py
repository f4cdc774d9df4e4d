"""Figures of task negation."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.editing import UPRIGHT, by_method, by_task, zero_shot
from tasklab.figures.marks import finish, level, panels
from tasklab.figures.style import book_figure, select, tasks_in

_SIDES = ["target", "control"]
_TOLD = {"target": "target accuracy (%): lower is better", "control": "control accuracy (%)"}
_KEPT = {"ls": ":", "lw": 2, "label": "95 % of pre-trained"}


@book_figure
def negation(df: pd.DataFrame) -> Figure:
    """Draw target and control accuracy after negation (tangent, table 2).

    Points are means over tasks and seeds, bars the standard deviation over seeds, small dots the
    seeds.
    """
    rows = select(df, "negation")
    tuned = rows[(rows["method"] != "pretrained") & rows["metric"].isin(_SIDES)]
    means = tuned.groupby(["metric", "method", "seed"], as_index=False)["value"].mean()
    grid, extra = by_method(means.sort_values("metric", ascending=False), col="metric")
    for axes, _, side in panels(grid):
        before = rows[(rows["metric"] == side) & (rows["method"] == "pretrained")]
        if before.empty and side == "target":
            before = zero_shot(df, tasks_in(rows))
        base = float(before["value"].mean()) if len(before) else math.nan
        extra["base"] = level(axes, base, **UPRIGHT)
        if side == "control":
            extra["kept"] = level(axes, 0.95 * base, along="y", **_KEPT)
    return finish(grid, {}, extra.values(), x=_TOLD)


@book_figure
def negation_per_task(df: pd.DataFrame) -> Figure:
    """Draw target and control accuracy after the negation of each task; bars are 95 % intervals."""
    rows = select(df, "negation")
    tasks, parts, kept = tasks_in(rows[rows["method"] != "pretrained"]), [], math.nan
    for side in _SIDES:
        part = rows[rows["metric"] == side]
        base = part[part["method"] == "pretrained"]
        if side == "target" and base.empty:
            part = pd.concat([part, zero_shot(df, tasks).assign(metric=side)])
        elif len(base) and set(base["task"]) != set(tasks):  # one control for all targets
            every = [base.iloc[:1].assign(task=task) for task in tasks]
            part = pd.concat([part[part["method"] != "pretrained"], *every])
        kept = 0.95 * float(base["value"].mean())
        parts.append(part)
    grid = by_task(pd.concat(parts, ignore_index=True), tasks, "metric")
    for axes, _, side in panels(grid):
        axes.set_xlabel(_TOLD[side])
        if side == "control" and not math.isnan(kept):
            line = level(axes, kept, along="y", **_KEPT)
            axes.legend(handles=[line], loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return grid.figure
