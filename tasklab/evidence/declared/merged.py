"""Records of merged models and their cost."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

MERGED = declare(
    Rows(
        "merged",
        "the vector that `merging` chose, `edited` in the network or the tangent model, "
        "against each task's own model; its length over theirs, and what it loses beside the "
        "best one",
        "absolute %, normalised %, xi_classifier %, xi_representation nats, "
        "distance, coef, norm, objective, excess",
        "merge, edited, option, hits",
        figure="merge_models",
    )
)
MERGING_COST = declare(
    Rows(
        "merging_cost",
        "what a merge of `n_tasks` vectors takes, without the search for its coefficient; "
        "`memory_ratio` over the vectors' own; images passed, and looked at in the search",
        "seconds s, peak_memory MiB, memory_ratio times, passed images, searched images",
        "merge, option",
    )
)
