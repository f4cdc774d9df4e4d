"""Figures of edited models: accuracy alone, after addition and after negation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasklab.errors import TasklabError
from tasklab.figures.style import (
    COLOURS,
    MARKERS,
    METHOD_LABEL,
    WIDTH,
    book_figure,
    legend,
    methods_in,
    select,
    tasks_in,
)
from tasklab.records.table import summarise, wilson


def _with_intervals(df: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of each task with the 95 % interval of one test set."""
    means = summarise(df, ["task"]).rename(columns={"mean": "value"})
    n = df.groupby("task")["n"].max().reindex(means["task"]).astype(float).to_numpy()
    low, high = wilson(means["value"] / 100 * n, n)
    return means.assign(low=means["value"] - low, high=high - means["value"])


def dots(axes: Axes, df: pd.DataFrame, tasks: Sequence[str], intervals: bool = True) -> None:
    """Draw one line of dots for each task, a method below the other, and their mean last.

    Args:
        axes: Where to draw.
        df: Records with the columns method, task, seed, value and n.
        tasks: In their order from the top.
        intervals: Whether dots have 95 % intervals of one test set.
    """
    methods = methods_in(df)
    step = 0.72 / max(len(methods), 1)
    lines = {task: i for i, task in enumerate([*tasks, "mean"])}
    for i, method in enumerate(methods_in(df, baseline=True)):
        rows = df[df["method"] == method]
        found = _with_intervals(rows) if intervals else summarise(rows, ["task"])
        found = found.rename(columns={"mean": "value"})
        mean = float(found["value"].mean())
        look = {"color": COLOURS[method], "label": METHOD_LABEL[method]}
        y = found["task"].map(lines).to_numpy(float)
        if method == "pretrained":
            x, at = [*found["value"], mean], [*y, lines["mean"]]
            axes.vlines(x, np.subtract(at, 0.42), np.add(at, 0.42), lw=2, **look)
            continue
        shift = (methods.index(method) - (len(methods) - 1) / 2) * step
        errors = found[["low", "high"]].to_numpy().T if intervals else None
        axes.errorbar(
            found["value"],
            y + shift,
            xerr=errors,
            fmt=MARKERS[method],
            ms=4.5,
            elinewidth=1.2,
            mec="#333333",
            mew=0.4,
            zorder=3 + i,
            **look,
        )
        axes.plot(
            mean,
            lines["mean"] + shift,
            MARKERS[method],
            ms=7,
            mec="#333333",
            mew=0.6,
            color=COLOURS[method],
            zorder=3 + i,
        )
    axes.axhline(len(tasks) - 0.5, color="#333333", lw=0.8)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


@book_figure
def single_task(df: pd.DataFrame) -> Figure:
    """Draw each method's accuracy alone, per task, over the pre-trained one (tangent, figure 7)."""
    rows = select(df, "single", "single")
    tasks = tasks_in(rows)
    figure, axes = plt.subplots(figsize=(WIDTH, _height(rows, tasks)))
    dots(axes, rows, tasks)
    axes.set_xlabel("test accuracy (%), bars: 95 % interval")
    legend(figure, axes)
    return figure


@book_figure
def per_task(df: pd.DataFrame, n_tasks: int = 8) -> Figure:
    """Draw each task's accuracy after adding all task vectors (tangent, figure 8)."""
    rows = select(df, "addition", "absolute", n_tasks)
    tasks = tasks_in(rows[rows["method"] != "pretrained"])
    if "pretrained" not in set(rows["method"]):
        rows = pd.concat([rows, zero_shot(df, tasks)])
    figure, axes = plt.subplots(figsize=(WIDTH, _height(rows, tasks)))
    dots(axes, rows, tasks)
    axes.set_xlabel(f"test accuracy (%) after adding {n_tasks} tasks, bars: 95 % interval")
    legend(figure, axes)
    return figure


def _height(rows: pd.DataFrame, tasks: Sequence[str]) -> float:
    return 1.1 + (len(tasks) + 1) * max(0.3, 0.13 * len(methods_in(rows)))


def zero_shot(df: pd.DataFrame, tasks: Sequence[str]) -> pd.DataFrame:
    """Return the records of the unedited model on some tasks."""
    alone = (df["experiment"] == "single") & (df["method"] == "pretrained")
    return df[alone & (df["split"] == "test") & df["task"].isin(tasks)]


