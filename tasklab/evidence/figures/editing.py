"""Figures of edited models: accuracy alone, after addition and after negation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.analyses import shares
from tasklab.errors import TasklabError
from tasklab.evidence.figures.marks import (
    GIVEN,
    ZERO,
    Panels,
    curves,
    diagonal,
    level,
    points,
    scatter,
)
from tasklab.evidence.figures.rows import (
    averaged,
    ends,
    methods_in,
    most_tasks,
    require_rows,
    select,
    where,
)
from tasklab.evidence.figures.style import (
    COLOURS,
    INIT_LABEL,
    INK,
    METHOD_LABEL,
    book_figure,
    method_looks,
)

MEAN = "mean"  # the last line of a figure of tasks
BASE: dict[str, Any] = {"color": COLOURS["pretrained"], "label": METHOD_LABEL["pretrained"]}
UPRIGHT = BASE | {"along": "y"}
_TOLD = {"target": "target accuracy (%): lower is better", "control": "control accuracy (%)"}
_KEPT: dict[str, Any] = {"ls": ":", "lw": 2, "label": "95 % of pre-trained"}


def _by_task(rows: pd.DataFrame, tasks: Collection[str], x: Mapping[str, str] | str) -> Panels:
    """Plot each task and their mean; a stroke is the unedited model.

    Bars are 95 % intervals for the sampling of test images, below of those of all tasks together.
    """
    by, order = ["metric", "method"], {name: name for name in (*tasks, MEAN)}
    groups = rows.astype({"n": float}).groupby([*by, "task"], sort=False, as_index=False)
    single = groups.agg(value=("value", "mean"), n=("n", "max"))
    every = single.groupby(by, sort=False).agg(
        value=("value", "mean"), n=("n", "sum"), same=("n", "max")
    )
    control = every.index.get_level_values("metric") == "control"  # of all targets the same images
    every["n"] = every["n"].mask(control, every.pop("same"))
    every = every.reset_index()
    table = pd.concat([single, every.assign(task=MEAN)], ignore_index=True)
    low, high = shares.interval(table[["value"]].to_numpy() / 100, table[["n"]].to_numpy())
    table["low"], table["high"] = 100 * low, 100 * high
    tuned, base = table[table["method"] != "pretrained"], where(table, method="pretrained")
    plot = points(
        ends(tuned, *by, "task"), "task", order=order, facets={"col": "metric"},
        height=1.2 + len(order) * max(0.3, 0.14 * tuned["method"].nunique()), **GIVEN,
    )  # fmt: skip
    for axes, _, metric in plot:
        shown = where(base, metric=metric)
        y = shown["task"].map(list(order).index).to_numpy(float)
        axes.vlines(shown["value"], y - 0.42, y + 0.42, lw=2, zorder=1, color=BASE["color"])
        level(axes, len(tasks) - 0.5, **ZERO)
    looks = method_looks(methods_in(table, baseline=True))
    if "pretrained" in looks and set(rows.get("init", ())) == {"random"}:
        looks["pretrained"] = (INIT_LABEL["random"], *looks["pretrained"][1:])
    plot.finish(looks=looks, x=x)
    return plot


@book_figure
def single_task(df: pd.DataFrame) -> Figure:
    """Plot each method's accuracy alone, per task (tangent, figure 7)."""
    rows = select(df, "single", "single")
    return _by_task(rows, rows["task"].unique(), "test accuracy (%), bars: 95 % interval").figure


@book_figure
def per_task(df: pd.DataFrame, n_tasks: int | None = None) -> Figure:
    """Plot each task's accuracy after adding all task vectors (tangent, figure 8)."""
    rows = most_tasks(select(df, "addition", "absolute", n_tasks=n_tasks))
    tasks = rows[rows["method"] != "pretrained"]["task"].unique()
    if "pretrained" not in set(rows["method"]):
        rows = pd.concat([rows, _zero_shot(df, tasks).assign(metric="absolute")])
    label = f"test accuracy (%) of the sum of {rows['n_tasks'].max()} tasks, bars: 95 % interval"
    return _by_task(rows, tasks, label).figure


