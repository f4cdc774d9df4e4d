"""Figures of the theorems on cross-task linearity (`curvature`, `transitivity`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tasklab.analyses.statistics import over_pairs
from tasklab.errors import TasklabError
from tasklab.evidence.figures.marks import GIVEN, against, curves, diagonal, level, log
from tasklab.evidence.figures.rows import averaged, ends, methods_in, require_rows, where
from tasklab.evidence.figures.style import (
    INK,
    METHOD_LABEL,
    Looks,
    book_figure,
    method_looks,
    selected,
)

# Okabe and Ito's colours for groups that are no methods; with more of them markers change.
GROUP_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GROUP_MARKERS = "osD^vPX*<>"
PREDICTOR_LABEL = {
    "bound": "bound\nα(1−α)/2 · λ · |θᵢ−θⱼ|²",
    "curvature": "λ alone,\n‖Hessian‖ at θ₀",
    "distance": "|θᵢ−θⱼ|² alone",
    "second_order": "second order\nα(1−α)/2 · |d′Hd|",
}
_PREDICTORS = ("bound", "curvature", "distance")
REACHABLE = {"bound": "bound", "second_order": "second order"}  # in the unit of delta
BASELINES = {"base_merged": ("--", "one of the k + 1 models"), "first": (":", "θ₀ alone")}


@book_figure
def gap_against_bound(df: pd.DataFrame, fits: pd.DataFrame) -> Figure:
    """Plot delta against the bound of theorem 5.1 and against its factors (log axes).

    Dashed is delta = bound. Titles have R² of a linear regression with its 95 % interval.

    Args:
        df: Result of `analyses.curvature.pairs`; a column group colours the points.
        fits: Result of `curvature.explained_variance`.
    """
    df, fits = require_rows(df), fits.set_index("predictor")
    if absent := [name for name in _PREDICTORS if name not in fits.index or name not in df]:
        raise TasklabError(f"there is no {', '.join(absent)}: the figure needs all predictors.")
    groups = df["group"].astype(str).str.split(", seed").str[0] if "group" in df else ""
    df = df.assign(group=groups)
    looks = group_looks(list(dict.fromkeys(df["group"])))
    plot = against(
        df, [(name, "value") for name in _PREDICTORS], PREDICTOR_LABEL | {"value": ""}, hue="group",
        looks=looks, share=(False, True), height=3.4,
    )  # fmt: skip
    for (axes, _, _), name in zip(plot, _PREDICTORS, strict=True):
        log(axes)
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(9)
        fit = "R² {value:.2f} [{low:.2f}, {high:.2f}]".format_map(fits.loc[name])
        title = "R² undefined: one value" if pd.isna(fits.loc[name, "value"]) else fit
        if name in REACHABLE:
            diagonal(axes)
            share = (df["value"] / df[name]).median()
            title += f"\nmedian δ / {REACHABLE[name]}: {share:.2g}"
        axes.set_title(title, fontsize=9)
    y = "δ: distance of the\nloss from linear (nats)"
    return plot.finish(looks=looks if len(looks) > 1 else {}, y=y)


@book_figure
def sum_form(df: pd.DataFrame) -> Figure:
    """Plot the distance and coefficient of theorem 4.3 against the number of task vectors.

    Lines are means over images, bands quartiles, at the encoder's output and the largest
    coefficient. Left, two baselines: 1 − cosine to one of the merged models, and to the pre-trained
    features. Records: `ctl_sum`.
    """
    df = require_rows(df[df["block"].isna()])
    df = df[df["alpha"] == df["alpha"].max()]
    y = {"distance": "1 − cosine of the two sides", "coef": "coefficient: left / right side"}
    plot = curves(
        ends(where(df, metric=y), "metric", "method", "n_tasks"), "n_tasks", col="metric",
        col_order=y, looks=method_looks(methods_in(df)), share=(True, False), height=3.5, **GIVEN,
    )  # fmt: skip
    lines = []
    for name, (dashes, label) in BASELINES.items():
        base = averaged(where(df, metric=name), "method", "n_tasks").assign(metric="distance")
        plot.trace(base, "n_tasks", ls=dashes, lw=1.2)
        lines.append(Line2D([], [], color=INK, lw=1.2, ls=dashes, label=label))
    left, right = plot.grid.axes.flat
    log(left, "y")
    level(right, 1)
    right.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return plot.finish(lines, x="number k of task vectors", y=y)


@book_figure
def transitivity(
    triples: pd.DataFrame, summary: pd.DataFrame, threshold: float | None = None
) -> Figure:
    """Plot the third distance of a triple against the larger of the first two (conjecture 4.1).

    Right, where recorded, as shares of the baseline. The shaded corner holds the violations at the
    threshold: both premises below it, the conclusion above. The legend has rank correlations.

    Args:
        triples: `transitivity.transitivity(...).triples`, by method or not.
        summary: Its `summary`.
        threshold: The one that `summary` was made with.
    """
    triples = require_rows(triples)
    units = {"predicted": "1 − cosine", "relative_predicted": "share of baseline"}
    pairs = [("predicted", "value"), ("relative_predicted", "relative")]
    pairs = pairs if "relative" in triples else pairs[:1]
    labels = {x: f"worse of (i, j) and (j, k):\n{unit}" for x, unit in units.items()}
    labels |= {y: f"(i, k): {units[x]}" for x, y in pairs}
    methods = methods_in(triples) if "method" in triples else []
    looks = method_looks(methods) if methods else {"": ("", GROUP_COLOURS[0], "o")}
    plot = against(
        triples if methods else triples.assign(method=""), pairs, labels, looks=looks, s=18,
        alpha=0.55, height=4.6 if methods else 3.7,
    )  # fmt: skip
    ranks, violations = _told(summary, methods, threshold)
    left = "rank correlation ρ [95 %]" + ("" if methods else f"\n{ranks[0]}")
    for (axes, _, _), title in zip(plot, (left, "\n".join(violations)), strict=False):
        log(axes)
        diagonal(axes)
        axes.set_title(title, fontsize=9)
    if threshold is not None and "relative" in triples:
        _corner(plot.grid.axes.flat[1], threshold)
    told = dict(zip(methods, ranks, strict=False))
    return plot.finish(looks={m: (f"{looks[m][0]}\n{told[m]}", *looks[m][1:]) for m in methods})


@book_figure
def foretelling(df: pd.DataFrame) -> Figure:
    """Plot a pair's disentanglement error and its loss in addition against its linearity.

    Titles have the rank correlation over pairs and methods with its 95 % interval over models.
    `df` is what `experiments.foretold` returns.
    """
    labels = {"distance": "1 − cosine of merged features", "lost": "accuracy lost (points)",
              "xi_pair": "disentanglement error ξ (%)"}  # fmt: skip
    pairs = [("distance", "xi_pair"), ("distance", "lost")]
    rows = require_rows(df)
    selected(rows.melt([one for one in rows if one not in labels], [*labels], var_name="metric"))
    plot = against(rows, pairs, labels, over_pairs)
    for axes, _, _ in plot:
        log(axes, "x")
    return plot.finish()


def group_looks(groups: list[str]) -> Looks:
    """Return looks of groups that are no methods; epochs are shades, the longest darkest."""
    colours: Sequence[str] = GROUP_COLOURS
    if len(groups) > 1 and all(re.fullmatch(r"\d+ epochs?", group) for group in groups):
        groups = sorted(groups, key=lambda group: int(group.split()[0]))
        colours = sns.color_palette("flare", len(groups)).as_hex()
    n, m = len(colours), len(GROUP_MARKERS)
    return {group: (group, colours[i % n], GROUP_MARKERS[(i + i // n) % m])
            for i, group in enumerate(groups)}  # fmt: skip


def _told(
    summary: pd.DataFrame, methods: list[str], threshold: float | None
) -> tuple[list[str], list[str]]:
    """Return the rank correlations of each method and, at a threshold, the violations."""
    ranks, violations = [], []
    for method in methods or [""]:
        rows = where(summary, method=method) if method else summary
        if len(rows) != 1:
            raise TasklabError("the figure shows one group of pairs a method: choose a layer.")
        rank = "ρ {rank:.2f} [{low:.2f}, {high:.2f}]\nunlinked ρ {rank_unlinked:.2f}"
        ranks.append(rank.format_map(one := rows.iloc[0]).replace("-", "−"))
        if threshold is not None and "violations" in summary and one["held"]:
            share = "{violations:.0%} of {held:.0f} [{violations_unlinked:.0%}]".format_map(one)
            violations.append(f"{METHOD_LABEL[method]}: {share}" if len(methods) > 1 else share)
    if threshold is None or "violations" not in summary:
        return ranks, []
    if len(violations) < len(ranks):
        violations.append("others: no premises hold" if violations else "no premises hold")
    return ranks, [f"violations at {threshold:g} [unlinked]", *violations]


def _corner(axes: Axes, threshold: float) -> None:
    level(axes, threshold, ls=":", lw=1)
    level(axes, threshold, along="y", ls=":", lw=1)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if left < threshold < right and bottom < threshold < top:
        axes.fill_between([left, threshold], threshold, top, color="#D55E00", alpha=0.12, lw=0)
    axes.set(xlim=(left, right), ylim=(bottom, top))
