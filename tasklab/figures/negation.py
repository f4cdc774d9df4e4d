"""Figures of task negation."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.editing import UPRIGHT, by_method, by_task, zero_shot
from tasklab.figures.marks import level
from tasklab.figures.rows import averaged, select, tasks_in, where
from tasklab.figures.style import book_figure

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
    means = averaged(tuned, "metric", "method", "seed")
    plot, extra = by_method(means.sort_values("metric", ascending=False), col="metric")
    for axes, _, side in plot:
        before = where(rows, metric=side, method="pretrained")
        if before.empty and side == "target":
            before = zero_shot(df, tasks_in(rows))
        base = float(before["value"].mean()) if len(before) else math.nan
        extra["base"] = level(axes, base, **UPRIGHT)
        if side == "control":
            extra["kept"] = level(axes, 0.95 * base, along="y", **_KEPT)
    return plot.finish(extra.values(), looks={}, x=_TOLD)


@book_figure
def negation_per_task(df: pd.DataFrame) -> Figure:
    """Draw target and control accuracy after the negation of each task; bars are 95 % intervals."""
    rows = select(df, "negation")
    tasks, parts, kept = tasks_in(rows[rows["method"] != "pretrained"]), [], math.nan
    for side in _SIDES:
        part = where(rows, metric=side)
        base = where(part, method="pretrained")
        if side == "target" and base.empty:
            part = pd.concat([part, zero_shot(df, tasks).assign(metric=side)])
        elif len(base) and set(base["task"]) != set(tasks):  # one control for all targets
            every = [base.iloc[:1].assign(task=task) for task in tasks]
            part = pd.concat([part[part["method"] != "pretrained"], *every])
        kept = 0.95 * float(base["value"].mean())
        parts.append(part)
    plot = by_task(pd.concat(parts, ignore_index=True), tasks, _TOLD, "metric")
    if not math.isnan(kept):
        axes = plot.grid.axes_dict["control"]
        line = level(axes, kept, along="y", **_KEPT)
        axes.legend(handles=[line], loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return plot.figure
