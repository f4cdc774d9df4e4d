"""Records of edits on validation images, each judged with coefficients that other images chose."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

TWO_FOLD = declare(
    Rows(
        "two_fold",
        "vectors alone, summed, merged by `merge` and subtracted, on validation images; one half "
        "of them chose the coefficient for the other, and `alpha` is the mean of both",
        "single %, absolute %, target %, control %",
        "merge, hits",
    )
)
