"""Figures of edits taken apart: averages of weights and of logits, stitched models.

Tables are records of `tasklab.experiments`: `averaging`, `stitched_addition`, `stitched_negation`.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import pearsonr

from tasklab.figures.style import WIDTH, book_figure, legend, some

FRONTS = {  # label, colour, marker
    "own": ("features of the task's own model", "#0072B2", "s"),
    "other": ("of the other task's", "#D55E00", "v"),
    "both": ("mean of both's features", "#009E73", "o"),
    "edited": ("features of mean weights", "#000000", "x"),
    "features": ("features subtracted", "#009E73", "o"),
    "weights": ("weights subtracted", "#000000", "x"),
}


@book_figure
def averaging(df: pd.DataFrame) -> Figure:
    """Draw accuracies of averaged weights against those of ensembles (the paper's figure 4).

    Args:
        df: Records of `experiments.averaging`.
    """
    df = df[df["experiment"] == "averaging"]
    some(df)
    groups = df[df["metric"] != "alone"]
    table = groups.pivot(index=["seed", "subset"], columns="metric", values="value")
    x, y = table["averaged"].to_numpy(), table["ensemble"].to_numpy()
    figure, axes = plt.subplots(figsize=(WIDTH, 4.2))
    axes.plot(x, y, "o", color="#0072B2", mec="white", mew=0.5, ms=6, label="a group of models")
    alone = df[df["metric"] == "alone"]["value"].to_numpy()
    ends = np.array([min(x.min(), y.min(), alone.min()), max(x.max(), y.max(), alone.max())])
    ends += np.array([-0.5, 0.5])
    axes.plot(ends, ends, color="#333333", ls="--", lw=1, label="equal")
    look = {"color": "#D55E00", "ms": 7, "ls": "", "marker": "_", "mew": 1.6, "clip_on": False}
    axes.plot(np.full(len(alone), ends[0]), alone, label="one model alone", **look)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel("accuracy of averaged weights (%)")
    axes.set_ylabel("accuracy of averaged logits (%)")
    if len(table) > 2 and np.ptp(x) and np.ptp(y):
        found = pearsonr(x, y)
        low, high = found.confidence_interval()
        axes.set_title(
            f"correlation {found.statistic:.2f} [{low:.2f}, {high:.2f}], {len(table)} groups"
        )
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


@book_figure
def stitched_addition(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched models on both tasks of each pair (the paper's figure 9).

    Args:
        df: Records of `experiments.stitched_addition` at one block: lines join coefficients.
    """
    some(df)
    names = list(dict.fromkeys(df["subset"]))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(WIDTH, 0.9 + 2.7 * lines), squeeze=False)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, names, strict=False):
        rows = df[df["subset"] == name]
        i, j = name.split("+")
        table = rows.pivot_table(index=["front", "alpha"], columns="task", values="value")
        own, other = table.loc["own"], table.loc["other"]
        # On the axis of its own task a model is "own", on that of the other one "other".
        ends = {
            f"features of θ₀ + λτ, {i}": (own[i], other[j], "#0072B2", "s"),
            f"features of θ₀ + λτ, {j}": (other[i], own[j], "#D55E00", "v"),
        }
        for front in ("both", "edited"):
            label, colour, marker = FRONTS[front]
            ends[label] = (table.loc[front][i], table.loc[front][j], colour, marker)
        for label, (x, y, colour, marker) in ends.items():
            axes.plot(x, y, color=colour, marker=marker, lw=0.7, ms=3.5, label=label)
        axes.set_xlabel(f"{i} (%)")
        axes.set_ylabel(f"{j} (%)")
        axes.legend(fontsize=7, loc="best")
    return figure


@book_figure
def stitched_depth(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched models against the block that they are cut after.

    Args:
        df: Records of `experiments.stitched_addition` with `block=-1`: means over both tasks.
    """
    some(df)
    names = list(dict.fromkeys(df["subset"]))
    figure, panels = plt.subplots(1, len(names), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        rows = df[df["subset"] == name]
        for front in ("own", "other", "both", "edited"):
            label, colour, marker = FRONTS[front]
            means = rows[rows["front"] == front].groupby("block")["value"].mean()
            axes.plot(means.index + 1, means, color=colour, marker=marker, ms=4.5, label=label)
        axes.set_title(name.replace("+", " and "))
        axes.set_xlabel("cut after block")
    panels[0, 0].set_ylabel("mean accuracy of both tasks (%)")
    legend(figure, panels[0, 0])
    return figure


@book_figure
def stitched_negation(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched negation on the task and the control (the paper's figure 10).

    Args:
        df: Records of `experiments.stitched_negation`.
    """
    some(df)
    names = list(dict.fromkeys(df["subset"]))
    figure, panels = plt.subplots(1, len(names), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        rows = df[df["subset"] == name]
        for front in ("features", "weights"):
            label, colour, marker = FRONTS[front]
            for own, line in ((True, "-"), (False, "--")):
                part = rows[(rows["front"] == front) & ((rows["task"] == name) == own)]
                part = part.groupby("alpha")["value"].mean()
                told = f"{label}: {'the task' if own else 'control'}"
                look = {"color": colour, "marker": marker, "ms": 3.5, "ls": line}
                axes.plot(part.index, part, label=told, **look)
        axes.set_title(name)
        axes.set_xlabel("coefficient λ")
    panels[0, 0].set_ylabel("accuracy (%)")
    legend(figure, panels[0, 0])
    return figure