def _zero_shot(df: pd.DataFrame, tasks: Iterable[str]) -> pd.DataFrame:
    return where(df, experiment="single", method="pretrained", split="test", task=tasks)


@book_figure
def nonlinear_advantage(df: pd.DataFrame) -> Figure:
    """Plot accuracy alone against non-linear fine-tuning's (tangent, figure 2).

    A dot is a task, a large marker the mean; below the diagonal non-linear fine-tuning is better.
    """
    rows = select(df, "single", "single")
    table = rows.pivot_table(index="task", columns="method", values="value")
    if "nonlinear" not in table:
        raise TasklabError("nothing to draw: there are no records of 'nonlinear' to compare with.")
    others = [m for m in COLOURS if m in table and m not in ("nonlinear", "pretrained")]
    rows = table[["nonlinear", *others]].melt("nonlinear", var_name="method").dropna()
    words = {"x": "non-linear: test accuracy (%)", "y": "other methods: test accuracy (%)"}
    return _against(rows, "nonlinear", "value", words)


@book_figure
def alone_against_sum(df: pd.DataFrame) -> Figure:
    """Plot each task's accuracy in the sum of all vectors against its own model's.

    A dot is a task, a large marker the mean; on the diagonal the sum loses nothing. Records:
    `single` and `addition`.
    """
    sums = most_tasks(select(df, "addition", "absolute"))
    parts = {"alone": select(df, "single", "single"), "sum": sums}
    by = ["method", "task"]
    means = {name: part.groupby(by, sort=False)["value"].mean() for name, part in parts.items()}
    rows = pd.concat(means, axis=1).dropna().drop("pretrained", errors="ignore").reset_index()
    words = {
        "x": "single-task accuracy (%)",
        "y": f"accuracy in the sum of {sums['n_tasks'].max()} (%)",
    }
    return _against(rows, "alone", "sum", words)


def _against(rows: pd.DataFrame, x: str, y: str, words: Mapping[str, Any]) -> Figure:
    plot = scatter(require_rows(rows), x, y, height=3.9)
    plot.mark(rows.groupby("method", as_index=False)[[x, y]].mean(), x, y, ms=12)
    shown = rows[[x, y]]
    low, high = math.floor(shown.min().min()) - 2, min(101, math.ceil(shown.max().max()) + 2)
    plot.grid.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    equal = diagonal(plot.first, lw=1, label="equal")
    large = Line2D([], [], ls="", marker="o", ms=10, mfc="none", mec=INK, label="mean of tasks")
    return plot.finish([*equal, large], **words)


@book_figure
def addition_curves(df: pd.DataFrame, split: str | None = None) -> Figure:
    """Plot the accuracy of the sum of all along its coefficient; the marker is the chosen one.

    Args:
        df: Records of `sweep` and, for the markers, `addition`.
        split: Images of the curve: `test` or `validation`, on which the coefficient is chosen.
    """
    if split is None:
        tested = where(df, experiment="sweep", split="test")
        split = "validation" if tested.empty else "test"
    rows = most_tasks(select(df, "sweep", split=split))
    chosen = where(df, experiment="addition", n_tasks=rows["n_tasks"].max())
    best = chosen[chosen["method"] != "pretrained"].groupby("method")["alpha"].median()
    means = averaged(rows, "metric", "method", "seed", "alpha")
    plot = curves(
        means, "alpha", col="metric", col_order=["absolute", "normalised"], share=(True, False),
        dots=False, lw=1.8,
    )  # fmt: skip
    for (_, method), seeds in means.groupby(["metric", "method"]):
        at, curve = best.get(method, math.nan), seeds.groupby("alpha")["value"].mean()
        value = np.interp(at, curve.index, curve)
        plot.mark(seeds[:1].assign(alpha=at, value=value).dropna(), "alpha", ms=8)
    base, extra = _zero_shot(df, rows["task"]), []
    if len(base) and "absolute" in set(rows["metric"]):
        extra = [level(plot.first, float(base["value"].mean()), **BASE)]
    y = f"{{}} {split} accuracy (%)".format
    return plot.finish(extra, x="coefficient α\n(marker: chosen on validation)", y=y)


