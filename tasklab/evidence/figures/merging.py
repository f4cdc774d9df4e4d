"""Figures of merges: accuracy, distance from the best one, and vectors they suit.

Each row is a merge, ordered by its value or by its sort: weighted
sums, masks, singular directions, quadratic distances, and the best merges there could be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.analyses.merging.registry import METHODS
from tasklab.evidence.figures import maps, marks
from tasklab.evidence.figures.labels import BOUND_LABEL, MERGE_LABEL
from tasklab.evidence.figures.rows import (
    averaged,
    ends,
    methods_in,
    most_tasks,
    require_rows,
    select,
    where,
)
from tasklab.evidence.figures.style import COLOURS, METHOD_LABEL, WIDTH, Looks, book_figure
from tasklab.evidence.figures.tables import tabulate
from tasklab.evidence.records.intervals import in_words
from tasklab.evidence.records.judgement import gains

# Of merges: the module of their rules -> what they are, colour, marker; in the order of the lines.
SORTS = {
    "sums": ("weighted sums", "#8C8C8C", "o"),
    "masks": ("masks", "#E69F00", "s"),
    "singular": ("singular directions", "#009E73", "D"),
    "quadratic": ("quadratic distances", "#0072B2", "^"),
    "best": ("best in the tangent model", "#D55E00", "P"),
}
OTHER = ("others", "#CC79A7", "X")  # rules of another module
_SORT = {
    name: SORTS.get(METHODS[name].place.partition(".")[0] if name in METHODS else "best", OTHER)
    for name in MERGE_LABEL
}
BASE = "arithmetic"  # what gains are counted from
_BOUND = "bound"
_BOUNDS = BOUND_LABEL | {"pretrained": "pre-trained model"}
_READS = {
    _BOUND: ("no merge", "#595959", "D"),
    "vectors": ("reads vectors only", "#0072B2", "o"),
    "images": ("reads inputs, too", "#D55E00", "s"),
}
_SAMPLES = {
    "here": ("this model", "#0072B2", "o"), "others": ("other pre-trainings", "#E69F00", "s"),
}  # fmt: skip
_LINES = {  # merges that are measured everywhere: colour, marker
    BASE: ("#8C8C8C", "o"), "ties": ("#E69F00", "s"), "tsv_m": ("#009E73", "D"),
    "regmean": ("#0072B2", "^"), "wudi_exact": ("#CC79A7", "v"), "best_span": ("#D55E00", "P"),
}  # fmt: skip
_NUMBERS = (("#B3B3B3", "o"), ("#8C8C8C", "s"), ("#595959", "D"), ("#000000", "P"))


def merges_in(df: pd.DataFrame) -> list[str]:
    """Return the merges in records, in the book's order."""
    present = set(df["merge"].dropna()) if "merge" in df else set()
    return [name for name in MERGE_LABEL if name in present]


def merged_accuracy(df: pd.DataFrame, metric: str = "absolute") -> pd.DataFrame:
    """Return accuracies of merges, means over tasks and groups of them, one row per seed."""
    rows = select(df, "merging", metric)
    return averaged(rows, "model", "method", "merge", "n_tasks", "seed", "metric")


