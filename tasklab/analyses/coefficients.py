"""Choose the coefficients of added task vectors: exactly, and one for each task.

In a linearized model, accuracy along a line of coefficients is a step function, known exactly
(`tasklab.analyses.step_curves`). Two things follow.

- The best shared coefficient is found without a grid (`exact_addition`), and so is that of a
  negation which keeps the control task (`exact_negation`).
- One coefficient for each task, which the papers do not report, is found by coordinate ascent with
  each step solved exactly (`per_task`); for non-linear models by a bounded number of trials.

Coefficients are chosen on validation images; test images only report.

Letters: T tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasklab.analyses.editing import CONTROL_SHARE, Negation, normalised, reported, single_task
from tasklab.analyses.evaluation import ALPHAS, Evaluator, Vectors
from tasklab.analyses.finite import check_grid, check_vectors, finite
from tasklab.analyses.step_curves import (
    AffineScores,
    Best,
    PiecewiseConstant,
    ascend,
    climb,
    mean_curve,
    normalising,
)
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.taskvector import TaskVector

SPLITS = {"validation": "val", "test": "test"}  # as records and as data sets name them

Validate = Callable[[np.ndarray], np.ndarray]  # coefficients (T,) -> validation accuracies (T,)


@isolated
def affine_scores(
    evaluator: Evaluator, vectors: Sequence[TaskVector], task: str, split: str
) -> AffineScores:
    """Return the scores of a linearized model on a task's images, in float64.

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, one for each slope.
        task: Name of a task.
        split: `"train"`, `"val"` or `"test"`.
    """
    if not vectors:
        raise TasklabError("scores along task vectors need at least one vector.")
    features = [evaluator.tangent_features(vector, task, split) for vector in vectors]
    head = evaluator.head(task).to(torch.float64)
    slope = dataclasses.replace(head, bias=None)
    scores = head.scores(features[0].f0.double()).cpu().numpy()
    slopes = np.stack([slope.scores(f.jtau.double()).cpu().numpy() for f in features])
    return AffineScores(
        base=finite(scores, f"scores of the pre-trained model (task {task!r}, split {split!r})"),
        slopes=finite(slopes, f"scores along the task vectors (task {task!r}, split {split!r})"),
        labels=evaluator.images(task, split).y.cpu().numpy(),
    )


@dataclass(frozen=True, eq=False)
class ExactAddition:
    """The sum of some tasks' vectors in the linearized model, for every coefficient at once."""

    tasks: tuple[str, ...]
    #: Exact accuracy in % of each task on validation images, along alpha.
    validation: tuple[PiecewiseConstant, ...]
    test: tuple[PiecewiseConstant, ...]  #: The same on test images
    #: Accuracies (T,) in % of each vector alone by split: `"validation"` and `"test"`.
    single: Mapping[str, np.ndarray]
    best: Best  #: Where the mean normalised validation accuracy is highest
    grid: tuple[float, ...]
    n: Mapping[str, tuple[int, ...]]

    def curve(self, split: str = "validation") -> PiecewiseConstant:
        """Return the mean normalised accuracy in % along alpha."""
        return mean_curve(getattr(self, split), normalising(self.single[split]))

    @property
    def grid_alpha(self) -> float:
        """The coefficient that the grid finds on validation images."""
        return self.grid[int(self.curve().at(self.grid).argmax())]

    def absolute(self, alpha: float, split: str = "test") -> np.ndarray:
        """Return accuracies (T,) in % at a coefficient."""
        return np.array([float(curve.at(alpha)) for curve in getattr(self, split)])

    def rows(self, method: str, seed: int) -> list[dict[str, Any]]:
        """Return records of each task's normalised accuracy on both splits.

        Metrics: `normalised_exact`, a row for each knot, its value holds up to the next row's
        alpha; `normalised_grid`, a row for each point of the grid; `chosen_exact` and
        `chosen_grid`, the values at the two coefficients chosen on validation images.
        """
        rows = []
        for split in SPLITS:
            for i, (task, curve) in enumerate(zip(self.tasks, getattr(self, split), strict=True)):
                scale = normalising(self.single[split])[i]
                common = {"method": method, "seed": seed, "task": task, "split": split}
                common |= {"n_tasks": len(self.tasks), "n": self.n[split][i]}
                marks = {
                    "normalised_exact": (curve.knots[:-1], curve.between),
                    "normalised_grid": (self.grid, curve.at(self.grid)),
                    "chosen_exact": ([self.best.alpha], [curve.at(self.best.alpha)]),
                    "chosen_grid": ([self.grid_alpha], [curve.at(self.grid_alpha)]),
                }
                rows += [
                    {**common, "metric": metric, "alpha": float(a), "value": scale * float(v)}
                    for metric, (alphas, values) in marks.items()
                    for a, v in zip(alphas, values, strict=True)
                ]
        return rows


