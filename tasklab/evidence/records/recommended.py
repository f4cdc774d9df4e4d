"""Merges at recommended coefficients against those at coefficients that validation images chose."""

from __future__ import annotations

import pandas as pd

NEAR = 1.0  # point: a recommended merge that loses no more is near the chosen one
NONE = "none"  # the merge of the pre-trained model


def settings(df: pd.DataFrame) -> pd.DataFrame:
    """Compare both coefficients of each merge on test images, on average over its tasks.

    Args:
        df: Records `merging` and `recommended` of the same vectors, of any models.

    Returns:
        A row per model, method, merge, n_tasks, subset and seed that both have: alpha, the
        recommended coefficient; lost, the accuracy at the chosen coefficient less that at the
        recommended one (points); gain, the latter's over the pre-trained model (points).
    """
    rows = df[(df["metric"] == "absolute") & (df["split"] == "test")].fillna({"subset": ""})
    group = ["model", "method", "n_tasks", "subset", "seed"]
    keys = [*group, "merge"]
    taken, chosen = (
        rows[rows["experiment"] == name].groupby(keys)[["value", "alpha"]].mean()
        for name in ("recommended", "merging")
    )
    start = taken.xs(NONE, level="merge")["value"].rename("start")
    both = taken.join(chosen["value"].rename("chosen"), how="inner").join(start, on=group)
    lost, gain = both["chosen"] - both["value"], both["value"] - both["start"]
    return both[["alpha"]].assign(lost=lost, gain=gain).reset_index()


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Count how near recommended merges come, by model, merge and number of tasks.

    Args:
        found: What `settings` returns.

    Returns:
        A row per model, merge and n_tasks: settings, their number; near, the share that loses
        `NEAR` points or less (%); lost, the mean loss and worst, the largest (points); harmed, the
        number that is less accurate than the pre-trained model.
    """
    groups = found.assign(
        near=100.0 * (found["lost"] <= NEAR), harmed=found["gain"] < 0, worst=found["lost"]
    ).groupby(["model", "merge", "n_tasks"])
    of = {"near": "mean", "lost": "mean", "worst": "max", "harmed": "sum"}
    return groups.agg(of).assign(settings=groups.size()).reset_index()
