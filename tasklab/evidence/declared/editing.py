"""Records of the papers' tables (single vectors, sums, negation), and the sides of claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tasklab.evidence.records import images
from tasklab.evidence.records.claims import Claim, Sides, by_seed
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import most_tasks, where


def _gaps(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """By how many points each method is below non-linear fine-tuning, on each task.

    Both are measured on the same images: `hits` has what each image gives to the gap. Where images
    are not known, `error` is as if both had images of their own, which is wider.
    """
    rows = where(rows, metric=claim.metric, split="test", init="pretrained")
    rows = most_tasks(rows) if claim.experiment == "addition" else rows
    rows = rows.assign(error=images.standard_errors(rows, claim.metric, None))
    keys, sides = ["seed", "task", "subset"], {}
    columns = [name for name in ("value", "error", "n", "hits") if name in rows]
    usual = where(rows, method="nonlinear").set_index(keys)[columns].add_suffix("_usual")
    for method, part in rows.groupby("method"):
        both = part.join(usual, on=keys, how="inner")
        gap: dict[str, Any] = {
            "value": both["value_usual"] - both["value"],
            "error": np.hypot(both["error_usual"], both["error"]),
        }
        if "hits" in rows:
            gap["hits"] = [_lost(row) for row in both.to_dict("records")]
        sides[method] = both[part.columns].assign(**gap)
    return sides


def _lost(row: Mapping) -> str | None:
    """Return each image's part in a gap as a text; `None` where sides have other images or none."""
    known = all(isinstance(row[name], str) for name in ("hits", "hits_usual"))
    if not known or row["n"] != row["n_usual"]:
        return None
    return images.lost(row["hits_usual"], row["hits"], int(row["n"]))


def _monotone(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """The largest climb of the mean accuracy beyond the best coefficient (`climb`), and `one`.

    In points, on validation images: how far it rises above its least value so far.
    """
    rows = where(rows, metric=claim.metric, method="nonlinear")

    def numbers(part: pd.DataFrame) -> dict[str, float]:
        curve = part.groupby("alpha")["value"].mean()
        curve = curve[curve.index >= curve.idxmax()]
        return {"climb": float((curve - curve.cummin()).max()), "one": 1.0}

    return by_seed(rows.assign(task="all", hits=None), numbers)


def _over_start(claim: Claim, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """The sum of all vectors by method, and the pre-trained model (`start`), on each task."""
    rows = most_tasks(where(rows, metric=claim.metric, split="test"))
    sides = dict(iter(rows.groupby("method")))
    usual = {"method": "pretrained", "metric": "single", "model": rows["model"].iloc[0]}
    before = where(records, **usual).groupby("task")["value"].mean()
    first = next(iter(sides.values()))
    return {**sides, "start": first.assign(value=first["task"].map(before), hits=None)}


SINGLE = declare(
    Rows(
        "single",
        "one task vector at coefficient 1 on its own task; `pretrained`, `probe`: no vector",
        "single %",
        "vocabulary, hits",
        figure="single_task",
    )
)
ADDITION = declare(
    Rows(
        "addition",
        "the sum of `n_tasks` vectors at the chosen `alpha` (the value of `lambda`, of all)",
        "absolute %, normalised %, lambda",
        "vocabulary, hits",
        figure="addition_bars",
    ),
    sides={"gaps": _gaps, "monotone": _monotone, "over_start": _over_start},
)
SWEEP = declare(
    Rows(
        "sweep",
        "the sum at every `alpha`; `split` says on which images",
        "absolute %, normalised %",
        "vocabulary",
        figure="addition_curves",
    )
)
NEGATION = declare(
    Rows(
        "negation",
        "one vector subtracted; `task` is its target for both metrics",
        "target %, control %",
        "hits",
        figure="negation",
    )
)
EXACT_NEGATION = declare(
    Rows(
        "exact_negation",
        "one vector subtracted in the linearized model, at the exact coefficient",
        "target %, control %",
        "hits",
    )
)
