"""Declarations that several modules of experiments share."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows

#: Columns that tell small networks apart.
NETWORK = "pretraining, finetuning, lr, finetuning_lr, ratio, replaced, wider"


def linearity(name: str) -> Rows:
    """Return the declaration of records that compare merged features with merged weights'."""
    return Rows(
        name,
        "merged features against merged weights' on the segment, in the sum, ... of models; "
        "`distance` 1 - cos, `coef` the coefficient, the others the models' own distances; "
        "quartiles over images",
        "distance, coef, base, base_merged, endpoint, first",
        f"block, low, middle, high, {NETWORK}",
        figure="cross_task",
    )
