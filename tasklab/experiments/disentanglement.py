"""Weight disentanglement and the choice of coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tasklab.analyses import coefficients
from tasklab.analyses import disentanglement as disentangle
from tasklab.errors import TasklabError
from tasklab.experiments.lab import LINEAR, Lab, pairs_of
from tasklab.records import papers


def pairs(lab: Lab, count: int | None = None) -> list[tuple[str, str]]:
    """Return pairs of the suite's tasks that stand in for the papers'.

    Args:
        lab: What is studied.
        count: How many; by default the preset's.
    """
    found = pairs_of(lab.suite)
    return found[: lab.scale.pairs if count is None else count]


def disentanglement(
    lab: Lab,
    methods: Sequence[str],
    *,
    reach: float = 3.0,
    points: int | None = None,
    n_pairs: int | None = None,
) -> pd.DataFrame:
    """Return the disentanglement errors of pairs of tasks on a grid (tangent, figures 3 and 10).

    Args:
        lab: What to study.
        methods: Any of `EDITS`.
        reach: The grid is on [-reach, reach]².
        points: Of each axis; by default the preset's.
        n_pairs: How many pairs; by default the preset's.

    Returns:
        Records of the experiment `disentanglement`, one for each metric and cell, with the columns
        alpha1 and alpha2, of the method's name for the task `"T1+T2"`.
    """
    alphas = disentangle.grid(reach, points or lab.scale.points)
    rows = []
    for method, seed in lab.grid(methods, "disentanglement"):
        for pair in pairs(lab, n_pairs):
            rows += lab.kept(
                "disentanglement",
                method,
                seed,
                lambda m=method, s=seed, p=pair: _map(lab, m, s, p, alphas),
                tasks=pair,
                alphas=list(alphas),
                images=lab.scale.images,
            )
    return papers.tidy(rows)


def _map(
    lab: Lab, method: str, seed: int, pair: tuple[str, str], alphas: Sequence[float]
) -> list[dict]:
    found = disentangle.error_map(
        lab.evaluator_of(method, seed),
        lab.vectors(method, seed, pair),
        linear=method in LINEAR,
        alphas=alphas,
        images=lab.scale.images,
        progress=lab.progress,
    )
    return [{**lab.row("disentanglement", method, seed), **row} for row in found.rows(method, seed)]


def exact_alpha(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return the exact accuracy of the sum of all vectors along alpha, beside the papers' grid.

    Args:
        lab: What to study.
        methods: Those that edit the linearized model: `linearized`, `posthoc`, ...

    Raises:
        TasklabError: If a method's edited model is not linear.
    """
    wrong = [method for method in methods if method not in LINEAR]
    if wrong:
        raise TasklabError(f"{wrong[0]!r} is not affine in alpha: its curve has no closed form.")
    rows = []
    for method, seed in lab.grid(methods, "exact coefficients"):
        rows += lab.kept(
            "exact_alpha",
            method,
            seed,
            lambda m=method, s=seed: _exact(lab, m, s),
            alphas=list(lab.scale.alphas),
        )
    return papers.tidy(rows)


def _exact(lab: Lab, method: str, seed: int) -> list[dict]:
    found = coefficients.exact_addition(
        lab.evaluator_of(method, seed), lab.vectors(method, seed), grid=lab.scale.alphas
    )
    return [{**lab.row("exact_alpha", method, seed), **row} for row in found.rows(method, seed)]


def own_coefficients(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return accuracies with one coefficient for each task, beside one for all.

    Args:
        lab: What to study.
        methods: Any of `EDITS`. Linear models are solved by coordinate ascent; others take a trial
            of every task's images for each step.
    """
    tasks = lab.suite.names[: lab.scale.most_tasks]
    rows = []
    for method, seed in lab.grid(methods, "coefficients of each task"):
        rows += lab.kept(
            "own_coefficients",
            method,
            seed,
            lambda m=method, s=seed: _own(lab, m, s, tasks),
            tasks=tasks,
        )
    return papers.tidy(rows)


def _own(lab: Lab, method: str, seed: int, tasks: Sequence[str]) -> list[dict]:
    linear, vectors = method in LINEAR, lab.vectors(method, seed, tasks)
    found = coefficients.per_task(lab.evaluator_of(method, seed), vectors, linear=linear)
    return [
        {**lab.row("own_coefficients", method, seed), **row} for row in found.rows(method, seed)
    ]