@isolated
def exact_addition(
    evaluator: Evaluator, vectors: Vectors, *, grid: Sequence[float] = ALPHAS
) -> ExactAddition:
    """Add the vectors in the linearized model, and solve for the best shared coefficient.

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        grid: Coefficients with which the exact one is compared.
    """
    check_grid(grid)
    check_vectors(vectors)
    tasks, total = tuple(vectors), TaskVector.sum(vectors.values())
    curves, single = {}, {}
    for name, split in SPLITS.items():
        curves[name] = tuple(
            affine_scores(evaluator, [total], task, split).along([1.0]) for task in tasks
        )
        single[name] = single_task(evaluator, vectors, split, linear=True)
    mean = mean_curve(curves["validation"], normalising(single["validation"]))
    mean.at(grid)  # refuses a grid that leaves the interval
    return ExactAddition(
        tasks=tasks,
        **curves,
        single=single,
        best=mean.best(),
        grid=tuple(grid),
        n=_counts(evaluator, tasks),
    )


@isolated
def exact_negation(evaluator: Evaluator, task: str, vector: TaskVector) -> Negation:
    """Subtract a vector in the linearized model by the 95 % rule, without a grid.

    Of all coefficients in [0, 1] that keep the control on validation images, those of the lowest
    target accuracy; of these the middle of the widest stretch.

    Args:
        evaluator: The model with its heads and images.
        task: Name of a task.
        vector: The task's vector, which is subtracted.
    """
    names = (task, evaluator.suite.control.name)
    curves = [affine_scores(evaluator, [vector], name, "val").along([-1.0]) for name in names]
    knots = np.unique(np.concatenate([curve.knots for curve in curves]))
    least = CONTROL_SHARE * float(curves[1].at(0.0))

    def objective(alphas: np.ndarray) -> np.ndarray:
        target, control = (curve.at(alphas) for curve in curves)
        return np.where(control >= least, -target, -np.inf)

    allowed = PiecewiseConstant(knots, objective((knots[:-1] + knots[1:]) / 2), objective(knots))
    alpha = allowed.best().alpha if np.isfinite(allowed.between).any() else 0.0
    return reported(evaluator, task, vector, alpha, (alpha,), curves[0].at([alpha]), linear=True)


@dataclass(frozen=True, eq=False)
class PerTask:
    """One coefficient for each task against one for all, both chosen on validation images."""

    tasks: tuple[str, ...]
    shared: float  #: The coefficient that all tasks share
    alphas: np.ndarray  #: The tasks' own coefficients (T,)
    #: Accuracies (T,) in % of each vector alone, by split: `"validation"`, `"test"`.
    single: Mapping[str, np.ndarray]
    #: Accuracies (T,) in % with the shared coefficient, by split.
    with_shared: Mapping[str, np.ndarray]
    with_own: Mapping[str, np.ndarray]  #: Accuracies (T,) in % with the tasks' own, by split
    n: Mapping[str, tuple[int, ...]]

    def rows(self, method: str, seed: int) -> list[dict[str, Any]]:
        """Return records of both choices, with each task's coefficient as alpha.

        Metrics: `absolute_shared`, `absolute_own`, `normalised_shared`, `normalised_own`.
        """
        rows = []
        choices = {
            "shared": (np.full(len(self.tasks), self.shared), self.with_shared),
            "own": (self.alphas, self.with_own),
        }
        for name, (alphas, accuracies) in choices.items():
            for split, absolute in accuracies.items():
                share = normalised(absolute, self.single[split])
                for i, task in enumerate(self.tasks):
                    common = {"method": method, "seed": seed, "task": task, "split": split}
                    common |= {"n_tasks": len(self.tasks), "n": self.n[split][i]}
                    common["alpha"] = float(alphas[i])
                    for metric, values in (("absolute", absolute), ("normalised", share)):
                        value = float(values[i])
                        rows.append({**common, "metric": f"{metric}_{name}", "value": value})
        return rows


