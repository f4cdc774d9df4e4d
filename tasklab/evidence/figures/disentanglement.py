"""Figures of weight disentanglement, as maps of errors, and of chosen coefficients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tasklab.errors import TasklabError
from tasklab.evidence.figures import schemes
from tasklab.evidence.figures.maps import scale
from tasklab.evidence.figures.marks import ZERO, curves, level, means_in
from tasklab.evidence.figures.rows import averaged, methods_in, require_rows, where
from tasklab.evidence.figures.style import (
    COLOURS,
    INIT_LABEL,
    INK,
    METHOD_LABEL,
    WIDTH,
    book_figure,
    key,
    method_looks,
)

_SCALES = {  # label of the colour bar, unit, digits, and its upper end (`None`: largest value)
    "xi_classifier": ("disentanglement error ξ (%)", " %", 1, 200.0),  # its bound, in every figure
    "xi_representation": ("representation error ξ (nats)", " nats", 2, None),
}
_CHOSEN = {  # metric -> marker, size and words
    "chosen_grid": ("s", 8, "on the grid"),
    "chosen_exact": ("*", 12, "exactly"),
}


@book_figure
def heatmaps(
    df: pd.DataFrame,
    metric: str = "xi_classifier",
    *,
    across: str = "task",
    box: tuple[float, float] = (0.0, 1.0),
) -> Figure:
    """Draw maps of disentanglement errors: one row per method, one column per pair of tasks.

    With one column the methods stand side by side. All maps share one scale of square roots, up to
    100 % for the classifier, or 200 % if the mean of a box is above 50 %. Titles have the mean over
    the search box. Seeds are averaged.

    Args:
        df: Columns method, task (`"T1+T2"`), metric, alpha1, alpha2, value, and perhaps seed.
        metric: `xi_classifier` (0 to 200 %) or `xi_representation` (nats).
        across: Column of `df` for the panels: `task` or, with one pair, `model` or `init`.
        box: Lowest and highest coefficient of the search box (tangent, figure 3).
    """
    if metric not in _SCALES:
        raise TasklabError(f"a heatmap shows one of {', '.join(_SCALES)}, not {metric!r}.")
    rows = require_rows(where(df, metric=metric), f"there are no records of {metric!r}")
    if across != "task" and rows["task"].nunique() > 1:
        raise TasklabError(f"columns by {across} need records of one pair of tasks, not several.")
    methods, others = methods_in(rows), list(dict.fromkeys(rows[across]))
    rows = rows.assign(panel=list(zip(rows["method"], rows[across], strict=True)))
    there = set(rows["panel"])
    below = [[(m, name) for m in methods if (m, name) in there] for name in others]
    below.sort(key=len, reverse=True)  # of columns that lack a method, the longest first
    names = {
        (m, name): METHOD_LABEL[m]
        + ("" if across == "task" else f"\n{INIT_LABEL.get(name) or schemes.scheme(name)}")
        for line in itertools.zip_longest(*below)
        for m, name in filter(None, line)
    }
    columns = len(methods) if len(others) == 1 else len(others)
    return _maps(rows, names, metric, columns, box)


@book_figure
def scheme_maps(
    df: pd.DataFrame, *, method: str = "nonlinear", box: tuple[float, float] = (-1.0, 1.0)
) -> Figure:
    """Draw maps of one pair of tasks, one for each scheme (figures 1, 3, 4, 5).

    Args:
        df: Records of `disentanglement` of several models.
        method: Of the vectors; `full` is figure 5.
        box: The search box (figure 1), whose mean is in the titles.
    """
    rows = require_rows(where(df, metric="xi_classifier", method=method))
    rows = rows[rows["task"] == rows["task"].iloc[0]]
    rows, names = rows.assign(panel=rows["model"]), schemes.broken(schemes.looks(rows))
    return _maps(rows, names, "xi_classifier", 4, box)


def _maps(
    rows: pd.DataFrame, names: Mapping, metric: str, columns: int, box: tuple[float, float]
) -> Figure:
    """Draw a map for each title of `names`; all share a scale of one hue."""
    label, unit, digits, top = _SCALES[metric]
    means, side = averaged(rows, "panel", "alpha1", "alpha2", "task"), box[1] - box[0]
    from_middle = (means[["alpha1", "alpha2"]] - sum(box) / 2).abs().max(axis=1)
    inside = means[from_middle <= side / 2 + 1e-9].groupby("panel")["value"]
    boxed, highest = inside.mean(), float(means["value"].max())
    top = top or highest
    names = {panel: name for panel, name in names.items() if panel in set(means["panel"])}
    wrap = min(columns, len(names))
    apart = {"sharex": False, "sharey": False}
    grid = sns.FacetGrid(means, col="panel", col_order=list(names), col_wrap=wrap, **apart)
    for axes, (panel, name) in zip(grid.axes.flat, names.items(), strict=True):
        mine = where(means, panel=panel)
        cells = mine.pivot_table(index="alpha2", columns="alpha1", values="value")
        look = {"norm": PowerNorm(0.5, 0, top), "cmap": "Blues", "shading": "nearest"}
        places = cells.columns.astype(float), cells.index.astype(float)
        axes.pcolormesh(*places, cells, rasterized=True, **look)
        axes.set(aspect="equal", xticks=_whole(mine["alpha1"]), yticks=_whole(mine["alpha2"]))
        axes.grid(visible=False)
        frame = {"fill": False, "ec": "#D55E00", "lw": 1.8}
        axes.add_patch(Rectangle((box[0], box[0]), side, side, **frame))
        mean = f"\nsquare: {boxed[panel]:.{digits}f}{unit}" if panel in boxed else ""
        axes.set_title(name + mean, fontsize=9)
        one, _, two = mine["task"].iloc[0].partition("+")
        axes.set_xlabel(f"$\\alpha_1$ ({one})", fontsize=9, labelpad=2)
        axes.set_ylabel(f"$\\alpha_2$ ({two})", fontsize=9, labelpad=1)
    sns.despine(grid.figure, left=True, bottom=True)
    words = 0.7 + 0.17 * max(name.count("\n") + 1 for name in names.values())
    height = (min(2.3, WIDTH / wrap - 0.6) + words) * -(-len(names) // wrap) + 0.8
    grid.figure.set_size_inches(WIDTH, height)
    numbers = set(inside.size().reindex(names))
    size = f"; square: mean of {numbers.pop():g} cells" if len(numbers) == 1 else ""
    beyond = "max" if highest > top * (1 + 1e-9) else "neither"
    return scale(grid.figure, grid.axes.flat, label + size, beyond)


def _whole(values: pd.Series) -> np.ndarray:
    reach = int(np.floor(np.abs(values).max() + 1e-9))
    whole = np.arange(-reach, reach + 1, 1 if reach <= 2 else reach)
    return whole[(whole >= values.min() - 1e-9) & (whole <= values.max() + 1e-9)]


@book_figure
def exact_curve(df: pd.DataFrame, split: str = "validation") -> Figure:
    """Plot the exact accuracy of the linearized sum along its coefficient.

    The line is the mean normalised accuracy over tasks, a step function; dots are the grid's
    coefficients. Right: enlarged around the chosen ones. Records: `exact_alpha` of one seed, of
    which a value holds up to the task's next coefficient. `split`: images of the curve.
    """
    rows = where(df, split=split)
    found = where(rows, metric="normalised_exact")
    require_rows(found, f"there are no records of 'normalised_exact {split}'")
    if "seed" in df and df["seed"].nunique() > 1:
        raise TasklabError("exact curves of several seeds have no common steps: choose one seed.")
    # Each task's value holds until its next coefficient.
    steps = rows.pivot(index=["metric", "method", "alpha"], columns="task", values="value")
    steps = steps.sort_index().groupby(level=["metric", "method"]).ffill()
    means = steps.mean(axis=1).rename("value").reset_index()
    exact, methods = where(means, metric="normalised_exact"), methods_in(means)
    end = exact.drop_duplicates("method", keep="last")  # whose value holds up to there
    end = end.assign(alpha=end["method"].map(means.groupby("method")["alpha"].max()))
    table = pd.concat([means, end]).merge(pd.DataFrame({"panel": ["whole", "near"]}), how="cross")
    plot = curves(
        where(table, metric="normalised_exact"), "alpha", row="method", row_order=methods,
        col="panel", height=2.3 * len(methods) + 0.6, share=(False, False), dots=False, lw=1.3,
        drawstyle="steps-post", errorbar=None, estimator=None, sort=False,
    )  # fmt: skip
    plot.first.lines[0].set_label("exact")
    plot.mark(where(table, metric="normalised_grid"), "alpha", marker="o", ms=4, mew=1, mfc="white",
              color=INK, label="grid")  # fmt: skip
    look: dict[str, Any] = {"color": COLOURS["nonlinear"], "mfc": "auto", "mec": INK, "mew": 0.7}
    for name, (marker, size, words) in _CHOSEN.items():
        first = where(table, metric=name).drop_duplicates(["method", "panel"])
        plot.mark(first, "alpha", marker=marker, ms=size, label=f"chosen {words}", **look)
    for (whole, near), method in zip(plot.grid.axes, methods, strict=True):
        _enlarge(whole, near, where(means, method=method))
        whole.set_ylabel(f"normalised {split}\naccuracy (%)")
        whole.set_title(METHOD_LABEL[method], loc="left")
        near.set_title("grey part, enlarged", loc="left")
    drawn, _ = plot.first.get_legend_handles_labels()
    return plot.finish(drawn, looks={}, x="shared coefficient α")


def _enlarge(whole: Axes, near: Axes, means: pd.DataFrame) -> None:
    chosen = where(means, metric=_CHOSEN)["alpha"]
    exact = where(means, metric="normalised_exact").set_index("alpha")["value"]
    low = max(chosen.min() - 0.08, exact.index[0])
    high = min(chosen.max() + 0.08, means["alpha"].max())
    # From the value that holds where the window begins.
    shown = exact.loc[exact.index[exact.index <= low][-1] : high]
    spread = max(float(shown.max() - shown.min()), 0.5)
    near.set(xlim=(low, high), ylim=(shown.min() - 0.1 * spread, shown.max() + 0.15 * spread))
    whole.axvspan(low, high, color="#E5E5E5", zorder=0, lw=0)


@book_figure
def per_task_coefficients(df: pd.DataFrame) -> Figure:
    """Plot one coefficient per task against a shared one, and the gain.

    Left: the tasks' own coefficients; the vertical line is the shared one. Right: the gain in
    normalised accuracy on validation images, where they were chosen, and on test images. Records:
    `own_coefficients`.
    """
    rows = where(df, metric=["normalised_shared", "normalised_own"])
    rows = require_rows(rows, "there are no records of 'normalised_own'")
    methods, order = methods_in(rows), {task: task for task in rows["task"].unique()}
    looks = method_looks(methods)
    size = WIDTH, 1.6 + len(order) * max(0.28, 0.13 * len(methods))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, width_ratios=[3, 2])
    own = where(rows, split="test", metric="normalised_own")
    means_in(left, own, "task", "alpha", hue="method", looks=looks, order=order)
    for method, (_, colour, _) in looks.items():
        shared = where(rows, split="test", method=method, metric="normalised_shared")
        level(left, shared["alpha"].mean(), along="y", color=colour, lw=1.4)
    by = ["method", "seed", "split"]
    table = rows.pivot_table("value", index=by, columns="metric", sort=False)
    gains = (table["normalised_own"] - table["normalised_shared"]).rename("gain").reset_index()
    splits = {"validation": ("validation", "#9A9A9A", "o"), "test": ("test", INK, "s")}
    order = {method: METHOD_LABEL[method].replace(" ", "\n") for method in methods}
    means_in(right, gains, "method", "gain", hue="split", looks=splits, order=order)
    left.set(xlabel="coefficient α (dashed: shared)", xlim=(-0.03, 1.03), ylabel="")
    right.set(xlabel="gain in normalised\naccuracy (points)", ylabel="")
    right.margins(x=0.15)
    level(right, 0, along="y", **ZERO)
    sns.despine(figure)
    dots = [Line2D([], [], ls="", marker=marker, mfc=colour, mec=INK, label=f"gain: {label}")
            for label, colour, marker in splits.values()]  # fmt: skip
    key(figure, looks, dots, line="")
    return figure
