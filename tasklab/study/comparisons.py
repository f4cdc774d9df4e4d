"""What claims compare that takes an analysis: transitivity; and R^2 beside the paper's."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tasklab.records.comparisons import Sides, comparison
from tasklab.records.papers import papers

THRESHOLD = 0.1  # cross-task linearity holds for a pair if its distance is this share of the base


@comparison
def transitivity(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How often (i, k) fails after linear pairs with a middle (`linked`), and without one."""
    from tasklab.analyses.transitivity import pairs_in  # here: reading results needs no torch
    from tasklab.analyses.transitivity import transitivity as over_triples

    pairs = pairs_in(rows[rows["method"] == "nonlinear"])
    if len(pairs) < 6:
        return {}
    table = over_triples(pairs, THRESHOLD, by=["seed"]).summary
    table = table[["seed", "violations", "violations_unlinked"]].assign(task="triples", subset="")
    columns = {"linked": "violations", "unlinked": "violations_unlinked"}
    return {side: table.assign(value=table[name]) for side, name in columns.items()}


def r_squared(fits: pd.DataFrame) -> pd.DataFrame:
    """Put what explains theorem 5.1's gap beside the paper's numbers (appendix C.2).

    Args:
        fits: What `curvature.explained_variance` returns.

    Returns:
        A row a predictor: the paper's R^2 and ours with its 95 % interval and n (pairs).
    """
    printed = papers("ctl", "C.2")["value"].tolist()
    order = dict(zip(("bound", "curvature", "distance"), printed, strict=True))
    fits = fits.set_index("predictor").loc[list(order)]
    return pd.DataFrame(
        {
            "predictor": list(order),
            "paper R²": printed,
            "our R²": fits["value"].tolist(),
            "low": fits["low"].tolist(),
            "high": fits["high"].tolist(),
            "n pairs": fits["n_pairs"].tolist(),
        }
    )
