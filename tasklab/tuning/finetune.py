"""Fine-tuning: one loop; a method is a set of parameter names (`methods`) and a gradient.

The trained variable is delta = theta - theta_0, from zero and in float32, so the result is the task
vector itself, with no rounding of a difference. The papers' optimiser holds theta, and AdamW's
decay then pulls theta, not delta, towards zero, in linearized training too. With the rate r and the
decay w, theta <- (1 - r w) theta - r u is the same as

    delta <- (1 - r w) delta - r u - r w theta_0,

so we let AdamW decay delta and subtract the last term ourselves: the papers' update exactly.

The order of the images is a function of seed and step alone, and a resumed run computes with as
many threads, so that it ends where an uninterrupted one does.

`steps` defines a step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import heads
from tasklab.models.loading import Clip
from tasklab.storage.placement import laid_out, release
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import Suite, suite
from tasklab.taskvector import Base
from tasklab.tuning import memory, penalties, probes, rates, runs
from tasklab.tuning.distillation import PREFIX, Distilled
from tasklab.tuning.methods import TABLE, trainable
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import DivergedError, Run
from tasklab.tuning.session import Session
from tasklab.tuning.steps import Gradients, Problem, Step

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other numbers


@isolated
def identity(config: FineTune, clip: Clip, tasks: Suite | None = None) -> dict[str, Any]:
    """Return all that determines the result of a run: its configuration in the store.

    Args:
        config: The run, with all that determines it.
        clip: The pre-trained model.
        tasks: The tasks with their images; by default the suite of the run.
    """
    tasks = tasks or suite(config.suite)
    data = drawn.images_of(tasks)
    task, fields = tasks[config.task], config.identity()
    if config.others:  # by name too: the order of tasks is that of the steps
        fields["others"] = [[name, data.version(name, "train")] for name in config.others]
        fields["penalty_images"] = penalties.images(config.method)
    if weight := TABLE[config.method].teacher:
        reference = data.version(tasks.control.name, "val"), penalties.images(config.method)
        fields["teacher"] = [weight, *reference]
    if config.head == "probe":
        fields["probe"] = probes.identity(config.probe, clip, tasks, config.task)
    if config.lr is None:
        fields["search"] = rates.identity(tasks)
    return {
        **fields,
        "classes": list(task.classes),
        "prompts": task.prompts(),
        "data": data.version(config.task, "train"),
        **clip.identity,
        "algorithm": CACHE_VERSION,
        **data.identity(config.task),
    }


@isolated
def finetune(
    config: FineTune, clip: Clip, store: Store, *, tasks: Suite | None = None, progress: bool = True
) -> Run:
    """Return a run from the store, or train it, from its last checkpoint if it has one.

    Args:
        config: The run. A rate that is not given is searched first (`rates`).
        clip: The model it starts from, as `models.load` gives it for `config`. A zero-shot head
            stays frozen (tangent, appendix A).
        store: Where the run is kept. On a CPU, an interrupted and resumed run ends bit for bit
            where an uninterrupted one does, unless memory ran out. SIGTERM leaves a checkpoint.
        tasks: The suite with its images, where `config.suite` is not embedded.
        progress: Whether to show a bar.

    Raises:
        TasklabError: If the model is not the configuration's, the method does not suit it, or
            there is not enough memory for one image at a time.
        DivergedError: If the loss stops being a finite number or grows far beyond guessing.
    """
    return Trainer(clip, store, tasks or suite(config.suite), progress=progress)(config)


class Trainer:
    """Fine-tunes one model on the tasks of a suite; keys of runs are computed once.

        trainer = Trainer(clip, store, suite)
        run = trainer(recipe("mini", "Signs", "linearized"))

    Args:
        clip: The pre-trained model.
        store: The store of runs.
        tasks: The suite with its images.
        progress: Whether to show bars.

    Attributes:
        identity: Run -> its configuration in the store (`identity`).
    """

    def __init__(self, clip: Clip, store: Store, tasks: Suite, *, progress: bool = True) -> None:
        self.clip, self.store, self.tasks, self.progress = clip, store, tasks, progress
        self.identity = functools.cache(lambda config: identity(config, clip, tasks))
        self._probe = functools.cache(self._fitted)

    @isolated
    def __call__(self, config: FineTune, store: Store | None = None) -> Run:
        """Return a run from the store, or train it (`finetune`)."""
        store, encoder = store or self.store, self.clip.encoder
        if (encoder.name, encoder.init) != (config.model, config.init):
            raise TasklabError(
                f"the run is for model {config.model!r}, init {config.init!r}, but the encoder is "
                f"{encoder.name!r}, {encoder.init!r}."
            )
        trainable(encoder.params, config.method, encoder.name)  # an impossible method fails here
        probe = self._probe(config, store) if config.head == "probe" else None

        def make(workdir: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
            release()  # training needs the memory that earlier vectors have on the device
            task = self.tasks[config.task]
            head = probe or heads.start(config.head, self.clip, task, config.seed)
            chosen = dataclasses.replace(config, lr=self.rate(config, store))
            file = workdir / "checkpoint.safetensors"
            with memory.given_back(encoder):
                return train(chosen, self.clip, self.tasks, head, file, self.progress)

        artifact = store.get("finetune", self.identity(config), make)
        base = Base(config.model, config.init, encoder.weights_hash, config.method)
        return runs.read_run(artifact, self.clip, base, probe)

    @isolated
    def rate(self, config: FineTune, store: Store | None = None) -> float:
        """Return a run's learning rate; a missing one is searched (`rates`) and stored."""
        if config.lr is not None:
            return config.lr
        store, asked = store or self.store, rates.on(config, self.tasks)

        def accuracy(run: FineTune) -> float | None:
            try:
                return rates.validation(run, self(run, store), self.clip, self.tasks)
            except DivergedError:
                return None

        key = self.identity(asked)
        return store.get("rate", key, lambda _: ({}, rates.search(asked, accuracy))).record["lr"]

    @torch.inference_mode(False)  # the stored rate serves training, too
    def _fitted(self, config: FineTune, store: Store) -> heads.Head:
        return probes.fit(config.probe, self.clip, self.tasks, config.task, store).head


