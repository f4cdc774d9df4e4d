"""The closed-vocabulary paper's search for learning rates (appendix C)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from tasklab.analyses import evaluation
from tasklab.errors import TasklabError, choose, positive, shown, texts
from tasklab.evidence.declared import learning_rates as declared
from tasklab.evidence.experiments.kit import Lab, Run, Trial, experiment, grid, kept, tidy
from tasklab.models import heads
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tasklab.tuning import probes
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.methods import EDITS
from tasklab.tuning.probes import searched_task
from tasklab.tuning.rates import RATES

FINER = (*RATES[:3], 3e-4, *RATES[3:4], 3e-3, *RATES[4:])  # half decades where a small model learns


def _runs(
    lab: Lab,
    methods: Sequence[str] = ("probe", "nonlinear", "full"),
    *,
    rates: Sequence[float] | None = None,
    task: str | None = None,
) -> Iterator[Run]:
    task, rates = task or searched_task(lab.suite), rates or _usual_rates(lab)
    for method, seed, lr in itertools.product(methods, lab.seeds, rates):
        if method != "probe":
            yield Run(lab, dataclasses.replace(lab.run(task, method, seed), lr=lr))


def _usual_rates(lab: Lab) -> tuple[float, ...]:
    return FINER if lab.parameters.preset == "full" else RATES


@experiment(declared.LEARNING_RATE, runs=_runs)
def learning_rates(
    lab: Lab,
    methods: Sequence[str] = ("probe", "nonlinear", "full"),
    *,
    rates: Sequence[float] | None = None,
    task: str | None = None,
) -> pd.DataFrame:
    """Return validation accuracy by learning rate, as the paper chooses it (appendix C).

    All validation images are used, and no test image.

    `diverged_at` is the step (from 0) at which a run was stopped. `exact`, of the method `probe`,
    has no rate: the minimum of the convex problem, by L-BFGS with a penalty of 1e-5.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: `probe` for AdamW's linear probe at `probes.RATES`, and any that train a vector.
        rates: Of fine-tuning; by default the paper's, in the preset `full` with half decades around
            the best.
        task: Name of a task; by default the stand-in for Cars, as in the paper.
    """
    task = task or searched_task(lab.suite)
    choose("task", task, lab.suite.names)
    rates = _usual_rates(lab) if rates is None else rates
    ascending(rates)
    methods = texts("methods", methods, ("probe", *EDITS))
    common: dict[str, Any] = {"tasks": [task], "lab": lab, "experiment": "learning_rate"}
    rows = []
    if "probe" in methods:  # kept under the non-linear run, whose probe it is
        trial = Trial(method="nonlinear", seed=0, **common)
        key: dict[str, Any] = {"what": "probe", "rates": list(probes.RATES)}
        rows += kept(trial, _probed, **key, search=1)

    measure = functools.partial(_tuned, rates=rates)
    trained = [method for method in methods if method != "probe"]
    title = "learning rates"
    for trial in grid(lab, "learning_rate", trained, over=[[task]], title=title) if trained else ():
        key = {"what": trial.method, "rates": list(rates)}
        rows += kept(trial, measure, **key, search=1)
    return tidy(rows)


def ascending(values: Sequence[float], name: str = "rates") -> tuple[float, ...]:
    """Return distinct numbers in ascending order; raise unless all are positive."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TasklabError(f"{name} must be a list of numbers, not {shown(values)}.")
    settled = sorted({positive(f"each of {name}", value) for value in values})
    if not settled:
        raise TasklabError(f"{name} is empty: give at least one.")
    return tuple(settled)


def _row(trial: Trial, **more: object) -> dict:
    vocabulary = trial.lab.parameters.vocabulary
    return trial.row(task=trial.tasks[0], split="validation", vocabulary=vocabulary, **more)


def _probed(trial: Trial) -> list[dict]:
    lab, (task,) = trial.lab, trial.tasks
    probe = dataclasses.replace(lab.run(task, "nonlinear", trial.seed).probe, lr=None)
    accuracies = probes.search(probe, lab.clip, lab.suite, lab.store, probes.RATES, task)
    whole = drawn.images_of(lab.suite).size(task, "val")
    exact = dataclasses.replace(probe, solver="lbfgs")
    best = probes.validation(exact, lab.clip, lab.suite, lab.store, task)
    common = {"method": "probe", "n": whole if probe.images is None else min(probe.images, whole)}
    rows = [
        _row(trial, lr=float(lr), metric="single", value=value, **common)
        for lr, value in accuracies.items()
    ]
    return [*rows, _row(trial, metric="exact", value=best, **common)]


def _tuned(trial: Trial, rates: Sequence[float]) -> list[dict]:
    lab, (task,), rows = trial.lab, trial.tasks, []
    # All validation images: one task has few.
    evaluator = (
        lab.evaluator if lab.rehearsal else evaluation.Evaluator(lab.clip, lab.suite, lab.store)
    )
    for lr in rates:
        config = dataclasses.replace(lab.run(task, trial.method, trial.seed), lr=lr)
        try:
            run = lab.trainer(config)
        except DivergedError as error:
            more = {"lr": float(lr), "vocabulary": lab.parameters.vocabulary}
            rows.append(trial.diverged(task, error, **more))
            continue
        value = validated(evaluator, task, run.vector, run.head, linear=trial.linear)
        n = evaluator.count(task, "val")
        rows.append(_row(trial, lr=float(lr), metric="single", value=value, n=n))
    return rows


def validated(
    evaluator: evaluation.Evaluator,
    task: str,
    vector: TaskVector,
    head: heads.Head | None,
    *,
    linear: bool,
) -> float:
    """Return the validation accuracy in % of one vector.

    Args:
        evaluator: The pre-trained model with all heads.
        task: Whose validation images are classified.
        vector: Added with coefficient 1.
        head: The classifier that was fine-tuned along; `None` for the evaluator's.
        linear: Whether to evaluate the linearized model.
    """
    own = evaluator.with_heads({task: head}) if head is not None else evaluator
    return own.evaluate(vector, task, "val", linear=linear)
