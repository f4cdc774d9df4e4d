"""Measure the accuracy of edited models on the images of a suite.

A *linear* model is f(x; theta_0) + alpha J(x) tau: for any tau the two features are computed once,
and every alpha after that is a matrix product and an argmax. A non-linear model needs a pass over
the images for each alpha.

Axes: A coefficients, T tasks, N images, D features.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasklab.analyses.edited import line
from tasklab.analyses.finite import as_coefficient, as_coefficients, check_grid, finite, finite_rows
from tasklab.errors import TasklabError, texts, whole
from tasklab.isolation import isolated
from tasklab.models import heads, inference
from tasklab.models.encoder import Encoder
from tasklab.models.loading import Clip
from tasklab.storage import seals
from tasklab.storage.placement import placed, resident
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.drawn import Images
from tasklab.tasks.suites import Suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent
from tasklab.tuning.methods import LINEAR, of_sum
from tasklab.tuning.tangent import TangentFeatures

ALPHAS = tuple(round(0.05 * i, 2) for i in range(21))  # tangent, appendix A
CACHE_VERSION = 1  # part of every key of cached features: raise it when they change
Vectors = Mapping[str, TaskVector]  # by the task's name


class Start(NamedTuple):
    """Answers of the unedited model on the images of a split."""

    right: Bool[np.ndarray, " N"]  #: Which of them it classifies correctly
    #: Their places, first those on which it is least sure of the right class, or wrong: an edit
    #: that does harm shows there first.
    order: Int[Tensor, " N"]


class Evaluator:
    """A model with the heads and images of a suite: measures the accuracy of edited models.

    Args:
        counts: Images of each task by split, and, as `"control"`, of either split of the control
            task, e.g. `{"val": 250, "control": 1000}`. What is not named is used whole.
        batch_size: Images in one pass. By default 250, and 100 on the CPU, whose caches then hold
            more of what a small model computes.

    Attributes:
        parts: Goes through images, fewer in one pass where memory does not suffice.
        head: Task -> its frozen head: zero-shot, or random if there is no text tower.
    """

    def __init__(
        self,
        clip: Clip,
        suite: Suite,
        store: Store,
        *,
        counts: Mapping[str, int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.clip, self.suite, self.store = clip, suite, store
        self.counts = {name: whole(f"counts[{name!r}]", n, 1) for name, n in (counts or {}).items()}
        usual = 100 if clip.encoder.device.type == "cpu" else 250
        size = usual if batch_size is None else whole("batch_size", batch_size, 1)
        self.parts = memory.Parts(size)
        self._heads, self._images = seals.Kept[heads.Head](), seals.Kept[Any]()
        self.head: Callable[[str], heads.Head] = self._head

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in self.counts.items()) or "whole splits"
        return f"Evaluator({self.clip.encoder.name} on {self.suite.name}: {counts})"

    @torch.inference_mode(False)  # what is kept serves training too, whoever asks first
    def _head(self, task: str) -> heads.Head:
        kind = "trained" if self.clip.text is None else "zero_shot"
        return self._heads.get(task, lambda: heads.start(kind, self.clip, self.suite[task]))

    def with_heads(self, own: Mapping[str, heads.Head]) -> Evaluator:
        """Return an evaluator that differs in the heads of some tasks, given by their names."""
        other, moved = copy.copy(self), placed(own, self.clip.encoder.device)
        other.head = lambda task: moved[task] if task in moved else self.head(task)
        other.__dict__.pop("start", None)  # which has answers of the former heads
        return other

    def with_counts(self, **counts: int) -> Evaluator:
        """Return an evaluator that reads another number of images of some splits."""
        if all(self.counts.get(split) == count for split, count in counts.items()):
            return self
        other = copy.copy(self)
        other.counts = {**self.counts, **counts}
        other._images = seals.Kept[Any]()
        for name in ("start", "copies"):  # of the former images
            other.__dict__.pop(name, None)
        return other

    @isolated
    @torch.inference_mode(False)
    def images(self, task: str, split: str) -> Images:
        """Return a split's images (N, 3, h, w), on a GPU while they fit, and labels (N,)."""
        loaded = self._images.get((task, split), lambda: self._load(task, split))
        (key, images), device = loaded, self.clip.encoder.device
        x, y = resident(key, device, lambda: (images.x, images.y))
        return Images(x, y.to(device))

    def _load(self, task: str, split: str) -> tuple[tuple[str, ...], Images]:
        count = self.counts.get("control" if task == self.suite.control.name else split)
        data = drawn.images_of(self.suite)
        if count is not None:
            count = min(count, data.size(task, split))
        images = data.load(task, split, n=count)
        return ("evaluated", task, split, data.version(task, split), str(len(images.y))), images

    @functools.cached_property
    def start(self) -> Callable[[str, str], Start]:
        """Task, split -> answers of the unedited model; kept for the present head."""
        kept = seals.Kept[Start]()

        def start(task: str, split: str) -> Start:
            key = task, split, seals.stamp(self.head(task))
            return kept.get(key, lambda: self._start(task, split))

        return start

    def _start(self, task: str, split: str) -> Start:
        labels, place = self.images(task, split).y, f"split {split!r}, coefficient 0"
        logits = self.logits(self.features(self.clip.encoder.params, task, split), task, place)
        right = (logits.argmax(-1) == labels).cpu().numpy()
        own = logits.gather(1, labels[:, None])
        others = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
        return Start(right, (own - others)[:, 0].argsort())

    @isolated
    @torch.inference_mode()
    def preprocessed(self, task: str, split: str, most: int) -> Tensor:
        """Return a split's first images as the encoder takes them, for many passes over them.

        Args:
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            most: The most images.
        """
        images = self.images(task, split).x[:most]
        return torch.cat([self.clip.encoder.preprocess(x) for x in images.split(self.parts.size)])

    def count(self, task: str, split: str) -> int:
        """Return the number of images that an accuracy is measured on."""
        return len(self.images(task, split).y)

    @functools.cached_property
    def copies(self) -> Callable[[str, str], Int[np.ndarray, " N"]]:
        """Task, split -> a number for each image; images of equal pixels have the same one."""
        return functools.cache(self._copies)

    def _copies(self, task: str, split: str) -> Int[np.ndarray, " N"]:
        x = self.images(task, split).x
        prints = [hash(image.cpu().numpy().tobytes()) for image in x]
        return np.unique(prints, return_inverse=True)[1]

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
    def logits(
        self, features: Float[Tensor, "N D"], task: str, place: str = "edited"
    ) -> Float[Tensor, "N C"]:
        """Return the logits of a task's head.

        Args:
            features: Features of N images, (N, D).
            task: Name of a task.
            place: Which model the features are of, for messages.
        """
        place = f"task {task!r}, {place}"
        logits = self.head(task)(finite_rows(features, f"features ({place})"))
        return finite(logits, f"logits ({place})")

    @isolated
    def features(self, params: Mapping[str, Tensor], task: str, split: str) -> Float[Tensor, "N D"]:
        """Return the features of all images of a split.

        Args:
            params: Parameters theta of the edited encoder, by name.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
        """
        return self.passed(params, self.images(task, split).x)

    @isolated
    @torch.inference_mode()
    def passed(self, params: Mapping[str, Tensor], images: Tensor) -> Float[Tensor, "N D"]:
        """Return the features of images (N, 3, h, w)."""
        encoder = self.passes
        return torch.cat(list(self.parts(lambda x: encoder(params, encoder.preprocess(x)), images)))

    @property
    def passes(self) -> Encoder:
        """The model's encoder for passes without derivatives."""
        return inference.passes(self.clip.encoder)

    @isolated
    def tangent_features(self, vector: TaskVector, task: str, split: str) -> TangentFeatures:
        """Return f(x; theta_0) and J(x) tau for the images of a split, from the store if there.

        Args:
            vector: The task vector tau.
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.

        Raises:
            TasklabError: If they are not finite; nothing is then kept in the store.
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

        The answer is exact: images are left out only once they cannot change it. Those that the
        unedited model is least sure of come first, so that it is soon sure where many are lost.

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
        tangents = self.tangent_features(vector, task, split) if linear else None

        def at(alpha: float) -> Bool[np.ndarray, " N"]:
            if tangents is not None:
                return self.right(tangents.at(alpha), task, split, alpha)
            if alpha == 0:
                return self.start(task, split).right
            params = line(self.clip.encoder.params, vector).at(alpha)
            return self.right(self.features(params, task, split), task, split, alpha)

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
