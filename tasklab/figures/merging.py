"""Figures of merges: how accurate each is, how near to the best one, of which vectors.

A line of the page is a way of merging, in one order in all figures: weighted sums, masks, singular
directions, quadratic distances, and the best merges there could be.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.figures.marks import level, panels, points, scale
from tasklab.figures.schemes import scheme
from tasklab.figures.style import (
    COLOURS,
    METHOD_LABEL,
    WIDTH,
    Looks,
    NothingToDrawError,
    book_figure,
    key,
    methods_in,
    require_rows,
    select,
)

# As `analyses.merging.METHODS` and the experiment have them.
MERGE_LABEL = {
    "average": "Average",
    "arithmetic": "Task arithmetic",
    "lines": "LiNeS",
    "ties": "TIES",
    "dare": "DARE",
    "breadcrumbs": "Breadcrumbs",
    "consensus": "Consensus",
    "pcb": "PCB",
    "tsv_m": "TSV-M",
    "iso_c": "Iso-C",
    "iso_cts": "Iso-CTS",
    "fisher": "Fisher",
    "regmean": "RegMean",
    "wudi": "WUDI",
    "wudi_descent": "WUDI, by Adam",
    "best_span": "best on the span",
    "best": "best over all weights",
    "best_loss": "least loss on the span",
}
_ACROSS = 60  # characters that columns' names may have side by side
BASE = "arithmetic"  # what gains are counted from
# Colour and marker of the sorts of merges, and which are of them; in the order of the lines.
SORTS = {
    ("#8C8C8C", "o"): "weighted sums",
    ("#E69F00", "s"): "masks",
    ("#009E73", "D"): "singular directions",
    ("#0072B2", "^"): "quadratic distances",
    ("#D55E00", "P"): "best in the tangent model",
}
_OF_SORT = (
    ("average", "arithmetic", "lines"),
    ("ties", "dare", "breadcrumbs", "consensus", "pcb"),
    ("tsv_m", "iso_c", "iso_cts"),
    ("fisher", "regmean", "wudi", "wudi_descent"),
    ("best_span", "best", "best_loss"),
)
_NUMBERS = (("#56B4E9", "o"), ("#0072B2", "s"), ("#D55E00", "D"), ("#000000", "P"))


def merges_in(df: pd.DataFrame) -> list[str]:
    """Return the merges in records in the book's order."""
    present = set(df["merge"].dropna()) if "merge" in df else set()
    return [name for name in MERGE_LABEL if name in present]


def merged_accuracy(df: pd.DataFrame, metric: str = "absolute") -> pd.DataFrame:
    """Return the accuracy of every merge as a mean over tasks and groups of them.

    Args:
        df: Records of the experiment `merging`.
        metric: `absolute` or `normalised`.

    Returns:
        Columns model, method, merge, n_tasks, seed and value, a row a seed.

    Raises:
        NothingToDrawError: If there are none.
    """
    rows = select(df, "merging", metric)
    keys = ["model", "method", "merge", "n_tasks", "seed"]
    return rows.groupby(keys, as_index=False, sort=False)["value"].mean()


@book_figure
def merge_accuracy(df: pd.DataFrame) -> Figure:
    """Draw the accuracy of every merge, absolute and normalised, by the number of merged tasks.

    Points are means over tasks and seeds, bars the standard deviation over seeds. In absolute
    accuracy the dashed line is the pre-trained model, the dotted one each task's own.

    Args:
        df: Records of the experiment `merging` of one model and method, and for the lines `single`.
    """
    means = pd.concat([merged_accuracy(df, m).assign(metric=m) for m in ("absolute", "normalised")])
    numbers = sorted(means["n_tasks"].dropna().unique())
    looks = {n: (f"{n} tasks", *_NUMBERS[i % 4]) for i, n in enumerate(numbers)}
    grid = by_merge(means, "n_tasks", looks, "metric")
    extra = {}
    for axes, _, metric in panels(grid):
        axes.set_xlabel(f"{metric} test accuracy (%)")
        if metric == "absolute":
            extra = _levels(axes, df)
    key(grid.figure, looks, extra.values(), line="")
    return grid.figure


def _levels(axes, df: pd.DataFrame) -> dict[str, Line2D]:
    """Draw what the unedited model and each task's own reach."""
    alone = df[(df["experiment"] == "single") & (df["split"] == "test")]
    tuned = alone[alone["method"] != "pretrained"]
    alone = alone[alone["task"].isin(tuned["task"])]
    levels = {
        "pretrained": (METHOD_LABEL["pretrained"], "--"),
        "own": ("each task's own model", ":"),
    }
    drawn = {}
    for name, (label, dashes) in levels.items():
        rows = tuned if name == "own" else alone[alone["method"] == "pretrained"]
        if len(rows):
            value = float(rows["value"].mean())
            look = {"ls": dashes, "color": COLOURS["pretrained"], "label": label}
            drawn[name] = level(axes, value, along="y", **look)
    return drawn


def by_merge(
    means: pd.DataFrame, hue: str, looks: Looks, col: str, *, apart: bool = True
) -> sns.FacetGrid:
    """Draw a line of the page for each merge.

    Args:
        means: Columns merge, value, and the two following.
        hue: Column of the groups below one another.
        looks: Label, colour and marker of each group.
        col: Column of the panels side by side.
        apart: Whether the groups are below one another.
    """
    order = merges_in(means)
    titles = [MERGE_LABEL[name] for name in order]
    named = means.assign(merge=means["merge"].map(MERGE_LABEL))
    grid = points(
        named, "merge", hue=hue, looks=looks, order=titles, facets={"col": col}, apart=apart,
        height=1.5 + len(order) * max(0.26, 0.1 * len(looks) * apart),
    )  # fmt: skip
    return grid


