"""Figures of cross-task linearity: by layer, along segments, as it emerges, of stitched models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import pearsonr

from tasklab.evidence.figures.marks import GIVEN, curves, diagonal, level, log, scatter
from tasklab.evidence.figures.rows import averaged, ends, require_rows, where
from tasklab.evidence.figures.style import INK, book_figure

BASE = "#595959"
_SHADED = (("#56B4E9", "o"), ("#0072B2", "^"), ("#E69F00", "D"))  # coefficients, or blocks
_BASE_LABEL = {"base": "between the models", "base_merged": "merged to single models"}
_KINDS = {  # whose images accuracy is on, along a segment
    "i": ("task i", "#0072B2", ""),
    "j": ("task j", "#D55E00", ""),
    "start": ("pre-training task", "#595959", ""),
}
_FEATURES = {  # of a segment's features: label and colour
    "base": ("features: between the models, early layers faint", BASE),
    "distance": ("features: merged", "#009E73"),
}

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


def _depth(df: pd.DataFrame) -> pd.Series:
    """Return the position of each row: blocks from 1, features after the last."""
    last = int(df["block"].max()) + 1 if df["block"].notna().any() else 0
    return df["block"].fillna(last).astype(int) + 1


def _ticks(axes: Axes, df: pd.DataFrame) -> None:
    places = sorted(set(_depth(df)), reverse=True)
    names = ["out" if df["block"].isna().any() else places[0], *places[1:]]
    step = -(-len(places) // 7)
    axes.set_xticks(places[::step], names[::step])


@book_figure
def cross_task(df: pd.DataFrame, tasks: Sequence[str] | None = None, base: str = "base") -> Figure:
    """Plot 1 − cosine of merged and single features by layer, and beside it the coefficient.

    Points are means over images, bars quartiles (figures 2, 3, 5 to 8 and 13 to 24).

    Args:
        df: Records with the metrics `distance`, `coef` and `base` of one method.
        tasks: Pairs or tasks, for a panel each of 1 − cosine alone; by default all are pooled.
        base: `base_merged` compares with merged against single features (section 4.2).
    """
    metrics = (base, "distance") if tasks is not None else (base, "distance", "coef")
    rows = where(require_rows(df).assign(depth=_depth(df)), metric=list(metrics))
    kind = np.where(rows["metric"] == "coef", "coefficient", "1 − cosine")
    if tasks is None:
        groups, rows = ["1 − cosine", "coefficient"], rows.assign(panel=kind)
    else:
        groups, rows = list(tasks), where(rows.assign(panel=rows["task"]), task=list(tasks))
    rows = require_rows(rows)
    before = rows["metric"].isin(_BASE_LABEL)
    alphas = sorted(set(rows[~before]["alpha"].dropna())) or [np.nan]  # a mean of models has none
    looks = {name: (_BASE_LABEL[name], BASE, "s") for name in metrics if name in _BASE_LABEL}
    if len(alphas) == 1:
        looks[f"{alphas[0]:g}"] = ("merged", "#0072B2", "o")
    else:
        looks |= {f"{a:g}": (f"merged, {a:g}", *_SHADED[i % 3]) for i, a in enumerate(alphas)}
    group = rows["metric"].where(before, rows["alpha"].map("{:g}".format))
    # Bars of several coefficients stand beside one another.
    shift = {name: 0.1 * (i - (len(looks) - 1) / 2) for i, name in enumerate(looks)}
    shown = ends(rows.assign(group=group), "panel", "group", "depth")
    shown["depth"] += shown["group"].map(shift)
    columns = 2 if len(groups) in (2, 4) else 3
    plot = curves(
        shown, "depth", hue="group", looks=looks, col="panel", col_order=groups, columns=columns,
        height=(0.9, 2.1 if len(groups) > columns else 2.5), share=(True, tasks is not None),
        err_style="bars", err_kws={"elinewidth": 1.0}, **GIVEN,
    )  # fmt: skip
    for axes, _, name in plot:
        if name == "coefficient":
            level(axes, 1)
        else:
            axes.set_yscale("log")
        if tasks is not None:
            axes.set_title(name.replace("+", "\nand "), fontsize=9)
        _ticks(axes, df)
    gap = " " if len(groups) <= columns else "\n"
    labels = {name: f"{name}{gap}(bars: quartiles)" for name in ("1 − cosine", "coefficient")}
    return plot.finish(x="block", y=labels if tasks is None else labels[kind[0]])


@book_figure
def cross_task_methods(df: pd.DataFrame) -> Figure:
    """Plot 1 − cosine and coefficient of several methods by layer.

    Means over pairs; bands reach from the closest pair to the farthest. Records: `ctl`.
    """
    half = require_rows(df)[np.isclose(df["alpha"], 0.5)]
    titles = {"base": "between the models:\n1 − cosine", "distance": "merged:\n1 − cosine",
              "coef": "merged:\ncoefficient"}  # fmt: skip
    rows = where(half.assign(depth=_depth(half)), metric=titles)
    plot = curves(
        averaged(rows, "metric", "method", "depth", "task"), "depth", col="metric",
        col_order=titles, height=3.0, share=(True, False), errorbar=("pi", 100),
    )  # fmt: skip
    for axes, _, metric in plot:
        _ticks(axes, half)
        if metric == "coef":
            level(axes, 1)
        else:
            log(axes, "y")
    return plot.finish(x="block", title=titles)


@book_figure
def segments(df: pd.DataFrame, features: pd.DataFrame | None = None) -> Figure:
    """Plot loss and accuracy along segments between models, and features' distances.

    Thick lines are means, thin ones pairs. Records: `segment` and, for the `features`, `ctl` of the
    same network; a line is a layer, early ones faint.
    """
    pair = require_rows(df)["subset"].str.split("+", expand=True)
    kind = np.select([df["task"] == pair[0], df["task"] == pair[1]], ["i", "j"], "start")
    pairs = df.assign(group=kind, panel=df["metric"], line=df["subset"] + df["seed"].astype(str))
    panels = {"loss": "loss (nats)", "accuracy": "accuracy (%)"}
    told, looks, layers = _KINDS, dict(_KINDS), pairs[:0]
    if features is not None:
        panels["features"] = "1 − cosine"
        layers = where(features.assign(depth=_depth(features)), metric=_FEATURES)
        layers = averaged(layers, "metric", "depth", "alpha").assign(panel="features")
        layers["group"] = layers["metric"] + layers["depth"].astype(str)
        depths = sorted(set(layers["depth"]))
        told = _KINDS | {metric: (*look, "") for metric, look in _FEATURES.items()}
        for metric, (_, colour) in _FEATURES.items():
            shades = sns.light_palette(colour, len(depths) + 2)[2:]
            looks |= {f"{metric}{d}": ("", c, "o") for d, c in zip(depths, shades, strict=True)}
    plot = curves(
        pd.concat([pairs, layers]), "alpha", hue="group", looks=looks, dots=False, errorbar=None,
        col="panel", col_order=list(panels), share=(False, False), lw=2, height=3.2,
    )  # fmt: skip
    for _, line in pairs.groupby("line"):
        plot.trace(line.sort_values("alpha"), "alpha", lw=0.5, alpha=0.4)
    plot.mark(layers, "alpha", ms=3.5, mew=0, mfc="auto")
    for axes, _, panel in plot:
        axes.set(xlim=(-0.02, 1.02), xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.xaxis.set_major_formatter("{x:g}")
        if panel == "features":
            log(axes, "y")
        else:
            axes.set_ylim(bottom=0)
    x = {panel: "α (0: j, 1: i)" if panel != "features" else "α" for panel in panels}
    return plot.finish(looks=told, x=x, y=panels)


@book_figure
def emergence(tables: Sequence[tuple[str, pd.DataFrame]], column: Sequence[str]) -> Figure:
    """Plot cross-task linearity against a condition (figures 11 and 12).

    `tables` are titles with records, a column of panels each; `column` names the condition of each:
    `pretraining`, `finetuning` or `ratio`. Lines are means, bands quartiles over images.
    """
    parts = []
    for (title, df), name in zip(tables, column, strict=True):
        deepest = require_rows(df)["block"].max()
        chosen = where(df, block=[0, deepest // 2, deepest])
        parts.append(chosen.assign(title=title, x=chosen[name].astype(float)))
    rows = pd.concat(parts, ignore_index=True).astype({"block": int})
    table = where(rows, metric=["distance", "coef"])
    base, blocks = where(rows, metric="base").assign(metric="distance"), sorted(set(table["block"]))
    looks = {block: (f"block {block + 1}", *_SHADED[i % 3]) for i, block in enumerate(blocks)}
    plot = curves(
        ends(table, "title", "metric", "block", "x"), "x", hue="block", looks=looks, row="metric",
        row_order=["distance", "coef"], col="title", height=4.8, share=("col", "row"), **GIVEN,
    )  # fmt: skip
    base = averaged(base, "metric", "title", "block", "x")
    plot.trace(base.sort_values("x"), "x", ls=":")
    for (above, below), (title, _), name in zip(plot.grid.axes.T, tables, column, strict=True):
        above.set(yscale="log", title=title)
        level(below, 1)
        below.set_xlabel("share of samples" if name == "ratio" else "epochs")
        below.xaxis.set_major_formatter("{x:g}")
        if name == "ratio":
            below.set_xticks([0, 0.5, 1])
    for axes, label in zip(plot.grid.axes[:, 0], ("1 − cosine", "coefficient"), strict=True):
        axes.set_ylabel(label)
    dotted = Line2D([], [], color=INK, ls=":", lw=1.3, label=_BASE_LABEL["base"])
    return plot.finish([dotted])


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
