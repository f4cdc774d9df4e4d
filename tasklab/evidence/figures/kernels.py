"""Figures of tangent kernels: where their eigenfunctions live, and the tasks on a ring."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasklab.evidence.figures.marks import curves
from tasklab.evidence.figures.rows import averaged, require_rows, where
from tasklab.evidence.figures.style import INIT_LABEL, INK, WIDTH, book_figure, key

_SIDES = {"task": ("task", "#0072B2", ""), "control": ("second task", "#D55E00", "")}
_COLOURS = [colour for _, colour, _ in _SIDES.values()]
_KERNELS = {"ring": "network on the ring", "block": "cut between the halves"}
_TASKS = {"1": "D₁", "2": "D₂"}
_LINES = ("#000000", "#009E73", "#CC79A7", "#E69F00", "#7A4B00", "#56B4E9")


@book_figure
def localization(df: pd.DataFrame) -> Figure:
    """Plot the local energy of eigenfunctions on both tasks (tangent, 6, 14, 15).

    A panel is a pair of tasks by an initialisation; a thin line a class, the thick one their mean;
    the images are sorted by that mean. The number is the task's share of the energy, below it that
    of images that are no rows of the kernel. Records: `localization`, one row per image and class.
    """
    rows = where(df, metric="energy", side=_SIDES)
    require_rows(rows, "there are no records of the metric 'energy'")
    panel, place = ["init", "task"], ["init", "task", "side", "x"]
    # Images of the task come first, those with much energy before those with little.
    order = averaged(rows, *place).sort_values(["side", "value"], ascending=False)
    order["at"] = order.groupby(panel).cumcount()
    rows = rows.join(order.set_index(place)["at"], on=place)
    inits = [init for init in INIT_LABEL if init in set(rows["init"])]
    plot = curves(
        rows, "at", hue="side", looks=_SIDES, row="init", row_order=inits, col="task",
        height=0.9 + 2.2 * len(inits), share=("col", True), dots=False, units="subset",
        estimator=None, errorbar=None, lw=0.6, alpha=0.5,
    )  # fmt: skip
    plot.trace(averaged(rows, *panel, "side", "at").sort_values("at"), "at", lw=2.2)
    for axes, init, pair in plot:
        mine = where(rows, init=init, task=pair)
        _sides(axes, mine)
        fresh = where(df, init=init, task=pair, metric="unseen_share")
        note = f"\nunseen {fresh['value'].mean():.2f}" if len(fresh) else ""
        look = {"ha": "right", "va": "top", "fontsize": 8.5, "transform": axes.transAxes}
        axes.text(0.98, 0.98, _share(mine) + note, **look)
        axes.set_title(pair.replace("|", ",\n"), fontsize=9)
        axes.set(xlabel=f"{mine['at'].nunique()} images", ylabel="")
    for axes, init in zip(plot.grid.axes[:, 0], inits, strict=True):
        axes.set_ylabel(f"{INIT_LABEL[init]}\nlocal energy")
    top = max(rows.groupby(["task", "init", "subset"])["value"].quantile(0.995).max(), 1e-12)
    plot.first.set(
        ylim=(0, 1.2 * top), yticks=[x for x in (0, 0.25, 0.5, 0.75, 1) if x <= 1.1 * top]
    )
    return plot.finish()


def _sides(axes: Axes, rows: pd.DataFrame) -> None:
    for side, (_, colour, _) in _SIDES.items():
        at = rows[rows["side"] == side]["at"]
        if len(at):
            axes.axvspan(at.min() - 0.5, at.max() + 0.5, color=colour, alpha=0.08, lw=0)
    axes.set_xlim(-0.5, rows["at"].max() + 0.5)
    axes.set_xticks([])


def _share(rows: pd.DataFrame) -> str:
    means = rows.groupby(["side", "subset"])["value"].mean().unstack("side")
    if not set(_SIDES) <= set(means):
        return ""
    share = means["task"] / (means["task"] + means["control"])
    return f"share {share.mean():.2f}" + (f" ± {share.std():.2f}" if len(share) > 1 else "")


@book_figure
def ring(df: pd.DataFrame) -> Figure:
    """Plot two tasks on a ring, for a localized kernel and for another.

    Rows: the leading eigenfunctions; each task's fit on the whole ring; the relative error of the
    fits alone and added. `df` is what `tasklab.analyses.ring.table` returns.
    """
    kernels = [kernel for kernel in _KERNELS if kernel in set(df["kernel"])]
    require_rows(where(df, kernel=kernels), f"there are no rows of {' or '.join(_KERNELS)}")
    shape = {"squeeze": False, "sharey": "row", "height_ratios": [1, 1, 0.5]}
    figure, drawn = plt.subplots(3, len(kernels), figsize=(WIDTH, 6.4), **shape)
    for (functions, fits, errors), kernel in zip(drawn.T, kernels, strict=True):
        rows = where(df, kernel=kernel)
        own = where(rows, metric="eigenfunction")
        sns.lineplot(own, x="x", y="value", hue="subset", palette=_LINES[: own["subset"].nunique()],
                     errorbar=None, legend=False, ax=functions)  # fmt: skip
        functions.set(title=f"kernel: {_KERNELS[kernel]}", xlabel="", ylabel="eigenfunction",
                      ylim=(-2.7, 2.7))  # fmt: skip
        _fits(fits, rows)
        fits.set(xlabel="angle (degrees)", ylabel="fitted function", ylim=(-2.4, 2.7))
        for axes in (functions, fits):
            axes.set_xlim(0, 360)
            axes.set_xticks(range(0, 361, 90))
            for start, name, colour in zip((0, 180), _TASKS.values(), _COLOURS, strict=True):
                axes.axvspan(start, start + 180, color=colour, alpha=0.08, lw=0)
                axes.text(start + 90, 0.97, name, transform=axes.get_xaxis_transform(),
                          ha="center", va="top")  # fmt: skip
        _errors(errors, rows)
    sns.despine(figure)
    key(figure, {}, drawn[1, 0].get_lines()[:1] + drawn[1, 0].get_lines()[2:])
    return figure


def _fits(axes: Axes, rows: pd.DataFrame) -> None:
    target = where(rows, metric="target")
    for i, half in target.groupby(target["x"] >= 180):
        label = "_" if i else "task's function"
        axes.plot(half["x"], half["value"], lw=6, color="#BBBBBB", label=label)
    for (task, name), colour in zip(_TASKS.items(), _COLOURS, strict=True):
        one = where(rows, metric="fit", subset=task)
        axes.plot(one["x"], one["value"], lw=1.6, color=colour, label=f"learnt on {name}")
    both = where(rows, metric="sum")
    axes.plot(both["x"], both["value"], "--", lw=1.6, color="#000000", label="sum of both")


def _errors(axes: Axes, rows: pd.DataFrame) -> None:
    labels = {"alone": "one fit alone", "added": "sum of both"}
    table = where(rows, metric=labels, subset=_TASKS)
    table = table.assign(subset=table["subset"].map(_TASKS), metric=table["metric"].map(labels))
    sns.barplot(
        table, x="value", y="subset", hue="metric", order=list(_TASKS.values()),
        hue_order=list(labels.values()), palette=["#A6A6A6", INK], saturation=1, ax=axes,
    )  # fmt: skip
    for bars in axes.containers:
        axes.bar_label(bars, fmt="{:.0f}", padding=2, fontsize=9)
    axes.set(xlim=(0, 130), xlabel="relative error on the task (%)", ylabel="")
    axes.get_legend().remove()
    if table["value"].max() < 50:  # where there is room
        axes.legend(loc="center right")
