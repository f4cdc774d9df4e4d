"""Fine-tuning: one loop; a method is a set of parameter names (`methods`) and a gradient.

What is trained is delta = theta - theta_0, from zero and in float32, so the result is the task
vector itself, with no rounding of a difference. The papers' optimiser holds theta, and AdamW's
decay then pulls theta, not delta, towards zero, in linearized training too. With the rate r and the
decay w, theta <- (1 - r w) theta - r u is the same as

    delta <- (1 - r w) delta - r u - r w theta_0,

so we let AdamW decay delta and subtract the last term ourselves: the papers' update exactly.

The order of the images is a function of seed and step alone, so a checkpoint needs no generator's
state, and a resumed run sees what an uninterrupted one sees. It computes with as many threads, too,
for sums depend on how they are divided. Drawn images are not augmented; those of other suites are
(`augment`).

What a step computes is in `steps`: the loss and its gradients, in parts where memory does not
suffice (`memory`), by compiled blocks on a GPU (`compiled`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.models import heads
from tasklab.models.loading import Clip
from tasklab.placement import laid_out, release, resident
from tasklab.progress import bar
from tasklab.storage import termination
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import Suite, suite
from tasklab.taskvector import Base, TaskVector
from tasklab.tuning import memory, penalties, probes, rates
from tasklab.tuning.journal import Journal
from tasklab.tuning.methods import trainable
from tasklab.tuning.order import batch
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import DivergedError, Run
from tasklab.tuning.saver import Saver, with_threads
from tasklab.tuning.steps import LESS, Step

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other numbers

_HEAD = ("classifier.weight", "classifier.bias")  # of a head that trains with the encoder


def identity(config: FineTune, clip: Clip, tasks: Suite | None = None) -> dict[str, Any]:
    """Return all that determines the result of a run: its configuration in the store.

    Args:
        config: The run.
        clip: The model that it starts from.
        tasks: The suite with its images, where `config.suite` is not embedded.
    """
    tasks = tasks or suite(config.suite)
    data = drawn.images_of(tasks)
    task, fields = tasks[config.task], config.identity()
    if config.others:  # by name too: the order of tasks is that of the steps
        fields["others"] = [[name, data.version(name, "train")] for name in config.others]
        fields["penalty_images"] = penalties.IMAGES
    if config.head == "probe":
        fields["probe"] = probes.identity(config.probe, clip, tasks, config.task)
    if config.lr is None:
        fields["search"] = rates.identity(tasks)
    return {
        **fields,
        "classes": list(task.classes),
        "prompts": task.prompts(),
        "data": data.version(config.task, "train"),
        "weights": clip.encoder.weights_hash,
        "algorithm": CACHE_VERSION,
        **data.identity(config.task),
    }


def finetune(
    config: FineTune,
    clip: Clip,
    store: Store,
    *,
    tasks: Suite | None = None,
    progress: bool = True,
    key: Mapping[str, Any] | None = None,
) -> Run:
    """Return a run from the store, or train it, from its last checkpoint if there is one.

    Args:
        config: The run. A rate that is not given is searched first (`rates`).
        clip: The model it starts from, as `models.load` gives it for `config`. A zero-shot head
            stays frozen (tangent, appendix A).
        store: Where the run is kept. On a CPU, a run that was interrupted and resumed ends bit for
            bit where an uninterrupted one does, unless memory ran out: it keeps the number of
            threads that it began with. SIGTERM leaves a checkpoint of the present step.
        tasks: The suite with its images, where `config.suite` is not embedded.
        progress: Whether to show a progress bar.
        key: The run's `identity`, where it is known already.

    Raises:
        TasklabError: If the model is not the configuration's, the method does not suit it, or
            there is not enough memory for one image at a time.
        DivergedError: If the loss stops being a finite number or grows far beyond guessing.
    """
    encoder = clip.encoder
    if (encoder.name, encoder.init) != (config.model, config.init):
        raise TasklabError(
            f"the run is for model {config.model!r}, init {config.init!r}, but the encoder is "
            f"{encoder.name!r}, {encoder.init!r}."
        )
    trainable(encoder.params, config.method, encoder.name)  # a method that cannot be fails here
    tasks, head = tasks or suite(config.suite), None
    if config.head == "probe":
        head = probes.fit(config.probe, clip, tasks, config.task, store).head

    def make(workdir: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        release()  # training needs the memory that earlier vectors have on the device
        start = head or heads.start(config.head, clip, tasks[config.task], config.seed)
        lr = rate(config, clip, store, tasks=tasks, progress=progress)
        chosen, checkpoint = dataclasses.replace(config, lr=lr), workdir / "checkpoint.safetensors"
        with memory.given_back(encoder):
            tensors, record = _train(chosen, clip, tasks, start, checkpoint, progress)
        return tensors, {**record, "lr": lr}

    artifact = store.get("finetune", key or identity(config, clip, tasks), make)
    tensors = dict(
        resident((str(artifact.file), *artifact.checksum), encoder.device, artifact.tensors)
    )
    parts = [tensors.pop(name, None) for name in _HEAD]
    if parts[0] is not None:
        head = heads.Head(*parts, normalise=config.head != "trained" and clip.cosine)
    base = Base(config.model, config.init, artifact.config["weights"], config.method)
    return Run(TaskVector.of_file(tensors, artifact.file, base), artifact.record, head)


def rate(config: FineTune, clip: Clip, store: Store, *, tasks: Suite, progress: bool) -> float:
    """Return a run's learning rate: its own, or what the search for it chose (`rates`).

    Args:
        config: The run.
        clip: The model that it starts from.
        store: Where the search and its runs are kept.
        tasks: The suite with its images.
        progress: Whether to show progress bars.
    """

    def accuracy(run: FineTune) -> float | None:
        try:
            done = finetune(run, clip, store, tasks=tasks, progress=progress)
        except DivergedError:
            return None
        return rates.validation(run, done, clip, tasks)

    if config.lr is not None:
        return config.lr
    key, asked = identity(rates.on(config, tasks), clip, tasks), rates.on(config, tasks)
    return store.get("rate", key, lambda _: ({}, rates.search(asked, accuracy))).record["lr"]


class Trainer:
    """Fine-tunes one model on the tasks of a suite; what a run is known by is computed once.

        trainer = Trainer(clip, store, suite)
        run = trainer(recipe("mini", "Signs", "linearized"))

    Args:
        clip: The model that all runs start from.
        store: Where the runs are kept.
        tasks: The suite with its images.
        progress: Whether to show progress bars.
    """

    def __init__(self, clip: Clip, store: Store, tasks: Suite, *, progress: bool = True) -> None:
        self.clip, self.store, self.tasks, self.progress = clip, store, tasks, progress
        self.identity = functools.cache(lambda config: identity(config, clip, tasks))

    def rate(self, config: FineTune) -> float:
        """Return a run's learning rate; one that is not given is searched now (`rates`)."""
        return rate(config, self.clip, self.store, tasks=self.tasks, progress=self.progress)

    def __call__(self, config: FineTune, store: Store | None = None) -> Run:
        """Return a run from the store, its own or another one, or train it (`finetune`)."""
        return finetune(
            config,
            self.clip,
            store or self.store,
            tasks=self.tasks,
            progress=self.progress,
            key=self.identity(config),
        )


