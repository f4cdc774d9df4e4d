"""Records of the papers' tables (single vectors, sums, negation), and the sides of claims."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides, by_seed
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import most_tasks, where


def _gaps(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """By how many points each method is below non-linear fine-tuning, on each task."""
    rows = where(rows, metric=claim.metric, split="test", init="pretrained")
    rows = most_tasks(rows) if claim.experiment == "addition" else rows
    keys = ["seed", "task", "subset"]
    usual = where(rows, method="nonlinear").set_index(keys)["value"].rename("usual")
    sides = {}
    for method, part in rows.groupby("method"):
        both = part.join(usual, on=keys, how="inner")
        shares = [both[name] / 100 for name in ("value", "usual")]
        variance = sum(p * (1 - p) for p in shares) / both["n"].astype(float)
        gap = both["usual"] - both["value"]
        sides[method] = both.drop(columns="hits", errors="ignore").assign(
            value=gap, error=100 * np.sqrt(variance)
        )
    return sides


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
