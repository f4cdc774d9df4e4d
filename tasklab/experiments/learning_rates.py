"""The closed-vocabulary paper's search for learning rates (appendix C)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd

from tasklab.analyses import evaluation
from tasklab.experiments.lab import Lab
from tasklab.models import heads
from tasklab.records import papers
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune, probes
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.probes import searched_task

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of fine-tuning: appendix C
FINER = (*RATES[:3], 3e-4, *RATES[3:4], 3e-3, *RATES[4:])  # half decades where a small model learns


def learning_rates(
    lab: Lab,
    methods: Sequence[str] = ("probe", "nonlinear", "full"),
    *,
    rates: Sequence[float] | None = None,
    task: str | None = None,
) -> pd.DataFrame:
    """Return validation accuracy by learning rate, as the paper chooses it (appendix C).

    Test images are not looked at. All validation images are used.

    Args:
        lab: What to study; of `schemes`.
        methods: `probe` for AdamW's linear probe at `probes.RATES`, and any that train a vector.
        rates: Of fine-tuning; by default the paper's, in the preset `full` with half decades around
            the best.
        task: By default the stand-in for Cars.

    Returns:
        Records of the experiment `learning_rate` with the column lr: `single` on validation
        images, or, where a run went wrong, `diverged_at`, the step (from 0) at which it was
        stopped. Of the method `probe` also `exact`, without a rate: the minimum of the convex
        problem, by L-BFGS with a penalty of 1e-5.
    """
    task = task or searched_task(lab.suite)
    rates = rates or (FINER if lab.parameters.preset == "full" else RATES)
    rows = []
    if "probe" in methods:
        rows += _kept(lab, "probe", 0, probes.RATES, task)
    for method, seed in lab.grid([m for m in methods if m != "probe"], "learning rates"):
        rows += _kept(lab, method, seed, rates, task)
    return papers.tidy(rows)


def _kept(lab: Lab, method: str, seed: int, rates: Sequence[float], task: str) -> list[dict]:
    make = _probed if method == "probe" else _tuned
    return lab.kept(
        "learning_rate",
        "nonlinear" if method == "probe" else method,
        seed,
        lambda: make(lab, method, seed, rates, task),
        tasks=[task],
        what=method,
        rates=list(rates),
        search=ALGORITHM,
    )


def _evaluator(lab: Lab) -> evaluation.Evaluator:
    """Return an evaluator with all validation images: one task has few."""
    return lab.evaluator if lab.rehearsal else evaluation.Evaluator(lab.clip, lab.suite, lab.store)


def _row(lab: Lab, method: str, seed: int, task: str, lr: float | None, **more: object) -> dict:
    row = lab.row("learning_rate", method, seed, task=task, split="validation")
    rate = {} if lr is None else {"lr": float(lr)}
    return {**row, **rate, "vocabulary": lab.parameters.vocabulary, **more}


def _probed(lab: Lab, method: str, seed: int, rates: Sequence[float], task: str) -> list[dict]:
    how = dataclasses.replace(lab.run(task, "nonlinear", seed).probe, lr=None)
    found = probes.search(how, lab.clip, lab.suite, lab.store, rates, task)
    whole = drawn.images_of(lab.suite).size(task, "val")
    n = whole if how.images is None else min(how.images, whole)
    exact = dataclasses.replace(how, solver="lbfgs")
    accuracy = probes.validation(exact, lab.clip, lab.suite, lab.store, task)
    return [
        *(
            _row(lab, method, seed, task, lr, metric="single", value=value, n=n)
            for lr, value in found.items()
        ),
        _row(lab, method, seed, task, None, metric="exact", value=accuracy, n=n),
    ]


def _tuned(lab: Lab, method: str, seed: int, rates: Sequence[float], task: str) -> list[dict]:
    evaluator, rows = _evaluator(lab), []
    for lr in rates:
        config = dataclasses.replace(lab.run(task, method, seed), lr=lr)
        try:
            run = finetune.finetune(
                config, lab.clip, lab.store, tasks=lab.suite, progress=lab.progress
            )
        except DivergedError as error:
            value = float(error.step)
            rows.append(_row(lab, method, seed, task, lr, metric="diverged_at", value=value))
            continue
        value = validated(evaluator, task, run.vector, run.head, linear=method == "linearized")
        n = evaluator.count(task, "val")
        rows.append(_row(lab, method, seed, task, lr, metric="single", value=value, n=n))
    return rows


def validated(
    evaluator: evaluation.Evaluator,
    task: str,
    vector: TaskVector,
    head: heads.Head | None,
    *,
    linear: bool,
) -> float:
    """Return the validation accuracy in % of one vector with its own head, if it has one."""
    own = evaluator.with_heads({task: head}) if head is not None else evaluator
    return own.evaluate(vector, task, "val", linear=linear)
