"""The cross-examination: every metric of the book, method by method, and what foretells merging."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from tasklab.evidence.figures.marks import (
    GIVEN,
    ZERO,
    level,
    names_above,
    numbers_in,
    points,
    scale,
)
from tasklab.evidence.figures.merging import MERGE_LABEL
from tasklab.evidence.figures.rows import ends, methods_in, require_rows, select, where
from tasklab.evidence.figures.schemes import scheme, ways
from tasklab.evidence.figures.style import METHOD_LABEL, WIDTH, book_figure
from tasklab.evidence.records.foretelling import foretelling
from tasklab.evidence.records.schema import LEADING_MERGES, unit

METRIC_LABEL = {
    "single": "single-task accuracy",
    "absolute": "accuracy of the sum of all",
    "normalised": "the same, normalised",
    "lost_sum": "loss in the sum of all",
    **{f"lost_{name}": f"loss in the merge: {MERGE_LABEL[name]}" for name in LEADING_MERGES},
    "target": "target accuracy, negated",
    "control": "control accuracy, negated",
    "lost": "loss in a pair",
    "xi_pair": "ξ of the sum of a pair",
    "xi_classifier": "ξ at one coefficient",
    "xi_representation": "ξ of representations",
    "distance": "distance from linearity",
    "coef": "coefficient of linearity",
    "base": "distance between models",
    "gap": "gap from the linearization",
    "cosine": "cosine of the vectors",
    "norm": "norm of the vector",
    "gradient_cosine": "cosine of the gradients",
    "gradient_distance": "distance of the gradients",
    "share": "localization of the kernel",
    "seconds_finetune": "seconds of fine-tuning",
    "trainable": "trained parameters",
}
_TOLD = {
    "lost": "the loss in a pair",
    "lost_sum": "the loss of a task\nin the sum of all",
    "xi_pair": "ξ of the sum of a pair",
    "normalised": "normalised accuracy",
    **{f"lost_{name}": "the loss\nof a task" for name in LEADING_MERGES},
}
_MERGE = {f"lost_{name}": MERGE_LABEL[name] for name in LEADING_MERGES}
_LOOKS = {
    True: ("related (corrected for the number)", "#D55E00", "o"),
    False: ("open", "#8C8C8C", "D"),
}


def crossing_table(df: pd.DataFrame, *, encoders: bool = False) -> pd.DataFrame:
    """Return every metric of the cross-examination, by method or, on request, by encoder.

    Records: `crossing` of one or several models, the main one first. One row per metric with its
    unit; means over tasks, or pairs, and seeds; NaN where it was not measured. Encoders are
    fine-tuned non-linearly.
    """
    rows = where(df, experiment="crossing")
    if rows.empty:
        return pd.DataFrame(columns=["metric", "unit"])
    one = {"method": ["nonlinear", "pretrained"]} if encoders else {"model": rows["model"].iloc[0]}
    shown = where(rows, **one)
    order = [m for m in METRIC_LABEL if m in set(shown["metric"])]
    columns = {}
    for model, part in shown.groupby("model", sort=False):
        means = part.pivot_table(index="metric", columns="method", values="value")
        of_encoder = means.get("pretrained", pd.Series(dtype=float))
        for method in methods_in(part):
            name = scheme(model) if encoders else METHOD_LABEL[method]
            columns[name] = means[method].combine_first(of_encoder).reindex(order)
    table, units = pd.DataFrame(columns, index=order), {"trainable": "millions"}
    table.loc[table.index == "trainable"] /= 1e6
    table.insert(0, "metric", table.index.map(METRIC_LABEL))
    table.insert(1, "unit", [units.get(metric, unit(metric)) for metric in order])
    return table.reset_index(drop=True)


@book_figure
def merging_foretold(df: pd.DataFrame, outcomes: Sequence[str] = ("lost", "lost_sum")) -> Figure:
    """Plot each metric's rank correlation with the cost of merging, one panel per outcome.

    Correlations are within each method, encoder and seed, averaged; bars are 95 % intervals that
    draw tasks. Colour: related by a permutation test of tasks, after Holm's correction in a panel.
    `outcomes` are in `records.foretelling.OUTCOMES`. Records: `crossing`.
    """
    rows = select(df, "crossing")
    require_rows(where(rows, metric=list(outcomes)), f"no records of {', '.join(outcomes)}")
    parts = []
    for outcome in (name for name in outcomes if rows["metric"].eq(name).any()):
        part = foretelling(df, outcome, by=()).dropna(subset=["value", "low", "high"])
        parts.append(part.assign(outcome=outcome, decided=part["p_holm"] < 0.05))
    ranks = require_rows(pd.concat(parts, ignore_index=True), "no metric varies over tasks")
    order = ranks.groupby("metric")["value"].mean().sort_values(ascending=False).index
    plot = points(
        ends(ranks, "outcome", "metric", "decided"), "metric", hue="decided", looks=_LOOKS,
        order={name: METRIC_LABEL.get(name, name) for name in order}, apart=False, **GIVEN,
        facets={"col": "outcome", "col_wrap": min(3, len(parts))},
        height=0.5 + -(-len(parts) // 3) * (1.1 + 0.25 * len(order)),
    )  # fmt: skip
    for axes, _, _ in plot:
        level(axes, 0, along="y", **ZERO)
    plot.grid.set(xlim=(-1.05, 1.05))
    return plot.finish(x=lambda outcome: f"rank correlation\nwith {_TOLD[outcome]}", title=_MERGE)


def foretold_table(df: pd.DataFrame, outcome: str = "lost") -> pd.DataFrame:
    """Return rank correlations of metrics with an outcome, by method and by encoder.

    One row per metric, sorted by its mean. Correlations are over tasks or pairs, means over seeds.
    Records: `crossing`, the main model first; `outcome` is in `records.foretelling.OUTCOMES`.
    """
    rows, by = select(df, "crossing"), ["model", "method"]
    require_rows(where(rows, metric=outcome), f"no records of {outcome}")
    ranks = foretelling(df, outcome, repeats=0).pivot(index="metric", columns=by, values="value")
    order, named = ranks.mean(axis=1).sort_values(ascending=False).index, ways(rows)
    table = ranks.reindex(index=order, columns=list(named))
    return table.set_axis(named.values(), axis=1).rename(index=METRIC_LABEL)


@book_figure
def foretold_within(df: pd.DataFrame, outcome: str = "lost") -> Figure:
    """Plot `foretold_table` as a matrix."""
    table = foretold_table(df, outcome)
    figure, axes = plt.subplots(figsize=(WIDTH, 2.3 + 0.27 * len(table)))
    numbers_in(axes, 100 * table, 100, "z.0f", annot_kws={"fontsize": 8})
    names_above(axes)
    label = f"rank correlation × 100 with {_TOLD[outcome]}".replace("\n", " ")
    return scale(figure, [axes], label)
