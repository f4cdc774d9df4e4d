"""Edit a model by adding and negating task vectors, and measure the result.

The protocol is that of the papers (tangent, appendix A): one coefficient alpha for all tasks, from
a grid on [0, 1], chosen on validation images and reported on test images.

Axes: A coefficients, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tasklab.analyses.evaluation import ALPHAS, Evaluator, Vectors
from tasklab.analyses.finite import check_grid, check_vectors, finite_array
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.taskvector import TaskVector

CACHE_VERSION = 2  # part of the key of negation: 1 stopped where the control was lost twice
CONTROL_SHARE = 0.95  # of the control accuracy, which negation must retain: tangent, appendix A


def normalised(absolute: np.ndarray, single: np.ndarray) -> np.ndarray:
    """Return accuracies (..., T) as a share of single-task ones (T,), in % (tangent, equation 7).

    >>> normalised(np.array([40.0, 90.0]), np.array([80.0, 90.0])).tolist()
    [50.0, 100.0]
    """
    absolute, single = finite_array(absolute, "accuracies"), finite_array(single, "accuracies")
    return 100 * absolute / np.maximum(single, 1e-9)


@dataclass(frozen=True)
class Addition:
    """The sum of some tasks' vectors, evaluated on these tasks."""

    tasks: tuple[str, ...]
    alphas: tuple[float, ...]  #: The grid (A,)
    validation: np.ndarray  #: Accuracies (A, T) in % on validation images
    alpha: float  #: The coefficient of the best mean normalised validation accuracy
    single: np.ndarray  #: Test accuracies (T,) in % of each vector alone, at coefficient 1
    absolute: np.ndarray  #: Test accuracies (T,) in % of the sum at `alpha`
    #: Which test images the sum classifies correctly, an array (N,) a task.
    answers: tuple[np.ndarray, ...]

    @property
    def normalised(self) -> np.ndarray:
        """Test accuracies (T,) as a share of the single-task ones, in %."""
        return normalised(self.absolute, self.single)


@isolated
def single_task(
    evaluator: Evaluator, vectors: Vectors, split: str, *, linear: bool
) -> Float[np.ndarray, " T"]:
    """Return accuracies in % of each vector alone, at coefficient 1, on its own task.

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        split: `"train"`, `"val"` or `"test"`.
        linear: Whether to edit the linearized model.
    """
    check_vectors(vectors)
    each = vectors.items()
    return np.array([evaluator.evaluate(v, task, split, linear=linear) for task, v in each])


def percent(answers: Sequence[np.ndarray]) -> Float[np.ndarray, " T"]:
    """Return accuracies in % from per-image correctness, an array a task."""
    return np.array([100 * float(right.mean()) for right in answers])


@isolated
def addition(
    evaluator: Evaluator, vectors: Vectors, *, linear: bool, alphas: Sequence[float] = ALPHAS
) -> Addition:
    """Add the vectors; choose alpha on validation, report on test images (tangent, table 1).

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        linear: Whether to edit the linearized model.
        alphas: Coefficients that are tried, in ascending order (A,).
    """
    check_grid(alphas)
    check_vectors(vectors)
    tasks, total = tuple(vectors), TaskVector.sum(vectors.values())
    validation = evaluator.sweep(total, tasks, "val", linear=linear, alphas=alphas)
    share = normalised(validation, single_task(evaluator, vectors, "val", linear=linear)).mean(1)
    alpha = alphas[int(share.argmax())]
    answers = [evaluator.answers(total, task, "test", alpha, linear=linear) for task in tasks]
    return Addition(
        tasks=tasks,
        alphas=tuple(alphas),
        validation=validation,
        alpha=alpha,
        single=single_task(evaluator, vectors, "test", linear=linear),
        absolute=percent(answers),
        answers=tuple(answers),
    )


