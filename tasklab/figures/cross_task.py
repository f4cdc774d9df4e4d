"""Figures of cross-task linearity: features layer by layer, segments, what makes it emerge.

Tables are records of `tasklab.experiments`: `cross_task` and its kin, `scratch_linearity`,
`segments`, `emergence`.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasklab.figures.style import (
    COLOURS,
    MARKERS,
    METHOD_LABEL,
    WIDTH,
    book_figure,
    legend,
    methods_in,
    some,
)

BASE = "#595959"
SHADES = ("#56B4E9", "#0072B2", "#E69F00")  # of coefficients


def _depth(df: pd.DataFrame) -> pd.Series:
    """Return the place of each row on the axis: blocks from 1, features after the last."""
    last = int(df["block"].max()) + 1 if df["block"].notna().any() else 0
    return df["block"].fillna(last).astype(int) + 1


def _ticks(axes: Axes, df: pd.DataFrame) -> None:
    places = sorted(set(_depth(df)))
    whole = df["block"].isna().any()
    names = [str(place) for place in places[:-1]] + ["out" if whole else str(places[-1])]
    step = -(-len(places) // 13)
    axes.set_xticks(places[::-1][::step], names[::-1][::step])


@book_figure
def cross_task(df: pd.DataFrame, tasks: Sequence[str] | None = None, base: str = "base") -> Figure:
    """Draw 1 - cosine of merged and single features, layer by layer, a panel a pair or task.

    Points are means over images and bars quartiles (the paper's figures 2, 5, 7, 13, 15 and 17 to
    24); where a panel stands for several pairs, points are means of means.

    Args:
        df: Records with the metrics `distance` and `base` of one method.
        tasks: The pairs to show; by default one panel with all of them.
        base: `"base_merged"` compares with the distance of merged from single features instead, as
            the paper does for averages (section 4.2).
    """
    some(df)
    return _layers(df, tasks, (base, "distance"), "1 − cosine")


@book_figure
def cross_task_coefficients(df: pd.DataFrame, tasks: Sequence[str] | None = None) -> Figure:
    """Draw the coefficient of merged features on single ones, layer by layer: 1 is equal length.

    Args:
        df: Records with the metric `coef` of one method and seed.
        tasks: The pairs to show; by default one panel with all of them.
    """
    some(df)
    return _layers(df, tasks, ("coef",), "coefficient")


def _layers(
    df: pd.DataFrame, tasks: Sequence[str] | None, metrics: Sequence[str], label: str
) -> Figure:
    groups = [("all", df)] if tasks is None else [(t, df[df["task"] == t]) for t in tasks]
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(WIDTH, 0.9 + 2.3 * lines), sharey=True, squeeze=False
    )
    for axes in panels.flat[len(groups) :]:
        axes.set_visible(False)
    alphas = sorted(set(df["alpha"].dropna())) or [None]  # a mean of several models has none
    names = {"base": "between the models", "base_merged": "merged to single models"}
    for axes, (name, part) in zip(panels.flat, groups, strict=False):
        some(part)
        part = part.assign(depth=_depth(part))
        if metrics[0] in names:
            look = {"color": BASE, "marker": "s", "label": names[metrics[0]]}
            _with_quartiles(axes, part[part["metric"] == metrics[0]], 0, look)
        merged = part[part["metric"] == metrics[-1]]
        for i, alpha in enumerate(alphas):
            look = {"color": SHADES[i % len(SHADES)], "marker": "o^D"[i % 3]}
            look["label"] = f"merged, {alpha:g}" if len(alphas) > 1 else "merged"
            shift = 0.12 * (i - (len(alphas) - 1) / 2)
            rows = merged if alpha is None else merged[np.isclose(merged["alpha"], alpha)]
            _with_quartiles(axes, rows, shift, look)
        if metrics == ("coef",):
            axes.axhline(1, color="#333333", lw=1, ls="--")
        else:
            axes.set_yscale("log")
        axes.set_title(name.replace("+", " and ") if name != "all" else "")
        axes.set_xlabel("block")
        _ticks(axes, part)
    for axes in panels[:, 0]:
        axes.set_ylabel(label)
    legend(figure, panels[0, 0])
    return figure


def _with_quartiles(axes: Axes, rows: pd.DataFrame, shift: float, look: dict) -> None:
    found = rows.groupby("depth")[["value", "low", "high"]].mean()
    values = found["value"].to_numpy()
    # A mean may lie outside the quartiles of a skewed distribution; bars have no negative length.
    spread = [
        np.maximum(values - found["low"].to_numpy(), 0),
        np.maximum(found["high"].to_numpy() - values, 0),
    ]
    x = found.index.to_numpy() + shift
    axes.errorbar(x, values, yerr=spread, lw=1.4, ms=4, capsize=1.5, elinewidth=0.9, **look)


@book_figure
def cross_task_methods(df: pd.DataFrame) -> Figure:
    """Draw 1 - cosine and coefficient of several methods, layer by layer.

    Args:
        df: Records of `experiments.cross_task` of several methods; means over pairs, bands from the
            closest pair to the farthest.
    """
    some(df)
    half = df[np.isclose(df["alpha"], 0.5)]
    half = half.assign(depth=_depth(half))
    figure, panels = plt.subplots(1, 3, figsize=(WIDTH, 3.3))
    titles = {"base": "between the models", "distance": "merged", "coef": "merged"}
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for method in methods_in(half):
            rows = half[(half["metric"] == metric) & (half["method"] == method)]
            found = rows.groupby(["depth", "task"])["value"].mean().groupby("depth")
            mean, low, high = found.mean(), found.min(), found.max()
            look = {"color": COLOURS[method], "marker": MARKERS[method]}
            axes.plot(mean.index, mean, lw=1.6, ms=4, label=METHOD_LABEL[method], **look)
            axes.fill_between(mean.index, low, high, color=COLOURS[method], alpha=0.12, lw=0)
        axes.set_title(title)
        axes.set_ylabel("coefficient" if metric == "coef" else "1 − cosine")
        axes.set_xlabel("block")
        _ticks(axes, half)
        if metric == "coef":
            axes.axhline(1, color="#333333", lw=1, ls="--")
        else:
            axes.set_yscale("log")
    legend(figure, panels[0])
    return figure


@book_figure
def segments(df: pd.DataFrame, features: pd.DataFrame | None = None) -> Figure:
    """Draw accuracy along the segments between models, beside the features' distance from linear.

    Args:
        df: Records of `experiments.segments` of one network: means over pairs, thin lines are
            pairs.
        features: Records of `experiments.scratch_linearity` of the same network.
    """
    some(df)
    count = 2 if features is None else 3
    figure, panels = plt.subplots(1, count, figsize=(WIDTH, 3.3), squeeze=False)
    names = df["subset"].str.split("+", expand=True)
    kinds = np.select([df["task"] == names[0], df["task"] == names[1]], ["i", "j"], "start")
    looks = {
        "i": ("#0072B2", "task i"),
        "j": ("#D55E00", "task j"),
        "start": ("#595959", "pre-training task"),
    }
    for axes, metric in zip(panels[0], ("loss", "accuracy"), strict=False):
        rows = df.assign(kind=kinds)[df["metric"] == metric]
        for kind, (colour, label) in looks.items():
            part = rows[rows["kind"] == kind]
            for _, line in part.groupby(["subset", "seed"]):
                axes.plot(line["alpha"], line["value"], color=colour, lw=0.5, alpha=0.4)
            mean = part.groupby("alpha")["value"].mean()
            axes.plot(mean.index, mean, color=colour, lw=2, label=label)
        axes.set_xlabel("α (0: model j, 1: model i)")
        axes.set_ylabel({"loss": "loss (nats)", "accuracy": "accuracy (%)"}[metric])
        axes.set_ylim(bottom=0)
    if features is not None:
        axes = panels[0, 2]
        part = features.assign(depth=_depth(features))
        for metric, colour, label in (
            ("base", BASE, "between the models"),
            ("distance", "#009E73", "merged"),
        ):
            mean = part[part["metric"] == metric].groupby(["depth", "alpha"])["value"].mean()
            for depth, line in mean.groupby("depth"):
                shade = 0.3 + 0.7 * depth / part["depth"].max()
                last = depth == part["depth"].max()
                told = {"label": label} if last else {}
                x = line.index.get_level_values("alpha")
                axes.plot(x, line, color=colour, lw=1.2, marker="o", ms=3, alpha=shade, **told)
        axes.set_yscale("log")
        axes.set_xlabel("α")
        axes.set_ylabel("1 − cosine (faint: early layers)")
        axes.set_ylim(bottom=axes.get_ylim()[0] / 4)  # room for the legend
        axes.legend(fontsize=8, loc="lower center")
    legend(figure, panels[0, 0])
    return figure


@book_figure
def emergence(tables: Sequence[tuple[str, pd.DataFrame]], column: Sequence[str]) -> Figure:
    """Draw how cross-task linearity changes with a condition (the paper's figures 11 and 12).

    Args:
        tables: Title and records of `experiments.emergence`, a column of panels each.
        column: Which column of each table is the condition: `pretraining`, `finetuning`, `ratio`.
    """
    figure, panels = plt.subplots(2, len(tables), figsize=(WIDTH, 4.6), sharey="row", squeeze=False)
    for (title, df), name, (top, bottom) in zip(tables, column, panels.T, strict=True):
        some(df)
        deepest = df["block"].max()
        chosen = df[df["block"].isin([0, deepest // 2, deepest])]
        for i, block in enumerate(sorted(set(chosen["block"]))):
            part = chosen[chosen["block"] == block]
            look = {"color": SHADES[i % 3], "marker": "o^D"[i % 3], "ms": 4}
            for axes, metric in ((top, "distance"), (bottom, "coef")):
                found = part[part["metric"] == metric].groupby(name)[["value", "low", "high"]]
                mean = found.mean()
                axes.plot(mean.index, mean["value"], label=f"block {int(block) + 1}", **look)
                axes.fill_between(
                    mean.index, mean["low"], mean["high"], color=SHADES[i % 3], alpha=0.12, lw=0
                )
            base = part[part["metric"] == "base"].groupby(name)["value"].mean()
            top.plot(base.index, base, color=SHADES[i % 3], ls=":", lw=1.1)
        top.set_yscale("log")
        top.set_title(title)
        bottom.axhline(1, color="#333333", lw=1, ls="--")
        bottom.set_xlabel("share of samples" if name == "ratio" else "epochs")
    panels[0, 0].set_ylabel("1 − cosine\n(dotted: between models)")
    panels[1, 0].set_ylabel("coefficient")
    legend(figure, panels[0, 0])
    return figure