def learning_rate(config: FineTune, step: int) -> float:
    """Return the rate of a step (from 0): linear warm-up, then half a cosine down to zero."""
    if step < config.warmup:
        return config.peak * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.peak * 0.5 * (1 + math.cos(math.pi * done))


@isolated
def train(
    config: FineTune, clip: Clip, tasks: Suite, head: heads.Head, checkpoint: Path, show: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return delta, the head if it trains, and the record of the run.

    Args:
        config: The run, with all that determines it.
        clip: The pre-trained model.
        tasks: The tasks with their images.
        head: The task's classifier; of a run with a trained head its start.
        checkpoint: Checkpoint from which an interrupted run continues.
        show: Whether to show a progress bar.
    """
    encoder, task, data = clip.encoder, tasks[config.task], drawn.images_of(tasks)
    names = trainable(encoder.params, config.method, encoder.name)
    theta0 = {name: encoder.params[name].detach() for name in names}
    delta = {name: torch.zeros_like(tensor) for name, tensor in theta0.items()}
    own = runs.of_head(head) if config.head in runs.TRAINED else {}
    taught = TABLE[config.method].teacher > 0
    teacher = {PREFIX + name: torch.zeros_like(x) for name, x in theta0.items() if taught}
    moving, classes = delta | own | teacher, len(task.classes)
    session = Session(config, config.task, classes, moving, checkpoint, show)
    known = penalties.known(config.method, encoder, config.others, data) if config.penalty else None
    problem = Problem(config, head, theta0, delta, own)
    given = problem, encoder, known
    gradient = Distilled(*given, teacher, session.left.start) if taught else Step(*given)
    images, others = _images(config, data, session.left, encoder.device)

    def next_gradient(step: int) -> tuple[Tensor, Gradients]:
        session.say(gradient.note())
        (x, y), z = next(images), next(others)
        return gradient(session.what, x, y, z)

    descend(problem, session, next_gradient, teacher)
    return delta | own, {
        **session.record(),
        "lr": config.lr,
        "images": data.size(config.task, "train"),
        "parameters": sum(tensor.numel() for tensor in (delta | own).values()),
        "micro_batch": gradient.plan.size,
        "recomputed": gradient.plan.recompute,
    }


def descend(
    problem: Problem,
    session: Session,
    gradient: Callable[[int], tuple[Tensor, Gradients]],
    teacher: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Train for the remaining steps; delta, a trained head and a teacher change in place.

    Args:
        problem: The run with its trained parameters.
        session: Progress, checkpoints and optimiser.
        gradient: Step -> loss, and its gradient in theta, or in delta for a linearized model.
        teacher: Its change, with the names of `distillation`.
    """
    config, _, theta0, delta, own = problem
    adamw, student, own_recipe = session.optimiser, delta | own, TABLE[config.method].published
    decaying = [*delta.values(), *teacher.values()]
    origins = [*theta0.values()] * (2 if teacher else 1)
    with session:
        for step in session:
            loss, gradients = gradient(step)
            for name, tensor in {**student, **teacher}.items():
                tensor.grad = laid_out(gradients.pop(name), tensor)
            most = math.inf if config.clip is None else config.clip
            norm = torch.nn.utils.clip_grad_norm_(student.values(), most)
            torch.nn.utils.clip_grad_norm_(teacher.values(), most)
            session.add(loss, norm)  # raises if the run diverges

            rate = adamw.param_groups[0]["lr"] = learning_rate(config, step)
            with memory.advised(session.what):
                adamw.step()
            decay = rate * config.weight_decay  # of theta_0, which AdamW on delta does not know of
            if not (own_recipe and own_recipe.decay == "change"):
                torch._foreach_sub_(decaying, origins, alpha=decay)
            adamw.zero_grad()  # no gradients in memory beside those of the next step


def batch(config: FineTune, step: int, count: int) -> Tensor:
    """Return the indices (B,) of a step's images: shuffled epochs, one after another.

    Args:
        config: The run, with all that determines it.
        step: Number of the step, from 0.
        count: Images of the training split.
    """
    position, parts, missing = step * config.batch_size, [], config.batch_size
    while missing:
        epoch, start = divmod(position, count)
        parts.append(_order(config.seed, epoch, count)[start : start + missing])
        position, missing = position + len(parts[-1]), missing - len(parts[-1])
    return torch.cat(parts)


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def _images(
    config: FineTune, data: drawn.SuiteImages, steps: range, device: torch.device
) -> tuple[Iterator[drawn.Images], Iterator[Tensor | None]]:
    order = functools.partial(batch, config)
    few = functools.partial(batch, dataclasses.replace(config, batch_size=penalties.IMAGES))
    others = config.others if config.penalty and not TABLE[config.method].once else ()
    return (
        data.batches(config.task, order, steps, seed=config.seed, device=device),
        penalties.turns(others, data, few, steps, config.seed, device),
    )
