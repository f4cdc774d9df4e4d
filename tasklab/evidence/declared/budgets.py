"""Records of learning rates and numbers of steps."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

RATE_SEARCH = declare(
    Rows(
        "rate_search",
        "one vector trained at the rate `lr`, on validation images",
        "single %, diverged_at steps",
        "lr",
        figure="rate_search",
    )
)
BUDGET = declare(
    Rows(
        "budget",
        "vectors trained for `steps` at the rate `lr`: alone, summed, subtracted, their "
        "length, and one pair's error in the search box",
        "single %, absolute %, target %, control %, xi_classifier_box %, norm",
        "lr, steps, hits",
        figure="budget_curves",
    )
)
MERGING_RATES = declare(
    Rows(
        "merging_rates",
        "a task's own vector, trained at the rate `lr`, and all of them merged",
        "single %, absolute %",
        "merge, lr",
        figure="merge_curves",
    )
)
