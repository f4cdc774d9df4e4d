"""Figures of weight disentanglement and of chosen coefficients."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tasklab.errors import TasklabError
from tasklab.figures.style import (
    COLOURS,
    MARKERS,
    METHOD_LABEL,
    WIDTH,
    book_figure,
    methods_in,
    tasks_in,
)

COLOUR_MAP = "Blues"  # light is low, as in the papers; one hue, so no colour needs telling apart
BOX = "#D55E00"
_NAMES = {"pretrained": "pre-trained", "random": "random weights"}
SCALES = {  # label of the colour bar, and its upper end where it has one by definition
    "xi_classifier": ("prediction error ξ (%)", 200.0),
    "xi_representation": ("divergence ξ of features (nats)", None),
}


@book_figure
def heatmaps(
    df: pd.DataFrame,
    metric: str = "xi_classifier",
    *,
    across: str = "task",
    box: tuple[float, float] = (0.0, 1.0),
    top: float | None = None,
) -> Figure:
    """Draw disentanglement errors: a row for each method, a column for each pair of tasks.

    With one column, the methods stand side by side. All panels share one colour scale from 0. Each
    title has the mean over the cells whose centres lie in the search box, and their number.
    Several seeds are averaged.

    Args:
        df: Columns method, task (`"T1+T2"`), metric, alpha1, alpha2, value; seed may be there.
        metric: `xi_classifier` (0 to 200 %) or `xi_representation` (nats).
        across: Which column of `df` the figure's columns show: `task`, or, with one pair of tasks,
            e.g. `model` or `init`, whose values then stand in the titles.
        box: Lowest and highest coefficient of the search box (tangent, figure 3; the closed-
            vocabulary paper's is (-1, 1)).
        top: Upper end of the colour scale. By default 200 % for the classifier, where each of two
            tasks can be wrong on all images, and the largest value for the representation.
    """
    if metric not in SCALES:
        raise TasklabError(f"a heatmap shows one of {', '.join(SCALES)}, not {metric!r}.")
    rows = df[df["metric"] == metric]
    if rows.empty:
        raise TasklabError(f"nothing to draw: there are no records of {metric!r}.")
    methods = methods_in(rows)
    pairs = tasks_in(rows) if across == "task" else list(dict.fromkeys(rows[across]))
    one_pair = rows["task"].iloc[0]
    if across != "task" and rows["task"].nunique() > 1:
        raise TasklabError(f"columns by {across} need records of one pair of tasks, not several.")
    label, usual = SCALES[metric]
    means = rows.groupby(["method", across, "alpha2", "alpha1"])["value"].mean()
    top = float(means.max()) if top is None and usual is None else top or usual
    columns = len(methods) if len(pairs) == 1 else len(pairs)
    side = min(3.2, (WIDTH - 1.25) / columns - 0.62)
    grid = (1, len(methods)) if len(pairs) == 1 else (len(methods), len(pairs))
    size = (
        WIDTH,
        (side + (1.5 if len(pairs) == 1 else 0.72 if across == "task" else 0.95)) * grid[0],
    )
    figure, panels = plt.subplots(*grid, figsize=size, squeeze=False)
    places = [(method, pair) for method in methods for pair in pairs]
    for axes, (method, pair) in zip(panels.flat, places, strict=True):
        if pair not in means[method].index:
            axes.set_axis_off()
            continue
        table, named = means[method][pair].unstack("alpha1"), pair if across == "task" else one_pair
        mesh = _map(axes, table, named, metric, box, top)
        if across != "task":
            axes.set_title(f"{_NAMES.get(pair, pair)}\n{axes.get_title()}", fontsize=9)
        if len(pairs) == 1:
            axes.set_title(f"{METHOD_LABEL[method]}\n{axes.get_title()}", fontsize=9)
    if len(pairs) > 1:
        for axes, method in zip(panels[:, 0], methods, strict=True):
            axes.annotate(
                METHOD_LABEL[method],
                (0, 0.5),
                (-44, 0),
                xycoords="axes fraction",
                textcoords="offset points",
                rotation=90,
                va="center",
                ha="center",
                fontweight="bold",
            )
    clipped = "max" if means.max() > top * (1 + 1e-9) else "neither"
    figure.colorbar(mesh, ax=panels, label=label, shrink=0.9, aspect=30, extend=clipped)
    return figure


def _map(
    axes: Axes,
    table: pd.DataFrame,
    pair: str,
    metric: str,
    box: tuple[float, float],
    top: float,
) -> QuadMesh:
    """Draw one panel; `table` has alpha_2 as rows, ascending, and alpha_1 as columns."""
    low, high = box
    inside = [(a.to_numpy() >= low - 1e-9) & (a.to_numpy() <= high + 1e-9) for a in
              (table.index, table.columns)]  # fmt: skip
    cells = table.to_numpy()[np.ix_(*inside)]
    mesh = axes.pcolormesh(
        table.columns, table.index, table, cmap=COLOUR_MAP, vmin=0, vmax=top, shading="nearest"
    )
    axes.add_patch(Rectangle((low, low), high - low, high - low, fill=False, ec=BOX, lw=1.8))
    if cells.size:
        number = (
            f"{cells.mean():.1f} %" if metric == "xi_classifier" else f"{cells.mean():.2f} nats"
        )
        axes.set_title(f"box: {number} ({cells.size} cells)", fontsize=9)
    one, _, two = pair.partition("+")
    axes.set_xlabel(f"$\\alpha_1$ ({one})", labelpad=2)
    axes.set_ylabel(f"$\\alpha_2$ ({two})", labelpad=0)
    axes.set(aspect="equal", xticks=_ticks(table.columns), yticks=_ticks(table.index))
    axes.grid(visible=False)
    return mesh


def _ticks(alphas: pd.Index) -> list[int]:
    reach = int(np.floor(max(abs(alphas.min()), abs(alphas.max())) + 1e-9))
    step = 1 if reach <= 2 else reach
    return [a for a in range(-reach, reach + 1, step) if alphas.min() <= a <= alphas.max()]


@book_figure
def exact_curve(df: pd.DataFrame, split: str = "validation") -> Figure:
    """Draw exact accuracy along the shared coefficient, and what a grid of it sees.

    The line is the mean normalised accuracy over tasks of the linearized model, a step function;
    dots are the grid's coefficients. On the right the neighbourhood of the chosen ones is enlarged.

    Args:
        df: Columns method, task, split, metric, alpha, value, for one seed. The metrics are
            `normalised_exact` (a value holds up to the task's next alpha), `normalised_grid`,
            `chosen_exact` and `chosen_grid`.
        split: Images of the curve: `validation`, on which both are chosen, or `test`.
    """
    rows = df[(df["split"] == split) & (df["metric"] == "normalised_exact")]
    if rows.empty:
        raise TasklabError(f"nothing to draw: there are no records of 'normalised_exact {split}'.")
    if "seed" in df and df["seed"].nunique() > 1:
        raise TasklabError("exact curves of several seeds have no common steps: choose one seed.")
    methods = methods_in(rows)
    figure, panels = plt.subplots(
        len(methods), 2, figsize=(WIDTH, 2.6 * len(methods) + 0.5), squeeze=False
    )
    for (whole, near), method in zip(panels, methods, strict=True):
        mine = df[(df["method"] == method) & (df["split"] == split)]
        means = {m: _mean_over_tasks(mine[mine["metric"] == m]) for m in set(mine["metric"])}
        exact, grid = means["normalised_exact"], means["normalised_grid"]
        colour = COLOURS[method]
        end = max(float(exact.index[-1]), float(grid.index[-1]))
        x, y = np.append(exact.index, end), np.append(exact, exact.iloc[-1])
        for axes in (whole, near):
            axes.step(x, y, where="post", color=colour, lw=1.2, label="exact")
            axes.plot(grid.index, grid, "o", ms=4, mfc="white", mec="#333333", label="grid")
            for name, marker, told in (
                ("chosen_grid", "s", "chosen on the grid"),
                ("chosen_exact", "*", "chosen exactly"),
            ):
                alpha, value = means[name].index[0], means[name].iloc[0]
                axes.plot(alpha, value, marker, ms=12 if marker == "*" else 8, color=BOX,
                          mec="#333333", mew=0.7, zorder=5, label=told)  # fmt: skip
            axes.set_xlabel("shared coefficient α")
        chosen = [means[name].index[0] for name in ("chosen_grid", "chosen_exact")]
        low, high = max(min(chosen) - 0.08, x[0]), min(max(chosen) + 0.08, end)
        shown = exact.loc[
            exact.index[exact.index <= low][-1] : high
        ]  # from the value that holds where the window begins
        spread = max(float(shown.max() - shown.min()), 0.5)
        near.set_xlim(low, high)
        near.set_ylim(shown.min() - 0.1 * spread, shown.max() + 0.15 * spread)
        whole.axvspan(low, high, color="#E5E5E5", zorder=0, lw=0)
        whole.set_ylabel(f"normalised {split}\naccuracy (%)")
        whole.set_title(METHOD_LABEL[method], loc="left")
        near.set_title("the grey part, enlarged", loc="left")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _mean_over_tasks(rows: pd.DataFrame) -> pd.Series:
    """Average step functions: each task's value holds until its next coefficient."""
    table = rows.pivot(index="alpha", columns="task", values="value").sort_index()
    return table.ffill().mean(axis=1)


@book_figure
def per_task_coefficients(df: pd.DataFrame) -> Figure:
    """Draw one coefficient for each task against a shared one, and what that gains.

    Left: the tasks' own coefficients, and the shared one as a vertical line. Right: the change of
    mean normalised accuracy by own coefficients, on validation images, where they were chosen, and
    on test images. Seeds are averaged; small dots are seeds.

    Args:
        df: Columns method, task, split, metric, alpha, value, seed, with the metrics
            `normalised_shared` and `normalised_own`.
    """
    rows = df[df["metric"].isin(["normalised_shared", "normalised_own"])]
    if rows.empty:
        raise TasklabError("nothing to draw: there are no records of 'normalised_own'.")
    methods, tasks = methods_in(rows), tasks_in(rows)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(WIDTH, 1.5 + 0.36 * len(tasks)), gridspec_kw={"width_ratios": [3, 2]}
    )
    lines = {task: i for i, task in enumerate(tasks)}
    shift = np.linspace(-0.22, 0.22, len(methods)) if len(methods) > 1 else [0.0]
    for i, method in enumerate(methods):
        mine = rows[(rows["method"] == method) & (rows["split"] == "test")]
        alphas = mine.groupby(["metric", "task"])["alpha"].mean()
        look = {"color": COLOURS[method]}
        left.axvline(alphas["normalised_shared"].mean(), ls="--", lw=1.4, **look)
        own = alphas["normalised_own"]
        left.plot(
            own,
            own.index.map(lines).to_numpy(float) + shift[i],
            MARKERS[method],
            ms=6,
            mec="#333333",
            mew=0.4,
            label=METHOD_LABEL[method],
            **look,
        )
        _gains(right, rows[rows["method"] == method], i, method)
    left.set_yticks(range(len(tasks)), tasks)
    left.set_ylim(len(tasks) - 0.5, -0.5)
    left.set_xlim(-0.03, 1.03)
    left.set_xlabel("coefficient (dashed: shared)")
    right.axvline(0, color="#333333", lw=0.8)
    right.set_yticks(range(len(methods)), [METHOD_LABEL[m].replace(" ", "\n") for m in methods])
    right.set_ylim(len(methods) - 0.4, -0.6)
    right.set_xlabel("gain in normalised accuracy\n(percentage points)")
    right.grid(axis="y", visible=False)
    handles, labels = left.get_legend_handles_labels()
    bars, told = right.get_legend_handles_labels()
    figure.legend([*handles, *bars[:2]], [*labels, *told[:2]], loc="outside upper center", ncols=3)
    return figure


def _gains(axes: Axes, rows: pd.DataFrame, place: int, method: str) -> None:
    means = rows.groupby(["split", "metric", "seed"])["value"].mean()
    for split, y, face in (("validation", -0.19, "white"), ("test", 0.19, "#595959")):
        gain = means[split]["normalised_own"] - means[split]["normalised_shared"]
        axes.barh(place + y, gain.mean(), 0.34, fc=face, ec="#333333", lw=0.8, label=split)
        if len(gain) > 1:
            axes.plot(gain, [place + y] * len(gain), ".", ms=5, color=BOX, zorder=5)
        axes.annotate(
            f"{round(gain.mean(), 1) + 0.0:+.1f}",  # + 0.0: no "-0.0"
            (max(gain.mean(), gain.max(), 0), place + y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.margins(x=0.25)
