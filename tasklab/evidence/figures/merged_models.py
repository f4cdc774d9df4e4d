"""Figures of merged models: in the network and its linearization, at equal accuracy; losses, costs.

Published accuracies are of other checkpoints, splits and searches: compare orders within one
protocol.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tasklab.analyses.merging.registry import METHODS
from tasklab.evidence.figures.labels import MERGE_LABEL
from tasklab.evidence.figures.marks import ZERO, curves, cut, level, points, reaching
from tasklab.evidence.figures.merging import (
    BASE,
    by_merge,
    by_number,
    ranged,
)
from tasklab.evidence.figures.rows import (
    averaged,
    methods_in,
    most_tasks,
    require_rows,
    select,
    where,
)
from tasklab.evidence.figures.style import METHOD_LABEL, book_figure
from tasklab.evidence.figures.tables import tabulate
from tasklab.evidence.records.intervals import of_mean
from tasklab.evidence.records.matched import gaps_at_equal_accuracy
from tasklab.evidence.records.papers import papers
from tasklab.tuning.methods import TABLE

MODELS = {
    "network": ("in the network", "#D55E00", "o"),
    "tangent": ("in its linearization", "#0072B2", "D"),
}
_TOLD = {
    "absolute": "test accuracy\n(%)",
    "xi_classifier": "disentanglement\nerror ξ (%)",
    "distance": "distance\nfrom linearity",
}
PROTOCOLS = {
    "task_vectors": ("checkpoints of task_vectors", "#0072B2", "o"),
    "tall_masks": ("of TALL masks and TSV", "#009E73", "s"),
    "fusionbench": ("of FusionBench", "#CC79A7", "D"),
    "here": ("here", "#D55E00", "P"),
}
_ENDS = ["value", "low", "high"]
_STRENGTHS = {"single": "single-task accuracy (%)", "absolute": "accuracy of the sum (%)"}
_BY = {
    "features": ("features", "#0072B2", "o"),
    "normalised": ("features, tasks alike", "#009E73", "s"),
    "logits": ("logits", "#D55E00", "D"),
}
_LABELS = "labels"
SIZES = {"vitb32": "ViT-B/32", "vitl14": "ViT-L/14"}


@book_figure
def merge_models(df: pd.DataFrame) -> Figure:
    """Plot each merge in the network and in its tangent model.

    Accuracy; predictions that differ from each task's own model of the same kind; 1 − cosine
    between the merged features and the mean of the tasks' own. Records: `merged` of one model and
    method.
    """
    means = averaged(most_tasks(select(df, "merged")), "metric", "merge", "edited", "seed")
    shown = pd.concat([where(means, metric=metric) for metric in _TOLD])
    return by_merge(shown, "metric", hue="edited", looks=MODELS).finish(x=_TOLD)


@book_figure
def merge_loss(df: pd.DataFrame) -> Figure:
    """Plot E(τ) / E(0) of every merge in three metrics on validation images.

    At the option and the coefficient of least E in each; 0 loses nothing, 1 is the pre-trained
    model. Records: `merge_loss` of one model and method.
    """
    rows = most_tasks(select(df, "merge_loss", "relative_loss", split="validation"))
    means = averaged(rows, "merge", "chosen_by", "seed")
    order = means.groupby("merge")["value"].mean().sort_values().index
    plot = points(
        means, "merge", height=1.2 + 0.3 * len(order), hue="chosen_by", looks=_BY,
        order={name: MERGE_LABEL[name] for name in order},
    )  # fmt: skip
    plot.first.set_xlim(0, 1.05 * float(means["value"].max()))
    return plot.finish(x="E(τ) / E(0) in the tangent model")


def merge_choice_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return the merge and coefficient that each rule chooses, with its test accuracy in %.

    A row for the choice by labels of validation images and for each metric of E, which needs none;
    the last columns are points below the choice by labels, with a 95 % interval over tasks, and
    Spearman's correlation over merges of −E with the test accuracy at labels' coefficients. Means
    over seeds. Records: `merge_loss` and `merging` of one model and method.
    """
    rows = most_tasks(where(df, experiment="merge_loss", merge=list(METHODS)))
    keys = ["seed", "chosen_by", "merge"]
    tested = rows[(rows["metric"] == "absolute") & (rows["split"] == "test")]
    labelled = most_tasks(where(df, experiment="merging", merge=list(METHODS), metric="absolute"))
    tested = pd.concat([tested, labelled.assign(chosen_by=_LABELS)])
    each = tested.groupby([*keys, "task"])["value"].mean().unstack("task")
    reached = each.mean(axis=1)
    by_labels = where(rows, metric="absolute", split="validation", chosen_by=_LABELS)
    score = pd.concat(
        [by_labels, where(rows, metric="relative_loss").assign(value=lambda x: -x["value"])]
    )
    score = score.groupby(keys)["value"].mean()
    both = pd.DataFrame({"score": score, "reached": reached}).dropna().reset_index()
    if both.empty:
        return pd.DataFrame(columns=["chosen by", "merge", "test accuracy"])
    labels = reached.xs(_LABELS, level="chosen_by").rename("own")
    lines, chosen = [], {}
    for by in (_LABELS, *_BY):
        part = both[both["chosen_by"] == by].join(labels, on=["seed", "merge"])
        best = part.loc[part.groupby("seed")["score"].idxmax()]
        chosen[by] = each.loc[[*best[keys].itertuples(index=False, name=None)]].mean()
        ranks = [one[["score", "own"]].rank().corr().iloc[0, 1] for _, one in part.groupby("seed")]
        lines.append({
            "chosen by": _BY[by][0] if by in _BY else "labels",
            "merge": MERGE_LABEL[best["merge"].mode()[0]],
            "test accuracy": best["reached"].mean(),
            "rank correlation": sum(ranks) / len(ranks),
        })  # fmt: skip
    table = pd.DataFrame(lines)
    below = [ranged(*of_mean(chosen[_LABELS] - own)).lstrip("+") for own in chosen.values()]
    table.insert(3, "below labels", ["–", *below[1:]])
    return table