@book_figure
def merge_accuracy(df: pd.DataFrame) -> Figure:
    """Plot the accuracy of every merge, absolute and normalised, by number of tasks.

    Dashed is the pre-trained model, dotted each task's own. Merges are sorted by their accuracy
    with most tasks; one far below the others is an arrow with its number. Records: `merging` of one
    model and method, and `single`.
    """
    absolute, normalised = (merged_accuracy(df, name) for name in ("absolute", "normalised"))
    reached = most_tasks(absolute).groupby("merge")["value"].mean()
    order = sorted(merges_in(absolute), key=lambda name: -reached.get(name, -1))
    means = pd.concat([absolute, normalised])
    plot = by_merge(means, "metric", order, hue="n_tasks", looks=by_number(means["n_tasks"]))
    alone = where(df, experiment="single", split="test")
    tuned = alone[alone["method"] != "pretrained"]
    base = where(alone, method="pretrained", task=tuned["task"])
    levels = {METHOD_LABEL["pretrained"]: ("--", base), "each task's own model": (":", tuned)}
    look, lines = {"along": "y", "color": COLOURS["pretrained"]}, []
    for label, (dashes, rows) in levels.items():
        if len(rows):
            mean = float(rows["value"].mean())
            lines.append(marks.level(plot.first, mean, ls=dashes, label=label, **look))
    for axes, _, metric in plot:
        values = where(means, metric=metric).groupby(["merge", "n_tasks"])["value"].mean()
        marks.cut(axes, marks.reaching(values)[0])
    return plot.finish(lines, x="{} test accuracy (%)".format)


@book_figure
def merge_ranking(df: pd.DataFrame) -> Figure:
    """Plot the accuracy of every merge of most tasks between the rows that bound it.

    Above stand one model a task and joint training, below the pre-trained model. Colour shows
    whether a merge reads images. Records: `merging` of one model and method,
    `single` and `joint`.
    """
    means = merged_accuracy(most_tasks(where(df, experiment="merging")))
    alone = where(df, experiment="single", split="test")
    bounds = {
        "single": alone[alone["method"] != "pretrained"],
        "joint": where(df, experiment="joint", split="test"),
        "pretrained": where(alone, method="pretrained"),
    }
    rows = [averaged(part.assign(merge=name), "merge", "seed") for name, part in bounds.items()]
    means = pd.concat([means, *rows])[["merge", "seed", "value"]]
    reached = means.groupby("merge")["value"].mean().sort_values(ascending=False)
    merges = [name for name in reached.index if name in MERGE_LABEL]
    order = [*(name for name in ("single", "joint") if name in reached), *merges]
    order += ["pretrained"] if "pretrained" in reached else []
    means["reads"] = means["merge"].map(lambda name: _BOUND if name in bounds else _reads(name))
    looks = {name: look for name, look in _READS.items() if name in {*means["reads"]}}
    plot = marks.points(
        means, "merge", height=1.2 + 0.24 * len(order), hue="reads", looks=looks, apart=False,
        order={name: (_BOUNDS | MERGE_LABEL)[name] for name in order},
    )  # fmt: skip
    return plot.finish(x="test accuracy (%), mean over tasks")


def _reads(merge: str) -> str:
    needs = METHODS[merge].needs if merge in METHODS else "images"
    return "images" if needs else "vectors"


@book_figure
def merge_gains(df: pd.DataFrame) -> Figure:
    """Plot gains over task arithmetic with 95 % intervals, of most tasks.

    Hollow markers are other pre-trainings. Records: `merging` of a model, which comes first, and of
    other pre-trainings.
    """
    rows = require_rows(where(df, experiment="merging"), "no merges were recorded")
    both = gains_by_sample(most_tasks(rows), rows["model"].iloc[0])
    both = require_rows(both, "no gains")
    both = both.assign(**{end: both[end].fillna(both["value"]) for end in ("low", "high")})
    order = where(both, sample="here").sort_values("value", ascending=False)["merge"]
    looks = {name: look for name, look in _SAMPLES.items() if name in set(both["sample"])}
    plot = marks.points(
        ends(both, "merge", "sample"), "merge", height=1.2 + 0.26 * len(order), hue="sample",
        looks=looks, order={name: MERGE_LABEL[name] for name in order}, **marks.GIVEN,
    )  # fmt: skip
    marks.level(plot.first, 0, along="y", **marks.ZERO)
    return plot.finish(x="points of test accuracy above task arithmetic")


