"""Measure the accuracy of edited models on the images of a suite.

A *linear* model is f(x; theta_0) + alpha J(x) tau: for any tau the two features are computed once,
and every alpha after that is a matrix product and an argmax. A non-linear model needs a pass over
the images for each alpha.

Axes: A coefficients, T tasks, N images, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasklab.analyses.edited import line
from tasklab.analyses.finite import as_coefficient, as_coefficients, check_grid, finite
from tasklab.analyses.suite_model import SuiteModel
from tasklab.errors import TasklabError, texts
from tasklab.isolation import isolated
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tasklab.tuning import tangent
from tasklab.tuning.methods import LINEAR, of_sum
from tasklab.tuning.tangent import TangentFeatures

ALPHAS = tuple(round(0.05 * i, 2) for i in range(21))  # tangent, appendix A
CACHE_VERSION = 1  # part of every key of cached features: raise it when they change
Vectors = Mapping[str, TaskVector]  # by the task's name


class Evaluator(SuiteModel):
    """Measures the accuracy of edited models; arguments and attributes: see `SuiteModel`."""

    @isolated
    def accuracy(
        self, features: Float[Tensor, "N D"], task: str, split: str, *, alpha: float | None = None
    ) -> float:
        """Return the accuracy in % of features of all images of a split.

        Args:
            features: Features of N images, (N, D).
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            alpha: Coefficient of the edit, for the message where features are not finite.
        """
        return 100 * float(self.right(features, task, split, alpha).mean())

    @isolated
    def right(
        self, features: Float[Tensor, "N D"], task: str, split: str, alpha: float | None = None
    ) -> Bool[np.ndarray, " N"]:
        """Return which images are classified correctly from their features.

        Args:
            features: Features of N images, (N, D).
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            alpha: Coefficient of the edit, for the message where features are not finite.
        """
        place = f"split {split!r}" + ("" if alpha is None else f", coefficient {alpha:g}")
        logits = self.logits(features, task, place)
        return (logits.argmax(-1) == self.images(task, split).y).cpu().numpy()

    @isolated
    def tangent_features(self, vector: TaskVector, task: str, split: str) -> TangentFeatures:
        """Return f(x; theta_0) and J(x) tau of a split's images, computed once per store.

        Args:
            vector: The task vector tau.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.

        Raises:
            TasklabError: If they are not finite; the store then keeps none.
        """
        encoder, images = self.clip.encoder, self.images(task, split)

        def make(_):
            made = tangent.features(encoder, encoder.params, vector, images.x, self.parts.size)
            for name, part in (("f(x; theta_0)", made.f0), ("J(x) tau", made.jtau)):
                finite(part, f"{name} (task {task!r}, split {split!r})")
            return {"f0": made.f0, "jtau": made.jtau}, {}

        config = {
            **self.clip.identity,
            "vector": vector.fingerprint(),
            "data": drawn.images_of(self.suite).version(task, split),
            "images": len(images.y),
            "algorithm": CACHE_VERSION,
        }
        kept = self.store.get("tangent_features", config, make).tensors()
        return TangentFeatures(*(kept[name].to(encoder.device) for name in ("f0", "jtau")))

    @overload
    def evaluate(
        self,
        vector: TaskVector,
        task: str,
        split: str = ...,
        alpha: float = ...,
        *,
        linear: bool | None = ...,
    ) -> float: ...
    @overload
    def evaluate(
        self,
        vector: TaskVector,
        task: str,
        split: str,
        alpha: Sequence[float],
        *,
        linear: bool | None = ...,
    ) -> np.ndarray: ...
    @isolated
    def evaluate(self, vector, task, split="test", alpha=1.0, *, linear=None):
        """Return the accuracy in % of the model edited by alpha times a vector.

        Args:
            vector: A task vector.
            task: Name of a task.
            split: `"val"` or `"test"`.
            alpha: A coefficient, or several (A,).
            linear: Whether to edit the linearized model; by default where the vector's method is
                one of it.

        Returns:
            A number for one coefficient, an array (A,) for several.
        """
        if not isinstance(vector, TaskVector):
            raise TasklabError(f"a model is edited by a TaskVector, not {type(vector).__name__}.")
        linear = of_sum(vector.method) in LINEAR if linear is None else linear
        several = np.ndim(alpha) > 0
        alphas = as_coefficients(alpha, "alpha") if several else [as_coefficient(alpha, "alpha")]
        at = self._answering(vector, task, split, linear)
        accuracies = [100 * float(at(a).mean()) for a in alphas]
        return np.array(accuracies) if several else accuracies[0]

    @isolated
    def answers(
        self, vector: TaskVector, task: str, split: str, alpha: float = 1.0, *, linear: bool
    ) -> Bool[np.ndarray, " N"]:
        """Return which images the edited model classifies correctly, as `evaluate` counts them.

        Args:
            vector: The task vector tau.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            alpha: Coefficient of the vector.
            linear: Whether to edit the linearized model.
        """
        return self._answering(vector, task, split, linear)(alpha)

    @isolated
    def reaches(
        self,
        accuracy: float,
        vector: TaskVector,
        task: str,
        split: str,
        alpha: float = 1.0,
        *,
        linear: bool,
    ) -> bool:
        """Return whether `evaluate` is at least some accuracy, from no more images than that takes.

        The answer is exact: images are left out only once they cannot change it. Images of the
        smallest margin in the unedited model are read first, so that a large loss shows early.

        Args:
            accuracy: In %.
            vector: The task vector tau.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            alpha: Coefficient of the vector.
            linear: Whether to edit the linearized model.
        """
        if linear:  # whose features are kept
            return self.evaluate(vector, task, split, alpha, linear=True) >= accuracy
        answers = self._answered(vector, task, split, alpha)
        return settled(answers, self.count(task, split), accuracy)

    @torch.inference_mode()
    def _answered(
        self, vector: TaskVector, task: str, split: str, alpha: float
    ) -> Iterator[Bool[np.ndarray, " n"]]:
        """Yield which images the edited network classifies correctly, part by part."""
        encoder, images, begun = self.passes, self.images(task, split), 0
        order = self.start(task, split).order  # before the model that is then valid
        params = line(encoder.params, vector).at(alpha)
        place = f"split {split!r}, coefficient {alpha:g}"

        def features_of(places: Tensor) -> Tensor:
            return encoder(params, encoder.preprocess(images.x[places.to(images.x.device)]))

        for features in self.parts(features_of, order):
            labels = images.y[order[begun : begun + len(features)]]
            begun += len(features)
            yield (self.logits(features, task, place).argmax(-1) == labels).cpu().numpy()

    def _answering(
        self, vector: TaskVector, task: str, split: str, linear: bool
    ) -> Callable[[float], Bool[np.ndarray, " N"]]:
        """Return which images are classified correctly as a function of the coefficient.

        At 0 a network is the unedited one, whose answers are kept.
        """
        features = self.edited(vector, task, split, linear=linear)

        def at(alpha: float) -> Bool[np.ndarray, " N"]:
            if alpha == 0 and not linear:
                return self.start(task, split).right
            return self.right(features(alpha), task, split, alpha)

        return at

    @isolated
    def edited(
        self, vector: TaskVector, task: str, split: str, *, linear: bool
    ) -> Callable[[float], Float[Tensor, "N D"]]:
        """Return the edited model's features of a split's images as a function of the coefficient.

        Args:
            vector: The task vector tau.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            linear: Whether to edit the linearized model.
        """
        if linear:
            return self.tangent_features(vector, task, split).at

        def at(alpha: float) -> Float[Tensor, "N D"]:
            return self.features(line(self.clip.encoder.params, vector).at(alpha), task, split)

        return at

    @isolated
    def sweep(
        self,
        vector: TaskVector,
        tasks: Sequence[str],
        split: str,
        *,
        linear: bool,
        alphas: Sequence[float] = ALPHAS,
    ) -> Float[np.ndarray, "A T"]:
        """Return accuracies in % along alpha.

        Args:
            vector: The task vector tau.
            tasks: Names of the T tasks.
            split: `"train"`, `"val"` or `"test"`.
            linear: Whether to edit the linearized model.
            alphas: Coefficients that are tried, in ascending order (A,).
        """
        check_grid(alphas)
        names = texts("tasks", tasks)
        each = [self.evaluate(vector, name, split, alphas, linear=linear) for name in names]
        return np.stack(each, axis=1)


def settled(answers: Iterable[Bool[np.ndarray, " n"]], count: int, accuracy: float) -> bool:
    """Return whether a share of right answers is at least some accuracy, as soon as that is sure.

    Args:
        answers: Parts of the answers in turn: which images are right.
        count: Images in all parts together.
        accuracy: In %.

    >>> parts = iter([np.array([True, False]), np.array([False, False]), np.array([True, True])])
    >>> settled(parts, 6, 60.0), len(list(parts))
    (False, 1)
    """
    least = int(np.count_nonzero(100 * (np.arange(count + 1) / count) < accuracy))  # right answers
    right, left = 0, count
    for part in answers:
        right, left = right + int(part.sum()), left - len(part)
        if right >= least or right + left < least:
            break
    return right >= least
