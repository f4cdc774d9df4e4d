"""Records of merges chosen without any image."""

from __future__ import annotations

from tasklab.evidence.records.schema import Rows, declare

RECOMMENDED = declare(
    Rows(
        "recommended",
        "vectors merged by `merge` at the coefficient and the `option` that `tasklab merge` takes "
        "by itself; `none` is the pre-trained model",
        "absolute %",
        "merge, option, hits",
    )
)
