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
from tasklab.evidence.experiments.kit import (
    Claim,
    Lab,
    Rows,
    Sides,
    Trial,
    experiment,
    run,
    several,
    where,
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


def _beyond(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How many times larger attention's error is beyond coefficients of 1 than up to there.

    Of the `representation`, in nats, and of the `classifier`, in per cent: ratios have no unit.
    """
    rows, keys = rows[rows["method"] == "attention"], ["seed", "task", "subset"]
    sides = {}
    for side in ("representation", "classifier"):
        box, far = (rows[rows["metric"] == f"xi_{side}_{end}"] for end in ("box", "beyond"))
        inner = box.set_index(keys)["value"].rename("inner")
        both = far.join(inner, on=keys, how="inner").drop(columns="hits", errors="ignore")
        sides[side] = both.assign(value=both["value"] / both["inner"])
    return sides


def _pretraining(claim: Claim, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """The disentanglement error of a model (`pretrained`), and of the untrained one (`random`)."""
    chosen = {"experiment": "disentanglement", "metric": claim.metric, "method": "nonlinear"}
    sides = {"pretrained": rows, "random": records}
    return {side: where(part, init=side, **chosen) for side, part in sides.items()}


@experiment(
    Rows(
        "disentanglement",
        "error of a pair of tasks at two coefficients; with `_box` the mean over a square",
        "xi_classifier %, xi_classifier_box %, xi_classifier_beyond %, "
        "xi_representation nats, xi_representation_box nats, xi_representation_beyond nats",
        "alpha1, alpha2, hits",
        figure="heatmaps",
    ),
    sides={"beyond": _beyond, "pretraining": _pretraining},
)
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
        reach: The grid is on [-reach, reach]².
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


@experiment(
    Rows(
        "search_box",
        "error of a pair of tasks, the mean over 5 by 5 coefficients from 0 to 1",
        "xi_classifier_box %, xi_representation_box nats",
        "hits",
    )
)
def search_box(lab: Lab, methods: Sequence[str], *, n_pairs: int | None = None) -> pd.DataFrame:
    """Return the mean disentanglement error of pairs of tasks in the search box of addition.

    It takes 5 by 5 coefficients in [0, 1]², of which a map on [-3, 3]² has few.
    """
    cells = disentanglement(lab, methods, n_pairs=n_pairs, alphas=BOX)
    return box_means(cells).assign(experiment="search_box")


@experiment(
    Rows(
        "exact_alpha",
        "the sum along `alpha`: between knots of the exact curve, and on the grid",
        "normalised_exact %, normalised_grid %, chosen_exact %, chosen_grid %",
        figure="exact_curve",
    )
)
def exact_alpha(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return the exact accuracy of the sum of all vectors along alpha, beside the papers' grid."""
    methods = affine_methods(methods)
    grid = lab.scale.alphas

    def measure(trial: Trial) -> list[dict]:
        curves = coefficients.exact_addition(trial.evaluator, trial.vectors, grid=grid)
        return trial.rows(curves.rows(trial.method, trial.seed))

    title = "exact coefficients"
    return run(lab, "exact_alpha", methods, measure, title=title, alphas=list(grid))


@experiment(
    Rows(
        "own_coefficients",
        "the sum with one coefficient for all, and with one of each task's own, its `alpha`",
        "absolute_shared %, absolute_own %, normalised_shared %, normalised_own %",
        figure="per_task_coefficients",
    )
)
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
