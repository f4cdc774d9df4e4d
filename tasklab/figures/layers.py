"""Figures of task vectors by layer: angles, and what they do to the data (`analyses.layers`).

Every function takes a table of `tasklab.analyses.layers` with the columns method and, if there are
several,
seed; seeds are averaged. Post-hoc linearization has the vectors of non-linear fine-tuning: where
only vectors are shown, it is left out beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

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
from tasklab.records.statistics import over_tasks
from tasklab.tuning.methods import POSTHOC

ALL = "all"
# Okabe and Ito again: attention's four in colours, the MLP's two in dark tones, dashed.
PROJECTIONS = {
    "q": ("#0072B2", "o", "-"),
    "k": ("#56B4E9", "s", "-"),
    "v": ("#D55E00", "^", "-"),
    "output": ("#009E73", "D", "-"),
    "MLP input": ("#7A4B00", "v", "--"),
    "MLP output": ("#CC79A7", "X", "--"),
}
AXIS_LABEL = {
    "predicted": "predicted: |Σ others·x| / |W x|",
    "predicted_ratio": "predicted: |Σ others·x| / |own·x|",
    "change": "measured: change / |features|",
    "change_ratio": "measured: change / own change",
    "lost": "measured: lost accuracy (points)",
}


def _vectors_of(df: pd.DataFrame) -> list[str]:
    """Return the methods, without post-hoc where its vectors are already shown."""
    some(df)
    methods = methods_in(df)
    return [m for m in methods if POSTHOC.get(m) not in methods]


@book_figure
def cosine_matrices(df: pd.DataFrame, projection: str = ALL) -> Figure:
    """Draw the cosines of all pairs of task vectors, a matrix a method (linear layers, figure 5).

    Args:
        df: What `layers.cosines` returned.
        projection: The projection to show, in all blocks; by default all parameters.
    """
    rows = df[df["block"].isna() & (df["projection"] == projection)]
    methods = _vectors_of(rows)
    tasks = list(dict.fromkeys([*rows["task"], *rows["other"]]))
    means = rows.groupby(["method", "task", "other"])["value"].mean()
    limit = max(float(means.abs().max()), 1e-6)
    columns = min(3, len(methods))
    lines = -(-len(methods) // columns)
    size = (WIDTH, lines * (1.35 + min(3.6, 5.6 / columns)))
    figure, panels = plt.subplots(
        lines, columns, figsize=size, squeeze=False, sharex=True, sharey=True
    )
    for axes in panels.flat[len(methods) :]:
        axes.set_visible(False)
    for axes, method in zip(panels.flat, methods, strict=False):
        mean = means[method].unstack().reindex(index=tasks, columns=tasks)
        mean = mean.fillna(mean.T)
        image = axes.imshow(100 * mean, cmap="PuOr_r", vmin=-100 * limit, vmax=100 * limit)
        axes.set_facecolor("#CFCFCF")  # the diagonal
        for i, j in np.argwhere(mean.notna().to_numpy()):
            value = mean.iloc[i, j]
            colour = "white" if abs(value) > 0.65 * limit else "black"
            text = f"{round(100 * value)}".replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(METHOD_LABEL[method])
        axes.set_xticks(range(len(tasks)), tasks, rotation=90)
        axes.set_yticks(range(len(tasks)), tasks)
        axes.grid(visible=False)
        axes.tick_params(length=0, labelbottom=True)
        axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=panels, shrink=0.7, pad=0.02, aspect=15)
    bar.set_label("cosine × 100")
    bar.outline.set_visible(False)
    return figure


@book_figure
def cosine_by_block(df: pd.DataFrame) -> Figure:
    """Draw the mean absolute cosine of pairs of task vectors against the block.

    Args:
        df: What `layers.cosines` returned.
    """
    rows = df[df["block"].notna()]
    methods = _vectors_of(rows)
    rows = rows.assign(value=rows["value"].abs())
    figure, panels = plt.subplots(
        1, len(methods), figsize=(WIDTH, 3.2), sharey=True, sharex=True, squeeze=False
    )
    for axes, method in zip(panels[0], methods, strict=True):
        part = rows[rows["method"] == method]
        means = part.groupby(["projection", "block"])["value"].mean()
        for name, (colour, marker, line) in PROJECTIONS.items():
            if name in means.index.get_level_values(0):
                look = {"color": colour, "ls": line, "lw": 1.4, "ms": 4.5, "label": name}
                _line(axes, means[name], marker, look)
        if ALL in means.index.get_level_values(0):
            look = {"color": "#000000", "lw": 2.4, "label": "all parameters"}
            _line(axes, means[ALL], "", look)
        axes.set_title(METHOD_LABEL[method])
        axes.set_xlabel("block")
    panels[0, 0].set_ylabel("mean |cosine| of two tasks")
    panels[0, 0].set_ylim(bottom=0)
    legend(figure, max(panels[0], key=lambda axes: len(axes.lines)))
    return figure


def _line(axes: Axes, values: pd.Series, marker: str, look: dict) -> None:
    axes.plot([int(b) + 1 for b in values.index], values.to_numpy(), marker=marker, **look)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


@book_figure
def layer_alignment(df: pd.DataFrame, metric: str = "relative") -> Figure:
    """Draw what a task's own vector and all others do to its data, a panel a projection.

    Args:
        df: What `layers.alignment` returned.
        metric: `"relative"` to what the pre-trained projection does, or `"random"`: relative to
            random matrices of the vectors' norm.
    """
    rows = df[df["metric"] == metric]
    methods = _vectors_of(rows)
    shown = [name for name in PROJECTIONS if name in set(rows["projection"])]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(WIDTH, 0.9 + 2.0 * lines), sharex=True, sharey=True, squeeze=False
    )
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    styles = {"own": ("-", None, "own vector"), "others": (":", "white", "sum of the others")}
    for axes, projection in zip(panels.flat, shown, strict=False):
        part = rows[rows["projection"] == projection]
        means = part.groupby(["method", "part", "block"])["value"].mean()
        for method, (name, (line, face, _)) in itertools.product(methods, styles.items()):
            if (method, name) in means.index.droplevel("block"):
                look = {"color": COLOURS[method], "ls": line, "lw": 1.5, "ms": 4.5}
                look["mfc"] = face or COLOURS[method]
                _line(axes, means[method, name], MARKERS[method], look)
        if metric == "random":
            axes.axhline(1, color="#333333", lw=1.2, ls="--")
        axes.set_title(projection)
    panels[0, 0].set_ylim(bottom=0)
    for axes in panels[-1]:
        axes.set_xlabel("block")
    words = {"relative": "size of τ·x / size of W·x", "random": "size of τ·x / random matrix's"}
    figure.supylabel(words[metric], fontsize=10)
    handles = [
        Line2D([], [], color=COLOURS[m], marker=MARKERS[m], lw=1.5, label=METHOD_LABEL[m])
        for m in methods
    ]
    grey = {"color": "#333333", "marker": "o", "lw": 1.5}
    handles += [
        Line2D([], [], ls=line, mfc=face or "#333333", label=told, **grey)
        for line, face, told in styles.values()
    ]
    if metric == "random":
        handles.append(Line2D([], [], color="#333333", lw=1.2, ls="--", label="random matrices"))
    columns = len(handles) if len(handles) <= 5 else 3
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    return figure


@book_figure
def alignment_against_interference(
    df: pd.DataFrame,
    pairs: Iterable[tuple[str, str]] = (
        ("predicted_ratio", "change_ratio"),
        ("predicted_ratio", "lost"),
    ),
    alpha: float | None = None,
) -> Figure:
    """Draw measured interference against what alignment predicts; a dot is a task by a method.

    A panel's title has Spearman's rank correlation over all dots and its 95 % interval
    (`correlation.over_tasks`).

    Args:
        df: What `layers.interference` returned.
        pairs: Metrics on the two axes of each panel.
        alpha: The coefficient, needed where the table has several.

    Raises:
        TasklabError: If there are several coefficients and none is chosen.
    """
    rows = df if alpha is None else df[np.isclose(df["alpha"], alpha)]
    some(rows)
    if alpha is None and rows.groupby("method")["alpha"].nunique().max() > 1:
        raise TasklabError(f"choose alpha, one of {sorted(set(rows['alpha']))}.")
    table = rows.pivot_table(index=["method", "task"], columns="metric", values="value")
    table = table.reset_index()
    pairs = tuple(pairs)
    figure, panels = plt.subplots(1, len(pairs), figsize=(WIDTH, 3.7), squeeze=False)
    for axes, (x, y) in zip(panels[0], pairs, strict=True):
        for method in methods_in(table):
            part = table[table["method"] == method]
            look = {"color": COLOURS[method], "mec": "#333333", "mew": 0.4, "alpha": 0.9}
            axes.plot(part[x], part[y], MARKERS[method], ms=6, label=METHOD_LABEL[method], **look)
        found = over_tasks(table, x, y)
        axes.set_title(f"rank correlation {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
        axes.set_xlabel(AXIS_LABEL[x])
        axes.set_ylabel(AXIS_LABEL[y])
    legend(figure, panels[0, 0])
    return figure


@book_figure
def linearity(df: pd.DataFrame) -> Figure:
    """Draw how far from linear a model is: against the distance, and block by block.

    Args:
        df: Records of the experiment `linearity`.
    """
    some(df)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), width_ratios=(1.15, 1))
    features, blocks = (df[df["metric"] == metric] for metric in ("gap_along", "gap_block"))
    blocks = blocks[np.isclose(blocks["alpha"], 1)]
    for method in methods_in(df):
        look = {"color": COLOURS[method], "marker": MARKERS[method]}
        ours = features[features["method"] == method].sort_values("alpha")
        for _, line in ours.groupby(["task", "seed"]):
            left.plot(line["size"], line["value"], color=COLOURS[method], lw=0.6, alpha=0.4)
        means = ours.groupby("alpha")[["size", "value"]].mean()
        left.plot(means["size"], means["value"], lw=2, ms=4.5, label=METHOD_LABEL[method], **look)
        end = means[np.isclose(means.index, 1)]
        left.plot(end["size"], end["value"], ls="", ms=10, mec="black", mew=1.2, **look)
        found = blocks[blocks["method"] == method].groupby("block")["value"]
        x = [int(block) + 1 for block in found.mean().index]
        right.plot(x, found.mean(), lw=2, ms=4.5, **look)
        right.fill_between(x, found.min(), found.max(), color=COLOURS[method], alpha=0.12, lw=0)
    for axes in (left, right):
        axes.axhline(1, color="#333333", lw=1, ls="--")
    left.set_xscale("log")
    left.set_yscale("log")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    right.set_ylim(bottom=0)
    left.set_xlabel("|c τ| / |θ₀|  (large marker: c = 1)")
    left.set_ylabel("gap: |remainder| / |linear part|")
    left.set_title("features")
    right.set_title("outputs of blocks at c = 1 (band: tasks)")
    right.set_xlabel("block")
    right.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend(figure, left)
    return figure
