"""Fine-tuning, single-task accuracy, task addition, task negation: the papers' tables."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses import coefficients, editing
from tasklab.errors import TasklabError, wholes
from tasklab.evidence.declared import editing as declared
from tasklab.evidence.experiments.kit import (
    Lab,
    experiment,
    tidy,
)
from tasklab.evidence.experiments.runner import (
    Trial,
    affine_methods,
    kept,
    known_methods,
    records,
    run,
)
from tasklab.evidence.records.images import packed
from tasklab.isolation import isolated
from tasklab.progress import track
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import POSTHOC


@isolated
def train(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Fine-tune every task by every method and seed; return the losses of all steps.

    Returns:
        Columns method, task, seed, step, loss.
    """
    trained = [method for method in known_methods(methods) if method not in POSTHOC]
    runs = list(itertools.product(trained, lab.seeds, lab.suite.names))
    return pd.DataFrame(
        {"method": method, "task": task, "seed": seed, "step": step, "loss": loss}
        for method, seed, task in track(runs, len(runs), "fine-tuning", unit="run", on=lab.progress)
        for step, loss in enumerate(lab.tune(task, method, seed).record["losses"])
    )


@experiment(declared.SINGLE)
def single(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return test accuracies of the pre-trained model and of each vector on its own task."""
    start = [row for row in _pretrained(lab) if row["task"] != lab.suite.control.name]
    title = "single-task accuracy"
    tuned = records(lab, "single", methods, alone, title=title) if methods else []
    return tidy([*start, *tuned])


def _pretrained(lab: Lab) -> list[dict]:
    def measure(trial: Trial) -> list[dict]:
        answers = functools.partial(lab.evaluator.answers, TaskVector({}), alpha=0.0, linear=False)
        tasks = *lab.suite.names, lab.suite.control.name
        return [trial.answered(task, "single", answers(task, "test")) for task in tasks]

    return kept(Trial(lab=lab, experiment="single", method="pretrained", seed=0), measure)


@experiment(declared.ADDITION, declared.SWEEP)
def addition(
    lab: Lab, methods: Sequence[str], n_tasks: Sequence[int] | None = None
) -> pd.DataFrame:
    """Add task vectors; return accuracies at the chosen alpha and along alpha.

    The sweep is on validation images; for linear models, where it costs nothing, on test images
    too.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        n_tasks: Numbers of tasks whose vectors are added; by default those of the preset.
    """
    alphas = lab.scale.alphas

    def measure(trial: Trial) -> list[dict]:
        group, evaluator, linear = trial.tasks, trial.evaluator, trial.linear
        chosen = editing.addition(evaluator, trial.vectors, linear=linear, alphas=alphas)
        at: dict[str, Any] = {"alpha": chosen.alpha, "answers": chosen.answers}
        rows = shares(trial, group, chosen.absolute, chosen.single, **at)
        on_validation = editing.single_task(evaluator, trial.vectors, "val", linear=linear)
        curves = {"validation": (chosen.validation, on_validation)}
        if linear:
            total = TaskVector.sum(trial.vectors.values())
            test = evaluator.sweep(total, group, "test", linear=True, alphas=alphas)
            curves["test"] = (test, chosen.single)
        for split, (curve, single) in curves.items():
            for alpha, absolute in zip(alphas, curve, strict=True):
                at = {"experiment": "sweep", "alpha": alpha, "split": split}
                rows += shares(trial, group, absolute, single, **at)
        return rows

    key = {"grouped": True, "title": "task addition", "alphas": list(alphas)}
    return run(lab, "addition", methods, measure, over=groups_of(lab, n_tasks), **key)


def groups_of(lab: Lab, n_tasks: Sequence[int] | None, least: int = 1) -> list[list[str]]:
    """Return the groups of tasks whose vectors are added or merged.

    A lab with all tasks of a suite uses the sets that were drawn of it; any other lab cuts its
    tasks in turn, so that each is in one group.

    Args:
        lab: Its suite has the tasks.
        n_tasks: Sizes of groups; by default those of the lab's preset.
        least: Smallest size that makes sense: 2 for a merge.

    Returns:
        Names of tasks, a list per group.

    Raises:
        TasklabError: If a size is below `least` or above the number of tasks.
    """
    names = lab.suite.names
    sizes = wholes("n_tasks", lab.sizes() if n_tasks is None else n_tasks, least, len(names))
    drawn = lab.suite.sets
    return [list(g) for n in sizes for g in drawn.get(n) or editing.groups(names, n)]


def each_alone(lab: Lab) -> list[list[str]]:
    """Return the tasks as groups of one."""
    return [[task] for task in lab.suite.names]


def alone(trial: Trial, **more: Any) -> list[dict]:
    """Return the records of each vector's accuracy alone on its own task."""
    answers = functools.partial(trial.evaluator.answers, split="test", linear=trial.linear)
    return [
        trial.answered(task, "single", answers(vector, task), **more)
        for task, vector in trial.vectors.items()
    ]


def shares(
    trial: Trial,
    tasks: Sequence[str],
    absolute: np.ndarray,
    single: np.ndarray,
    *,
    answers: Sequence[np.ndarray] | None = None,
    **more: Any,
) -> list[dict]:
    """Return the records of each task's absolute and normalised accuracy.

    Args:
        trial: Method, seed and lab of the records.
        tasks: Names of T tasks.
        absolute: Accuracies of the edited model in % (T,).
        single: Accuracies of the fine-tuned models in % (T,), by which the former are divided.
        answers: For each task whether the edited model classified each image correctly (N,).
        more: Further columns of every record.

    Returns:
        T records of `absolute`, then T of `normalised`, both in %.
    """
    share, none = editing.normalised(absolute, single), [dict[str, str]()] * len(tasks)
    hits = none if answers is None else [{"hits": packed(right)} for right in answers]
    return [
        trial.accuracy(task, metric, value, **hit, **more)
        for metric, values, columns in (("absolute", absolute, hits), ("normalised", share, none))
        for task, value, hit in zip(tasks, values, columns, strict=True)
    ]


@experiment(declared.NEGATION)
def negation(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Subtract each task's vector by the 95 % rule; return target and control accuracies."""
    if lab.clip.text is None:
        raise TasklabError("the control task needs a head made of prompts: take a model with text.")
    control, alphas = lab.suite.control.name, lab.scale.alphas

    def measure(trial: Trial) -> list[dict]:
        ((task, vector),) = trial.vectors.items()
        end = editing.negation(trial.evaluator, task, vector, linear=trial.linear, alphas=alphas)
        return _negated(trial, end)

    start = Trial(lab=lab, experiment="negation", method="pretrained", seed=0)
    zero = {
        row["task"]: {name: row[name] for name in ("value", "n", "hits") if name in row}
        for row in _pretrained(lab)
    }
    rows = [row for t in lab.suite.names for row in _both(start, t, zero[t], zero[control])]
    key: dict[str, Any] = {"alphas": list(alphas), "rule": editing.CACHE_VERSION}
    over = each_alone(lab)
    rows += records(lab, "negation", methods, measure, over=over, title="task negation", **key)
    return tidy(rows)


@experiment(declared.EXACT_NEGATION)
def exact_negation(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Subtract each task's vector by the 95 % rule, at the exact coefficient."""
    methods = affine_methods(methods)

    def measure(trial: Trial) -> list[dict]:
        ((task, vector),) = trial.vectors.items()
        return _negated(trial, coefficients.exact_negation(trial.evaluator, task, vector))

    over = each_alone(lab)
    return run(lab, "exact_negation", methods, measure, over=over, title="exact negation")


def _negated(trial: Trial, end: editing.Negation) -> list[dict]:
    numbers = [
        {"value": value, "n": len(right), "hits": packed(right), "alpha": end.alpha}
        for value, right in zip((end.target, end.control), end.answers, strict=True)
    ]
    return _both(trial, end.task, *numbers)


def _both(trial: Trial, task: str, of_target: dict, of_control: dict) -> list[dict]:
    accuracies = {"target": of_target, "control": of_control}
    return [
        trial.row(task=task, metric=metric, split="test", **numbers)
        for metric, numbers in accuracies.items()
    ]