@book_figure
def nonlinear_advantage(df: pd.DataFrame) -> Figure:
    """Draw accuracy alone against that of non-linear fine-tuning (tangent, figure 2).

    A dot is a task (mean over seeds), the large marker the mean over tasks; below the diagonal
    non-linear fine-tuning is better.
    """
    means = summarise(select(df, "single", "single"), ["method", "task"])
    table = means.pivot(index="task", columns="method", values="mean")
    if "nonlinear" not in table:
        raise TasklabError("nothing to draw: there are no records of 'nonlinear' to compare with.")
    others = [m for m in COLOURS if m in table and m not in ("nonlinear", "pretrained")]
    figure, axes = plt.subplots(figsize=(WIDTH, 4.8))
    shown = table[["nonlinear", *others]]
    low = math.floor(np.nanmin(shown) / 5) * 5 - 2
    high = min(100, math.ceil(np.nanmax(shown) / 5) * 5 + 2)
    axes.plot([low, high], [low, high], "--", color="#333333", lw=1, label="equal")
    for method in others:
        look = {"color": COLOURS[method], "mec": "#333333"}
        axes.plot(
            table["nonlinear"],
            table[method],
            MARKERS[method],
            ms=6,
            alpha=0.85,
            mew=0.4,
            label=METHOD_LABEL[method],
            **look,
        )
        both = table[["nonlinear", method]].dropna().mean()
        axes.plot(*both, MARKERS[method], ms=12, mew=1.2, zorder=5, **look)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("non-linear: accuracy alone (%)")
    axes.set_ylabel("other way: accuracy alone (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="large marker: mean")
    return figure


@book_figure
def addition_curves(df: pd.DataFrame, n_tasks: int = 8, split: str = "test") -> Figure:
    """Draw accuracy of the sum against its coefficient; the marker is the chosen one.

    Lines are means over tasks and seeds, bands the range over seeds. The coefficient is chosen on
    validation images, so on the test images the marker need not sit on the line's top.

    Args:
        df: Records of the experiments `sweep` and, for the markers, `addition`.
        n_tasks: Number of added tasks.
        split: Images of the curve: `test` or `validation`.
    """
    rows = select(df, "sweep", n_tasks=n_tasks, split=split)
    chosen = df[(df["experiment"] == "addition") & (df["method"] != "pretrained")]
    chosen = chosen[(chosen["n_tasks"] == n_tasks).fillna(False).astype(bool)]
    metrics = [m for m in ("absolute", "normalised") if m in set(rows["metric"])]
    figure, panels = plt.subplots(1, len(metrics), figsize=(WIDTH, 3.7), squeeze=False)
    for axes, metric in zip(panels[0], metrics, strict=True):
        for method in methods_in(rows):
            curves = rows[(rows["metric"] == metric) & (rows["method"] == method)]
            curves = curves.pivot_table(index="alpha", columns="seed", values="value")
            look = {"color": COLOURS[method]}
            axes.plot(curves.index, curves.mean(axis=1), lw=1.8, label=METHOD_LABEL[method], **look)
            axes.fill_between(
                curves.index, curves.min(axis=1), curves.max(axis=1), alpha=0.2, lw=0, **look
            )
            best = chosen[chosen["method"] == method]["alpha"].dropna()
            if len(best):
                alpha = float(best.median())
                height = np.interp(alpha, curves.index, curves.mean(axis=1))
                axes.plot(alpha, height, MARKERS[method], ms=8, mec="#333333", **look)
        if metric == "absolute" and len(base := zero_shot(df, tasks_in(rows))):
            level = float(base["value"].mean())
            axes.axhline(level, ls="--", lw=1.2, color=COLOURS["pretrained"], label="pre-trained")
        axes.set_xlabel("coefficient α (marker: chosen on validation)")
        axes.set_ylabel(f"{metric} {split} accuracy (%)")
    legend(figure, panels[0, 0])
    return figure


@book_figure
def addition_bars(df: pd.DataFrame) -> Figure:
    """Draw absolute and normalised accuracy after adding 2, 4 and 8 tasks; dots are seeds."""
    rows = select(df, "addition")
    rows = rows[rows["method"] != "pretrained"]
    counts = sorted(int(n) for n in rows["n_tasks"].dropna().unique())
    methods = methods_in(rows)
    width = 0.84 / len(methods)
    figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 5.6), sharex=True)
    for axes, metric in zip(panels, ("absolute", "normalised"), strict=True):
        table = rows[rows["metric"] == metric]
        for place, n_tasks in enumerate(counts):
            group = table[table["n_tasks"] == n_tasks]
            for i, method in enumerate(methods):
                x = place + (i - (len(methods) - 1) / 2) * width
                label = METHOD_LABEL[method] if place == 0 else None
                seeds = summarise(group[group["method"] == method], ["seed"])["mean"]
                _bar(axes, x, width, seeds, method, label, upright=len(methods) > 5)
            if metric == "absolute":
                tasks = tasks_in(group)
                base = zero_shot(df, tasks).groupby("task")["value"].mean()
                level = float(group["task"].map(base).mean())
                axes.hlines(
                    level,
                    place - 0.45,
                    place + 0.45,
                    ls="--",
                    lw=1.6,
                    zorder=4,
                    color=COLOURS["pretrained"],
                    label=METHOD_LABEL["pretrained"] if place == 0 else None,
                )
        axes.set_ylabel(f"{metric} test accuracy (%)")
        axes.grid(axis="x", visible=False)
        axes.set_ylim(0, 118)
        axes.set_yticks(range(0, 101, 20))
        axes.set_xticks(range(len(counts)), [f"{n} tasks" for n in counts])
    legend(figure, panels[0])
    return figure


def _bar(
    axes: Axes,
    x: float,
    width: float,
    seeds: pd.Series,
    method: str,
    label: str | None,
    upright: bool,
) -> None:
    if seeds.empty:
        return
    axes.bar(x, seeds.mean(), width * 0.92, color=COLOURS[method], label=label)
    if len(seeds) > 1:
        spread = np.linspace(-0.2, 0.2, len(seeds)) * width
        axes.plot(x + spread, seeds, "o", ms=3, color="white", mec="#333333", mew=0.7, zorder=5)
    axes.text(
        x,
        max(seeds.mean(), seeds.max()) + 2.5,
        f"{seeds.mean():.1f}",
        ha="center",
        va="bottom",
        fontsize=9,
        rotation=90 if upright else 0,
    )
