"""Records of joint fine-tuning."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

JOINT = declare(
    Rows("joint", "one model fine-tuned on all tasks together, on each", "absolute %", "hits")
)
