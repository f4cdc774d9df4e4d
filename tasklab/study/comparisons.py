"""Recorded results beside the papers' numbers, where that takes more than a difference."""

from __future__ import annotations

import pandas as pd

from tasklab.records.papers import papers


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
        One row per predictor: the paper's R^2, and ours with its 95 % interval and n (pairs).
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
