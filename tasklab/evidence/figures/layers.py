"""Figures of task vectors by layer (`analyses.layers`). Seeds are averaged.

Post-hoc linearization has the vectors of non-linear fine-tuning and is left out beside them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tasklab.analyses.statistics import over_tasks
from tasklab.errors import TasklabError
from tasklab.evidence.figures.maps import numbers_in, scale
from tasklab.evidence.figures.marks import Panels, against, curves, level, log
from tasklab.evidence.figures.rows import methods_in, require_rows, where
from tasklab.evidence.figures.style import INK, METHOD_LABEL, WIDTH, book_figure
from tasklab.tuning.methods import POSTHOC

ALL = "all"
# Okabe and Ito again: attention's four, the MLP's two in dark tones, and all of them in black.
PROJECTIONS = {
    "q": ("q", "#0072B2", "o"),
    "k": ("k", "#56B4E9", "s"),
    "v": ("v", "#D55E00", "^"),
    "output": ("output", "#009E73", "D"),
    "MLP input": ("MLP input", "#7A4B00", "v"),
    "MLP output": ("MLP output", "#CC79A7", "X"),
}
AXIS_LABEL = {
    "predicted_ratio": "predicted: |Σ others·x| / |own·x|",
    "change_ratio": "measured: change / own change",
    "lost": "measured: lost accuracy (points)",
}
_PARTS = {"own": ("own vector", ""), "others": ("sum of the others", (1, 1.2))}  # and dashes


def _whole_numbers(plot: Panels) -> None:
    for axes, _, _ in plot:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _vectors_of(df: pd.DataFrame) -> list[str]:
    """Return the methods, without post-hoc where its vectors are shown."""
    return [m for m in methods_in(require_rows(df)) if POSTHOC.get(m) not in set(df["method"])]


@book_figure
def cosine_matrices(df: pd.DataFrame) -> Figure:
    """Draw the cosines of all pairs of task vectors (linear layers, figure 5).

    Titles have the mean |cosine|. Cosines are of all parameters. Records: `cosines`.
    """
    rows = df[df["block"].isna() & (df["projection"] == ALL)]
    methods, tasks = _vectors_of(rows), list(dict.fromkeys([*rows["task"], *rows["other"]]))
    means = 100 * rows.groupby(["method", "task", "other"])["value"].mean()
    columns = 3 if len(methods) == 3 else min(2, len(methods))  # no lone map in a last line
    form = "z.0f" if columns == 3 or means.abs().max() > 9.5 else "z.1f"
    limit = max(float(means.abs().max()), 1e-4)
    look = {"cmap": "Blues", "vmin": 0} if means.min() >= 0 else {}
    wide = 200 if form == "z.0f" else 130
    look["annot_kws"] = {"fontsize": min(9, wide / len(tasks) / columns)}
    grid = sns.FacetGrid(rows, col="method", col_order=methods, col_wrap=columns)
    for axes, method in zip(grid.axes.flat, methods, strict=True):
        mean = means[method].unstack().reindex(index=tasks, columns=tasks)
        numbers_in(axes, mean.fillna(mean.T), limit, form, square=True, **look)
        size = means[method].abs().mean()
        axes.set_title(f"{METHOD_LABEL[method]}\nmean |cosine| {size / 100:.4f}", fontsize=9)
        axes.tick_params(axis="x", rotation=90)
    lines = -(-len(methods) // columns)
    grid.figure.set_size_inches(WIDTH, lines * (1.55 + min(3.4, 4.8 / columns)) + 0.8)
    return scale(grid.figure, grid.axes.flat, "cosine × 100")


@book_figure
def cosine_by_block(df: pd.DataFrame) -> Figure:
    """Plot the mean |cosine| of pairs of task vectors by block. Records: `cosines`."""
    rows = df[df["block"].notna()]
    methods = _vectors_of(rows)
    looks = PROJECTIONS | {ALL: ("all parameters", "#000000", "P")}
    looks = {name: look for name, look in looks.items() if name in set(rows["projection"])}
    rows = rows.assign(value=rows["value"].abs(), block=rows["block"].astype(int) + 1)
    plot = curves(
        where(rows, method=methods), "block", hue="projection", looks=looks, col="method",
        col_order=methods, errorbar=None, height=3.4,
    )  # fmt: skip
    plot.grid.set(ylim=(0, None))
    _whole_numbers(plot)
    return plot.finish(x="block", y="mean |cosine| of two tasks", title=METHOD_LABEL)


@book_figure
def layer_alignment(df: pd.DataFrame) -> Figure:
    """Plot the output of a task's own vector, and of all others, on its data.

    As a share of the pre-trained projection's output. Records: `alignment`.
    """
    rows = where(df, part=_PARTS, metric="relative")
    rows = where(rows, method=_vectors_of(rows)).assign(block=rows["block"].astype(int) + 1)
    plot = curves(
        rows, "block", col="projection", col_order=PROJECTIONS, height=(1.0, 2.0),
        dots=False, errorbar=None, lw=1.8, style="part", style_order=list(_PARTS),
        dashes={part: dashes for part, (_, dashes) in _PARTS.items()},
    )  # fmt: skip
    handles = [Line2D([], [], color=INK, lw=1.8, ls=(0, dashes) if dashes else "-", label=name)
               for name, dashes in _PARTS.values()]  # fmt: skip
    plot.grid.set(ylim=(0, None))
    _whole_numbers(plot)
    plain = {method: (*look[:2], "") for method, look in plot.looks.items()}
    return plot.finish(handles, looks=plain, x="block", y="size of τ·x / size of W·x", title=str)


@book_figure
def alignment_against_interference(df: pd.DataFrame) -> Figure:
    """Plot measured interference against the alignment's prediction.

    A dot is a task by a method. Titles have Spearman's rank correlation with its 95 % interval.
    Records: `interference` at one coefficient a method.
    """
    rows = require_rows(df)
    if rows.groupby("method")["alpha"].nunique().max() > 1:
        told = ", ".join(f"{alpha:g}" for alpha in sorted(set(rows["alpha"])))
        raise TasklabError(f"the figure shows interference of one coefficient, not {told}.")
    table = rows.pivot_table("value", index=["method", "task"], columns="metric").reset_index()
    pairs = [("predicted_ratio", "change_ratio"), ("predicted_ratio", "lost")]
    return against(table, pairs, AXIS_LABEL, over_tasks).finish()


@book_figure
def linearity(df: pd.DataFrame) -> Figure:
    """Plot the gap from linearity, along the distance and block by block.

    Thin lines are tasks and seeds, thick ones means, bands standard deviations. Records:
    `linearity`.
    """
    along, blocks = where(require_rows(df), metric="gap_along"), where(df, metric="gap_block")
    along = along.assign(x=along["size"], panel="features")
    blocks = blocks[np.isclose(blocks["alpha"], 1)].assign(panel="outputs of blocks at c = 1")
    means = along.groupby(["panel", "method", "alpha"], as_index=False)[["x", "value"]].mean()
    both = pd.concat([means, blocks.assign(x=blocks["block"].astype(int) + 1)])
    plot = curves(both, "x", col="panel", share=(False, False), lw=2)
    for _, line in along.groupby(["method", "task", "seed"]):
        plot.trace(line, "x", lw=0.6, alpha=0.35, zorder=1)
    plot.mark(means[np.isclose(means["alpha"], 1)], "x")
    _whole_numbers(plot)
    left, right = plot.grid.axes.flat
    level(left, 1)
    level(right, 1)
    log(left)
    right.set_ylim(bottom=0)
    x = {"features": "|c τ| / |θ₀| (large marker: c = 1)", "outputs of blocks at c = 1": "block"}
    y = {"features": "gap: |remainder| / |linear part|"}
    return plot.finish(x=x, y=y, title=str)
