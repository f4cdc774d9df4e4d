"""The cross-examination: every metric of the book by method, and its correlation with merging."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from tasklab.evidence.figures.marks import (
    GIVEN,
    ZERO,
    level,
    points,
)
from tasklab.evidence.figures.merging import MERGE_LABEL
from tasklab.evidence.figures.rows import ends, require_rows, select, where
from tasklab.evidence.figures.schemes import ways
from tasklab.evidence.figures.style import book_figure
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
}
_LOOKS = {
    True: ("related (corrected for the number)", "#D55E00", "o"),
    False: ("open", "#8C8C8C", "D"),
}


def crossing_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return every metric of the cross-examination, by method and, non-linearly, by encoder.

    Records: `crossing` of one or several models, the main one first. One row per metric with its
    unit; means over tasks, or pairs, and seeds; NaN where it was not measured.
    """
    rows = where(df, experiment="crossing")
    if rows.empty:
        return pd.DataFrame(columns=["metric", "unit"])
    order = [m for m in METRIC_LABEL if m in set(rows["metric"])]
    means = rows.pivot_table(index="metric", columns=["model", "method"], values="value")
    columns = {}
    for (model, method), name in ways(rows).items():
        of_encoder = means.get((model, "pretrained"), pd.Series(dtype=float))
        columns[name] = means[model, method].combine_first(of_encoder).reindex(order)
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
    return plot.finish(x=lambda outcome: f"rank correlation\nwith {_TOLD[outcome]}")
