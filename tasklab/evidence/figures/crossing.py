"""The cross-examination: every metric of the book by method, and its correlation with merging."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from tasklab.evidence.figures.labels import METRIC_LABEL
from tasklab.evidence.figures.marks import GIVEN, ZERO, level, points
from tasklab.evidence.figures.rows import ends, require_rows, select, where
from tasklab.evidence.figures.style import book_figure
from tasklab.evidence.records.foretelling import foretelling

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


def with_encoder(df: pd.DataFrame) -> pd.DataFrame:
    """Return records of the cross-examination in which methods have their encoder's, too.

    What is measured of the pre-trained encoder alone counts for every method of the model that
    lacks it. Trained parameters are in millions. Records: `crossing`.
    """
    rows = where(df, experiment="crossing")
    keys = ["model", "method", "metric"]
    of_encoder, own = (rows[rows["method"].eq("pretrained") == one] for one in (True, False))
    each = of_encoder.drop(columns="method").merge(own[["model", "method"]].drop_duplicates())
    known = pd.MultiIndex.from_frame(own[keys])
    rows = pd.concat([own, each[~pd.MultiIndex.from_frame(each[keys]).isin(known)]])
    millions = rows["value"].where(rows["metric"] != "trainable", rows["value"] / 1e6)
    return rows.assign(value=millions)


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
