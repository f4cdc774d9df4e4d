"""Records of merges, and the sides of claims about them."""

from __future__ import annotations

import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import most_tasks, where


def _merges(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracies of the vectors of all tasks, merged in each way; fine-tuned non-linearly."""
    if "merge" not in rows:
        return {}
    rows = where(rows, metric=claim.metric, method="nonlinear", split="test")
    return dict(iter(most_tasks(rows).groupby("merge")))


MERGING = declare(
    Rows(
        "merging",
        "vectors merged by `merge`, at the best of `trials` looks at validation images, with "
        "its `option`; what the tangent model loses (task `all`) relative to no edit",
        "absolute %, normalised %, objective",
        "merge, trials, option",
        figure="merge_accuracy",
    ),
    sides={"merges": _merges},
)