@book_figure
def merge_curves(df: pd.DataFrame, over: str | None = None) -> Figure:
    """Plot the accuracy of merges over learning rates or over the number of tasks.

    One line per merge, dashed each task's own model, one panel per method. Records: `merging_rates`
    for `over="lr"`, `merging` and `single` for `over="n_tasks"`, of one model; by default those
    that there are.
    """
    rates = "merging_rates" in set(df["experiment"]) if over is None else over == "lr"
    over = "lr" if rates else "n_tasks"
    rows = select(df, "merging_rates" if rates else "merging", "absolute")
    alone = where(df, metric="single", split="test")
    if rates:
        rows, alone = (part.assign(lr=part["lr"] * 1e4) for part in (most_tasks(rows), alone))
    means = averaged(rows, "method", "merge", over, "seed")
    named = [name for name in merges_in(means) if name in _LINES]
    looks = {name: (MERGE_LABEL[name], *_LINES[name]) for name in named}
    panels: dict[str, Any] = {"col": "method", "col_order": methods_in(means)} if rates else {}
    shown = where(means, merge=named)
    plot = marks.curves(shown, over, hue="merge", looks=looks, height=3.8, **panels)
    if rates:
        alone = averaged(alone, "method", "lr").sort_values("lr")
        for axes, _, method in plot:
            axes.plot(*where(alone, method=method)[["lr", "value"]].to_numpy().T, **marks.DASHED)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks := sorted(means[over].unique()), [f"{one:g}" for one in ticks])
    else:
        own = alone[alone["method"] != "pretrained"]
        marks.level(plot.first, float(own["value"].mean()), **marks.DASHED)
        plot.first.set_xticks(sorted(means[over].unique()))
        lines = shown.groupby(["merge", over])["value"].mean().unstack()
        _mark_below(plot.first, lines.rename(index=MERGE_LABEL), {
            MERGE_LABEL[name]: look[1] for name, look in looks.items()
        })  # fmt: skip
    dashed = Line2D([], [], **marks.DASHED, label="each task's own model")
    x = "learning rate (10⁻⁴)" if rates else "number of merged tasks"
    return plot.finish([dashed], title=METHOD_LABEL, x=x, y="test accuracy (%)")


