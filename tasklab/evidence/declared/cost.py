"""Records of the cost of training steps, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare


def _sides(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Cost of a training step by variant: `standard`, the papers' `listing`, `ours`, ...

    The standard error of a median over rounds is that of a normal distribution's, from the
    quartiles; memory is counted, and has none. `memory_ratio` is the peak over a standard step's.
    """
    if "variant" not in rows:
        return {}
    rows = rows[rows["metric"] == claim.metric.replace("memory_ratio", "peak_memory")]
    if claim.metric == "memory_ratio":
        standard = rows.loc[rows["variant"] == "standard", "value"].mean()
        rows = rows.assign(**{name: rows[name] / standard for name in ("value", "low", "high")})
    spread = (rows["high"] - rows["low"]) / 1.349
    rows = rows.assign(error=1.253 * spread / np.sqrt(rows["n"].astype(float)))
    return dict(iter(rows.groupby("variant")))


COST = declare(
    Rows(
        "cost",
        "what a training step of one task takes, in `n` rounds; `time_ratio` over a standard "
        "one of the same round; quartiles over rounds",
        "seconds_per_step s, time_ratio times, peak_memory MiB, trainable parameters",
        "variant, low, high",
    ),
    sides={"steps": _sides},
)