@book_figure
def merge_even(df: pd.DataFrame) -> Figure:
    """Plot the gain of merges of each method over merges of non-linear vectors.

    All are equally accurate alone (`records.matched`). One panel per method, one marker per number
    of tasks. Records: `merging_rates` of one model.
    """
    gaps = gaps_at_equal_accuracy(df)
    gaps = require_rows(gaps, "merges were not recorded over learning rates")
    looks = by_number(gaps["n_tasks"])
    means = pd.concat([where(gaps, method=method) for method in methods_in(gaps)])
    plot = by_merge(means.assign(value=means["gap"]), "method", hue="n_tasks", looks=looks)
    ends = gaps.groupby(["method", "merge", "n_tasks"])["gap"].agg(["mean", "std"]).fillna(0)
    ends = ends[ends["mean"].between(*reaching(ends["mean"], 3))]  # with the bars of these
    low = min((ends["mean"] - ends["std"]).min(), 0)
    high = max((ends["mean"] + ends["std"]).max(), 0)
    aside = 0.06 * (high - low)
    for axes, *_ in plot:
        level(axes, 0, along="y", **ZERO)
        axes.set_xlim(low - aside, high + aside)
        cut(axes, low, high)
    label = "points above the same merge\nof non-linear vectors"
    return plot.finish(x=label, title=METHOD_LABEL)


def merge_rates_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return merged accuracies where all methods are equally accurate alone.

    One row per number of tasks and merge: accuracies alone and merged of non-linear vectors in %,
    and the gain of other methods in points with 95 % intervals. Records: `merging_rates` of one
    model.
    """
    gaps, by = gaps_at_equal_accuracy(df), ["n_tasks", "merge"]
    columns = ["tasks", "merge", "alone", "non-linear"]
    if gaps.empty:
        return pd.DataFrame(columns=columns)
    gains = gaps.groupby([*by, "method"])["gap"].apply(lambda gap: pd.Series(of_mean(gap), _ENDS))
    gained = tabulate(gains.unstack().reset_index(), by, "method", named=False)
    levels = gaps.groupby(by)[["alone", "base"]].mean()
    table = levels.join(gained).loc[gained.index].reset_index().replace({"merge": MERGE_LABEL})
    return table.rename(columns={"n_tasks": "tasks", "base": "non-linear"} | METHOD_LABEL)


def strength_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies by a penalty's strength, and the strength that validation chooses.

    One row per method and strength: strength, factor (of the method's own), alone, sum and
    validation (of the sum) in %, and chosen. Strengths at which a run diverged are left out.
    Records: `penalty_strength` of one model.
    """
    rows = where(_with_factors(df), metric=_STRENGTHS)
    keys, columns = ["method", "penalty", "factor"], ["alone", "sum", "validation"]
    if rows.empty:
        return pd.DataFrame(columns=["method", "strength", "factor", *columns, "chosen"])
    table = rows.pivot_table("value", index=keys, columns=["metric", "split"])
    measured = [("single", "test"), ("absolute", "test"), ("absolute", "validation")]
    table = table[measured].set_axis(columns, axis=1)
    best = table.groupby("method")["validation"].transform("max")
    table = table.assign(chosen=table["validation"] == best).loc[methods_in(rows)]
    return table.reset_index().rename(columns={"penalty": "strength"})