def _mark_below(axes: Axes, lines: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Cut a line off that falls far below all others, and mark it by an arrow with its number.

    Far is by more than half of the range that the others need.
    """
    lowest = lines.min(axis=1).sort_values()
    if len(lowest) < 3:
        return
    name, rest = lowest.index[0], lines.drop(lowest.index[0])
    bottom, reach = rest.min(axis=None), rest.max(axis=None) - rest.min(axis=None)
    if bottom - lowest.iloc[0] <= reach / 2:
        return
    floor = bottom - 0.12 * reach
    axes.set_ylim(bottom=floor)
    line, look = lines.loc[name].dropna(), {"color": colours[name]}
    for x, value in line[line < floor].items():
        axes.annotate(
            f"{name}: {value:.0f} %", (x, floor), (0, 22), textcoords="offset points", ha="center",
            fontsize=8, arrowprops={"arrowstyle": "->", **look}, **look,
        )  # fmt: skip


def by_number(n_tasks: pd.Series) -> Looks:
    """Return the looks of groups that differ in their number of tasks."""
    numbers = sorted(n_tasks.dropna().unique())
    return {n: (f"{n:.0f} tasks", *_NUMBERS[i % 4]) for i, n in enumerate(numbers)}


def by_merge(
    means: pd.DataFrame, col: str, order: Sequence[str] = (), *, looks: Looks, **more: Any
) -> marks.Panels:
    """Plot a line of means for each merge, in a panel for each value of a column.

    Args:
        means: Rows with a `merge`, a `value` and the columns of panels and groups.
        col: Column of the panels.
        order: Merges from the top; by default the book's order.
        looks: Label, colour and marker of each group.
        more: Arguments of `marks.points`.
    """
    named = {name: MERGE_LABEL[name] for name in order or merges_in(means)}
    height = 1.5 + len(named) * max(0.26, 0.1 * len(looks) * more.get("apart", True))
    more |= {"order": named, "facets": {"col": col}}
    return marks.points(means, "merge", height=height, looks=looks, **more)


def gains_by_sample(df: pd.DataFrame, model: str = "mini") -> pd.DataFrame:
    """Return gains over task arithmetic in points, of a model and of other pre-trainings.

    Records: `merging` of both.

    Args:
        df: Tidy records.
        model: Its name.

    Returns:
        Columns merge, n_tasks, `sample` (here or others), value, low and high (a 95 % interval, NaN
        where there is none).
    """
    found = gains(df, over=BASE, model=model)
    parts = [pd.DataFrame(columns=["merge", "n_tasks", "sample", "value", "low", "high"])]
    for sample, prefix in {"here": "", "others": "others_"}.items() if len(found) else ():
        own = found[["merge", "n_tasks"]].assign(sample=sample)
        for name, of in {"value": "effect", "low": "low", "high": "high"}.items():
            own[name] = found[prefix + of]
        parts.append(own.dropna(subset="value"))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def ranged(effect: float, low: float, high: float) -> str:
    """Return an effect with the ends of its interval, if it has one.

    Args:
        effect: In points.
        low: Lower end of the 95 % interval; NaN if there is none.
        high: Its upper end.
    """
    return in_words(effect, low, high, named=False)


@book_figure
def merge_distance(df: pd.DataFrame) -> Figure:
    """Plot each merge's distance from the best, in its objective and in accuracy.

    Left: E(τ) / E(0) in the tangent model at its best coefficient on validation images; 0 loses
    nothing. Right: points of test accuracy above the best merge on the span. Records: `merging`.
    """
    rows = most_tasks(select(df, "merging", "objective", split="validation"))
    accuracy = where(merged_accuracy(df), n_tasks=rows["n_tasks"].max())
    best = where(accuracy, merge="best_span").set_index("seed")["value"]
    best = require_rows(best, "the best merge on the span was not computed")
    gained = accuracy.assign(value=accuracy["value"] - accuracy["seed"].map(best), metric="gap")
    near = averaged(rows, "merge", "seed", "metric")
    means = pd.concat([near, gained[near.columns]], ignore_index=True)
    order = near.groupby("merge")["value"].mean().sort_values().index
    plot = marks.points(
        means, "merge", order={name: MERGE_LABEL[name] for name in order},
        height=1.1 + 0.26 * len(order), hue="merge", facets={"col": "metric"},
        looks={name: _SORT[name] for name in order},
    )  # fmt: skip
    left, right = plot.grid.axes.flat
    left.set_xlim(0, 1.05 * float(near["value"].max()))
    marks.level(right, 0, along="y", **marks.ZERO)
    sorts = {look[0]: look for name, look in _SORT.items() if name in order}
    x = {"objective": "E(τ) / E(0) in the tangent model",
         "gap": "points above the\nbest merge on the span"}  # fmt: skip
    return plot.finish(looks=sorts, x=x)


@book_figure
def merge_ways(df: pd.DataFrame) -> Figure:
    """Plot gains over task arithmetic by merge and by how its vectors were fine-tuned.

    In points of test accuracy, means over tasks and seeds; column names have task arithmetic's
    accuracy. Records: `merging` of one or several models, the main one first.
    """
    means = merged_accuracy(most_tasks(df))
    require_rows(where(means, merge=BASE), "task arithmetic was not computed")
    table = tabulate(means, "way", "merge", named=False)
    gains = require_rows(table.sub(table[BASE], axis=0).drop(columns=BASE).T)
    titles = [f"{name}\n{reached:.1f} %" for name, reached in table[BASE].items()]
    figure, axes = plt.subplots(figsize=(WIDTH, 1.9 + 0.27 * len(gains)))
    names = {"xticklabels": titles, "yticklabels": gains.index.map(MERGE_LABEL)}
    maps.numbers_in(axes, gains, max(float(gains.abs().max().max()), 0.1), "+z.1f", **names)
    maps.names_above(axes)
    return maps.scale(figure, [axes], "points above task arithmetic")
