"""What another make of processor changes in an effect, as a source of error of its own.

The same runs end otherwise on another make: products are rounded otherwise, weights drift apart,
and validation may choose another coefficient. The spread over seeds of one machine has a part of
this at most. So an interval gets a source `machine`, whose standard deviation was measured once
for each metric and does not shrink with the number of seeds, which is cautious: a few seeds cannot
tell whether a machine moves all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tasklab.records.claims import Claim
from tasklab.records.intervals import Source, half_width
from tasklab.records.schema import MAKE
from tasklab.records.table import where

_KNOWN = ("AMD", "Intel")
_KEYS = ("method", "task", "subset", "seed", "n_tasks")  # of a run
# Metric -> standard deviation between makes of one run's mean over tasks (in the metric's unit),
# and the number of differences it is from. Source: `mini`'s runs at seeds 0 to 4 in bfloat16, in
# the recorded parts `editing` (Intel) and `pretraining` (AMD); `spread` computes it,
# and a test does so anew.
SPREAD: Mapping[str, tuple[float, int]] = {
    "absolute": (0.256, 20),
    "normalised": (0.310, 20),
    "target": (0.372, 15),
    "control": (0.107, 15),
    "single": (0.072, 20),
}
# Experiment and comparison -> metrics that are means of such runs. Of others nothing was measured
# on two makes, and their interval lacks the machine.
_SCOPES = {
    ("addition", ""): ("absolute", "normalised"),
    ("merging", "merges"): ("absolute", "normalised"),
    ("penalty_strength", "strengths"): ("absolute",),
    ("negation", ""): ("target", "control"),
    ("single", ""): ("single",),
}


def make_of(machine: Mapping[str, Any]) -> str:
    """Return the make of a provenance's processor, or its accelerator's name.

    >>> make_of({"cpu": "AMD EPYC", "gpu": None})
    'AMD'
    """
    if machine.get("gpu"):
        return machine["gpu"]
    names = [machine[name] for name in ("make", "cpu") if machine.get(name)]
    return next((name for name in _KNOWN if name in " ".join(names)), names[-1])


def source(claim: Claim, pairs: pd.DataFrame) -> Source | None:
    """Return the machine as a source of error of a claim's effect, or `None`.

    There is none where records do not name the make, or nothing was measured of the metric.
    """
    scope = _SCOPES.get((claim.experiment, claim.comparison), ())
    if claim.metric not in scope or MAKE not in pairs or pairs[MAKE].isna().all():
        return None
    sd, freedom = SPREAD[claim.metric]
    sides = ((claim.left, 1.0), (claim.right, claim.factor))
    squares = sum(times**2 for side, times in sides if not side.startswith("pretrained"))
    leverage = float(pairs["leverage"].mean()) if "leverage" in pairs else 1.0
    return Source(name="machine", variance=sd**2 * squares * leverage, freedom=freedom)


def mixed(pairs: pd.DataFrame) -> int:
    """Return at how many seeds the two sides were measured on different makes."""
    names = [MAKE, f"{MAKE}_right"]
    if not set(names) <= set(pairs):
        return 0
    known = pairs.dropna(subset=names)
    return int(known.loc[known[names[0]] != known[names[1]], "seed"].nunique())


def smallest(metric: str) -> float:
    """Return the half-width of the interval of a difference that has the machine alone."""
    sd, freedom = SPREAD[metric]
    return half_width([Source(name="machine", variance=2 * sd**2, freedom=freedom)])


def runs(one: pd.DataFrame, other: pd.DataFrame, experiment: str, metric: str) -> pd.DataFrame:
    """Return `mini`'s runs that were recorded on two makes: value, value_other and difference.

    A row is a method, task and seed.
    """
    chosen = {"experiment": experiment, "metric": metric, "split": "test"}
    tables = []
    for table in (one, other):
        rows = where(table, **chosen, model="mini", init="pretrained")
        rows = rows[rows["method"] != "pretrained"].fillna({"subset": "", "n_tasks": 0})
        tables.append(rows[[*_KEYS, "value"]].drop_duplicates())
    both = tables[0].merge(tables[1], on=list(_KEYS), suffixes=("", "_other"))
    return both.assign(difference=both["value_other"] - both["value"])


def spread(runs: pd.DataFrame) -> tuple[float, int]:
    """Return the standard deviation of one run's mean over tasks between makes, and its number.

    Equation: sd = sqrt(mean of D² / 2), D the difference of a method's mean over tasks at a seed.
    """
    each = runs.groupby(["method", "seed"])["difference"].mean()
    return math.sqrt((each**2).mean() / 2), len(each)