def learning_rate(config: FineTune, step: int) -> float:
    """Return the rate of a step (from 0): linear warm-up, then half a cosine down to zero."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def _train(
    config: FineTune, clip: Clip, tasks: Suite, head: heads.Head, checkpoint: Path, show: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    encoder, task, data = clip.encoder, tasks[config.task], drawn.images_of(tasks)
    names = trainable(encoder.params, config.method, encoder.name)
    theta0 = {name: encoder.params[name].detach() for name in names}
    delta = {name: torch.zeros_like(tensor) for name, tensor in theta0.items()}
    own: dict[str, Tensor] = {}
    if config.head in ("trained", "zero_shot_trained"):
        parts = zip(_HEAD, (head.weight, head.bias), strict=True)
        own = {name: tensor for name, tensor in parts if tensor is not None}
    moving = delta | own
    optimiser = torch.optim.AdamW(
        moving.values(),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,  # in place: PyTorch's usual one holds copies of delta, and is slower
    )
    saver = Saver(checkpoint, moving, optimiser, config.checkpoint_every)
    losses, before, threads = saver.resume()
    steps, began = range(len(losses), config.steps), time.perf_counter()
    journal = Journal(config, losses, len(task.classes), encoder.device)
    gradient = Step(config, encoder, head, theta0, delta, own)
    batches, others = _images(config, data, steps, encoder.device)
    title = f"{config.task}, {config.method}"
    with (
        bar(config.steps, title, done=steps.start, on=show) as shown,
        with_threads(threads),
        termination.deferred() as request,
    ):
        for step, images, elsewhere in zip(steps, batches, others, strict=True):
            what = f"fine-tuning on {config.task} by {config.method!r}, step {step}"
            if note := gradient.note():
                shown.say(note)
            value, gradients = gradient(what, images.x, images.y, elsewhere)
            for name, tensor in moving.items():
                tensor.grad = laid_out(gradients.pop(name), tensor)
            norm = torch.nn.utils.clip_grad_norm_(moving.values(), config.clip)
            journal.add(value, norm)

            rate = optimiser.param_groups[0]["lr"] = learning_rate(config, step)
            with _advised_of_memory(what):
                optimiser.step()
            # the part of theta's decay that AdamW on delta does not know of
            decay = rate * config.weight_decay
            torch._foreach_sub_(list(delta.values()), list(theta0.values()), alpha=decay)
            optimiser.zero_grad()  # no gradients in memory beside those of the next step

            shown.set_postfix_str(journal.note)
            shown.update()
            seconds = before + time.perf_counter() - began
            if request.asked:
                saver.save(journal, seconds)
                raise termination.Terminated(
                    f"{what}: asked to end (SIGTERM); {len(journal)} of {config.steps} steps are "
                    f"kept in {checkpoint}, and the same call goes on from there."
                )
            saver.maybe(journal, seconds)
        losses = journal.losses()

    return moving, {
        "losses": losses,
        "seconds": before + time.perf_counter() - began,
        "parameters": sum(tensor.numel() for tensor in moving.values()),
        "images": data.size(config.task, "train"),
        "device": str(encoder.device),
        "threads": threads,
        "torch": torch.__version__,
        "micro_batch": gradient.plan.size,
        "recomputed": gradient.plan.recompute,
    }


def _images(
    config: FineTune, data: drawn.SuiteImages, steps: range, device: torch.device
) -> tuple[Iterator[drawn.Images], Iterator[Tensor | None]]:
    """Return the images of each step, and those of other tasks that a penalty looks at."""
    order = functools.partial(batch, config)
    few = functools.partial(batch, dataclasses.replace(config, batch_size=penalties.IMAGES))
    others = config.others if config.penalty else ()
    return (
        data.batches(config.task, order, steps, seed=config.seed, device=device),
        penalties.turns(others, data, few, steps, config.seed, device),
    )


@contextlib.contextmanager
def _advised_of_memory(what: str) -> Iterator[None]:
    """Say what to do where there is no memory for the optimiser's state: no part is smaller."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not memory.is_out_of_memory(error):
            raise
        raise TasklabError(f"{what}: out of memory for the optimiser's state. {LESS}") from error
