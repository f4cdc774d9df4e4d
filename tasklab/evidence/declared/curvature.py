"""Records of theorem 5.1 and errors of pairs, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy

from tasklab.evidence.declared import shared
from tasklab.evidence.records.claims import Claim, Sides, by_seed
from tasklab.evidence.records.schema import Rows, declare


def _sides(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Medians of theorem 5.1's `gap` and `bound`, or how well (R^2) predictors explain the gap."""

    def numbers(pairs: pd.DataFrame) -> dict[str, float]:
        if claim.metric == "delta":
            return {"gap": pairs["value"].median(), "bound": pairs["bound"].median()}
        names = ("bound", "curvature", "distance", "second_order")
        return {name: _r_squared(pairs[name], pairs["value"]) for name in names}

    return by_seed(rows, numbers)


def _r_squared(x: pd.Series, y: pd.Series) -> float:
    if any(np.ptp(v) <= 1e-9 * np.abs(v).max() for v in (x, y)):
        return 0.0
    return float(scipy.stats.linregress(x.to_numpy(float), y.to_numpy(float)).rvalue ** 2)


THEOREM = declare(
    Rows(
        "theorem",
        "both sides of theorem 5.1 for the models `one` and `other` of a `group`",
        "delta nats",
        f"{shared.NETWORK}, group, one, other, curvature, distance, bound, second_order",
    ),
    sides={"theorem": _sides},
)
PAIR_ERRORS = declare(
    Rows(
        "pair_errors", "what adding two vectors changes on their tasks' images", "xi_pair %, lost %"
    )
)
