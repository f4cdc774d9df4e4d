"""Records of learning rates."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

LEARNING_RATE = declare(
    Rows(
        "learning_rate",
        "one vector, or probe, trained at the rate `lr`, on validation images",
        "single %, exact %, diverged_at steps",
        "lr, vocabulary",
        figure="learning_rate",
    )
)