@dataclass(frozen=True)
class Negation:
    """One task's vector subtracted, evaluated on that task and on the control task."""

    task: str
    alphas: tuple[float, ...]  #: The grid (A,)
    target_validation: np.ndarray  #: Accuracies (A,) in % on the task
    alpha: float  #: The chosen coefficient; 0 if no other keeps the control task
    target: float  #: Test accuracy in % on the task at `alpha`
    control: float  #: Test accuracy in % on the control task at `alpha`
    #: Which test images are classified correctly: of the task, of the control task.
    answers: tuple[np.ndarray, np.ndarray]


def choose_negation(target: Float[np.ndarray, " A"], keeps: Callable[[int], bool]) -> int:
    """Return the index of the lowest target accuracy that leaves the control task's intact.

    Args:
        target: Accuracies in % on the task to forget, along coefficients that ascend from 0.
        keeps: Index of a coefficient -> whether the control task keeps 95 % of its accuracy. The
            first coefficient, 0, and those that cannot change the choice are not evaluated.

    >>> choose_negation(np.array([60.0, 50.0, 40.0]), [True, True, False].__getitem__)
    1
    """
    order = np.argsort(target, kind="stable")  # of equal accuracies the smallest coefficient first
    return next(int(index) for index in order if index == 0 or keeps(int(index)))


@isolated
def negation(
    evaluator: Evaluator,
    task: str,
    vector: TaskVector,
    *,
    linear: bool,
    alphas: Sequence[float] = ALPHAS,
) -> Negation:
    """Subtract a vector by the 95 % rule: alpha from validation, report on test (tangent, table 2).

    Coefficients are tried from the one that forgets most, and the first that keeps 95 % of the
    control accuracy is the rule's choice. The control task, which has most images, is evaluated at
    no others, and only until its accuracy surely is or is not preserved (`Evaluator.reaches`).

    Args:
        evaluator: The model with its heads and images.
        task: Name of a task.
        vector: The task's vector, which is subtracted.
        linear: Whether to edit the linearized model.
        alphas: Coefficients that are tried, in ascending order (A,).
    """
    check_grid(alphas)
    if alphas[0] != 0:
        raise TasklabError(f"negation compares with the model at alpha = 0: got {list(alphas)}.")

    control, signed = evaluator.suite.control.name, [-alpha for alpha in alphas]
    of_target = evaluator.evaluate(vector, task, "val", signed, linear=linear)
    least = CONTROL_SHARE * evaluator.evaluate(vector, control, "val", 0.0, linear=linear)

    def keeps(index: int) -> bool:
        return evaluator.reaches(least, vector, control, "val", signed[index], linear=linear)

    alpha = alphas[choose_negation(of_target, keeps)]
    return reported(evaluator, task, vector, alpha, tuple(alphas), of_target, linear=linear)


@isolated
def reported(
    evaluator: Evaluator,
    task: str,
    vector: TaskVector,
    alpha: float,
    alphas: tuple[float, ...],
    validation: np.ndarray,
    *,
    linear: bool,
) -> Negation:
    """Return a negation at a chosen coefficient, with its accuracies on test images.

    Args:
        evaluator: The model with its heads and images.
        task: Name of a task.
        vector: The task vector tau.
        alpha: The chosen coefficient of the subtracted vector.
        alphas: Those that were tried (A,).
        validation: Accuracies in % on validation images, of the target and of the control, by
            coefficient.
        linear: Whether to edit the linearized model.
    """
    names = (task, evaluator.suite.control.name)
    answers = [evaluator.answers(vector, name, "test", -alpha, linear=linear) for name in names]
    target, control = map(float, percent(answers))
    return Negation(task, alphas, validation, alpha, target, control, tuple(answers))


def groups(tasks: Iterable[str], size: int) -> list[tuple[str, ...]]:
    """Return the tasks cut into groups of one size, in order, so that each task is in one group.

    >>> groups("abcd", 2)
    [('a', 'b'), ('c', 'd')]
    """
    tasks = tuple(tasks)
    if not tasks or len(tasks) % whole("size", size, 1):
        raise TasklabError(f"{len(tasks)} tasks do not make groups of {size}.")
    return [tasks[i : i + size] for i in range(0, len(tasks), size)]
