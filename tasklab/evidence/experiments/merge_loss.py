"""Loss of merges in the tangent model, in three metrics, and the choice by it.

E(tau) / E(0) needs unlabelled images of the tasks and no label. `merge_loss` measures it of every
merge and of the minima (`minima.MINIMA`), and the accuracy of a merge whose option and
coefficient have the least E. Vectors trained in the network (`minima.DISTILLED`) are also measured
at the coefficient 1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses.merging import best
from tasklab.analyses.merging.best import METRICS
from tasklab.bench.merges import MERGES, Bench, Unlabelled, unlabelled
from tasklab.bench.minima import DISTILLED, MINIMA, solved
from tasklab.evidence.declared import merge_loss as declared
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, kept, tidy
from tasklab.evidence.experiments.merging import benches, known_merges, merging_of

LABELS = "labels"  # a choice by accuracy on validation images, beside `METRICS`
TRAINED = "training"  # no choice: the coefficient 1


@experiment(declared.MERGE_LOSS)
def merge_loss(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Measure the loss of merges in three metrics, and choose by it.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        merges: Any of `MERGES` and `MINIMA`; by default all. Each is stored by itself.
        n_tasks: Sizes of groups of tasks; by default the preset's.
    """
    names = known_merges((*MERGES, *MINIMA) if merges is None else merges)
    every = benches(lab, methods, n_tasks, "merge_loss")
    return tidy([row for bench in every for name in names for row in _of_merge(bench, name)])


def _of_merge(bench: Bench, name: str) -> list[dict]:
    def measure(trial: Trial) -> list[dict]:
        steps = _steps(bench, trial, name) if name in MINIMA else ()
        return [*_chosen(bench, trial, name), *steps]

    return kept(bench.trial, measure, grouped=True, **bench.key(name))


def _chosen(bench: Bench, trial: Trial, name: str) -> Iterator[dict]:
    labelled = next(row for row in merging_of(bench, name) if row["metric"] == "absolute")
    vector = bench.merged(name, labelled.get("option"))
    alpha, images = labelled["alpha"], sum(map(len, bench.own))
    whole = {"task": "all", "split": "validation", "n": images}
    at: dict[str, Any] = {"linear": trial.linear, "alphas": [alpha]}
    mean = float(np.mean(trial.evaluator.sweep(vector, bench.tasks, "val", **at)))
    named = {"merge": name, "chosen_by": LABELS, "metric": "absolute"}
    yield trial.row(**whole, **named, alpha=alpha, value=mean)
    chosen = dict(zip(METRICS, unlabelled(bench, name, METRICS), strict=True))
    if name in DISTILLED:
        chosen[TRAINED] = Unlabelled(
            vector, None, 1.0, best.relative(bench.tangents(vector), bench.own)
        )
    for metric, one in chosen.items():
        labels = {"merge": name, "chosen_by": metric, "alpha": one.alpha}
        labels |= {} if one.option is None else {"option": one.option}
        yield trial.row(**whole, **labels, metric="relative_loss", value=one.loss)
        edit = functools.partial(trial.evaluator.answers, one.vector, linear=trial.linear)
        for task in bench.tasks:
            yield trial.answered(task, "absolute", edit(task, "test", one.alpha), **labels)


def _steps(bench: Bench, trial: Trial, name: str) -> Iterator[dict]:
    made = solved(bench, name)
    if made.seconds is not None:
        yield trial.row(task="all", merge=name, metric="solving", value=made.seconds)
    for column, metric in (("objective", "solved"), ("checked", "checked"), ("residual",) * 2):
        for step, value in enumerate(made.record[column]):
            split = "train" if metric != "checked" else "validation"
            yield trial.row(
                task="all", split=split, merge=name, metric=metric, step=step, value=value
            )
