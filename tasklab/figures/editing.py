"""Figures of edited models: accuracy alone and after addition; what those of negation share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.errors import TasklabError
from tasklab.figures.marks import GIVEN, curves, ends, finish, level, panels, points, scatter
from tasklab.figures.style import (
    COLOURS,
    INK,
    METHOD_LABEL,
    Looks,
    book_figure,
    key,
    method_looks,
    methods_in,
    require_rows,
    select,
    tasks_in,
)
from tasklab.records.table import summarise, wilson

MEAN = "mean"  # the last line of a figure of tasks
BASE = {"color": COLOURS["pretrained"], "label": METHOD_LABEL["pretrained"]}
UPRIGHT = BASE | {"along": "y"}


def with_intervals(df: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return means over seeds with the 95 % interval of the test images, by task and over tasks.

    Args:
        df: Records with the columns task, seed, value and n.
        by: Further columns of a group.

    Returns:
        Columns `by`, task (with `MEAN` for all tasks together), value, low and high.
    """
    groups = [*by, "task"]
    images = df.groupby(groups, sort=False)["n"].max().astype(float).rename("n")
    tasks = summarise(df, groups).rename(columns={"mean": "value"}).merge(images, on=groups)
    every = tasks.groupby(list(by), sort=False).agg(value=("value", "mean"), n=("n", "sum"))
    table = pd.concat([tasks, every.reset_index().assign(task=MEAN)], ignore_index=True)
    table["low"], table["high"] = wilson(table["value"] / 100 * table["n"], table["n"])
    return table


def by_task(rows: pd.DataFrame, tasks: Sequence[str], col: str | None = None) -> sns.FacetGrid:
    """Draw a line of the page for each task and their mean, methods below one another.

    Args:
        rows: Records with the columns method, task, seed, value and n; those of the pre-trained
            model become strokes.
        tasks: In their order from the top.
        col: Column of the panels side by side.
    """
    by = ["method", *([col] if col else [])]
    table, order = with_intervals(rows, by), [*tasks, MEAN]
    tuned = table[table["method"] != "pretrained"]
    methods = methods_in(tuned)
    grid = points(
        ends(tuned, [*by, "task"]), "task", hue="method", looks=method_looks(methods), order=order,
        height=1.2 + len(order) * max(0.3, 0.14 * len(methods)), facets={"col": col} if col else {},
        **GIVEN,
    )  # fmt: skip
    base = table[table["method"] == "pretrained"]
    for axes, _, column in panels(grid):
        shown = base if column is None else base[base[col] == column]
        y = shown["task"].map(order.index).to_numpy(float)
        axes.vlines(shown["value"], y - 0.42, y + 0.42, lw=2, zorder=1, color=BASE["color"])
        level(axes, len(tasks) - 0.5, ls="-", lw=0.8)
    key(grid.figure, method_looks(methods_in(table, baseline=True)), line="")
    return grid


@book_figure
def single_task(df: pd.DataFrame) -> Figure:
    """Draw each method's accuracy alone, per task, over the pre-trained one (tangent, figure 7)."""
    rows = select(df, "single", "single")
    grid = by_task(rows, tasks_in(rows))
    return grid.set_xlabels("test accuracy (%), bars: 95 % interval").figure


@book_figure
def per_task(df: pd.DataFrame, n_tasks: int | None = None) -> Figure:
    """Draw each task's accuracy after adding all task vectors (tangent, figure 8)."""
    n_tasks = _most(df, "addition") if n_tasks is None else n_tasks
    rows = select(df, "addition", "absolute", n_tasks)
    tasks = tasks_in(rows[rows["method"] != "pretrained"])
    if "pretrained" not in set(rows["method"]):
        rows = pd.concat([rows, zero_shot(df, tasks)])
    grid = by_task(rows, tasks)
    label = f"test accuracy (%) of the sum of {n_tasks} tasks, bars: 95 % interval"
    return grid.set_xlabels(label).figure


def zero_shot(df: pd.DataFrame, tasks: Iterable[str]) -> pd.DataFrame:
    """Return the records of the unedited model on some tasks."""
    alone = (df["experiment"] == "single") & (df["method"] == "pretrained")
    return df[alone & (df["split"] == "test") & df["task"].isin(list(tasks))]


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
    rows = table[["nonlinear", *others]].melt("nonlinear", var_name="method").dropna()
    require_rows(rows)
    looks = method_looks(others)
    x, y = "non-linear: accuracy alone (%)", "other way: accuracy alone (%)"
    return _against(rows, "nonlinear", "value", looks, (x, y))