@book_figure
def penalty_strengths(df: pd.DataFrame) -> Figure:
    """Plot accuracy alone and in the sum over a penalty's strength; the chosen is larger.

    Crosses are strengths at which a run diverged. Records: `penalty_strength` of one model.
    """
    rows = require_rows(_with_factors(df), "strengths of penalties were not recorded")
    rows = rows[(rows["split"] == "test") | (rows["metric"] == "diverged_at")]
    places = {factor: place for place, factor in enumerate(sorted(rows["factor"].unique()))}
    rows = rows.assign(place=rows["factor"].map(places))
    means = averaged(rows, "metric", "method", "factor", "place", "seed")
    means, gone = where(means, metric=_STRENGTHS), where(means, metric="diverged_at")
    plot = curves(
        means, "place", col="metric", col_order=_STRENGTHS, share=(True, False), height=3.4
    )
    best = where(strength_table(df), chosen=True).set_index("method")["factor"]
    chosen = means[means["factor"] == means["method"].map(best)]
    plot.mark(averaged(chosen, "metric", "method", "place"), "place")
    plot.grid.set(xticks=list(places.values()), xticklabels=[f"{one:g}" for one in places])
    for axes, _, metric in plot:
        low, high = axes.get_ylim()
        bottom = gone.assign(metric=metric, value=low)
        plot.mark(bottom, "place", marker="x", ms=7, mew=1.8, clip_on=False)
        axes.set_ylim(low, high)
    return plot.finish(x="strength (times the method's own)", y=_STRENGTHS)


def _with_factors(df: pd.DataFrame) -> pd.DataFrame:
    rows = where(df, experiment="penalty_strength")
    if rows.empty:
        return rows
    own = rows["method"].map(lambda name: TABLE[name].weight)
    return rows.assign(factor=(rows["penalty"] / own).round(9))


def printed_merges() -> pd.DataFrame:
    """Return the published averages over eight tasks.

    Columns protocol, model, merge (our name; `single` for each task's own model) and value.
    """
    names = {title: name for name, title in MERGE_LABEL.items()} | {"Single": "single"}
    rows = papers("merging").rename(columns={"table": "protocol"})
    return rows.assign(merge=rows["row"].map(names))[["protocol", "model", "merge", "value"]]


def beside_published(df: pd.DataFrame, size: str = "vitb32") -> pd.DataFrame:
    """Return accuracies of all tasks merged, here and as published for a size of CLIP.

    Of the merges that papers print, each task's own model, and joint training. Records: `single`,
    `merging` and `joint` of one model.

    Args:
        df: Tidy records.
        size: `vitb32` or `vitl14`.

    Returns:
        Columns merge, protocol and value, which `tabulate` shows.
    """
    printed, own = where(printed_merges(), model=size), _own(df).assign(protocol="here")
    own = own[own["merge"].isin([*printed["merge"], "joint"])]
    return pd.concat([own, printed.drop(columns="model")], ignore_index=True)


def _own(df: pd.DataFrame) -> pd.DataFrame:
    tuned = where(df, method="nonlinear", split="test")
    if "merge" not in tuned:
        return pd.DataFrame(columns=["merge", "seed", "value"])
    mine = most_tasks(where(tuned, experiment="merging", metric="absolute"))
    alone = where(tuned, experiment="single").assign(merge="single")
    joint = where(tuned, experiment="joint").assign(merge="joint")
    return averaged(pd.concat([mine, alone, joint]), "merge", "seed")


@book_figure
def published_merges(*, here: pd.DataFrame | None = None) -> Figure:
    """Plot the gain of merges over task arithmetic, here and in three protocols.

    `here`: records of `merging` of one model; without them the published ones alone.
    """
    rows = printed_merges()
    sides = [rows.assign(panel=rows["model"].map(SIZES), seed=0)]
    mine = pd.DataFrame() if here is None else _own(here)
    if len(mine):
        sides.insert(0, mine.assign(panel="here", protocol="here"))
    both, keys = pd.concat(sides, ignore_index=True), ["panel", "protocol", "seed"]
    base = where(both, merge=BASE).set_index(keys)["value"].rename("base")
    both = both[~both["merge"].isin([BASE, "single"])].join(base, on=keys).dropna(subset="base")
    both["value"] -= both["base"]
    looks = {name: look for name, look in PROTOCOLS.items() if name in set(both["protocol"])}
    plot = by_merge(both, "panel", hue="protocol", looks=looks, apart=False)
    for axes, _, _ in plot:
        level(axes, 0, along="y", **ZERO)
    return plot.finish(x=lambda _: "points above\ntask arithmetic", title=str)
