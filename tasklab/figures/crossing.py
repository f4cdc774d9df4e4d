"""The cross-examination: every metric of the book, method by method, and what foretells merging."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.marks import GIVEN, ZERO, level, points
from tasklab.figures.merging import MERGE_LABEL
from tasklab.figures.rows import ends, methods_in, require_rows, select, where
from tasklab.figures.schemes import scheme
from tasklab.figures.style import METHOD_LABEL, book_figure
from tasklab.records.foretelling import foretelling
from tasklab.records.schema import LEADING_MERGES, UNITS

METRIC_LABEL = {
    "single": "accuracy alone",
    "absolute": "accuracy in the sum of all",
    "normalised": "the same, relative to alone",
    "lost_sum": "lost in the sum of all",
    **{f"lost_{name}": f"lost in the merge: {MERGE_LABEL[name]}" for name in LEADING_MERGES},
    "target": "target of the negation",
    "control": "control of the negation",
    "lost": "lost in a pair",
    "xi_pair": "ξ of the sum of a pair",
    "xi_classifier": "ξ at one coefficient",
    "xi_representation": "ξ of representations",
    "distance": "distance from linear",
    "coef": "coefficient of linearity",
    "base": "distance between models",
    "gap": "gap from the linearization",
    "cosine": "cosine of the vectors",
    "norm": "length of the vector",
    "share": "localization of the kernel",
    "seconds_finetune": "seconds of fine-tuning",
    "trainable": "trained parameters",
}
_TOLD = {
    "lost": "what a pair loses",
    "lost_sum": "what a task loses\nin the sum of all",
    "xi_pair": "ξ of the sum of a pair",
    "normalised": "normalised accuracy",
    **{f"lost_{name}": "what a task\nloses" for name in LEADING_MERGES},
}
_MERGE = {f"lost_{name}": MERGE_LABEL[name] for name in LEADING_MERGES}
_LOOKS = {
    True: ("after a correction for their number: related", "#D55E00", "o"),
    False: ("not decided", "#8C8C8C", "D"),
}


def crossing_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return every metric of the cross-examination, method by method.

    Args:
        df: Records of the experiment `crossing`, of one or several models, the main one first.

    Returns:
        A row a metric with its unit, a column a way of fine-tuning or an encoder: means over tasks,
        or pairs, and seeds; NaN where it was not measured.
    """
    rows = where(df, experiment="crossing")
    if rows.empty:
        return pd.DataFrame(columns=["metric", "unit"])
    main = rows["model"].iloc[0]
    order = [m for m in METRIC_LABEL if m in set(rows["metric"])]
    columns = {}
    for model, part in rows.groupby("model", sort=False):
        means = part.pivot_table(index="metric", columns="method", values="value")
        of_encoder = means.get("pretrained", pd.Series(dtype=float))
        for method in methods_in(part):
            name = METHOD_LABEL[method] if model == main else scheme(model)
            columns[name] = means[method].combine_first(of_encoder).reindex(order)
    table, units = pd.DataFrame(columns, index=order), UNITS | {"trainable": "millions"}
    table.loc[table.index == "trainable"] /= 1e6
    table.insert(0, "metric", table.index.map(METRIC_LABEL))
    table.insert(1, "unit", [units.get(metric, "") for metric in order])
    return table.reset_index(drop=True)


@book_figure
def merging_foretold(df: pd.DataFrame, outcomes: Sequence[str] = ("lost", "lost_sum")) -> Figure:
    """Draw how strongly each metric of the book goes along with what merging costs.

    Points are rank correlations within each method, encoder and seed, averaged; bars 95 % intervals
    that draw tasks, which pairs share. Colour tells which are related to it by a permutation test
    of tasks, after Holm's correction for the number of metrics of a panel.

    Args:
        df: Records of the experiment `crossing`.
        outcomes: Any of `records.foretelling.OUTCOMES`, a panel each; those that are recorded are
            drawn.
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
        height=0.5 + -(-len(parts) // 3) * (1.1 + 0.27 * len(order)),
    )  # fmt: skip
    for axes, _, _ in plot:
        level(axes, 0, along="y", **ZERO)
    plot.grid.set(xlim=(-1.05, 1.05))
    return plot.finish(x=lambda outcome: f"rank correlation\nwith {_TOLD[outcome]}", title=_MERGE)
