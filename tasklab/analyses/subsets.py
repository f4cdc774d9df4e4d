"""Task addition over every subset of the tasks (closed vocabulary, appendix I, figures 6 to 9).

Eight tasks have 255 subsets, each with a coefficient of its own, chosen on validation images.

- A linearized model is affine in its vectors: all subsets and coefficients are matrix products of
  features that are computed once.
- Any other model takes a pass over the images of the subset's tasks for every coefficient. Seven
  are tried, closer where they are small; from the best of them the search climbs the grid until
  both neighbours are no better: about nine for a subset, not 21.

Letters: T tasks, K tasks of a subset.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasklab.analyses import coefficients
from tasklab.analyses.edited import Line
from tasklab.analyses.editing import normalised
from tasklab.analyses.evaluation import Evaluator, Vectors
from tasklab.analyses.finite import check_grid, check_vectors
from tasklab.errors import whole
from tasklab.isolation import isolated
from tasklab.models import heads
from tasklab.progress import track
from tasklab.taskvector import TaskVector

COARSE = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # tried first, as far as they are on the grid

Subset = tuple[int, ...]  # places of its tasks, ascending
Accuracies = Callable[[Subset, float, str], np.ndarray]  # subset, lambda, split -> (K,) in %


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of a subset's vectors."""

    subset: Subset  #: Places of its tasks
    coefficient: float  #: The one chosen on validation images
    tried: int  #: How many were tried
    absolute: np.ndarray  #: Test accuracies (K,) in %


def subsets_of(count: int, most: int | None = None, seed: int = 0) -> list[Subset]:
    """Return all subsets of so many tasks, small ones first, or a sample of each size.

    Args:
        count: Number of tasks.
        most: Of each size between one task, of which all are taken, and all tasks.
        seed: Of the samples.

    >>> subsets_of(2)
    [(0,), (1,), (0, 1)]
    """
    count, most = whole("count", count, 1), None if most is None else whole("most", most, 1)
    generator, chosen = np.random.default_rng(seed), []
    for size in range(1, count + 1):
        every = list(itertools.combinations(range(count), size))
        if most is not None and size > 1 and len(every) > most:
            places = sorted(generator.choice(len(every), most, replace=False))
            every = [every[i] for i in places]
        chosen += every
    return chosen


def climb(value: Callable[[int], float], size: int, start: int) -> int:
    """Return the place of a local maximum on a grid.

    A step is taken to the better neighbour while it is better.

    Args:
        value: Place -> its value.
        size: Number of places.
        start: The first place, from 0.
    """
    here = start
    while True:
        near = [place for place in (here - 1, here + 1) if 0 <= place < size]
        best = max((here, *near), key=value)
        if value(best) <= value(here):
            return here
        here = best


@isolated
def search(
    accuracies: Accuracies,
    single: Mapping[str, np.ndarray],
    chosen: Sequence[Subset],
    grid: Sequence[float],
    *,
    whole: bool,
    progress: bool = False,
) -> list[Sum]:
    """Choose a coefficient for each subset on validation images, and report test accuracies.

    Args:
        accuracies: Subset and coefficients -> accuracies in % by task.
        single: Accuracies in % of each task's own vector, by split.
        chosen: The subsets.
        grid: Ascending coefficients.
        whole: Whether to try the whole grid for each subset, or `COARSE` and then climb.
        progress: Whether to show a bar.
    """
    check_grid(grid)
    near = {int(np.abs(np.asarray(grid) - x).argmin()) for x in COARSE}
    first = range(len(grid)) if whole else sorted(near)
    shown = track(list(chosen), len(chosen), "subsets", unit="subset", on=progress)
    return [_best(accuracies, single["val"], subset, grid, first) for subset in shown]


def _best(
    accuracies: Accuracies,
    single: np.ndarray,
    subset: Subset,
    grid: Sequence[float],
    first: Sequence[int],
) -> Sum:
    @functools.cache
    def value(place: int) -> float:  # mean normalised accuracy, by the place on the grid
        absolute = accuracies(subset, grid[place], "val")
        return float(normalised(absolute, single[list(subset)]).mean())

    best = climb(value, len(grid), max(first, key=value))
    test, tried = accuracies(subset, grid[best], "test"), value.cache_info().currsize
    return Sum(subset, float(grid[best]), tried, test)


@isolated
def affine(evaluator: Evaluator, vectors: Vectors) -> Accuracies:
    """Return the accuracies of sums in the linearized model: products of cached features."""
    check_vectors(vectors)
    tasks, every = tuple(vectors), list(vectors.values())
    scores = {
        (task, split): coefficients.affine_scores(evaluator, every, task, split)
        for task in tasks
        for split in ("val", "test")
    }

    def accuracies(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        alphas = np.zeros(len(tasks))
        alphas[list(subset)] = coefficient
        return np.array([scores[tasks[i], split].accuracy(alphas) for i in subset])

    return accuracies


@isolated
def passes(evaluator: Evaluator, vectors: Vectors, images: Mapping[str, int]) -> Accuracies:
    """Return the accuracies of sums in the model itself, by passes over a task's first images.

    Images stay preprocessed.

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        images: The most images by split.
    """
    check_vectors(vectors)
    encoder, tasks = evaluator.passes, tuple(vectors)
    theta0 = encoder.params

    @torch.inference_mode()
    def data(task: str, split: str) -> tuple[Tensor, Tensor]:
        count = images[split]
        return evaluator.preprocessed(task, split, count), evaluator.images(task, split).y[:count]

    images_of = {(task, split): data(task, split) for task in tasks for split in images}

    def accuracies(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        if coefficient == 0:  # the same model for all subsets
            return np.concatenate([start(i, split) for i in subset])
        return edited(subset, coefficient, split)

    @functools.cache
    def start(place: int, split: str) -> np.ndarray:
        return edited((place,), 0.0, split)

    @functools.lru_cache(1)
    def along(subset: Subset) -> Line:
        return Line(theta0, TaskVector.sum(vectors[tasks[i]] for i in subset))

    @torch.inference_mode()
    def edited(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        params = along(subset).at(coefficient)
        percent = []
        for i in subset:
            x, labels = images_of[tasks[i], split]
            features = torch.cat(list(evaluator.parts(lambda part: encoder(params, part), x)))
            logits = evaluator.logits(features, tasks[i], f"coefficient {coefficient:g}")
            percent.append(100 * heads.accuracy(logits, labels))
        return np.array(percent)

    return accuracies
