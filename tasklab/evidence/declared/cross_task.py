"""Records of cross-task linearity, and the sides of claims about them."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from tasklab.evidence.declared import shared
from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import NETWORKS, declare

THRESHOLDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)


def _features(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Merged weights' features against an `endpoint`'s, or the coefficient's error against `one`.

    Distances are from the merged features: how much nearer than a single model's features are those
    of the merged weights. (The models' distance from each other would be a weaker test, which a
    single model passes too.) They are of the encoder's projected output; of an MLP, whose output is
    that of its classifier, of the last hidden layer. The coefficient's error is the largest over
    the blocks (`merged`), as the paper's figures show blocks, or that of the output (`output`).
    Segments are judged in their middle.
    """
    rows = rows[rows["method"] == "nonlinear"]
    if rows.empty:
        return {}
    network = rows["model"].iloc[0]
    if network in NETWORKS:
        rows = _usual(rows)
    if claim.experiment == "ctl":
        rows = rows[np.isclose(rows["alpha"], 0.5)]
    output = rows["block"].isna()
    if claim.metric == "distance":
        deep = rows["block"] == rows["block"].max() - 1 if network == "mlp" else output
        rows = rows[deep.fillna(False)]
        sides = {"merged": "distance", "endpoint": "endpoint"}
        return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}
    error = rows.assign(value=(rows["value"] - 1).abs())
    error, output = error[rows["metric"] == "coef"], output[rows["metric"] == "coef"]
    blocks = error[~output]
    if network == "mlp":
        blocks = blocks[blocks["block"] < blocks["block"].max()]
    keys = ["seed", "task", "subset"]
    merged = blocks.sort_values("value").drop_duplicates(keys, keep="last").sort_index()
    return {"merged": merged, "output": error[output], "one": merged.assign(value=1.0, error=0.0)}


def _usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a network that was trained as its setting says: as most were."""
    chosen = (rows["ratio"] == 0) & (rows["replaced"] == "other")
    for name in ("pretraining", "finetuning"):
        chosen &= rows[name] == rows[name].mode().iloc[0]
    if "wider" in rows:
        chosen &= rows["wider"].fillna(1) == 1
    return rows[chosen]


def _sums(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame, *, every: bool) -> Sides:
    """The (k + 1) form (`merged`) and the pre-trained model (`start`) against a sum of k vectors.

    k is 2, or the largest for which the theorem's condition on alpha is met: models at
    (k + 1) alpha are no further away than fine-tuned ones, which are cross-task linear.
    """
    rows = rows[rows["block"].isna() & (rows["method"] == "nonlinear")]
    rows = rows[(rows["n_tasks"] + 1) * rows["alpha"] <= 1 + 1e-9]
    rows = rows[rows["n_tasks"] == (rows["n_tasks"].max() if every else 2)]
    rows = rows[np.isclose(rows["alpha"], rows["alpha"].max())]
    sides = {"merged": "distance", "start": "first"}
    return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}


def _transitivity(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How often (i, k) fails after linear pairs with a middle (`linked`), and without one.

    In per cent of the triples, at each of `THRESHOLDS` where some premise holds.
    """
    from tasklab.analyses import transitivity  # torch

    pairs = transitivity.pairs_in(rows[rows["method"] == "nonlinear"])
    if len(pairs) < 6:
        return {}
    table = transitivity.transitivity(pairs, THRESHOLDS, by=["seed"]).summary
    table = table.assign(task=table["threshold"].map("{:g}".format), subset="")
    columns = {"linked": "violations", "unlinked": "violations_unlinked"}
    table = table.dropna(subset=list(columns.values()))
    table = table[["seed", "task", "subset", *columns.values()]]
    return {side: table.assign(value=100 * table[name]) for side, name in columns.items()}


CTL = declare(shared.linearity("ctl"), sides={"features": _features, "transitivity": _transitivity})
CTL_ADDITION = declare(shared.linearity("ctl_addition"))
CTL_NEGATION = declare(shared.linearity("ctl_negation"))
CTL_SUM = declare(
    shared.linearity("ctl_sum"),
    sides={
        "sum_of_two": functools.partial(_sums, every=False),
        "sum_of_most": functools.partial(_sums, every=True),
    },
)
