"""Headlines under other rules for the learning rate, from their verdicts."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.matched import BEST, ONE_RATE, PLATEAU

RULES = ("chosen", PLATEAU, BEST, ONE_RATE)
COLUMNS = [
    "entry", "claim", "metric", "sides", "unit", "rule", "lr", "effect", "low", "high", "outcome",
    "here_low", "here_high", "here", "seeds",
]  # fmt: skip


def over_rates(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return headlines under every rule for the rate, one row per rule or, at one rate, a rate.

    Returns:
        `COLUMNS`: lr is NaN where sides differ in it; effect, low, high and outcome draw tasks,
        here_low, here_high and here are of these tasks alone.
    """
    tested = [one for one in verdicts if one.outcome != "not tested"]
    known = {one.claim.id.partition("@")[0] for one in tested if one.claim.setting == ONE_RATE}
    rows = []
    for one in tested:
        claim, name = one.claim, one.claim.id.partition("@")[0]
        if name not in known or claim.setting not in RULES:
            continue
        alone, two = one.on_these_tasks or one, (claim.left, claim.right)
        first, second = two if claim.relation == ">" else two[::-1]
        rows.append(
            {"entry": claim.entry, "claim": name, "metric": claim.metric, "unit": claim.unit,
             "sides": f"{first} − {second}", "rule": claim.setting, "lr": claim.rate,
             **one.interval._asdict(), "outcome": one.outcome, "here": alone.outcome,
             "here_low": alone.interval.low, "here_high": alone.interval.high,
             "seeds": one.n_seeds}
        )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        ["claim", "lr"], kind="stable", na_position="first", ignore_index=True
    )
