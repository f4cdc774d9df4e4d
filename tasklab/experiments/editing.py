"""Fine-tuning, single-task accuracy, task addition, task negation: the papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses import editing
from tasklab.experiments.lab import LINEAR, Lab, known
from tasklab.records import papers
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import POSTHOC


def train(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Fine-tune every task by every method and seed; return the losses of all steps.

    Returns:
        Columns method, task, seed, step, loss.
    """
    trained = [m for m in known(methods) if m not in POSTHOC]
    rows = []
    for method in trained:
        for seed in lab.parameters.seeds:
            for task in lab.suite.names:
                losses = lab.tune(task, method, seed).record["losses"]
                rows += [
                    {"method": method, "task": task, "seed": seed, "step": i, "loss": loss}
                    for i, loss in enumerate(losses)
                ]
    return pd.DataFrame(rows)


def single(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return test accuracies of the pre-trained model and of each vector on its own task."""
    rows = [row for row in _pretrained(lab) if row["task"] != lab.suite.control.name]
    for method, seed in lab.grid(methods, "single-task accuracy"):
        rows += lab.kept("single", method, seed, lambda m=method, s=seed: _single(lab, m, s))
    return papers.tidy(rows)


def _pretrained(lab: Lab) -> list[dict]:
    """Return the accuracies of the unedited model on all tasks and on the control."""
    return lab.kept("single", "pretrained", 0, lambda: _zero_shot(lab))


def _zero_shot(lab: Lab) -> list[dict]:
    empty = TaskVector({})
    rows = []
    for task in (*lab.suite.names, lab.suite.control.name):
        value = lab.evaluator.evaluate(empty, task, "test", 0.0, linear=False)
        rows.append(lab.accuracy("single", "pretrained", 0, task, "single", value))
    return rows


def _single(lab: Lab, method: str, seed: int) -> list[dict]:
    vectors = lab.vectors(method, seed)
    evaluator = lab.evaluator_of(method, seed)
    values = editing.single_task(evaluator, vectors, "test", linear=method in LINEAR)
    return [
        lab.accuracy("single", method, seed, task, "single", value)
        for task, value in zip(vectors, values, strict=True)
    ]


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
    rows = []
    for method, seed in lab.grid(methods, "task addition"):
        for size in n_tasks or lab.sizes():
            for group in editing.groups(lab.suite.names, size):
                name = "" if size == len(lab.suite.names) else "+".join(group)
                rows += lab.kept(
                    "addition",
                    method,
                    seed,
                    lambda m=method, s=seed, g=group, n=name: _addition(lab, m, s, g, n),
                    tasks=list(group),
                    alphas=list(lab.scale.alphas),
                )
    return papers.tidy(rows)


def _addition(lab: Lab, method: str, seed: int, group: Sequence[str], name: str) -> list[dict]:
    vectors, linear = lab.vectors(method, seed, group), method in LINEAR
    evaluator, alphas = lab.evaluator_of(method, seed), lab.scale.alphas
    found = editing.addition(evaluator, vectors, linear=linear, alphas=alphas)
    extra = {"n_tasks": len(group), "subset": name}
    rows = _both(
        lab,
        "addition",
        method,
        seed,
        group,
        found.absolute,
        found.single,
        alpha=found.alpha,
        **extra,
    )
    curves = {
        "validation": (
            found.validation,
            editing.single_task(evaluator, vectors, "val", linear=linear),
        )
    }
    if linear:
        total = TaskVector.sum(vectors.values())
        test = evaluator.sweep(total, group, "test", linear=True, alphas=alphas)
        curves["test"] = (test, found.single)
    for split, (curve, single) in curves.items():
        for alpha, absolute in zip(alphas, curve, strict=True):
            rows += _both(
                lab,
                "sweep",
                method,
                seed,
                group,
                absolute,
                single,
                alpha=alpha,
                split=split,
                **extra,
            )
    return rows


def _both(
    lab: Lab,
    experiment: str,
    method: str,
    seed: int,
    group: Sequence[str],
    absolute: np.ndarray,
    single: np.ndarray,
    **extra: Any,
) -> list[dict]:
    """Return the rows of absolute and normalised accuracy of each task."""
    share = editing.normalised(absolute, single)
    return [
        lab.accuracy(experiment, method, seed, task, metric, value, **extra)
        for metric, values in (("absolute", absolute), ("normalised", share))
        for task, value in zip(group, values, strict=True)
    ]


def negation(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Subtract each task's vector by the 95 % rule; return target and control accuracies."""
    control = lab.suite.control.name
    zero = {row["task"]: row["value"] for row in _pretrained(lab)}
    rows = []
    for task in lab.suite.names:
        for metric, value, of in (
            ("target", zero[task], task),
            ("control", zero[control], control),
        ):
            row = lab.accuracy("negation", "pretrained", 0, task, metric, value)
            rows.append({**row, "n": lab.evaluator.count(of, "test")})
    for method, seed in lab.grid(methods, "task negation"):
        for task in lab.suite.names:
            rows += lab.kept(
                "negation",
                method,
                seed,
                lambda m=method, s=seed, t=task: _negation(lab, m, s, t),
                tasks=[task],
                alphas=list(lab.scale.alphas),
            )
    return papers.tidy(rows)


def _negation(lab: Lab, method: str, seed: int, task: str) -> list[dict]:
    (vector,) = lab.vectors(method, seed, [task]).values()
    found = editing.negation(
        lab.evaluator_of(method, seed),
        task,
        vector,
        linear=method in LINEAR,
        alphas=lab.scale.alphas,
    )
    rows = []
    for metric, value, of in (
        ("target", found.target, task),
        ("control", found.control, lab.suite.control.name),
    ):
        row = lab.accuracy("negation", method, seed, task, metric, value, alpha=found.alpha)
        rows.append({**row, "n": lab.evaluator.count(of, "test")})
    return rows
