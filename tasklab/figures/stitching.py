"""Figures of edits taken apart: averages of weights and of logits, stitched models."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import pearsonr

from tasklab.figures.marks import curves, diagonal, scatter
from tasklab.figures.rows import averaged, require_rows, where
from tasklab.figures.style import book_figure

FRONTS = {  # label, colour, marker
    "own": ("features of the task's own model", "#0072B2", "s"),
    "other": ("features of the other task's model", "#D55E00", "v"),
    "both": ("mean of both features", "#009E73", "o"),
    "edited": ("features of the mean weights", "#000000", "X"),
}
_OF_NEGATION = {  # of negation: what is subtracted, and on which images
    ("features", True): ("task, features subtracted", "#009E73", "o"),
    ("features", False): ("control, features subtracted", "#009E73", "^"),
    ("weights", True): ("task, weights subtracted", "#000000", "X"),
    ("weights", False): ("control, weights subtracted", "#000000", "P"),
}


@book_figure
def averaging(df: pd.DataFrame) -> Figure:
    """Plot accuracies of averaged weights against ensembles (figure 4). Records: `averaging`."""
    df = require_rows(where(df, experiment="averaging"))
    alone, groups = where(df, metric="alone")["value"], df[df["metric"] != "alone"]
    table = groups.pivot(index=["seed", "subset"], columns="metric", values="value")
    table, looks = table.assign(all=""), {"": ("a group of models", "#0072B2", "o")}
    plot = scatter(table, "averaged", "ensemble", hue="all", looks=looks, height=4.6)
    ends = (df["value"].min() - 0.5, df["value"].max() + 0.5)
    plot.grid.set(xlim=ends, ylim=ends, aspect="equal")
    equal = diagonal(plot.first, label="equal")
    look = {"color": "#D55E00", "ms": 8, "ls": "", "marker": "_", "mew": 1.8, "clip_on": False}
    own = plot.first.plot(np.full(len(alone), ends[0]), alone, label="one model alone", **look)
    if len(table) > 2 and table["averaged"].nunique() > 1 < table["ensemble"].nunique():
        correlation = pearsonr(table["averaged"], table["ensemble"]).statistic
        plot.first.set_title(
            f"correlation {correlation:.2f}, {len(table)} groups that share models"
        )
    x, y = "accuracy of averaged weights (%)", "accuracy of averaged logits (%)"
    return plot.finish([*equal, *own], x=x, y=y)


@book_figure
def stitched_addition(df: pd.DataFrame) -> Figure:
    """Plot accuracies of stitched models on both tasks of each pair (figure 9).

    Lines join coefficients. Records: `stitched_addition` at one block.
    """
    df = require_rows(df)
    # On the axis of its own task a model is "own", on that of the other one "other".
    first, own = df["task"] == df["subset"].str.partition("+")[0], df["front"] == "own"
    source = df["front"].mask(df["front"].isin(["own", "other"]), np.where(first == own, "i", "j"))
    df, by = df.assign(source=source, axis=np.where(first, "x", "y")), ["subset", "source", "alpha"]
    table = df.pivot_table("value", index=by, columns="axis", sort=False).reset_index()
    looks = {
        "i": ("features of the first task's model", *FRONTS["own"][1:]),
        "j": ("features of the second task's model", *FRONTS["other"][1:]),
    }
    plot = curves(
        table.sort_values("alpha"), "x", "y", hue="source", col="subset",
        looks=looks | {name: FRONTS[name] for name in ("both", "edited")}, lw=0.9,
        col_order=dict.fromkeys(df["subset"]), columns=2 if df["subset"].nunique() < 5 else 3,
        height=(0.9, 2.5), share=(False, False), sort=False, estimator=None, errorbar=None,
    )  # fmt: skip
    x, y = (lambda pair, i=i: f"{pair.split('+')[i]} (%)" for i in (0, 1))
    return plot.finish(x=x, y=y)


@book_figure
def stitched_depth(df: pd.DataFrame) -> Figure:
    """Plot accuracies of stitched models by block. Records: `stitched_addition`."""
    means = averaged(require_rows(df), "subset", "front", "block", *({"seed"} & set(df)))
    means["block"] += 1
    plot = curves(means, "block", hue="front", looks=FRONTS, col="subset", height=3.4)
    plot.grid.set(xticks=sorted(set(means["block"].astype(int))))
    y = "mean accuracy of both tasks (%)"
    return plot.finish(title=lambda pair: pair.replace("+", "\nand "), x="cut after block", y=y)


@book_figure
def stitched_negation(df: pd.DataFrame) -> Figure:
    """Plot accuracies of stitched negation on task and control (figure 10).

    Records: `stitched_negation`.
    """
    side = list(zip(df["front"], df["task"] == df["subset"], strict=True))
    df = require_rows(df).assign(side=side)
    plot = curves(
        df, "alpha", hue="side", looks=_OF_NEGATION, col="subset",
        columns=3 if df["subset"].nunique() < 5 else 4, height=(0.9, 2.4),
    )  # fmt: skip
    return plot.finish(x="coefficient λ", y="accuracy (%)", title=str)
