"""Edit a model by adding and negating task vectors, and measure what came of it.

The protocol is that of the papers (tangent, appendix A): one coefficient alpha for all tasks, from
a grid on [0, 1], chosen on validation images and reported on test images.

A *linear* model is f(x; theta_0) + alpha J(x) tau: for any tau the two features are computed once,
and every alpha after that is a matrix product and an argmax. A non-linear model needs a pass over
the images for each alpha.

Axes: A coefficients, T tasks.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.models import heads
from tasklab.models.loading import Clip
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.drawn import Images
from tasklab.tasks.suites import Suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent
from tasklab.tuning.tangent import TangentFeatures

ALPHAS = tuple(round(0.05 * i, 2) for i in range(21))  # tangent, appendix A
KEEP = 0.95  # share of the control accuracy that negation must retain: tangent, appendix A
ALGORITHM = 1  # part of every key of cached features: raise it when they change


class Bench:
    """A model with the heads and images of a suite: where edited models are evaluated.

    Args:
        clip: The pre-trained model.
        suite: Its tasks.
        store: Where tangent features are kept.
        counts: Images of each task by split, and, as `"control"`, of either split of the control
            task, e.g. `{"val": 250, "control": 1000}`. What is not named is used whole.
        batch_size: Images in one pass.

    Attributes:
        parts: Goes through images, fewer in one pass where memory does not suffice.
    """

    def __init__(
        self,
        clip: Clip,
        suite: Suite,
        store: Store,
        *,
        counts: Mapping[str, int] | None = None,
        batch_size: int = 250,
    ) -> None:
        self.clip, self.suite, self.store = clip, suite, store
        self.counts, self.parts = dict(counts or {}), memory.Parts(batch_size)
        self.head = functools.cache(self._head)
        self.images = functools.cache(self._images)

    def _head(self, task: str) -> heads.Head:
        """Return the frozen head of a task: zero-shot, or random if there is no text tower."""
        kind = "trained" if self.clip.text is None else "zero_shot"
        return heads.start(kind, self.clip, self.suite[task])

    def with_heads(self, own: Mapping[str, heads.Head]) -> Bench:
        """Return a bench that differs in the heads of some tasks."""
        other, device = copy.copy(self), self.clip.encoder.device
        there = {task: head.to(device) for task, head in own.items()}
        other.head = lambda task: there[task] if task in there else self.head(task)
        return other

    def _images(self, task: str, split: str) -> Images:
        """Return the images and labels of a split."""
        device = self.clip.encoder.device
        count = self.counts.get("control" if task == self.suite.control.name else split)
        data = drawn.of(self.suite)
        if count is not None:
            count = min(count, data.size(task, split))
        return data.load(task, split, n=count, device=device)

    @torch.inference_mode()
    def preprocessed(self, task: str, split: str, most: int) -> Tensor:
        """Return a split's first images as the encoder takes them, for many passes over them."""
        images = self.images(task, split).x[:most]
        return torch.cat([self.clip.encoder.preprocess(x) for x in images.split(self.parts.size)])

    def count(self, task: str, split: str) -> int:
        """Return how many images an accuracy is measured on."""
        return len(self.images(task, split).y)

    def accuracy(self, features: Tensor, task: str, split: str) -> float:
        """Return the accuracy, in %, of features (N, D) of all images of a split."""
        return 100 * heads.accuracy(self.head(task)(features), self.images(task, split).y)

    @torch.inference_mode()
    def features(self, params: Mapping[str, Tensor], task: str, split: str) -> Tensor:
        """Return the features (N, D) of a model with the given parameters."""
        encoder = self.clip.encoder
        images = self.images(task, split).x
        return torch.cat(list(self.parts(lambda x: encoder(params, encoder.preprocess(x)), images)))

    def tangent_features(self, vector: TaskVector, task: str, split: str) -> TangentFeatures:
        """Return f(x; theta_0) and J(x) tau for the images of a split, from the store if there."""
        encoder, images = self.clip.encoder, self.images(task, split)

        def make(_):
            found = tangent.features(encoder, encoder.params, vector, images.x, self.parts.size)
            return {"f0": found.f0, "jtau": found.jtau}, {}

        config = {
            "weights": encoder.weights_hash,
            "vector": fingerprint(vector),
            "data": drawn.of(self.suite).version(task, split),
            "images": len(images.y),
            "algorithm": ALGORITHM,
        }
        kept = self.store.get("tangent_features", config, make).tensors()
        return TangentFeatures(*(kept[name].to(encoder.device) for name in ("f0", "jtau")))

    def evaluate(
        self, vector: TaskVector, task: str, split: str, *, linear: bool
    ) -> Callable[[float], float]:
        """Return the accuracy in % of the model edited by alpha times a vector, as a function."""
        theta0 = self.clip.encoder.params
        if not linear:
            return lambda alpha: self.accuracy(
                self.features(vector.apply(theta0, alpha), task, split), task, split
            )
        found = self.tangent_features(vector, task, split)
        return lambda alpha: self.accuracy(found.at(alpha), task, split)

    def sweep(
        self,
        vector: TaskVector,
        tasks: Sequence[str],
        split: str,
        *,
        linear: bool,
        alphas: Sequence[float] = ALPHAS,
    ) -> np.ndarray:
        """Return accuracies (A, T) in % along alpha.

        Args:
            vector: What is added, e.g. the sum of the tasks' vectors.
            tasks: Names of the tasks to evaluate.
            split: `"val"` or `"test"`.
            linear: Whether to edit the linearized model.
            alphas: Coefficients, ascending.

        Raises:
            TasklabError: If the coefficients are not ascending.
        """
        check_grid(alphas)
        columns = []
        for task in tasks:
            at = self.evaluate(vector, task, split, linear=linear)
            columns.append([at(alpha) for alpha in alphas])
        return np.array(columns, dtype=float).T


