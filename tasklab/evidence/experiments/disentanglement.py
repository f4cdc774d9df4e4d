"""Weight disentanglement and the choice of coefficients."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from tasklab.analyses import coefficients
from tasklab.analyses import disentanglement as disentangle
from tasklab.analyses.finite import check_grid
from tasklab.errors import TasklabError, texts, whole
from tasklab.evidence.declared import disentanglement as declared
from tasklab.evidence.experiments.kit import (
    Lab,
    Trial,
    experiment,
    run,
    several,
)
from tasklab.evidence.experiments.runner import affine_methods
from tasklab.evidence.records.images import box_means
from tasklab.tasks.suites import pairs_of

BOX = (0.0, 0.25, 0.5, 0.75, 1.0)  # coefficients of both vectors in the search box of addition


def pairs(lab: Lab, count: int | None = None) -> list[tuple[str, ...]]:
    """Return pairs of the suite's tasks: first those that stand in for the papers', then others.

    `count` is how many; by default as many of the papers' as the preset has.
    """
    every = list(itertools.combinations(several(lab.suite), 2))
    named = pairs_of(lab.suite)
    if count is None:
        return named[: lab.scale.pairs]
    others = [pair for pair in every if pair not in named]
    return [*named, *others][: whole("n_pairs", count, 1)]


def checked_pairs(lab: Lab, given: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Return pairs of the suite's tasks as a list, or raise unless they are."""
    chosen = list(given)
    for pair in chosen:
        tasks = texts("a pair of tasks", pair, several(lab.suite))
        if len(tasks) != 2 or tasks[0] == tasks[1]:
            raise TasklabError(f"a pair is two different tasks, not {' and '.join(tasks)}.")
    if not chosen:
        raise TasklabError("there is no pair of tasks: give at least one.")
    return chosen


@experiment(declared.DISENTANGLEMENT)
def disentanglement(
    lab: Lab,
    methods: Sequence[str],
    *,
    reach: float = 3.0,
    points: int | None = None,
    n_pairs: int | None = None,
    of: Sequence[tuple[str, str]] | None = None,
    alphas: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Return the disentanglement errors of pairs of tasks on a grid (tangent, figures 3 and 10).

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        reach: The grid is on [-reach, reach]².
        points: Coefficients along each axis; by default the preset's.
        n_pairs: Number of pairs of tasks; by default the preset's.
        of: These pairs of tasks, in place of those that stand in for the papers'.
        alphas: These coefficients on both axes, in place of `reach` and `points`.
    """
    if alphas is None:
        alphas = disentangle.grid(reach, points or lab.scale.points)
    check_grid(alphas)
    over = pairs(lab, n_pairs) if of is None else checked_pairs(lab, of)

    images = lab.scale.map_images
    on: dict[str, Any] = {"alphas": alphas, "images": images, "progress": lab.progress}

    def measure(trial: Trial) -> list[dict]:
        edited = trial.evaluator, trial.vectors
        errors = disentangle.error_map(*edited, linear=trial.linear, **on)
        return trial.rows(errors.rows(trial.method, trial.seed))

    key = {"alphas": list(alphas), "images": images, "maps": 3}
    return run(lab, "disentanglement", methods, measure, over=over, **key)


@experiment(declared.SEARCH_BOX)
def search_box(lab: Lab, methods: Sequence[str], *, n_pairs: int | None = None) -> pd.DataFrame:
    """Return the mean disentanglement error of pairs of tasks in the search box of addition.

    It takes 5 by 5 coefficients in [0, 1]², of which a map on [-3, 3]² has few.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        n_pairs: Number of pairs; by default the preset's.
    """
    cells = disentanglement(lab, methods, n_pairs=n_pairs, alphas=BOX)
    return box_means(cells).assign(experiment="search_box")


@experiment(declared.EXACT_ALPHA)
def exact_alpha(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return the exact accuracy of the sum of all vectors along alpha, beside the papers' grid."""
    methods = affine_methods(methods)
    grid = lab.scale.alphas

    def measure(trial: Trial) -> list[dict]:
        curves = coefficients.exact_addition(trial.evaluator, trial.vectors, grid=grid)
        return trial.rows(curves.rows(trial.method, trial.seed))

    title = "exact coefficients"
    return run(lab, "exact_alpha", methods, measure, title=title, alphas=list(grid))


@experiment(declared.OWN_COEFFICIENTS)
def own_coefficients(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return accuracies with one coefficient for each task, beside one for all.

    Args:
        methods: Any of `EDITS`. Linear models are solved by coordinate ascent; others take a trial
            of every task's images for each step.
    """

    def measure(trial: Trial) -> list[dict]:
        both = coefficients.per_task(trial.evaluator, trial.vectors, linear=trial.linear)
        return trial.rows(both.rows(trial.method, trial.seed))

    tasks = lab.suite.names[: lab.scale.most_tasks]
    title = "coefficients of each task"
    return run(lab, "own_coefficients", methods, measure, over=[tasks], title=title)
