"""The cross-examination: every metric of the book by method, and its correlation with merging."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tasklab.evidence.figures.labels import METRIC_LABEL
from tasklab.evidence.figures.marks import GIVEN, ZERO, level, points
from tasklab.evidence.figures.rows import ends, require_rows, select, where
from tasklab.evidence.figures.style import book_figure
from tasklab.evidence.records.foretelling import foretold

_TOLD = {
    "lost": "the loss in a pair",
    "lost_sum": "the loss of a task\nin the sum of all",
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
def merging_foretold(df: pd.DataFrame) -> Figure:
    """Plot each metric's recorded rank correlation with the cost of merging, a panel per outcome.

    Correlations are within each method, encoder and seed, averaged; bars are 95 % intervals that
    draw tasks (`records.foretold`). Colour: related by a permutation test of tasks, after Holm's
    correction in a panel. Records: `crossing`.
    """
    rows = select(df, "crossing")
    require_rows(where(rows, metric=[*_TOLD]), f"no records of {', '.join(_TOLD)}")
    ranks = pd.concat([foretold(name) for name in _TOLD]).dropna(subset=["value", "low", "high"])
    ranks = ranks.assign(decided=ranks["p_holm"] < 0.05)
    order = ranks.groupby("metric")["value"].mean().sort_values(ascending=False).index
    plot = points(
        ends(ranks, "outcome", "metric", "decided"), "metric", hue="decided", looks=_LOOKS,
        order={name: METRIC_LABEL.get(name, name) for name in order}, apart=False, **GIVEN,
        facets={"col": "outcome", "col_wrap": 2},
        height=1.6 + 0.25 * len(order),
    )  # fmt: skip
    for axes, _, _ in plot:
        level(axes, 0, along="y", **ZERO)
    plot.grid.set(xlim=(-1.05, 1.05))
    return plot.finish(x=lambda outcome: f"rank correlation\nwith {_TOLD[outcome]}")
