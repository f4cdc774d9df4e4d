"""Rows of records and verdicts that tests of several rooms make."""

import pandas as pd

from tasklab.evidence.records.claims import BY_ID, Claim
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.table import tidy

TASKS = ("Signs", "Places")
CLAIM = Claim(id="t", entry="t", paper="tangent", table="1", statement="more",
              experiment="addition", metric="absolute", left="linearized", relation=">",
              right="nonlinear")  # fmt: skip


def crossed(**axes):
    """Return a table with a row for each combination of values."""
    return pd.MultiIndex.from_product(axes.values(), names=[*axes]).to_frame(index=False)


def row(experiment, metric, value, **more):
    common = {"experiment": experiment, "model": "mini", "method": "nonlinear", "seed": 0}
    return common | {"task": "Signs", "metric": metric, "value": value, "n": 100} | more


def added(method, value, **more):
    """Return a row of eight vectors' sum."""
    base = row("addition", "absolute", value, method=method)
    return base | {"n_tasks": 8, "n": 1000} | more


def two_methods(differences, tasks=TASKS, **more):
    """Return sums of which the linearized one is better by a number of points for each seed."""
    return tidy(
        added(m, 60 + seed + (by if m == "linearized" else 0), seed=seed, task=task, **more)
        for seed, by in differences.items()
        for m in ("nonlinear", "linearized")
        for task in tasks
    )


def single(seeds=(0,), tasks=("Signs", "Scenes"), method="nonlinear", n=500):
    """Return accuracies of single tasks, all 50 %."""
    return [
        row("single", "single", 50.0, method=method, task=task, seed=seed, n=n)
        for seed in seeds
        for task in tasks
    ]


def found(name, effect, half=1.0, seeds=1, tasks=1):
    """Return a verdict on a claim by its effect and half the width of its interval."""
    outcome = "undecided" if not abs(effect) > half else "holds" if effect > 0 else "does not hold"
    return Verdict(
        claim=BY_ID[name], outcome=outcome, p=0.01,
        interval=Interval(effect, effect - half, effect + half),
        by_seed=dict.fromkeys(range(seeds), effect), by_task=dict.fromkeys("xy"[:tasks], effect),
    )  # fmt: skip
