"""Records of strengths of penalties, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare
from tasklab.tuning.methods import TABLE


def _sides(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Sums of vectors with a penalty: `chosen`, at the method's `own` strength, and with `none`.

    A method's strength is chosen by what the sum of all reaches on validation images, as the mean
    over tasks and seeds, among those that are above 0 and at which no run diverged.
    """
    if "penalty" not in rows:
        return {}
    gone = rows[rows["metric"] == "diverged_at"].set_index(["method", "penalty"]).index
    rows = rows[(rows["metric"] == claim.metric) & rows["penalty"].notna()]
    rows = rows[~rows.set_index(["method", "penalty"]).index.isin(gone)]
    sides = {}
    for method, part in rows.groupby("method"):
        told, tested = (part[part["split"] == split] for split in ("validation", "test"))
        means = told[told["penalty"] > 0].groupby("penalty")["value"].mean()
        if len(means):
            at = {"chosen": means.idxmax(), "own": TABLE[method].weight, "none": 0.0}
            for name, strength in at.items():
                sides[f"{method} {name}"] = tested[np.isclose(tested["penalty"], strength)]
    return sides


PENALTY_STRENGTH = declare(
    Rows(
        "penalty_strength",
        "vectors trained with `penalty` times what keeps them apart: alone, and their sum",
        "single %, absolute %, diverged_at steps",
        "penalty",
        figure="penalty_strengths",
    ),
    sides={"strengths": _sides},
)
