"""Records of networks that are trained from scratch, and the sides of claims about them."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.declared import shared
from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import where

CONDITIONS = ("pretraining", "finetuning", "pretraining samples", "other samples")


def _segment_sides(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracy in the `middle` of a segment against that of the model whose task it is (`end`)."""
    rows = where(rows, metric="accuracy")
    ends = rows["subset"].str.split("+", expand=True)
    own = np.where(rows["task"] == ends[0], 1.0, np.where(rows["task"] == ends[1], 0.0, np.nan))
    rows, own = rows[np.isfinite(own)], own[np.isfinite(own)]
    at = {"middle": 0.5, "end": own}
    return {side: rows[np.isclose(rows["alpha"], alpha)] for side, alpha in at.items()}


def varied(records: pd.DataFrame, what: str, network: str = "resnet18") -> pd.DataFrame:
    """Return the rows of `emergence` in which one condition varies.

    The other conditions have their most frequent value.

    Args:
        records: Records of `emergence` under several conditions.
        what: The condition, one of `CONDITIONS`: epochs of pre-training or fine-tuning, or the
            share of samples that are replaced (by those of pre-training, or of the other task).
        network: `"resnet18"` or `"mlp"`.

    Returns:
        The rows halfway between the fine-tuned models (`alpha` 0.5) of the usual width; empty if
        none was recorded.

    Raises:
        TasklabError: If there is no such condition.
    """
    choose("condition", what, CONDITIONS)
    rows = where(records, experiment="ctl", model=network)
    rows = rows[(rows["alpha"] - 0.5).abs() < 1e-9]
    if rows.empty:
        return rows
    if "wider" in rows:
        rows = rows[rows["wider"].fillna(1) == 1]
    column = "ratio" if what.endswith("samples") else what
    replaced = what.removesuffix(" samples") if column == "ratio" else "other"
    chosen = rows["replaced"] == replaced
    for name in {"task", "pretraining", "finetuning"} - {column}:
        chosen &= rows[name] == rows[name].mode().iloc[0]
    return rows[chosen if column == "ratio" else chosen & (rows["ratio"] == 0)]


def _ends(rows: pd.DataFrame, what: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = varied(rows, what)
    rows = where(rows, block=rows["block"].max())
    by = rows["ratio" if what.endswith("samples") else what]
    return rows[by == by.min()], rows[by == by.max()]


def _emergence_sides(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame, *, what: str) -> Sides:
    """Linearity at the deepest block with the `least` and with the `most` of a condition."""
    least, most = _ends(rows, what)
    if claim.metric == "distance":
        return {"least": where(least, metric="distance"), "most": where(most, metric="distance")}
    coefs = {"least": where(least, metric="coef"), "most": where(most, metric="coef")}
    return {side: end.assign(value=(end["value"] - 1).abs()) for side, end in coefs.items()}


def _changes_of_distance(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How much each condition changes the distance, from its least to its most."""
    sides = {}
    for what in CONDITIONS:
        least, most = (where(end, metric="distance") for end in _ends(rows, what))
        change = (most.set_index("seed")["value"] - least.set_index("seed")["value"]).abs()
        sides[what] = most.assign(value=most["seed"].map(change).astype(float))
    return sides


SEGMENT = declare(
    Rows(
        "segment",
        "the model at `alpha` between the two of `subset`",
        "accuracy %, loss nats",
        shared.NETWORK,
        figure="segments",
    ),
    sides={"segments": _segment_sides},
)
CTL = declare(
    shared.linearity("ctl"),
    sides={
        "changes": _changes_of_distance,
        **{
            f"emergence: {what}": functools.partial(_emergence_sides, what=what)
            for what in CONDITIONS
        },
    },
)
