"""Records of kernel localization."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

LOCALIZATION = declare(
    Rows(
        "localization",
        "energy of eigenfunctions of one class (`subset`) on image `x` of a `side`, or share",
        "energy, share, unseen_share",
        "side, x",
        figure="localization",
    )
)
