"""Records of all metrics of the book, side by side."""

from __future__ import annotations

from tasklab.evidence.records.schema import LEADING_MERGES, Rows, declare

CROSSING = declare(
    Rows(
        "crossing",
        "a metric of the book for one task, a pair (`T1+T2`) or `all`: `n_tasks` says which; "
        "of `pair_errors` at the same `alpha`; `lost_sum` is `single` less `absolute`, "
        "`lost_ties`, ... the same of a merge of all",
        "single %, absolute %, normalised %, lost_sum %, target %, control %, xi_pair %, lost %, "
        "xi_classifier %, xi_representation nats, distance, coef, base, cosine, norm, "
        "gradient_cosine, gradient_distance, gap, share, seconds_finetune s, trainable parameters, "
        + ", ".join(f"lost_{merge} %" for merge in LEADING_MERGES),
        figure="merging_foretold",
    )
)
