"""Records of sums of subsets, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import most_tasks, where
from tasklab.tuning.methods import JOINT


def _decay(claim: Claim, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """Mean normalised accuracy of sums of `two` and of `all` tasks (method `full`), and 100."""
    sums = where(records, experiment="subsets", metric="normalised")
    keys = ["model", "suite", "seed", "n_tasks"]
    mine = where(sums, method=JOINT, model=rows["model"].iloc[0])
    means = mine.groupby(keys, as_index=False)["value"].mean()
    means = means.assign(task="all", subset="")
    count = pd.to_numeric(sums["n"]).max()  # images of all tasks together
    absolute = where(rows, metric="absolute", method=JOINT)
    top = absolute.groupby(keys, as_index=False)["value"].mean().rename(columns={"value": "top"})
    means = means.merge(top, on=keys, how="left")
    base = (100 * means["top"] / means["value"]).clip(0.1, 100)
    odds = sum(100 / share - 1 for share in (means["top"].clip(0.1, 100), base))
    means = means.assign(error=means["value"] * np.sqrt(odds / count))  # to first order
    sides = {"two": where(means, n_tasks=2), "all": most_tasks(means)}
    return {**sides, "one": sides["all"].assign(value=100.0, error=0.0)}


SUBSETS = declare(
    Rows(
        "subsets",
        "the mean over the tasks of `subset`, whose vectors are added",
        "absolute %, normalised %",
        "vocabulary",
        figure="subset_curves",
    ),
    sides={"decay": _decay},
)