@book_figure
def alone_against_sum(df: pd.DataFrame) -> Figure:
    """Draw each task's accuracy in the sum of all vectors against that of its own model alone.

    A dot is a task by a method (mean over seeds), the large marker the mean over tasks; on the
    diagonal the sum loses nothing.

    Args:
        df: Records of the experiments `single` and `addition`.
    """
    sums = select(df, "addition", "absolute")
    sums = sums[sums["n_tasks"] == sums["n_tasks"].max()]
    parts = {"alone": select(df, "single", "single"), "sum": sums}
    means = [
        summarise(rows, ["method", "task"]).set_index(["method", "task"])["mean"].rename(name)
        for name, rows in parts.items()
    ]
    rows = pd.concat(means, axis=1).dropna().reset_index()
    rows = rows[rows["method"] != "pretrained"]
    require_rows(rows)
    x, y = "accuracy alone (%)", f"in the sum of {sums['n_tasks'].max()} (%)"
    return _against(rows, "alone", "sum", method_looks(methods_in(rows)), (x, y))


def _against(rows: pd.DataFrame, x: str, y: str, looks: Looks, words: tuple[str, str]) -> Figure:
    """Draw dots of one accuracy against another, their means by method, and the diagonal.

    Args:
        rows: A row a task and method, with both accuracies.
        x: Column on the horizontal axis.
        y: Column on the vertical one.
        looks: Of the methods.
        words: What the axes show.
    """
    grid = scatter(rows, x, y, hue="method", looks=looks, height=4.6)
    axes = grid.ax
    for row in rows.groupby("method", as_index=False)[[x, y]].mean().to_dict("records"):
        _, colour, marker = looks[row["method"]]
        axes.plot(row[x], row[y], marker, ms=12, color=colour, mec=INK, zorder=5)
    shown = rows[[x, y]]
    low, high = math.floor(shown.min().min()) - 2, min(101, math.ceil(shown.max().max()) + 2)
    equal = axes.plot([low, high], [low, high], "--", color=INK, lw=1, label="equal", zorder=1)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    large = Line2D([], [], ls="", marker="o", ms=10, mfc="none", mec=INK, label="mean of tasks")
    return finish(grid, looks, [*equal, large], x=words[0], y=words[1], line="")


def _most(df: pd.DataFrame, experiment: str) -> int | None:
    """Return the largest number of added tasks in an experiment's records."""
    sizes = df[df["experiment"] == experiment].get("n_tasks", pd.Series(dtype=float)).dropna()
    return int(sizes.max()) if len(sizes) else None


@book_figure
def addition_curves(df: pd.DataFrame, n_tasks: int | None = None, split: str = "test") -> Figure:
    """Draw accuracy of the sum against its coefficient; the marker is the chosen one.

    Lines are means over tasks and seeds, bands the standard deviation over seeds. The coefficient
    is chosen on validation images, so on the test images the marker need not sit on the line's top.

    Args:
        df: Records of the experiments `sweep` and, for the markers, `addition`.
        n_tasks: Number of added tasks; by default the most that there are.
        split: Images of the curve: `test` or `validation`.
    """
    n_tasks = _most(df, "sweep") if n_tasks is None else n_tasks
    rows = select(df, "sweep", n_tasks=n_tasks, split=split)
    chosen = df[(df["experiment"] == "addition") & (df["method"] != "pretrained")]
    chosen = chosen[(chosen["n_tasks"] == n_tasks).fillna(False).astype(bool)]
    means = rows.groupby(["metric", "method", "seed", "alpha"], as_index=False)["value"].mean()
    metrics = [m for m in ("absolute", "normalised") if m in set(rows["metric"])]
    looks = method_looks(methods_in(rows))
    grid = curves(
        means[means["metric"].isin(metrics)], "alpha", hue="method", looks=looks, height=3.6,
        col="metric", col_order=metrics, share=(True, False), dots=False, lw=1.8,
    )  # fmt: skip
    extra = []
    for axes, _, metric in panels(grid):
        for method, (_, colour, marker) in looks.items():
            best = chosen[chosen["method"] == method]["alpha"].dropna()
            mine = means[(means["method"] == method) & (means["metric"] == metric)]
            if len(best):
                curve = mine.groupby("alpha")["value"].mean()
                at = float(best.median())
                value = np.interp(at, curve.index, curve)
                axes.plot(at, value, marker, ms=8, color=colour, mec=INK, zorder=5)
        if metric == "absolute" and len(base := zero_shot(df, tasks_in(rows))):
            extra.append(level(axes, float(base["value"].mean()), **BASE))
    y = {metric: f"{metric} {split} accuracy (%)" for metric in metrics}
    return finish(grid, looks, extra, x="coefficient α\n(marker: chosen on validation)", y=y)