@book_figure
def merge_distance(df: pd.DataFrame) -> Figure:
    """Draw how far each merge is from the best: in what it minimises, and in accuracy.

    Left E(tau) / E(0) in the tangent model at the best coefficient there, on validation images; 0
    is a merge that loses nothing. Right the points of test accuracy by which a merge is above the
    best one on the span. The merges are in the order of the former.

    Args:
        df: Records of the experiment `merging` of one model and method.
    """
    rows = select(df, "merging", "objective", split="validation")
    most = rows["n_tasks"].max()
    accuracy = merged_accuracy(df)
    accuracy = accuracy[accuracy["n_tasks"] == most]
    best = accuracy[accuracy["merge"] == "best_span"].set_index("seed")["value"]
    if best.empty:
        raise NothingToDrawError("nothing to draw: the best merge on the span was not computed.")
    gained = accuracy.assign(value=accuracy["value"] - accuracy["seed"].map(best), metric="gap")
    rows = rows[rows["n_tasks"] == most]
    keys = ["merge", "seed", "metric"]
    near = rows.groupby(keys, as_index=False)["value"].mean()
    means = pd.concat([near, gained[[*keys, "value"]]], ignore_index=True)
    order = near.groupby("merge")["value"].mean().sort_values().index
    means["merge"] = pd.Categorical(means["merge"], order).map(MERGE_LABEL)
    titles = [MERGE_LABEL[name] for name in order]
    grid = points(
        means, "merge", hue="merge", order=titles, facets={"col": "metric"},
        looks={MERGE_LABEL[name]: (MERGE_LABEL[name], *_sort(name)) for name in order},
        height=1.1 + 0.26 * len(order),
    )  # fmt: skip
    for axes, _, metric in panels(grid):
        if metric == "gap":
            level(axes, 0, along="y", ls="-", lw=0.8)
            axes.set_xlabel("points above the\nbest merge on the span")
        else:
            axes.set_xlim(0, 1.05 * float(near["value"].max()))
            axes.set_xlabel("E(τ) / E(0) in the tangent model")
    present = dict.fromkeys(_sort(name) for name in order)
    key(grid.figure, {sort: (SORTS[sort], *sort) for sort in SORTS if sort in present}, line="")
    return grid.figure


def _sort(name: str) -> tuple[str, str]:
    """Return colour and marker of a merge's sort."""
    return list(SORTS)[next(i for i, names in enumerate(_OF_SORT) if name in names)]


@book_figure
def merge_ways(df: pd.DataFrame) -> Figure:
    """Draw what every merge gains over task arithmetic, by how its vectors were fine-tuned.

    A number is in points of absolute test accuracy, a mean over tasks and seeds; under the name of
    each column is what task arithmetic reaches.

    Args:
        df: Records of the experiment `merging`, of one or several models, the main one first.
    """
    means = merged_accuracy(df)
    means = means[means["n_tasks"] == means["n_tasks"].max()]
    table = means.groupby(["model", "method", "merge"])["value"].mean().unstack("merge")
    if BASE not in table:
        raise NothingToDrawError("nothing to draw: task arithmetic was not computed.")
    ways = [
        (model, method)
        for model in dict.fromkeys(means["model"])
        for method in methods_in(means)
        if (model, method) in table.index
    ]
    main = ways[0][0]
    gains = table.sub(table[BASE], axis=0).loc[ways, merges_in(means)]
    titles = [
        f"{METHOD_LABEL[method] if model == main else scheme(model)}\n"
        f"{table.loc[(model, method), BASE]:.1f} %"
        for model, method in ways
    ]
    return _heat(gains.drop(columns=BASE).T, titles, "points above task arithmetic")


def _heat(table: pd.DataFrame, titles: Sequence[str], label: str) -> Figure:
    """Draw numbers around 0 with their colours, a line of the page for each merge."""
    require_rows(table)
    limit = max(float(table.abs().max().max()), 0.1)
    figure, axes = plt.subplots(figsize=(WIDTH, 1.9 + 0.27 * len(table)))
    words = table.map(lambda x: "" if pd.isna(x) else f"{x:+.1f}".replace("-", "−"))
    sns.heatmap(
        table, ax=axes, cmap="PuOr_r", vmin=-limit, vmax=limit, cbar=False, annot=words, fmt="",
        annot_kws={"fontsize": 9}, linewidths=0.5, xticklabels=list(titles),
        yticklabels=[MERGE_LABEL[name] for name in table.index],
    )  # fmt: skip
    axes.set(xlabel="", ylabel="")
    longest = max(len(line) for title in titles for line in title.split("\n"))
    turned = longest * len(titles) > _ACROSS
    axes.tick_params(axis="x", rotation=40 if turned else 0, top=True, labeltop=True, bottom=False,
                     labelbottom=False)  # fmt: skip
    for tick in axes.get_xticklabels() if turned else ():
        tick.set(ha="left", rotation_mode="anchor")
    axes.tick_params(axis="y", rotation=0)
    scale(figure, [axes], label)
    return figure
