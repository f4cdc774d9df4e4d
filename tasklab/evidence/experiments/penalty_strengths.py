"""Strength of a penalty, searched on validation images by the accuracy of the sum.

A penalty reduces interference between vectors and costs accuracy alone (`tuning.penalties`). Its
strength is tuned like a coefficient: the published codes search it. Here every
strength is measured, with 0 for the same way of fine-tuning without it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from tasklab.analyses import editing
from tasklab.evidence.declared import penalty_strengths as declared
from tasklab.evidence.experiments.kit import Lab, Run, experiment, several, tidy
from tasklab.evidence.experiments.learning_rates import ascending
from tasklab.evidence.experiments.runner import Trial, grid, kept, known_methods
from tasklab.progress import track
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.methods import TABLE, penalised
from tasklab.tuning.recipe import FineTune

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of a method's own strength


def _runs(lab: Lab, methods: Sequence[str], *, factors: Sequence[float] = FACTORS) -> Iterator[Run]:
    for method in methods:
        for strength, seed in itertools.product(_strengths(method, factors), lab.seeds):
            for task in lab.suite.names:
                yield Run(lab, _recipe(lab, task, method, seed, strength))


@experiment(declared.PENALTY_STRENGTH, runs=_runs)
def penalty_strengths(
    lab: Lab, methods: Sequence[str], factors: Sequence[float] = FACTORS
) -> pd.DataFrame:
    """Measure vectors alone and their sum at every strength of a method's penalty, and without it.

    The sum is at the coefficient that is best on validation images; where a run diverges,
    `diverged_at` alone is recorded, the step (from 0) at which it was stopped.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Methods with a penalty.
        factors: Multiples of the penalty's own strength.
    """
    several(lab.suite)
    chosen, factors = known_methods(methods), ascending(factors, "factors")
    for method in chosen:
        penalised(method)
    rows = []
    for method, strength in ((m, s) for m in chosen for s in _strengths(m, factors)):
        measure = functools.partial(_measure, strength=strength)
        title = f"{method}, strength {strength:g}"
        for trial in grid(lab, "penalty_strength", [method], title=title):
            made = kept(trial, measure, penalty=strength, version=1)
            rows += [row | {"penalty": strength} for row in made]
    return tidy(rows)


def _strengths(method: str, factors: Sequence[float]) -> tuple[float, ...]:
    return 0.0, *(factor * TABLE[method].weight for factor in factors)


def _recipe(lab: Lab, task: str, method: str, seed: int, strength: float) -> FineTune:
    """Return a run with so much of its penalty; with none it is of the way that has none."""
    if strength == 0:
        return lab.run(task, TABLE[method].rates, seed)
    return dataclasses.replace(lab.run(task, method, seed), penalty=strength)


def _measure(trial: Trial, strength: float) -> list[dict]:
    lab, linear, tasks = trial.lab, trial.linear, trial.lab.suite.names
    runs = {task: _recipe(lab, task, trial.method, trial.seed, strength) for task in tasks}
    ended = {}
    for task in track(tasks, len(tasks), "fine-tuning", unit="task", on=lab.progress):
        try:
            ended[task] = lab.trainer(runs[task])
        except DivergedError as error:
            return [trial.diverged(task, error)]
    vectors = {task: run.vector for task, run in ended.items()}
    heads = {task: run.head for task, run in ended.items() if run.head is not None}
    evaluator = lab.evaluator.with_heads(heads) if heads else trial.evaluator
    found = editing.addition(evaluator, vectors, linear=linear, alphas=lab.scale.alphas)
    alone = editing.single_task(evaluator, vectors, "val", linear=linear)
    place, n_tasks = found.alphas.index(found.alpha), len(tasks)
    values = {
        ("single", "validation"): alone,
        ("single", "test"): found.single,
        ("absolute", "validation"): found.validation[place],
        ("absolute", "test"): found.absolute,
    }
    return [
        trial.accuracy(
            task, metric, value, split,
            **({"alpha": found.alpha, "n_tasks": n_tasks} if metric == "absolute" else {}),
        )
        for (metric, split), of_tasks in values.items()
        for task, value in zip(tasks, of_tasks, strict=True)
    ]  # fmt: skip
