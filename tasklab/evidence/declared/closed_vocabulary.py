"""Records of models without a text tower."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

ADDITION_FINE = declare(
    Rows(
        "addition_fine",
        "the sum as in `addition`, at the best of finer coefficients",
        "absolute %, normalised %, lambda",
        "vocabulary, hits",
    )
)
CLOSED_COST = declare(
    Rows(
        "closed_cost",
        "what probing, fine-tuning and the search for coefficients took",
        "seconds_features s, seconds_probe s, seconds_finetune s, seconds_sweep s, "
        "seconds_subsets s, tried",
        "vocabulary",
    )
)
