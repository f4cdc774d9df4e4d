"""Figures of the theorems on cross-task linearity (`curvature`, `transitivity`)."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from tasklab.errors import TasklabError
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
from tasklab.records.statistics import over_pairs

# Okabe and Ito's colours for groups that are no methods; further groups repeat them with other
# markers.
GROUP_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GROUP_MARKERS = "osD^vPX*<>"
PREDICTOR_LABEL = {
    "bound": "bound α(1−α)/2 · λ · |θᵢ−θⱼ|²",
    "curvature": "λ = ‖Hessian‖ at θ₀ alone",
    "distance": "|θᵢ−θⱼ|² alone",
    "second_order": "second order α(1−α)/2 · |d′Hd|",
}
REACHABLE = {"bound": "bound", "second_order": "second order"}  # in the unit of delta
BASELINES = {"base_merged": ("--", "one of the k + 1 models"), "first": (":", "θ₀ alone")}
_GREY = "#333333"


@book_figure
def gap_against_bound(
    df: pd.DataFrame,
    fits: pd.DataFrame,
    predictors: tuple[str, ...] = ("bound", "curvature", "distance"),
) -> Figure:
    """Draw delta against the bound of theorem 5.1, and against each of its factors alone.

    The dashed line is delta = bound, and lies above all that is shown where the bound is loose.
    Titles have R^2 of a linear regression with its 95 % interval; the axes are logarithmic.

    Args:
        df: What `sharpness.pairs` returned; a column group colours the points.
        fits: What `curvature.explained_variance` returned.
        predictors: The panels.

    Raises:
        TasklabError: If there is no pair, or `fits` lack a predictor.
    """
    some(df)
    fits = fits.set_index("predictor")
    absent = [name for name in predictors if name not in fits.index or name not in df]
    if absent:
        raise TasklabError(f"there is no {', '.join(absent)}: one of {', '.join(fits.index)}.")
    groups = df["group"] if "group" in df else pd.Series("", index=df.index)
    size = (WIDTH, 3.5 if groups.nunique() > 1 else 3.2)
    figure, panels = plt.subplots(1, len(predictors), figsize=size, sharey=True, squeeze=False)
    for axes, name in zip(panels[0], predictors, strict=True):
        for (group, rows), look in zip(df.groupby(groups, sort=False), _looks(), strict=False):
            axes.plot(rows[name], rows["value"], ls="", ms=5, label=str(group), **look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _ticks(axes)
        axes.set_xlabel(PREDICTOR_LABEL[name])
        axes.set_title(_r_squared(fits.loc[name]))
        if name in REACHABLE:
            _diagonal(axes)
            share = (df["value"] / df[name]).median()
            axes.set_title(f"{axes.get_title()}\nmedian δ / {REACHABLE[name]}: {share:.2g}")
    panels[0, 0].set_ylabel("δ: distance of the loss from linear (nats)")
    if groups.nunique() > 1:
        legend(figure, panels[0, 0])
    return figure


@book_figure
def sum_form(df: pd.DataFrame) -> Figure:
    """Draw how well theorem 4.3's form holds against the number of task vectors.

    Lines are means over images, bands quartiles, all of the encoder's features. On the left are two
    baselines, 1 - cosine of the left side to a single member (their mean) and to theta_0's
    features: a right side that is further away than these foretells nothing.

    Args:
        df: Records of `experiments.cross_task_sum`.
    """
    df = df[df["block"].isna()]
    some(df)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.5))
    for method in methods_in(df):
        part = df[df["method"] == method]
        look = {"color": COLOURS[method], "marker": MARKERS[method], "ms": 5}
        _band(left, part[part["metric"] == "distance"], label=METHOD_LABEL[method], **look)
        for metric, (line, _) in BASELINES.items():
            faint = {**look, "ms": 3.5, "ls": line, "lw": 1.1}
            _band(left, part[part["metric"] == metric], spread=False, **faint)
        _band(right, part[part["metric"] == "coef"], **look)
    left.set_yscale("log")
    _ticks(left, which="y")
    left.set_ylabel("1 − cosine of the two sides")
    right.axhline(1, color=_GREY, lw=1.2, ls="--")
    right.set_ylabel("coefficient: left side / right side")
    for axes in (left, right):
        axes.set_xlabel("number k of task vectors")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    handles, labels = left.get_legend_handles_labels()
    for line, label in BASELINES.values():
        handles.append(Line2D([], [], color=_GREY, ls=line, lw=1.1))
        labels.append(label)
    columns = len(labels) if len(labels) <= 4 else -(-len(labels) // 2)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)
    return figure


@book_figure
def transitivity(
    triples: pd.DataFrame, summary: pd.DataFrame, threshold: float | None = None
) -> Figure:
    """Draw what two pairs foretell of the third, a dot a triple (conjecture 4.1).

    On the left the values; on the right, where the table has them, values as a share of the
    baseline. With a threshold, the shaded corner holds the violations: both premises are below it
    and the conclusion is above. The dashed line is value = prediction.

    Args:
        triples: `transitivity.transitivity(...).triples`, by method or not.
        summary: Its `summary`; titles have the rank correlation and its 95 % interval.
        threshold: The one that `summary` was made with.
    """
    some(triples)
    panels = [("predicted", "value", "1 − cosine")]
    if "relative" in triples:
        panels.append(("relative_predicted", "relative", "share of baseline"))
    methods = methods_in(triples) if "method" in triples else []
    titles = _ranks(summary, methods), _violations(summary, methods, threshold)
    tall = 4.1 if methods else 3.7
    figure, drawn = plt.subplots(1, len(panels), figsize=(WIDTH, tall), squeeze=False)
    for axes, (x, y, unit) in zip(drawn[0], panels, strict=True):
        for method in methods or [None]:
            rows = triples if method is None else triples[triples["method"] == method]
            colour = GROUP_COLOURS[0] if method is None else COLOURS[method]
            marker, label = (
                ("o", None) if method is None else (MARKERS[method], METHOD_LABEL[method])
            )
            look = {"color": colour, "mec": _GREY, "mew": 0.3, "alpha": 0.55, "ms": 4.5}
            axes.plot(rows[x], rows[y], marker, label=label, **look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _ticks(axes)
        _diagonal(axes)
        axes.set_xlabel(f"worse of (i, j) and (j, k): {unit}")
        axes.set_ylabel(f"(i, k): {unit}")
    if threshold is not None and "relative" in triples:
        _corner(drawn[0, 1], threshold)
    for axes, title in zip(drawn[0], titles, strict=False):
        axes.set_title(title, fontsize=9)
    if methods:
        legend(figure, drawn[0, 0])
    return figure


@book_figure
def foretelling(df: pd.DataFrame) -> Figure:
    """Draw what a pair's linearity says of its disentanglement error and its loss in addition.

    Titles have the rank correlation over all pairs and methods, with its 95 % interval over models.

    Args:
        df: What `experiments.foretold` returns.
    """
    some(df)
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.7))
    told = {"xi_pair": "changed predictions ξ (%)", "lost": "lost in addition (points)"}
    for axes, (column, label) in zip(panels, told.items(), strict=True):
        for method in methods_in(df):
            rows = df[df["method"] == method]
            look = {"color": COLOURS[method], "mec": _GREY, "mew": 0.3, "alpha": 0.75, "ms": 5}
            drawn = (rows["distance"], rows[column], MARKERS[method])
            axes.plot(*drawn, label=METHOD_LABEL[method], ls="", **look)
        axes.set_xscale("log")
        _ticks(axes, "x")
        axes.set_xlabel("1 − cosine of merged features")
        axes.set_ylabel(label)
        found = over_pairs(df, "distance", column)
        title = f"rank correlation {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
        axes.set_title(title.replace("-", "−"))
    legend(figure, panels[0])
    return figure


def _ranks(summary: pd.DataFrame, methods: list[str]) -> str:
    lines = ["rank correlation [95 %], and unlinked"]
    for who, row in _rows(summary, methods):
        told = (
            f"{row['rank']:.2f} [{row['low']:.2f}, {row['high']:.2f}], {row['rank_unlinked']:.2f}"
        )
        lines.append(who + told.replace("-", "−"))
    return "\n".join(lines)


def _violations(summary: pd.DataFrame, methods: list[str], threshold: float | None) -> str:
    if threshold is None or "violations" not in summary:
        return ""
    lines = [f"violations at {threshold:g} [unlinked]"]
    for who, row in _rows(summary, methods):
        if not row["held"]:
            lines.append(f"{who}no premises hold")
            continue
        share = f"{row['violations']:.0%}"
        lines.append(f"{who}{share} of {row['held']:.0f} [{row['violations_unlinked']:.0%}]")
    return "\n".join(lines)


def _rows(summary: pd.DataFrame, methods: list[str]):
    """Yield whom a line of a title is about, and the numbers."""
    for method in methods or [None]:
        rows = summary if method is None else summary[summary["method"] == method]
        if len(rows) != 1:
            raise TasklabError("the figure shows one group of pairs a method: choose a layer.")
        who = f"{METHOD_LABEL[method]}: " if len(methods) > 1 else ""
        yield who, rows.iloc[0]


def _band(axes: Axes, rows: pd.DataFrame, *, spread: bool = True, **look) -> None:
    found = rows.groupby("n_tasks")[["value", "low", "high"]].mean()
    x = [int(k) for k in found.index]
    axes.plot(x, found["value"], **({"lw": 2} | look))
    if spread:
        axes.fill_between(x, found["low"], found["high"], color=look["color"], alpha=0.15, lw=0)


def _looks():
    """Yield colours and markers; colours start again with markers shifted."""
    for i in itertools.count():
        n, m = len(GROUP_COLOURS), len(GROUP_MARKERS)
        look = {"color": GROUP_COLOURS[i % n], "marker": GROUP_MARKERS[(i + i // n) % m]}
        yield {**look, "mec": _GREY, "mew": 0.4, "alpha": 0.85}


def _r_squared(fit: pd.Series) -> str:
    if pd.isna(fit["value"]):
        return "R² undefined: one value"
    return f"R² {fit['value']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]"


def _diagonal(axes: Axes) -> None:
    """Draw y = x over what is shown, without changing it."""
    limits = np.array([axes.get_xlim(), axes.get_ylim()])
    ends = limits[:, 0].max(), limits[:, 1].min()
    if ends[0] < ends[1]:
        axes.plot(ends, ends, color=_GREY, lw=1.2, ls="--")
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])


def _corner(axes: Axes, threshold: float) -> None:
    axes.axhline(threshold, color=_GREY, lw=1, ls=":")
    axes.axvline(threshold, color=_GREY, lw=1, ls=":")
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if left < threshold < right and bottom < threshold < top:
        axes.fill_between([left, threshold], threshold, top, color="#D55E00", alpha=0.12, lw=0)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _ticks(axes: Axes, which: str = "xy") -> None:
    """Label every power of ten, or, where there are few of them, 2 and 5 too."""
    for name in which:
        axis = axes.xaxis if name == "x" else axes.yaxis
        low, high = axis.get_view_interval()
        if high / low < 300:
            axis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 5, 7))
            )
            axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
