"""Figures of tangent kernels: where their eigenfunctions live, and the tasks on a ring."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasklab.errors import TasklabError
from tasklab.figures.style import WIDTH, book_figure

_SIDES = {"task": "#0072B2", "control": "#D55E00"}
_INITS = ("pretrained", "random")
_INIT_LABEL = {"pretrained": "pre-trained", "random": "random weights"}
_KERNEL_LABEL = {"ring": "network on the ring", "block": "cut between the halves"}
_TASK_LABEL = {"1": "D₁", "2": "D₂"}
_LINES = ("#000000", "#009E73", "#CC79A7", "#E69F00", "#7A4B00", "#56B4E9")


@book_figure
def localization(df: pd.DataFrame) -> Figure:
    """Draw the local energy of the eigenfunctions on task and control (tangent, 6, 14 and 15).

    One panel for each pair of tasks (columns) and initialisation (rows). A thin line is a class,
    the thick one their mean; on either side the images are in order of that mean. The number is the
    task's share of the energy: mean on the task over the sum of both sides' means. Beside it, where
    it was measured, the share of unseen images of the task, which are no rows of the kernel.

    Args:
        df: One row for each image and class: `task` (as `"Places|Vehicles"`: the task and its
            control), `init`, `subset` (the class), `side` (`"task"` or `"control"`), `x` (number of
            the image on that side), `metric` `"energy"`, `value`; other sides are not drawn. Rows
            of the metric `unseen_share` are optional.

    Raises:
        TasklabError: If there is nothing to draw.
    """
    rows = df[df["metric"] == "energy"]
    if rows.empty:
        raise TasklabError("nothing to draw: there are no records of the metric 'energy'.")
    pairs = list(dict.fromkeys(rows["task"]))
    inits = [init for init in _INITS if init in set(rows["init"])]
    figure, panels = plt.subplots(
        len(inits),
        len(pairs),
        figsize=(WIDTH, 0.5 + 2.2 * len(inits)),
        sharey=True,
        squeeze=False,
    )
    for line, init in zip(panels, inits, strict=True):
        for axes, pair in zip(line, pairs, strict=True):
            chosen = rows[(rows["init"] == init) & (rows["task"] == pair)]
            _energy(axes, chosen, pair)
            fresh = df[(df["init"] == init) & (df["task"] == pair)]
            fresh = fresh[fresh["metric"] == "unseen_share"]["value"]
            if len(fresh):
                axes.set_title(f"{axes.get_title()}\nunseen {fresh.mean():.2f}")
        line[0].set_ylabel(f"{_INIT_LABEL[init]}\nlocal energy")
    top = max(rows.groupby(["task", "init", "subset"])["value"].quantile(0.995).max(), 1e-12)
    panels[0, 0].set_ylim(0, 1.25 * top)  # room for the names
    return figure


def _energy(axes: Axes, rows: pd.DataFrame, pair: str) -> None:
    start, means = 0, {}
    for (side, colour), name in zip(_SIDES.items(), pair.split("|"), strict=True):
        table = rows[rows["side"] == side].pivot(index="x", columns="subset", values="value")
        if table.empty:
            continue
        table = table.loc[table.mean(axis=1).sort_values(ascending=False).index]
        at = start + np.arange(len(table))
        axes.axvspan(start - 0.5, at[-1] + 0.5, color=colour, alpha=0.08, lw=0)
        axes.plot(at, table.to_numpy(), lw=0.6, alpha=0.6, color=colour)
        axes.plot(at, table.mean(axis=1), lw=2.2, color=colour)
        axes.text(
            at.mean(),
            0.98,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
            color=colour,
            bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
        )
        means[side] = table.mean()
        start = at[-1] + 1
    axes.set_xlim(-0.5, start - 0.5)
    axes.set_xticks([])
    axes.set_xlabel(f"{start} images")
    axes.grid(axis="x", visible=False)
    if len(means) == 2:
        share = means["task"] / (means["task"] + means["control"])
        spread = f" ± {share.std():.2f}" if len(share) > 1 else ""
        axes.set_title(f"share {share.mean():.2f}{spread}")


@book_figure
def ring(df: pd.DataFrame) -> Figure:
    """Draw two tasks on a ring, for a kernel that is not localized and for one that is.

    First row: the eigenfunctions with the largest eigenvalues. Second row: what each task's fit is
    on the whole ring, with the tasks' functions. Last: the error of the fits alone and added,
    relative to the root mean square of the task's function.

    Args:
        df: As `tasklab.analyses.ring.table` gives it.

    Raises:
        TasklabError: If there is nothing to draw.
    """
    kernels = [kernel for kernel in _KERNEL_LABEL if kernel in set(df["kernel"])]
    if not kernels:
        raise TasklabError(f"nothing to draw: there are no rows of {' or '.join(_KERNEL_LABEL)}.")
    figure = plt.figure(figsize=(WIDTH, 6.2))
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 0.55])
    for column, kernel in enumerate(kernels):
        rows = df[df["kernel"] == kernel]
        functions = figure.add_subplot(grid[0, column])
        _functions(functions, rows)
        functions.set_title(f"kernel: {_KERNEL_LABEL[kernel]}")
        fits = figure.add_subplot(grid[1, column])
        _fits(fits, rows)
        for axes in (functions, fits):
            axes.set_xlim(0, 360)
            axes.set_xticks(range(0, 361, 90))
            axes.grid(axis="x", visible=False)
            for middle, name in zip((90, 270), _TASK_LABEL.values(), strict=True):
                axes.text(
                    middle, 0.97, name, transform=axes.get_xaxis_transform(), ha="center", va="top"
                )
            axes.axvspan(0, 180, color=_SIDES["task"], alpha=0.08, lw=0)
            axes.axvspan(180, 360, color=_SIDES["control"], alpha=0.08, lw=0)
        fits.set_xlabel("angle (degrees)")
        _errors(figure.add_subplot(grid[2, column]), rows)
        if column == 0:
            functions.set_ylabel("eigenfunction")
            fits.set_ylabel("fitted function")
    return figure


def _functions(axes: Axes, rows: pd.DataFrame) -> None:
    found = rows[rows["metric"] == "eigenfunction"]
    for colour, (_, one) in zip(_LINES, found.groupby("subset", sort=False), strict=False):
        axes.plot(one["x"], one["value"], lw=1.5, color=colour)
    axes.set_ylim(-2.7, 2.7)


def _fits(axes: Axes, rows: pd.DataFrame) -> None:
    target = rows[rows["metric"] == "target"]
    label = "task's function"
    for inside in (target["x"] < 180, target["x"] >= 180):
        half = target[inside]
        axes.plot(half["x"], half["value"], lw=6, color="#BBBBBB", label=label)
        label = None
    for (task, name), colour in zip(_TASK_LABEL.items(), _SIDES.values(), strict=True):
        one = rows[(rows["metric"] == "fit") & (rows["subset"] == task)]
        axes.plot(one["x"], one["value"], lw=1.6, color=colour, label=f"learnt on {name}")
    both = rows[rows["metric"] == "sum"]
    axes.plot(both["x"], both["value"], "--", lw=1.6, color="#000000", label="sum of both")
    axes.set_ylim(-3.4, 2.7)
    axes.set_yticks(range(-2, 3))
    axes.legend(loc="lower center", ncols=2, columnspacing=1.0, handlelength=1.5, fontsize=8.5)


def _errors(axes: Axes, rows: pd.DataFrame) -> None:
    look = {"alone": ("one fit alone", "#A6A6A6", -0.2), "added": ("sum of both", "#333333", 0.2)}
    for metric, (label, colour, shift) in look.items():
        values = rows[rows["metric"] == metric].set_index("subset")["value"].loc[list(_TASK_LABEL)]
        places = np.arange(len(values)) + shift
        axes.barh(places, values, 0.38, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            axes.text(value + 2, place, f"{value:.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(_TASK_LABEL)), list(_TASK_LABEL.values()))
    axes.set_ylim(len(_TASK_LABEL) - 0.5, -0.5)
    axes.set_xlim(0, 130)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("relative error on the task (%)")
    if rows[rows["metric"] == "added"]["value"].max() < 50:  # where there is room
        axes.legend(loc="center right")