@book_figure
def addition_bars(df: pd.DataFrame) -> Figure:
    """Plot absolute and normalised accuracy of sums of 2, 4 and 8 tasks.

    Dashed is the pre-trained model on the same tasks.
    """
    rows = select(df, "addition")
    tuned = where(rows[rows["method"] != "pretrained"], metric=["absolute", "normalised"])
    means = averaged(require_rows(tuned), "n_tasks", "metric", "method", "seed")
    plot, extra = _by_method(means.sort_values(["n_tasks", "metric"]), row="n_tasks", col="metric")
    for axes, n_tasks, metric in plot:
        if metric == "absolute":
            axes.set_ylabel(f"sum of {n_tasks} tasks")
            tasks = where(tuned, n_tasks=n_tasks, metric=metric)["task"]
            base = tasks.map(_zero_shot(df, tasks).groupby("task")["value"].mean()).mean()
            if not math.isnan(base):
                extra[BASE["label"]] = level(axes, base, **UPRIGHT)
    for axes, metric in zip(plot.grid.axes[-1], plot.grid.col_names, strict=True):
        axes.set_xlabel(f"{metric} test accuracy (%)")
    return plot.finish(extra.values(), looks={})


def _by_method(means: pd.DataFrame, **facets: str) -> tuple[Panels, dict[str, Line2D]]:
    """Plot each method's mean with its number; return also the legend's entry on seeds."""
    counts = means.groupby("method")["seed"].nunique()
    fewest, seeds = counts[counts > 1].min(), counts.max()  # the pre-trained model has one
    order = {method: METHOD_LABEL[method] for method in methods_in(means)}
    lines = means[facets["row"]].nunique() if "row" in facets else 1
    plot = points(
        means, "method", order=order, height=0.9 + lines * (0.55 + 0.27 * len(order)),
        dots=seeds > 1, facets=facets,
    )  # fmt: skip
    for (i, j, _), part in plot.grid.facet_data():
        axes = plot.grid.facet_axis(i, j)
        at = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        for line, value in enumerate(part.groupby("method")["value"].mean().reindex(order)):
            told = "" if math.isnan(value) else f"{value:.1f}"
            axes.annotate(told, (1.0, line), (3, 0), fontsize=9, va="center", **at)
    if seeds < 2:
        return plot, {}
    several = f"{seeds}" if fewest == seeds else f"{fewest} to {seeds}"
    label = f"± standard deviation of {several} seeds (dots)"
    return plot, {"seeds": Line2D([], [], color=INK, lw=1.5, label=label)}


@book_figure
def negation(df: pd.DataFrame) -> Figure:
    """Plot target and control accuracy after negation (tangent, table 2)."""
    tuned, before = _negated(df)
    plot, extra = _by_method(averaged(tuned, "metric", "method", "seed"), col="metric")
    for axes, _, side in plot:
        base = float(where(before, metric=side)["value"].mean())
        extra["base"] = level(axes, base, **UPRIGHT)
        if side == "control":
            extra["kept"] = level(axes, 0.95 * base, along="y", **_KEPT)
    return plot.finish(extra.values(), looks={}, x=_TOLD)


def _negated(df: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = select(df, "negation")
    rows = pd.concat([where(rows, metric=side) for side in _TOLD])
    tuned, before = rows[rows["method"] != "pretrained"], where(rows, method="pretrained")
    if "target" not in set(before["metric"]):
        alone = _zero_shot(df, tuned["task"]).assign(metric="target")
        before = pd.concat([alone, before])
    return tuned, before