@isolated
def per_task(evaluator: Evaluator, vectors: Vectors, *, linear: bool) -> PerTask:
    """Choose a coefficient in [0, 1] for each task on validation images; report test images too.

    Both searches (`ascend`, `climb`) maximise the mean normalised validation accuracy, from the
    best shared coefficient on.

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        linear: Whether to edit the linearized model.
    """
    check_vectors(vectors)
    tasks = tuple(vectors)
    single = {
        name: single_task(evaluator, vectors, split, linear=linear)
        for name, split in SPLITS.items()
    }
    search = _own_exactly if linear else _own_by_trial
    shared, own, validate = search(evaluator, vectors, single["validation"])
    choices = {"with_shared": np.full(len(tasks), shared), "with_own": own}
    accuracies = {
        name: {
            "validation": validate(alphas),
            "test": _accuracies(evaluator, vectors, alphas, "test", linear),
        }
        for name, alphas in choices.items()
    }
    return PerTask(
        tasks=tasks,
        shared=shared,
        alphas=own,
        single=single,
        **accuracies,
        n=_counts(evaluator, tasks),
    )


def _own_exactly(
    evaluator: Evaluator, vectors: Vectors, single: np.ndarray
) -> tuple[float, np.ndarray, Validate]:
    scores = [affine_scores(evaluator, list(vectors.values()), task, "val") for task in vectors]
    ones = np.ones(len(vectors))
    shared = mean_curve([task.along(ones) for task in scores], normalising(single)).best().alpha
    own = ascend(scores, single, shared * ones).alphas
    return shared, own, lambda alphas: np.array([task.accuracy(alphas) for task in scores])


def _own_by_trial(
    evaluator: Evaluator, vectors: Vectors, single: np.ndarray
) -> tuple[float, np.ndarray, Validate]:
    total = TaskVector.sum(vectors.values())
    grid = evaluator.sweep(total, tuple(vectors), "val", linear=False)
    shared = ALPHAS[int(normalised(grid, single).mean(1).argmax())]

    def validate(alphas: np.ndarray) -> np.ndarray:
        return _accuracies(evaluator, vectors, alphas, "val", linear=False)

    def share(alphas: np.ndarray) -> float:
        return float(normalised(validate(alphas), single).mean())

    return shared, climb(share, np.full(len(vectors), shared)).alphas, validate


def _accuracies(
    evaluator: Evaluator, vectors: Vectors, alphas: np.ndarray, split: str, linear: bool
) -> np.ndarray:
    # One at a time: all of a large model would be as much memory again as the vectors.
    scaled = (vector * float(a) for vector, a in zip(vectors.values(), alphas, strict=True))
    total = TaskVector.sum(scaled)
    if linear:
        return np.array([evaluator.evaluate(total, t, split, linear=True) for t in vectors])
    params = total.apply(evaluator.clip.encoder.params)  # merged once for all tasks
    return np.array(
        [evaluator.accuracy(evaluator.features(params, t, split), t, split) for t in vectors]
    )


def _counts(evaluator: Evaluator, tasks: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(evaluator.count(t, split) for t in tasks) for name, split in SPLITS.items()}
