"""The learning rate of fine-tuning, searched as the closed-vocabulary paper does (appendix C).

A run whose `lr` is `None` asks for one run at each of `RATES` on the stand-in for Cars, of which
the one with the highest accuracy on all validation images is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import heads, inference
from tasklab.models.loading import Clip
from tasklab.tasks import drawn
from tasklab.tasks.suites import Suite
from tasklab.tuning import memory, tangent
from tasklab.tuning.methods import LINEAR
from tasklab.tuning.probes import best_rate, searched_task
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import Run

RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # closed vocabulary, appendix C
_BATCH = 250


def on(config: FineTune, tasks: Suite) -> FineTune:
    """Return the run whose rate stands for another's: of the stand-in for Cars, with seed 0."""
    task = searched_task(tasks)
    others = tuple(name for name in tasks.names if name != task) if config.others else ()
    return dataclasses.replace(config, task=task, seed=0, others=others)


def runs(config: FineTune, tasks: Suite) -> list[FineTune]:
    """Return the runs that a search compares, or none where the rate is given."""
    if config.lr is not None:
        return []
    return [dataclasses.replace(on(config, tasks), lr=lr) for lr in RATES]


def identity(tasks: Suite) -> dict[str, Any]:
    """Return the part of a searched rate's identity that is not the run's."""
    task, data = searched_task(tasks), drawn.images_of(tasks)
    return {
        "rates": list(RATES),
        "on": task,
        "classes": list(tasks[task].classes),
        "data": [data.version(task, split) for split in ("train", "val")],
        **data.identity(task),
    }


def search(config: FineTune, accuracy: Callable[[FineTune], float | None]) -> dict[str, Any]:
    """Return the rates, their accuracies on validation images in %, and the best rate."""
    every = {lr: accuracy(dataclasses.replace(config, lr=lr)) for lr in RATES}
    ended = {lr: value for lr, value in every.items() if value is not None}
    if not ended:
        raise TasklabError(
            f"fine-tuning on {config.task} by {config.method!r} diverged at every learning rate of "
            f"{RATES[0]:g} to {RATES[-1]:g}: give lr."
        )
    return {"rates": list(every), "accuracies": list(every.values()), "lr": best_rate(ended)}


@isolated
@torch.no_grad()
def validation(config: FineTune, run: Run, clip: Clip, tasks: Suite) -> float:
    """Return the accuracy in % of a run's own model on all validation images of its task.

    Args:
        config: The run's settings.
        run: Its vector, and its head if that was trained.
        clip: The pre-trained model.
        tasks: The suite.
    """
    encoder = clip.encoder
    images = drawn.images_of(tasks).load(config.task, "val", device=encoder.device)
    head = run.head or heads.start(config.head, clip, tasks[config.task], config.seed)
    vector, parts = run.vector.to(encoder.device), memory.Parts(_BATCH)
    if config.method in LINEAR:
        made = tangent.features(encoder, encoder.params, vector, images.x, parts.size)
        features = made.f0 + made.jtau
    else:
        params, quick = vector.apply(encoder.params), inference.passes(encoder)
        features = torch.cat(list(parts(lambda x: quick(params, encoder.preprocess(x)), images.x)))
    return 100 * heads.accuracy(head.to(encoder.device)(features), images.y)
