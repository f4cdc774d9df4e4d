"""What claims compare that takes an analysis: transitivity; and R^2 beside the paper's."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tasklab.records.comparisons import Sides, comparison
from tasklab.records.papers import papers

# Cross-task linearity holds for a pair if its distance is at most this share of the base. Where all
# pairs hold, or none does, nothing can be transitive: a range has thresholds in between.
THRESHOLDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)


@comparison
def transitivity(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How often (i, k) fails after linear pairs with a middle (`linked`), and without one.

    In per cent of the triples, at each of `THRESHOLDS` where some premise holds.
    """
    from tasklab.analyses.transitivity import pairs_in  # here: reading results needs no torch
    from tasklab.analyses.transitivity import transitivity as over_triples

    pairs = pairs_in(rows[rows["method"] == "nonlinear"])
    if len(pairs) < 6:
        return {}
    table = over_triples(pairs, THRESHOLDS, by=["seed"]).summary
    table = table.assign(task=table["threshold"].map("{:g}".format), subset="")
    columns = {"linked": "violations", "unlinked": "violations_unlinked"}
    table = table.dropna(subset=list(columns.values()))
    table = table[["seed", "task", "subset", *columns.values()]]
    return {side: table.assign(value=100 * table[name]) for side, name in columns.items()}


def gains(df: pd.DataFrame) -> pd.DataFrame:
    """Return by how much a linearized step costs less here than as the papers list it.

    Args:
        df: Records of `experiments.step_cost`.

    Returns:
        A row for time and one for memory: the listing's cost and the one here as multiples of a
        standard step's, and the gain, their ratio.
    """
    rows = df[(df["experiment"] == "cost") & df["metric"].isin(["time_ratio", "peak_memory"])]
    table = rows.pivot_table(index="metric", columns="variant", values="value", sort=False)
    table = table[["listing", "ours"]].div(table["standard"], axis=0)
    table = table.assign(gain=table["listing"] / table["ours"])
    table = table.rename({"time_ratio": "time of a step", "peak_memory": "peak memory"})
    table = table.rename(columns={"listing": "the paper's listing", "ours": "here"})
    return table.rename_axis("over a standard step").reset_index().rename_axis(columns=None)


def r_squared(fits: pd.DataFrame) -> pd.DataFrame:
    """Put what explains theorem 5.1's gap beside the paper's numbers (appendix C.2).

    Args:
        fits: What `curvature.explained_variance` returns.

    Returns:
        A row a predictor: the paper's R^2 and the one here with its 95 % interval and n (pairs).
    """
    printed = papers("ctl", "C.2")["value"].tolist()
    order = dict(zip(("bound", "curvature", "distance"), printed, strict=True))
    fits = fits.set_index("predictor").loc[list(order)]
    return pd.DataFrame(
        {
            "predictor": list(order),
            "paper R²": printed,
            "R² here": fits["value"].tolist(),
            "low": fits["low"].tolist(),
            "high": fits["high"].tolist(),
            "n pairs": fits["n_pairs"].tolist(),
        }
    )