def fingerprint(vector: TaskVector) -> str:
    """Return the SHA-256 of a vector's names, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(vector):
        tensor = vector[name].detach().float().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_grid(alphas: Sequence[float]) -> None:
    """Raise a `TasklabError` unless the coefficients are numbers in strictly ascending order."""
    values = np.asarray(alphas, dtype=float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise TasklabError(f"alphas must be a list of finite numbers, not {alphas!r}.")
    if (np.diff(values) <= 0).any():
        raise TasklabError(
            f"alphas must ascend without repeats, e.g. 0, 0.05, ..., 1; got {list(alphas)}."
        )


def normalised(absolute: np.ndarray, single: np.ndarray) -> np.ndarray:
    """Return accuracies as a share of the single-task ones, in % (tangent, equation 7).

    Args:
        absolute: (..., T) accuracies in % of the edited model.
        single: (T,) accuracies in % of each task's own fine-tuned model.

    >>> normalised(np.array([40.0, 90.0]), np.array([80.0, 90.0])).tolist()
    [50.0, 100.0]
    """
    return 100 * np.asarray(absolute) / np.maximum(np.asarray(single), 1e-9)


@dataclass(frozen=True)
class Addition:
    """The sum of some tasks' vectors, evaluated on these tasks.

    Attributes:
        tasks: Their names.
        alphas: The grid (A,).
        validation: Accuracies (A, T) in % on validation images.
        alpha: The coefficient of the best mean normalised validation accuracy.
        single: Test accuracies (T,) of each vector alone, at coefficient 1.
        absolute: Test accuracies (T,) of the sum at `alpha`.
    """

    tasks: tuple[str, ...]
    alphas: tuple[float, ...]
    validation: np.ndarray
    alpha: float
    single: np.ndarray
    absolute: np.ndarray

    @property
    def normalised(self) -> np.ndarray:
        """Test accuracies (T,) as a share of the single-task ones, in %."""
        return normalised(self.absolute, self.single)


def single(bench: Bench, vectors: Mapping[str, TaskVector], split: str, *, linear: bool):
    """Return accuracies (T,) in % of each vector alone, at coefficient 1, on its own task."""
    return np.array(
        [bench.evaluate(v, task, split, linear=linear)(1.0) for task, v in vectors.items()]
    )


def addition(
    bench: Bench,
    vectors: Mapping[str, TaskVector],
    *,
    linear: bool,
    alphas: Sequence[float] = ALPHAS,
) -> Addition:
    """Add the vectors; choose alpha on validation, report on test images (tangent, table 1).

    Args:
        bench: Model and images.
        vectors: One vector per task, by the task's name.
        linear: Whether to edit the linearized model.
        alphas: Coefficients, ascending.
    """
    check_grid(alphas)
    tasks = tuple(vectors)
    total = TaskVector.sum(vectors.values())
    validation = bench.sweep(total, tasks, "val", linear=linear, alphas=alphas)
    share = normalised(validation, single(bench, vectors, "val", linear=linear)).mean(1)
    alpha = alphas[int(share.argmax())]
    absolute = bench.sweep(total, tasks, "test", linear=linear, alphas=[alpha])[0]
    return Addition(
        tasks=tasks,
        alphas=tuple(alphas),
        validation=validation,
        alpha=alpha,
        single=single(bench, vectors, "test", linear=linear),
        absolute=absolute,
    )


@dataclass(frozen=True)
class Negation:
    """One task's vector subtracted, evaluated on that task and on the control task.

    Attributes:
        task: The task to forget.
        alphas: The coefficients that were tried, ascending.
        target_validation, control_validation: Accuracies in % for each of them.
        alpha: The chosen coefficient; 0 if none keeps the control task.
        target, control: Test accuracies in % at `alpha`.
    """

    task: str
    alphas: tuple[float, ...]
    target_validation: np.ndarray
    control_validation: np.ndarray
    alpha: float
    target: float
    control: float


def choose_negation(target: np.ndarray, control: np.ndarray, baseline: float) -> int:
    """Return the index of the lowest target accuracy that keeps 95 % of the control accuracy.

    Args:
        target: Accuracies (A,) in % on the task to forget.
        control: Accuracies (A,) in % on the control task; the first is the unedited model's.
        baseline: Control accuracy in % of the pre-trained model.
    """
    allowed = np.where(control >= KEEP * baseline, target, np.inf)
    return int(allowed.argmin()) if np.isfinite(allowed).any() else 0


def negation(
    bench: Bench,
    task: str,
    vector: TaskVector,
    *,
    linear: bool,
    alphas: Sequence[float] = ALPHAS,
    patience: int = 2,
) -> Negation:
    """Subtract a vector by the 95 % rule: alpha from validation, report on test (tangent, table 2).

    Args:
        bench: Model and images.
        task: The vector's task.
        vector: It is negated here.
        linear: Whether to edit the linearized model.
        alphas: Coefficients, ascending from 0.
        patience: The search goes no further after so many coefficients in a row, the control task
            lost: for non-linear models each costs a pass over the images.
    """
    check_grid(alphas)
    if alphas[0] != 0:
        raise TasklabError(f"negation compares with the model at alpha = 0: got {list(alphas)}.")
    control = bench.suite.control.name
    on_target = bench.evaluate(vector, task, "val", linear=linear)
    on_control = bench.evaluate(vector, control, "val", linear=linear)
    kept: list[float] = []
    for alpha in alphas:
        kept.append(on_control(-alpha))
        lost = itertools.takewhile(lambda c: c < KEEP * kept[0], reversed(kept))
        if sum(1 for _ in lost) >= patience:
            break
    tried = tuple(alphas[: len(kept)])
    forgotten = np.array(
        [on_target(-a) if c >= KEEP * kept[0] else np.nan for a, c in zip(tried, kept, strict=True)]
    )
    chosen = tried[choose_negation(np.nan_to_num(forgotten, nan=np.inf), np.array(kept), kept[0])]
    return Negation(
        task=task,
        alphas=tried,
        target_validation=forgotten,
        control_validation=np.array(kept),
        alpha=chosen,
        target=bench.evaluate(vector, task, "test", linear=linear)(-chosen),
        control=bench.evaluate(vector, control, "test", linear=linear)(-chosen),
    )


def groups(tasks: Iterable[str], size: int) -> list[tuple[str, ...]]:
    """Return the tasks cut into groups of one size, in order, so that each task is in one group.

    >>> groups("abcd", 2)
    [('a', 'b'), ('c', 'd')]
    """
    tasks = tuple(tasks)
    if size < 1 or len(tasks) % size:
        raise TasklabError(f"{len(tasks)} tasks do not make groups of {size}.")
    return [tasks[i : i + size] for i in range(0, len(tasks), size)]
