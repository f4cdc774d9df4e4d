"""Merged vectors in the network and in its tangent model, compared with single ones; their cost.

`merging` says which vector of each method validation chose. Here that one vector is put into both
models, f(theta_0 + tau) and f_lin(theta_0 + tau), whichever of them it was chosen in.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses import agreement, meters
from tasklab.analyses.merging import METHODS, best
from tasklab.bench.merges import LOSS, MERGES, SPAN, Bench, options
from tasklab.errors import texts
from tasklab.evidence.declared import merged as declared
from tasklab.evidence.experiments.editing import shares
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, kept, stored, tidy
from tasklab.evidence.experiments.merging import benches, known_merges, merging_of
from tasklab.evidence.experiments.runner import machine_key, order_of
from tasklab.storage.placement import device_of
from tasklab.taskvector import TaskVector

NETWORK, TANGENT = "network", "tangent"


@experiment(declared.MERGED)
def merged(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Put each merged vector into the network and into its tangent model.

    `normalised` is by the single model of the same kind. Of the vector (task `all`): `norm`, its
    length over the mean length of the single vectors; `objective`, E(tau) / E(0) in the tangent
    model on validation images; `excess`, its difference to the best merge on the span. The other
    metrics are those of `analyses.agreement`.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        merges: Any of `MERGES`; by default all.
        n_tasks: Numbers of tasks whose vectors are added; by default those of the preset.
    """
    names, every = known_merges(merges), benches(lab, methods, n_tasks, "merged")
    return tidy([row for bench in every for row in _of_bench(bench, names)])


def _of_bench(bench: Bench, merges: Sequence[str]) -> Iterator[dict]:
    count, trial = bench.trial.lab.scale.feature_images[0], bench.trial

    @functools.cache  # the same for all merges
    def alone(linear: bool) -> agreement.Singles:
        return agreement.singles(trial.evaluator, trial.vectors, count, linear=linear)

    for name in merges:
        alpha, option = chosen(bench, name)

        def measure(trial: Trial, name=name, alpha=alpha, option=option) -> list[dict]:
            vector = bench.merged(name, option) * alpha
            labels = {"merge": name, "alpha": alpha}
            labels |= {} if option is None else {"option": option}
            rows = _of_vector(bench, vector, labels)
            for edited in (NETWORK, TANGENT):
                own = alone(edited == TANGENT)
                rows += _in(bench, vector, own, {"edited": edited, **labels})
            return rows

        key = {"images": count, "merged": 1, **bench.key(name)}
        yield from kept(bench.trial, measure, grouped=True, **key)


def chosen(bench: Bench, name: str) -> tuple[float, float | None]:
    """Return the coefficient and the option that `merging` chose."""
    row = next(row for row in merging_of(bench, name) if row["metric"] == "absolute")
    return row["alpha"], row.get("option")


def _of_vector(bench: Bench, vector: TaskVector, labels: dict) -> list[dict]:
    trial, own = bench.trial, bench.own
    lengths = [single.norm() for single in trial.vectors.values()]
    objective = best.relative(bench.tangents(vector), own)
    values = {
        "norm": vector.norm() / (sum(lengths) / len(lengths)),
        "objective": objective,
        "excess": objective - bench.least,
    }
    n = sum(map(len, own))
    of_images = {"split": "validation", "n": n}
    return [
        trial.row(task="all", metric=m, value=value, **({} if m == "norm" else of_images), **labels)
        for m, value in values.items()
    ]


def _in(bench: Bench, vector: TaskVector, alone: agreement.Singles, labels: dict) -> list[dict]:
    evaluator, split = bench.trial.evaluator, alone.split
    features = {
        task: agreement.features(evaluator, vector, task, split, linear=alone.linear)
        for task in bench.tasks
    }
    answers = [evaluator.right(features[task], task, split) for task in bench.tasks]
    single = [evaluator.right(alone.own[task], task, split) for task in bench.tasks]
    absolute, single = (np.array([100 * r.mean() for r in right]) for right in (answers, single))
    rows = shares(bench.trial, bench.tasks, absolute, single, answers=answers, **labels)
    agreed = agreement.agreement(evaluator, features, alone)
    return [*rows, *bench.trial.rows(agreed, **labels)]


@experiment(declared.MERGING_COST)
def merging_cost(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Measure each merge: seconds, memory, and images that are passed through a model.

    Kept in the store for one machine, number of threads, device and version of torch. The first
    seed's vectors and the first group of tasks of each size stand for all.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        merges: Any of `MERGES`; by default all.
        n_tasks: Numbers of tasks whose vectors are added; by default those of the preset.

    Returns:
        Records of the experiment `merging_cost` (task `all`): `seconds` and `peak_memory` of the
        merge, from the vectors on (and, of the best on their span, from their J tau, which every
        search computes); `memory_ratio`, the latter over the vectors' own; `passed`, images that
        the merge itself sees (of training; of validation for those that are solved for) by passes
        through a model, a forward and a backward one counting as two; `searched`, validation
        images by looks in the search, at most: a look may end early.
    """
    names = MERGES if merges is None else texts("merges", merges, MERGES)
    rows, seen = [], set()
    for bench in benches(lab, methods, n_tasks, "merging_cost"):
        trial = bench.trial
        if (trial.method, len(bench.tasks)) in seen:
            continue
        seen.add((trial.method, len(bench.tasks)))
        for name in names:
            config = {
                "experiment": trial.experiment,
                "method": trial.method,
                "runs": {t: lab.identity(t, trial.method, trial.seed) for t in bench.tasks},
                "costs": 1,
                **machine_key(lab),
                **order_of(lab, bench.tasks),
                **bench.key(name),
            }
            measured = stored(lab, config, functools.partial(_cost, bench, name))
            rows += [{**row, **trial.group} for row in measured]
    return tidy(rows)


def _cost(bench: Bench, name: str) -> list[dict]:
    trial, option = bench.trial, options(name)[len(options(name)) // 2]  # the paper's

    def step() -> None:
        bench.merged(name, option)

    step()  # loads parts of libraries, and puts the vectors' tangents into the store
    began = time.perf_counter()
    step()
    seconds = time.perf_counter() - began
    peak = meters.peak_bytes(step, device_of(bench.vectors))  # there it merges
    vectors = sum(x.numel() * x.element_size() for v in bench.vectors.values() for x in v.values())
    values = {
        "seconds": seconds,
        "peak_memory": peak / 2**20,
        "memory_ratio": peak / vectors,
        "passed": float(passed(bench, name)),
        "searched": float(bench.sizes["looks"] * sum(map(len, bench.own))),
    }
    labels: dict[str, Any] = {"merge": name, "task": "all"}
    labels |= {} if option is None else {"option": option}
    return [trial.row(metric=metric, value=value, **labels) for metric, value in values.items()]


def passed(bench: Bench, name: str) -> int:
    """Count the images that a merge passes through a model; forward and backward count as two."""
    tasks = len(bench.tasks)
    if name in (SPAN, LOSS):  # every vector's J tau on validation images
        return tasks * sum(map(len, bench.own))
    needs = METHODS[name].needs
    return math.prod((tasks, bench.read(needs), 1 + (needs == "diagonals"))) if needs else 0
