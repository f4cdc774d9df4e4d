"""Figures of task negation."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.editing import dots, zero_shot
from tasklab.figures.style import (
    COLOURS,
    METHOD_LABEL,
    WIDTH,
    book_figure,
    legend,
    methods_in,
    select,
    tasks_in,
)
from tasklab.records.table import summarise


@book_figure
def negation(df: pd.DataFrame) -> Figure:
    """Draw target and control accuracy after negation; dots are seeds (tangent, table 2)."""
    rows = select(df, "negation")
    methods = methods_in(rows)
    base = {}
    for metric in ("target", "control"):
        found = rows[(rows["metric"] == metric) & (rows["method"] == "pretrained")]
        if found.empty and metric == "target":
            found = zero_shot(df, tasks_in(rows))
        base[metric] = float(found["value"].mean()) if len(found) else math.nan
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.6 + 0.42 * len(methods)), sharey=True)
    for axes, metric in zip(panels, ("target", "control"), strict=True):
        for y, method in enumerate(methods):
            chosen = (rows["metric"] == metric) & (rows["method"] == method)
            seeds = summarise(rows[chosen], ["seed"])["mean"]
            axes.barh(y, seeds.mean(), 0.7, color=COLOURS[method])
            if len(seeds) > 1:
                at = y + np.linspace(-0.2, 0.2, len(seeds))
                axes.plot(seeds, at, "o", ms=3.5, color="white", mec="#333333", mew=0.7, zorder=5)
            axes.text(
                1,
                y,
                f"{seeds.mean():.1f}",
                va="center",
                fontsize=9,
                zorder=6,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"},
            )
        axes.axvline(
            base[metric], ls="--", lw=1.6, color=COLOURS["pretrained"], label="pre-trained"
        )
        axes.set_yticks(range(len(methods)), [METHOD_LABEL[m] for m in methods])
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, max(base["target"], base["control"], rows["value"].mean()) * 1.15)
    panels[1].axvline(
        0.95 * base["control"], ls=":", lw=2, color="#333333", label="95 % of pre-trained"
    )
    panels[0].set_xlabel("target accuracy (%): lower is better")
    panels[1].set_xlabel("control accuracy (%): must stay")
    panels[0].invert_yaxis()
    legend(figure, panels[1])
    return figure


@book_figure
def negation_per_task(df: pd.DataFrame) -> Figure:
    """Draw target and control accuracy after the negation of each task, as dots."""
    rows = select(df, "negation")
    tasks = tasks_in(rows[rows["method"] != "pretrained"])
    height = 1.1 + (len(tasks) + 1) * max(0.3, 0.13 * len(methods_in(rows)))
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, height), sharey=True)
    for axes, metric in zip(panels, ("target", "control"), strict=True):
        part = rows[rows["metric"] == metric]
        base = part[part["method"] == "pretrained"]
        if metric == "target" and base.empty:
            part = pd.concat([part, zero_shot(df, tasks)])
        elif len(base) and set(base["task"]) != set(tasks):  # one control for all targets
            every = [base.iloc[:1].assign(task=task) for task in tasks]
            part = pd.concat([part[part["method"] != "pretrained"], *every])
        dots(axes, part, tasks)
        if metric == "control" and len(base):
            kept = 0.95 * float(base["value"].mean())
            axes.axvline(kept, ls=":", lw=2, color="#333333", label="95 % of pre-trained")
    panels[0].set_xlabel("target accuracy (%): lower is better")
    panels[1].set_xlabel("control accuracy (%): must stay")
    legend(figure, panels[1])
    return figure
