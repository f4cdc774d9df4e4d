"""Figures of weight disentanglement and of chosen coefficients."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.errors import TasklabError
from tasklab.figures import schemes
from tasklab.figures.heat import SCALES, error_maps
from tasklab.figures.marks import curves, level, means_in
from tasklab.figures.rows import methods_in, require_rows, tasks_in, where
from tasklab.figures.style import COLOURS, INK, METHOD_LABEL, WIDTH, book_figure, key, method_looks

_NAMES = {"pretrained": "pre-trained", "random": "random weights"}
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
    top: float | None = None,
) -> Figure:
    """Draw disentanglement errors: a row for each method, a column for each pair of tasks.

    With one column, the methods stand side by side. All panels share one colour scale from 0. Each
    title has the mean over the cells whose centres lie in the search box. Several seeds are
    averaged.

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
    rows = where(df, metric=metric)
    if rows.empty:
        raise TasklabError(f"nothing to draw: there are no records of {metric!r}.")
    if across != "task" and rows["task"].nunique() > 1:
        raise TasklabError(f"columns by {across} need records of one pair of tasks, not several.")
    methods, others = methods_in(rows), list(dict.fromkeys(rows[across]))
    names = {}
    for method, other in itertools.product(methods, others):
        second = "" if across == "task" else f"\n{_NAMES.get(other, other)}"
        names[method, other] = METHOD_LABEL[method] + second
    keys = pd.Series(list(zip(rows["method"], rows[across], strict=True)), index=rows.index)
    columns = len(methods) if len(others) == 1 else len(others)
    return error_maps(rows.assign(panel=keys), names, metric, columns=columns, box=box, top=top)


@book_figure
def scheme_maps(
    df: pd.DataFrame,
    *,
    method: str = "nonlinear",
    metric: str = "xi_classifier",
    box: tuple[float, float] = (-1.0, 1.0),
    columns: int = 3,
) -> Figure:
    """Draw the disentanglement errors of one pair of tasks, a panel a scheme (figures 1, 3, 4, 5).

    Args:
        df: Records of `experiments.disentanglement` of several models.
        method: Of the vectors; `full` is figure 5.
        metric: `xi_classifier` or `xi_representation`.
        box: The search box (figure 1), whose mean the titles tell.
        columns: Panels side by side at most.
    """
    rows = where(df, metric=metric, method=method)
    require_rows(rows)
    rows = rows[rows["task"] == rows["task"].iloc[0]]
    rows, names = rows.assign(panel=rows["model"]), schemes.broken(schemes.looks(rows))
    return error_maps(rows, names, metric, columns=columns, box=box)


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
    if where(df, split=split, metric="normalised_exact").empty:
        raise TasklabError(f"nothing to draw: there are no records of 'normalised_exact {split}'.")
    if "seed" in df and df["seed"].nunique() > 1:
        raise TasklabError("exact curves of several seeds have no common steps: choose one seed.")
    groups = where(df, split=split).groupby(["metric", "method"], sort=False)
    means = pd.concat({name: _mean_over_tasks(part) for name, part in groups},
                      names=["metric", "method"])  # fmt: skip
    means = means.rename("value").reset_index()
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
    plot.mark(where(table, metric="normalised_grid"), "alpha", marker="o", ms=4, mfc="white",
              color=INK, label="grid")  # fmt: skip
    look = {"color": COLOURS["nonlinear"], "mew": 0.7}
    for name, (marker, size, words) in _CHOSEN.items():
        first = where(table, metric=name).drop_duplicates(["method", "panel"])
        plot.mark(first, "alpha", marker=marker, ms=size, label=f"chosen {words}", **look)
    for (whole, near), method in zip(plot.grid.axes, methods, strict=True):
        _enlarge(whole, near, where(means, method=method))
        whole.set_ylabel(f"normalised {split}\naccuracy (%)")
        whole.set_title(METHOD_LABEL[method], loc="left")
        near.set_title("grey part, enlarged", loc="left")
    plot.grid.set_xlabels("shared coefficient α")
    key(plot.figure, {}, plot.first.get_legend_handles_labels()[0])
    return plot.figure


def _enlarge(whole: Axes, near: Axes, means: pd.DataFrame) -> None:
    """Show the neighbourhood of the chosen coefficients in a panel, grey in the one beside it."""
    chosen = means[means["metric"].isin(_CHOSEN)]["alpha"]
    exact = where(means, metric="normalised_exact").set_index("alpha")["value"]
    low = max(chosen.min() - 0.08, exact.index[0])
    high = min(chosen.max() + 0.08, means["alpha"].max())
    # From the value that holds where the window begins.
    shown = exact.loc[exact.index[exact.index <= low][-1] : high]
    spread = max(float(shown.max() - shown.min()), 0.5)
    near.set(xlim=(low, high), ylim=(shown.min() - 0.1 * spread, shown.max() + 0.15 * spread))
    whole.axvspan(low, high, color="#E5E5E5", zorder=0, lw=0)


def _mean_over_tasks(rows: pd.DataFrame) -> pd.Series:
    """Average step functions: each task's value holds until its next coefficient."""
    table = rows.pivot(index="alpha", columns="task", values="value").sort_index()
    return table.ffill().mean(axis=1)


@book_figure
def per_task_coefficients(df: pd.DataFrame) -> Figure:
    """Draw one coefficient for each task against a shared one, and what that gains.

    Left: the tasks' own coefficients, and the shared one as a vertical line. Right: the change of
    mean normalised accuracy by own coefficients, on validation images, where they were chosen
    (hollow), and on test images (filled). Bars are standard deviations over seeds.

    Args:
        df: Columns method, task, split, metric, alpha, value, seed, with the metrics
            `normalised_shared` and `normalised_own`.
    """
    rows = df[df["metric"].isin(["normalised_shared", "normalised_own"])]
    if rows.empty:
        raise TasklabError("nothing to draw: there are no records of 'normalised_own'.")
    methods, tasks = methods_in(rows), tasks_in(rows)
    looks = method_looks(methods)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(WIDTH, 1.6 + len(tasks) * max(0.28, 0.13 * len(methods))),
        width_ratios=[3, 2],
    )  # fmt: skip
    test = where(rows, split="test")
    own = where(test, metric="normalised_own")
    order = {task: task for task in tasks}
    means_in(left, own, "task", "alpha", hue="method", looks=looks, order=order)
    for method, (_, colour, _) in looks.items():
        shared = where(test, method=method, metric="normalised_shared")
        level(left, shared["alpha"].mean(), along="y", color=colour, lw=1.4)
    table = rows.pivot_table(
        index=["method", "seed", "split"], columns="metric", values="value", sort=False
    )
    gains = (table["normalised_own"] - table["normalised_shared"]).rename("gain").reset_index()
    splits = {"validation": ("validation", "#FFFFFF", "o"), "test": ("test", INK, "s")}
    order = {method: METHOD_LABEL[method].replace(" ", "\n") for method in methods}
    means_in(right, gains, "method", "gain", hue="split", looks=splits, order=order)
    left.set(xlabel="coefficient (dashed: shared)", xlim=(-0.03, 1.03), ylabel="")
    right.set(xlabel="gain in normalised\naccuracy (points)", ylabel="")
    right.margins(x=0.15)
    level(right, 0, along="y", ls="-", lw=0.8)
    sns.despine(figure)
    dots = [Line2D([], [], ls="", marker=marker, mfc=colour, mec=INK, label=f"gain: {label}")
            for label, colour, marker in splits.values()]  # fmt: skip
    key(figure, looks, dots, line="")
    return figure