@book_figure
def addition_bars(df: pd.DataFrame) -> Figure:
    """Draw absolute and normalised accuracy of sums of 2, 4 and 8 tasks, on axes of their own.

    Points are means over tasks and seeds, bars the standard deviation over seeds, small dots the
    seeds; dashed is the pre-trained model on the same tasks.
    """
    rows = select(df, "addition")
    rows = rows[rows["metric"].isin(["absolute", "normalised"])]
    tuned = rows[rows["method"] != "pretrained"]
    require_rows(tuned)
    means = tuned.groupby(["n_tasks", "metric", "method", "seed"], as_index=False)["value"].mean()
    grid, extra = by_method(means.sort_values(["n_tasks", "metric"]), row="n_tasks", col="metric")
    for axes, n_tasks, metric in panels(grid):
        group = tuned[(tuned["n_tasks"] == n_tasks) & (tuned["metric"] == metric)]
        base = zero_shot(df, tasks_in(group)).groupby("task")["value"].mean()
        if metric == "absolute" and len(base):
            extra[BASE["label"]] = level(axes, float(group["task"].map(base).mean()), **UPRIGHT)
        if metric == "absolute":
            axes.set_ylabel(f"sum of {n_tasks} tasks")
    for axes, metric in zip(grid.axes[-1], grid.col_names, strict=True):
        axes.set_xlabel(f"{metric} test accuracy (%)")
    key(grid.figure, {}, extra.values())
    return grid.figure


def by_method(means: pd.DataFrame, **facets: str) -> tuple[sns.FacetGrid, dict[str, Line2D]]:
    """Draw a line of the page for each method: mean, spread over seeds, seeds, and the number.

    Args:
        means: Columns method, seed, value, and those of the facets, one row a seed.
        facets: Columns of the `row` and `col` of panels.

    Returns:
        The grid, and what its legend has to say of seeds.
    """
    counts = means.groupby("method")["seed"].nunique()
    fewest, seeds = counts[counts > 1].min(), counts.max()  # the pre-trained model has one
    methods = methods_in(means)
    lines = means[facets["row"]].nunique() if "row" in facets else 1
    grid = points(
        means, "method", hue="method", looks=method_looks(methods), order=methods,
        height=0.9 + lines * (0.55 + 0.27 * len(methods)), dots=seeds > 1,
        facets=facets,
    )  # fmt: skip
    for axes, row, column in panels(grid):
        mine = means[means[facets["col"]] == column]
        mine = mine[mine[facets["row"]] == row] if row is not None else mine
        axes.set_yticks(range(len(methods)), [METHOD_LABEL[m] for m in methods])
        write(axes, [mine[mine["method"] == m]["value"] for m in methods])
    if seeds < 2:
        return grid, {}
    several = f"{seeds}" if fewest == seeds else f"{fewest} to {seeds}"
    spread = Line2D(
        [], [], color=INK, lw=1.5, label=f"± standard deviation of {several} seeds (dots)"
    )
    return grid, {"seeds": spread}


def write(axes: Axes, values: Iterable[pd.Series], digits: int = 1) -> None:
    """Write the mean of each line of the page at the panel's right edge.

    Args:
        axes: The panel; its lines are at 0, 1, ... of the vertical axis.
        values: Of each line, the values of its seeds.
        digits: After the point.
    """
    for place, seeds in enumerate(values):
        if len(seeds):
            axes.annotate(
                f"{seeds.mean():.{digits}f}", (1.0, place), (3, 0), fontsize=9, va="center",
                xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            )  # fmt: skip
