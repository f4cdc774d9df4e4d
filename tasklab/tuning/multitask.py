"""One model fine-tuned on several tasks together: the upper bound of every merge of their vectors.

Steps go through the tasks in turn, each a batch of one task with that task's frozen head, and as
many of each task as its own run has. The optimiser, the decay and the schedule are those of a run
on one task (`finetune`), over all steps: warm-up and cosine are as many times longer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import heads
from tasklab.models.loading import Clip
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.drawn import Images
from tasklab.tasks.suites import Suite
from tasklab.taskvector import Base
from tasklab.tuning import finetune, probes
from tasklab.tuning.methods import trainable
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import Run, read_run
from tasklab.tuning.session import Session
from tasklab.tuning.steps import Problem, Step

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other numbers
KIND = "multitask"  # of artifact


def identity(runs: Sequence[FineTune], clip: Clip, tasks: Suite) -> dict[str, Any]:
    """Return all that determines the result: the runs on each task, in the order of their turns.

    Args:
        runs: One per task, equal in all else.
        clip: The pre-trained model.
        tasks: The suite.
    """
    return known_by([finetune.identity(run, clip, tasks) for run in runs])


def known_by(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run's key in the store from the identities of the runs on each task."""
    return {"tasks": list(tasks), "algorithm": [CACHE_VERSION, finetune.CACHE_VERSION]}


@isolated
def multitask(
    runs: Sequence[FineTune], clip: Clip, store: Store, tasks: Suite, *, progress: bool = True
) -> Run:
    """Fine-tune one model on several tasks and return its vector, or read it from the store.

    Args:
        runs: One per task, equal in all else; a step has the images of one task, in turns.
        clip: The pre-trained model.
        store: Keeps the vector.
        tasks: The suite.
        progress: Whether to show a bar.

    Raises:
        TasklabError: If runs differ in more than their task, have a penalty, train their heads, or
            have no learning rate.
        DivergedError: If the loss stops being a finite number or grows far beyond guessing.
    """
    first = runs[0]
    if first.head not in ("zero_shot", "probe") or first.penalty is not None or first.lr is None:
        raise TasklabError(
            "several tasks train together with frozen heads, without a penalty, at a given rate."
        )
    if any(dataclasses.replace(run, task=first.task) != first for run in runs):
        raise TasklabError("runs on several tasks together must be alike in all but their task.")

    def make(workdir: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return _train(runs, clip, store, tasks, workdir / "checkpoint.safetensors", progress)

    artifact = store.get(KIND, identity(runs, clip, tasks), make)
    return read_run(artifact, clip, Base(first.model, first.init, clip.encoder.weights_hash))


def _train(
    runs: Sequence[FineTune], clip: Clip, store: Store, tasks: Suite, checkpoint: Path, show: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    encoder, first, count = clip.encoder, runs[0], len(runs)
    whole = dataclasses.replace(first, steps=count * first.steps, warmup=count * first.warmup)
    names = trainable(encoder.params, first.method, encoder.name)
    theta0 = {name: encoder.params[name].detach() for name in names}
    delta = {name: torch.zeros_like(tensor) for name, tensor in theta0.items()}
    classes = max(len(tasks[run.task].classes) for run in runs)
    session = Session(whole, f"{count} tasks", classes, delta, checkpoint, show)
    start = session.left.start
    batches = [_images(run, turn, count, start, clip, tasks) for turn, run in enumerate(runs)]
    own = [Problem(run, _head(run, clip, store, tasks), theta0, delta, {}) for run in runs]
    gradients = dict[str, Tensor]()  # of the recorded steps, whichever task's turn it is
    each = [Step(problem, encoder, shared=gradients) for problem in own]

    def gradient(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        images = next(batches[step % count])
        return each[step % count](session.what, images.x, images.y, None)

    finetune.descend(own[0]._replace(config=whole), session, gradient)
    parameters = sum(tensor.numel() for tensor in delta.values())
    return delta, {**session.record(), "parameters": parameters, "lr": first.lr}


def _head(run: FineTune, clip: Clip, store: Store, tasks: Suite) -> heads.Head:
    if run.head == "probe":
        return probes.fit(run.probe, clip, tasks, run.task, store).head
    return heads.start(run.head, clip, tasks[run.task], run.seed)


def _images(
    run: FineTune, turn: int, count: int, start: int, clip: Clip, tasks: Suite
) -> Iterator[Images]:
    own = range(-((turn - start) // count), run.steps)
    data, order = drawn.images_of(tasks), functools.partial(finetune.batch, run)
    return data.batches(run.task, order, own, seed=run.seed, device=clip.encoder.device)
