"""Task addition over every subset of the tasks (closed vocabulary, appendix I, figures 6 to 9).

Eight tasks have 255 subsets, each with a coefficient of its own, chosen on validation images.

- A linearized model is affine in its vectors: all subsets and coefficients are matrix products of
  features that are computed once.
- Any other model takes a pass over the images of the subset's tasks for every coefficient. Instead
  of the whole grid, seven coefficients are tried, closer where they are small; from the best of
  them the search climbs the grid until both neighbours are no better. About nine coefficients are
  tried for a subset, not 21. Only tasks of the subset are looked at, on a bounded number of images.
  (Climbing alone, from what smaller subsets chose, was caught in local maxima at large
  coefficients, below the accuracy of probing.)

Letters: T tasks, K tasks of a subset.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses import coefficients, evaluation
from tasklab.analyses.editing import normalised
from tasklab.analyses.evaluation import Evaluator
from tasklab.errors import TasklabError
from tasklab.experiments.lab import LINEAR, Lab
from tasklab.progress import track
from tasklab.records import papers
from tasklab.taskvector import TaskVector
from tasklab.tuning import probes
from tasklab.tuning.methods import FULL

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records
COARSE = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # tried first, as far as they are on the grid
IMAGES = {"val": 32, "test": 80}  # of each task, at most
QUICK_IMAGES = {"val": 32, "test": 64}
QUICK_SUBSETS = 2  # of each size

Subset = tuple[int, ...]  # places of its tasks, ascending
Accuracies = Callable[[Subset, float, str], np.ndarray]  # subset, lambda, split -> (K,) in %


@dataclass(frozen=True, eq=False)
class Found:
    """The sum of a subset's vectors.

    Attributes:
        subset: Places of its tasks.
        coefficient: The one chosen on validation images.
        tried: How many were tried.
        absolute: Test accuracies (K,) in %.
    """

    subset: Subset
    coefficient: float
    tried: int
    absolute: np.ndarray


def subsets_of(count: int, most: int | None = None, seed: int = 0) -> list[Subset]:
    """Return all subsets of so many tasks, small ones first, or a sample of each size.

    Args:
        count: Number of tasks.
        most: Of each size between one task, of which all are taken, and all tasks.
        seed: Of the sample.

    >>> subsets_of(2)
    [(0,), (1,), (0, 1)]
    """
    generator, chosen = np.random.default_rng(seed), []
    for size in range(1, count + 1):
        some = list(itertools.combinations(range(count), size))
        if most is not None and size > 1 and len(some) > most:
            places = sorted(generator.choice(len(some), most, replace=False))
            some = [some[i] for i in places]
        chosen += some
    return chosen


def climb(value: Callable[[int], float], size: int, start: int) -> int:
    """Return the place of a local maximum on a grid.

    A step is taken to the better neighbour while it is better.

    Args:
        value: Place on the grid -> value.
        size: Of the grid.
        start: Where to begin.
    """
    here = start
    while True:
        near = [place for place in (here - 1, here + 1) if 0 <= place < size]
        best = max((here, *near), key=value)
        if value(best) <= value(here):
            return here
        here = best


def search(
    accuracies: Accuracies,
    single: Mapping[str, np.ndarray],
    chosen: Sequence[Subset],
    grid: Sequence[float],
    *,
    whole: bool,
    progress: bool = False,
) -> list[Found]:
    """Choose a coefficient for each subset on validation images, and report test accuracies.

    Args:
        accuracies: Of the edited model.
        single: Accuracies (T,) in % of each vector alone, of the splits `val` and `test`.
        chosen: Subsets.
        grid: Coefficients, ascending.
        whole: Whether to try the whole grid for each subset, or `COARSE` and then climb.
        progress: Whether to show a bar.
    """
    evaluation.check_grid(grid)
    found = []
    for subset in track(list(chosen), len(chosen), "subsets", unit="subset", on=progress):
        places = list(subset)
        known: dict[int, float] = {}

        def value(
            place: int,
            subset: Subset = subset,
            places: list[int] = places,
            known: dict[int, float] = known,
        ) -> float:
            if place not in known:
                absolute = accuracies(subset, grid[place], "val")
                known[place] = float(normalised(absolute, single["val"][places]).mean())
            return known[place]

        coarse = range(len(grid)) if whole else _coarse(grid)
        best = climb(value, len(grid), max(coarse, key=value))
        test = accuracies(subset, grid[best], "test")
        found.append(Found(subset, float(grid[best]), len(known), test))
    return found


def _coarse(grid: Sequence[float]) -> list[int]:
    """Return the places on the grid nearest to `COARSE`."""
    return sorted({int(np.abs(np.asarray(grid) - x).argmin()) for x in COARSE})


def affine(evaluator: Evaluator, vectors: Mapping[str, TaskVector]) -> Accuracies:
    """Return the accuracies of sums in the linearized model: products of cached features."""
    tasks, every = tuple(vectors), list(vectors.values())
    known = {
        (task, split): coefficients.affine_scores(evaluator, every, task, split)
        for task in tasks
        for split in ("val", "test")
    }

    def accuracies(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        alphas = np.zeros(len(tasks))
        alphas[list(subset)] = coefficient
        return np.array([known[tasks[i], split].accuracy(alphas) for i in subset])

    return accuracies


def passes(
    evaluator: Evaluator, vectors: Mapping[str, TaskVector], images: Mapping[str, int]
) -> Accuracies:
    """Return the accuracies of sums in the model itself, by passes over a task's first images.

    Images stay preprocessed.

    Args:
        evaluator: Model, heads and images.
        vectors: One for each task, by its name.
        images: The most images of each task by split.
    """
    encoder, tasks = evaluator.clip.encoder, tuple(vectors)
    theta0 = encoder.params

    @torch.inference_mode()
    def data(task: str, split: str) -> tuple[Tensor, Tensor]:
        count = images[split]
        return evaluator.preprocessed(task, split, count), evaluator.images(task, split).y[:count]

    known = {(task, split): data(task, split) for task in tasks for split in images}

    def accuracies(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        if coefficient == 0:  # the same model for all subsets
            return np.concatenate([start(i, split) for i in subset])
        return edited(subset, coefficient, split)

    @functools.cache
    def start(place: int, split: str) -> np.ndarray:
        return edited((place,), 0.0, split)

    @torch.inference_mode()
    def edited(subset: Subset, coefficient: float, split: str) -> np.ndarray:
        total = TaskVector.sum(vectors[tasks[i]] for i in subset)
        params = total.apply(theta0, coefficient)
        found = []
        for i in subset:
            x, labels = known[tasks[i], split]
            features = torch.cat(list(evaluator.parts(lambda part: encoder(params, part), x)))
            guess = evaluator.head(tasks[i])(features).argmax(-1)
            found.append(100 * (guess == labels).double().mean().item())
        return np.array(found)

    return accuracies


def subsets(
    lab: Lab, methods: Sequence[str] = ("nonlinear",), *, most: int | None = None
) -> pd.DataFrame:
    """Add the vectors of every subset of the tasks, each sum at its own best coefficient.

    Args:
        lab: What to study; of `experiments.schemes`.
        methods: Any of `EDITS`. Those that edit the linearized model have all subsets and the
            whole grid at once.
        most: Subsets of each size for other methods; by default all, or in the preset `quick` a
            sample of `QUICK_SUBSETS`.

    Returns:
        Records of the experiment `subsets`, averages over the subset's tasks (task `all`, the
        subset's tasks as `subset`): `absolute`, `normalised`, at `alpha`. The same of the method
        `probe`, lambda = 0, normalised as the first method (absolute alone beside `full`); and
        `closed_cost` records with `seconds_subsets` and `tried`, the coefficients tried for a
        subset on average.

    Raises:
        TasklabError: If the lab's vocabulary is open: there is no probe.
    """
    if lab.parameters.vocabulary != "closed":
        raise TasklabError("subsets are compared with probing: take a lab with head='probe'.")
    quick = lab.parameters.preset == "quick" or lab.rehearsal
    most = QUICK_SUBSETS if quick and most is None else most
    images = dict(lab.scale.counts) if lab.rehearsal else QUICK_IMAGES if quick else IMAGES
    rows = []
    for method, seed in lab.grid(methods, "subsets"):
        linear = method in LINEAR
        found = lab.kept(
            "subsets",
            method,
            seed,
            lambda m=method, s=seed: _subsets(lab, m, s, most, images, m == methods[0]),
            alphas=list(lab.scale.alphas),
            most=None if linear else most,
            images=None if linear else images,
            probed=method == methods[0],
            subsets=ALGORITHM,
        )
        if method == FULL:  # its heads at lambda = 0 are no probes
            found = [row for row in found if row["method"] != "probe"]
            if method == methods[0]:
                found += lab.kept(
                    "subset_probes",
                    "pretrained",
                    seed,
                    lambda s=seed: _alone(lab, s, most, images["test"]),
                    most=most,
                    images=images,
                    subsets=ALGORITHM,
                )
        rows += found
    return papers.tidy(rows)


def _alone(lab: Lab, seed: int, most: int | None, images: int) -> list[dict]:
    """Return the accuracy of probing alone, on the images and subsets of the method `full`."""
    count, tasks = (
        min(images, *(lab.evaluator.count(t, "test") for t in lab.suite.names)),
        lab.suite,
    )
    found = []
    for task in tasks.names:
        how = lab.run(task, "nonlinear", seed).probe
        head = probes.fit(how, lab.clip, lab.suite, task, lab.store).head
        data, encoder = lab.evaluator.images(task, "test"), lab.clip.encoder
        with torch.inference_mode():
            features = encoder(encoder.params, encoder.preprocess(data.x[:count]))
            right = head(features).argmax(-1) == data.y[:count].to(features.device)
        found.append(100 * right.double().mean().item())
    rows = []
    for subset in subsets_of(len(found), most):
        row = lab.row("subsets", "probe", seed, task="all", metric="absolute")
        row |= {"subset": "+".join(tasks.names[i] for i in subset), "n_tasks": len(subset)}
        row |= {"value": float(np.mean([found[i] for i in subset])), "n": count * len(subset)}
        rows.append({**row, "alpha": 0.0, "vocabulary": lab.parameters.vocabulary})
    return rows


def _subsets(
    lab: Lab, method: str, seed: int, most: int | None, images: Mapping[str, int], probed: bool
) -> list[dict]:
    linear, began = method in LINEAR, time.perf_counter()
    vectors, evaluator = lab.vectors(method, seed), lab.evaluator_of(method, seed)
    tasks, splits = tuple(vectors), ("val", "test")
    counts = {s: min(images[s], min(evaluator.count(t, s) for t in tasks)) for s in splits}
    at = affine(evaluator, vectors) if linear else passes(evaluator, vectors, counts)
    singles = [(i,) for i in range(len(tasks))]
    alone = {split: np.concatenate([at(one, 1.0, split) for one in singles]) for split in splits}
    start = np.concatenate([at(one, 0.0, "test") for one in singles])
    chosen = subsets_of(len(tasks), None if linear else most)
    found = search(
        at, alone, chosen, lab.scale.alphas, whole=linear, progress=lab.progress and not linear
    )
    seconds = time.perf_counter() - began
    n = min(evaluator.count(t, "test") for t in tasks) if linear else counts["test"]
    rows = []

    def add(method: str, subset: Subset, absolute: np.ndarray, coefficient: float) -> None:
        share = normalised(absolute, alone["test"][list(subset)])
        named = {"subset": "+".join(tasks[i] for i in subset), "task": "all", "alpha": coefficient}
        named |= {"n_tasks": len(subset), "n": n * len(subset)}
        for metric, values in (("absolute", absolute), ("normalised", share)):
            row = lab.row("subsets", method, seed, metric=metric, value=float(values.mean()))
            rows.append({**row, **named})

    for one in found:
        add(method, one.subset, one.absolute, one.coefficient)
        if probed:
            add("probe", one.subset, start[list(one.subset)], 0.0)
    tried = float(np.mean([one.tried for one in found]))
    for metric, value in (("seconds_subsets", seconds), ("tried", tried)):
        rows.append(lab.row("closed_cost", method, seed, task="all", metric=metric, value=value))
    return [{**row, "vocabulary": lab.parameters.vocabulary} for row in rows]
