"""Records of losses of merges."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

MERGE_LOSS = declare(
    Rows(
        "merge_loss",
        "E(tau) / E(0) of a merge in the tangent model on validation images in the metric "
        "`chosen_by` (task `all`), at its least over option and coefficient; accuracies there, "
        "and of the choice by labels on validation images; a minimum's values by `step`",
        "relative_loss, absolute %, residual, solved, checked, solving s",
        "merge, option, chosen_by, step, hits",
        figure="merge_loss",
    )
)
