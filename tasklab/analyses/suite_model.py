"""Apply a model to the images of a suite: features of any weights, logits of the tasks' heads.

Axes: N images, D features, C classes.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasklab.analyses.finite import finite, finite_rows
from tasklab.errors import whole
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
from tasklab.tuning import memory


class Start(NamedTuple):
    """Answers of the unedited model on the images of a split."""

    right: Bool[np.ndarray, " N"]  #: Which of them it classifies correctly
    #: Indices of the images by increasing margin of the right class: the predictions that an edit
    #: changes first.
    order: Int[Tensor, " N"]


class SuiteModel:
    """A model with the heads and images of a suite: returns features and logits of its weights.

    Args:
        clip: The pre-trained model.
        suite: The tasks with their images.
        store: The store of results.
        counts: Images of each task by split, and, as `"control"`, of either split of the control
            task, e.g. `{"val": 250, "control": 1000}`. Splits that are not named are used whole.
        batch_size: Images in one pass. By default 250, and 100 on the CPU, whose caches then hold
            more of a small model's values.

    Attributes:
        parts: Passes images in batches, smaller ones where memory is short.
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
        return f"{type(self).__name__}({self.clip.encoder.name} on {self.suite.name}: {counts})"

    @torch.inference_mode(False)  # what is kept serves training too, whoever asks first
    def _head(self, task: str) -> heads.Head:
        kind = "trained" if self.clip.text is None else "zero_shot"
        return self._heads.get(task, lambda: heads.start(kind, self.clip, self.suite[task]))

    def with_heads(self, own: Mapping[str, heads.Head]) -> Self:
        """Return a copy with other heads for some tasks, given by name."""
        other, moved = copy.copy(self), placed(own, self.clip.encoder.device)
        other.head = lambda task: moved[task] if task in moved else self.head(task)
        other.__dict__.pop("start", None)  # which has answers of the former heads
        return other

    def with_counts(self, **counts: int) -> Self:
        """Return a copy that reads another number of images of some splits."""
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
        """Return the unedited model's answers on a split; computed once per head."""
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
        """Task, split -> a number for each image, by first appearance; equal images share one."""
        return functools.cache(self._copies)

    def _copies(self, task: str, split: str) -> Int[np.ndarray, " N"]:
        x = self.images(task, split).x
        first: dict[bytes, int] = {}
        prints = (hashlib.sha256(image.cpu().numpy().tobytes()).digest() for image in x)
        return np.array([first.setdefault(one, len(first)) for one in prints])

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
