"""Linear probing: fit heads to the features of the frozen pre-trained encoder.

Models without a text tower have no head for a new task. *Task Addition and Weight Disentanglement
in Closed-Vocabulary Models* (section 3.1) first fits one to frozen features, and then fine-tunes
the encoder with this head frozen. Its probes are trained by AdamW for 2,000 steps, at a learning
rate searched on Cars (appendix C). The problem is convex: `heads.linear_probe` solves it without a
learning rate. `recipe.Probe` chooses between the two.

Letters: N images, D features, C classes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import heads
from tasklab.models.heads import Head
from tasklab.models.loading import Clip
from tasklab.progress import bar
from tasklab.storage.store import Artifact, Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import Suite
from tasklab.tuning import memory
from tasklab.tuning.recipe import Probe

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other numbers
Labelled = tuple[Tensor, Tensor]  # features (N, D) and classes (N,)
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # closed vocabulary, appendix C
SEARCHED_ON = "Cars"  # the data set whose stand-in rates are searched on: appendix C
_BATCH = 250
_DECAY = 1e-5  # of L-BFGS; with 1e-4 validation accuracy is 3 points lower (`recipe.Probe`)
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of AdamW: its usual values


class Fitted(NamedTuple):
    """A probe, with duration and learning rate of its fit."""

    head: Head
    seconds_features: float  #: Of the pass over the training images
    seconds_fit: float  #: Of the fit, the search for a learning rate not included
    lr: float  #: The learning rate; 0 where there is none


def searched_task(suite: Suite) -> str:
    """Return the task that learning rates are searched on: the stand-in for Cars, or the first."""
    return next((t.name for t in suite.tasks if t.stand_in_for == SEARCHED_ON), suite.names[0])


def identity(probe: Probe, clip: Clip, suite: Suite, task: str) -> dict[str, Any]:
    """Return all that determines a probe: its configuration in the store.

    Args:
        probe: How it is fitted.
        clip: The pre-trained model.
        suite: The tasks with their images.
        task: Name of a task.
    """
    searched = probe.solver == "adamw" and probe.lr is None
    search = {"rates": list(RATES), "on": _images(clip, suite, searched_task(suite))}
    return {
        **probe.identity(),
        **_images(clip, suite, task),
        "classes": list(suite[task].classes),
        "search": search if searched else None,
        "algorithm": CACHE_VERSION,
    }


@isolated
def fit(probe: Probe, clip: Clip, suite: Suite, task: str, store: Store) -> Fitted:
    """Return a task's probe from the store, or fit it.

    Args:
        probe: Settings of the fit.
        clip: The pre-trained model.
        suite: The tasks; a learning rate that is not given is searched on the stand-in for Cars.
        task: Name of a task.
        store: The store of results.
    """
    inputs = _features(probe, clip, suite, task, store)

    def make(_: object) -> tuple[dict[str, Tensor], dict[str, Any]]:
        lr = 0.0
        if probe.solver == "adamw":
            lr = best_rate(search(probe, clip, suite, store)) if probe.lr is None else probe.lr
        features, labels = _on(clip, inputs, task)
        began = time.perf_counter()
        head = _solve(probe, features, labels, len(suite[task].classes), lr)
        taken = {"seconds": time.perf_counter() - began, "lr": lr}
        made = {"weight": head.weight, "bias": head.bias}
        return {name: x for name, x in made.items() if x is not None}, taken

    kept = store.get("probe", identity(probe, clip, suite, task), make)
    head = Head(**kept.tensors(), normalise=False).to(clip.encoder.device)
    seconds = float(inputs.record["seconds"]), float(kept.record["seconds"])
    return Fitted(head, *seconds, float(kept.record["lr"]))


@isolated
def again(
    probe: Probe,
    clip: Clip,
    suite: Suite,
    task: str,
    store: Store,
    features: Callable[[int], Labelled],
) -> Head:
    """Return a task's probe, fitted to features of an edited model as `fit` does to the model's.

    Args:
        probe: How it is fitted.
        clip: The pre-trained model.
        suite: The tasks with their images.
        task: Name of a task.
        store: The store of results.
        features: Number of training images -> their features (N, D) and labels (N,).
    """
    whole = drawn.images_of(suite).size(task, "train")
    x, y = features(whole if probe.images is None else min(probe.images, whole))
    heads.check_finite(x, f"what the edited model {clip.encoder.name!r} makes of {task}")
    lr = fit(probe, clip, suite, task, store).lr if probe.solver == "adamw" else 0.0
    return _solve(probe, x, y, len(suite[task].classes), lr)


@isolated
def search(
    probe: Probe,
    clip: Clip,
    suite: Suite,
    store: Store,
    rates: Sequence[float] = RATES,
    task: str | None = None,
) -> dict[float, float]:
    """Return validation accuracies in % of AdamW's probes by rate.

    Args:
        probe: How it is fitted.
        clip: The pre-trained model.
        suite: The tasks with their images.
        store: The store of results.
        rates: Learning rates that are tried.
        task: Name of the task; by default the one that rates are searched on.
    """
    task = task or searched_task(suite)
    every = {float(lr): dataclasses.replace(probe, solver="adamw", lr=lr) for lr in rates}
    return {lr: validation(one, clip, suite, store, task) for lr, one in every.items()}


@isolated
def validation(probe: Probe, clip: Clip, suite: Suite, store: Store, task: str) -> float:
    """Return the validation accuracy in % of a probe with a given rate, or by L-BFGS.

    Args:
        probe: How it is fitted.
        clip: The pre-trained model.
        suite: The tasks with their images.
        store: The store of results.
        task: Name of a task.
    """
    train, val = (_features(probe, clip, suite, task, store, split) for split in ("train", "val"))
    (features, labels), (others, answers) = (_on(clip, kept, task) for kept in (train, val))
    head = _solve(probe, features, labels, len(suite[task].classes), probe.lr or 0.0)
    return 100 * heads.accuracy(head(others), answers)


def best_rate(accuracies: Mapping[float, float]) -> float:
    """Return the rate of the highest accuracy, the lowest of several.

    >>> best_rate({0.1: 50.0, 0.01: 70.0, 0.001: 70.0})
    0.001
    """
    return min(accuracies, key=lambda lr: (-accuracies[lr], lr))


@isolated
def adamw(
    features: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    *,
    classes: int,
    lr: float,
    steps: int = 2000,
    batch_size: int = 128,
    weight_decay: float = 0.1,
    seed: int = 0,
) -> Head:
    """Train a linear classifier of frozen features as the paper does (appendix C).

    AdamW on the mean cross-entropy of shuffled batches, a tenth of the steps warm-up, then a cosine
    down to zero, from PyTorch's usual random weights.

    Args:
        features: Features of N images, (N, D).
        labels: Classes of the N images.
        classes: Number of classes C.
        lr: Learning rate.
        steps: Of AdamW.
        batch_size: Images of a step.
        weight_decay: AdamW's.
        seed: Of the weights and the order of images.
    """
    count, warmup = len(features), steps // 10
    if count == 0:
        raise TasklabError("a linear probe needs at least one image.")
    heads.check_finite(features, "what a probe is fitted to")
    generator = torch.Generator().manual_seed(seed)
    bound = features.shape[1] ** -0.5  # as torch.nn.Linear draws weight and bias
    shape = (classes, features.shape[1] + 1)
    theta = torch.empty(shape).uniform_(-bound, bound, generator=generator).to(features)
    x = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    wanted = F.one_hot(labels, classes).to(features)
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    order = torch.randperm(count, generator=generator)
    with torch.inference_mode():  # the gradient of a linear layer needs no graph
        for step in range(steps):
            index, order = order[:batch_size].to(features.device), order[batch_size:]
            if len(order) < min(batch_size, count):
                order = torch.randperm(count, generator=generator)
            rise, fall = (step + 1) / max(1, warmup), (step - warmup) / max(1, steps - warmup)
            rate = lr * (rise if step < warmup else 0.5 * (1 + math.cos(math.pi * fall)))
            batch = x[index]
            error = (batch @ theta.T).softmax(1).sub_(wanted[index])
            gradient = (error.T @ batch).div_(len(index))
            first.lerp_(gradient, 1 - _BETA1)
            second.lerp_(gradient.square_(), 1 - _BETA2)
            scale = second.div(1 - _BETA2 ** (step + 1)).sqrt_().add_(_EPSILON)
            theta.mul_(1 - rate * weight_decay)
            theta.addcdiv_(first, scale, value=-rate / (1 - _BETA1 ** (step + 1)))
    return Head(theta[:, :-1].clone(), theta[:, -1].clone(), normalise=False)


def _solve(probe: Probe, features: Tensor, labels: Tensor, classes: int, lr: float) -> Head:
    if probe.solver == "lbfgs":
        return heads.linear_probe(features, labels, classes=classes, decay=_DECAY)
    how: dict[str, Any] = {n: getattr(probe, n) for n in ("steps", "batch_size", "weight_decay")}
    return adamw(features, labels, classes=classes, lr=lr, **how)


def _images(clip: Clip, suite: Suite, task: str, split: str = "train") -> dict[str, str]:
    data = drawn.images_of(suite).version(task, split)
    return {**clip.identity, "data": data}


def _features(
    probe: Probe, clip: Clip, suite: Suite, task: str, store: Store, split: str = "train"
) -> Artifact:
    encoder, whole = clip.encoder, drawn.images_of(suite).size(task, split)
    count = whole if probe.images is None else min(probe.images, whole)

    @torch.inference_mode()
    def make(_: object) -> tuple[dict[str, Tensor], dict[str, Any]]:
        images = drawn.images_of(suite).load(task, split, n=count, device=encoder.device)
        began = time.perf_counter()
        parts = memory.Parts(_BATCH)
        rows = parts(lambda x: encoder(encoder.params, encoder.preprocess(x)), images.x)
        found = []
        with bar(count, f"features of {task}", unit="image") as shown:
            for row in rows:
                found.append(row)
                shown.update(len(row))
        features = torch.cat(found).float().cpu()
        return {"features": features, "labels": images.y}, {"seconds": time.perf_counter() - began}

    config = {**_images(clip, suite, task, split), "images": count, "algorithm": CACHE_VERSION}
    return store.get("features", config, make)


def _on(clip: Clip, inputs: Artifact, task: str) -> tuple[Tensor, Tensor]:
    kept = inputs.tensors()
    heads.check_finite(kept["features"], f"what model {clip.encoder.name!r} makes of {task}")
    device = clip.encoder.device
    return kept["features"].to(device), kept["labels"].to(device)
