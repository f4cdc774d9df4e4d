"""Fine-tuning, single-task accuracy, task addition, task negation: the papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses import editing
from tasklab.experiments.lab import Lab
from tasklab.experiments.runner import Trial, kept, known_methods, records, run
from tasklab.records.table import tidy
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import POSTHOC


def train(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Fine-tune every task by every method and seed; return the losses of all steps.

    Returns:
        Columns method, task, seed, step, loss.
    """
    return pd.DataFrame(
        {"method": method, "task": task, "seed": seed, "step": step, "loss": loss}
        for method in known_methods(methods)
        if method not in POSTHOC
        for seed in lab.parameters.seeds
        for task in lab.suite.names
        for step, loss in enumerate(lab.tune(task, method, seed).record["losses"])
    )


def single(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return test accuracies of the pre-trained model and of each vector on its own task."""

    def measure(trial: Trial) -> list[dict]:
        values = editing.single_task(trial.evaluator, trial.vectors, "test", linear=trial.linear)
        return [
            trial.accuracy(task, "single", value)
            for task, value in zip(trial.vectors, values, strict=True)
        ]

    start = [row for row in _pretrained(lab) if row["task"] != lab.suite.control.name]
    title = "single-task accuracy"
    return tidy([*start, *records(lab, "single", methods, measure, title=title)])


def _pretrained(lab: Lab) -> list[dict]:
    """Return the accuracies of the unedited model on all tasks and on the control."""

    def measure(trial: Trial) -> list[dict]:
        empty = TaskVector({})
        return [
            trial.accuracy(
                task, "single", lab.evaluator.evaluate(empty, task, "test", 0.0, linear=False)
            )
            for task in (*lab.suite.names, lab.suite.control.name)
        ]

    return kept(Trial(lab=lab, experiment="single", method="pretrained", seed=0), measure)


def addition(
    lab: Lab, methods: Sequence[str], n_tasks: Sequence[int] | None = None
) -> pd.DataFrame:
    """Add task vectors; return accuracies at the chosen alpha and along alpha.

    Args:
        lab: What to study.
        methods: Any of `EDITS`.
        n_tasks: Sizes of the groups of added tasks; by default the preset's.

    Returns:
        Records of the experiments `addition` (test) and `sweep` (validation; test as well for
        linear models, where it costs nothing).
    """
    names, alphas = lab.suite.names, lab.scale.alphas

    def measure(trial: Trial) -> list[dict]:
        group, evaluator, linear = trial.tasks, trial.evaluator, trial.linear
        chosen = editing.addition(evaluator, trial.vectors, linear=linear, alphas=alphas)
        whole = {
            "n_tasks": len(group),
            "subset": "" if len(group) == len(names) else "+".join(group),
        }
        rows = shares(trial, group, chosen.absolute, chosen.single, alpha=chosen.alpha, **whole)
        alone = editing.single_task(evaluator, trial.vectors, "val", linear=linear)
        curves = {"validation": (chosen.validation, alone)}
        if linear:
            total = TaskVector.sum(trial.vectors.values())
            test = evaluator.sweep(total, group, "test", linear=True, alphas=alphas)
            curves["test"] = (test, chosen.single)
        for split, (curve, single) in curves.items():
            for alpha, absolute in zip(alphas, curve, strict=True):
                at = {"experiment": "sweep", "alpha": alpha, "split": split}
                rows += shares(trial, group, absolute, single, **at, **whole)
        return rows

    groups = [g for n in n_tasks or lab.sizes() for g in map(list, editing.groups(names, n))]
    return run(
        lab,
        "addition",
        methods,
        measure,
        over=groups,
        title="task addition",
        alphas=list(alphas),
    )


def shares(
    trial: Trial, tasks: Sequence[str], absolute: np.ndarray, single: np.ndarray, **more: Any
) -> list[dict]:
    """Return the records of each task's absolute and normalised accuracy.

    Args:
        trial: What was studied.
        tasks: T names.
        absolute: Accuracies (T,) in % of the edited model.
        single: Accuracies (T,) in % of each vector alone.
        **more: Further columns.
    """
    share = editing.normalised(absolute, single)
    return [
        trial.accuracy(task, metric, value, **more)
        for metric, values in (("absolute", absolute), ("normalised", share))
        for task, value in zip(tasks, values, strict=True)
    ]


def negation(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Subtract each task's vector by the 95 % rule; return target and control accuracies."""
    control, alphas = lab.suite.control.name, lab.scale.alphas

    def both(trial: Trial, task: str, target: float, kept: float, **more: Any) -> list[dict]:
        return [
            trial.accuracy(task, metric, value, **more) | {"n": lab.evaluator.count(images, "test")}
            for metric, value, images in (("target", target, task), ("control", kept, control))
        ]

    def measure(trial: Trial) -> list[dict]:
        ((task, vector),) = trial.vectors.items()
        end = editing.negation(trial.evaluator, task, vector, linear=trial.linear, alphas=alphas)
        return both(trial, task, end.target, end.control, alpha=end.alpha)

    start = Trial(lab=lab, experiment="negation", method="pretrained", seed=0)
    zero = {row["task"]: row["value"] for row in _pretrained(lab)}
    rows = [row for t in lab.suite.names for row in both(start, t, zero[t], zero[control])]
    rows += records(
        lab,
        "negation",
        methods,
        measure,
        over=[[task] for task in lab.suite.names],
        title="task negation",
        alphas=list(alphas),
        rule=editing.CACHE_VERSION,
    )
    return tidy(rows)
