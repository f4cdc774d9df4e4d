"""The loop that pre-trains the small models: seeded, checkpointed, resumed bit for bit.

The learning rate is constant after the warm-up and falls linearly over the last steps. Until it
falls, a longer run and a shorter one are the same, so that a checkpoint of the one begins the other
(`branch`), which ends where it would have ended by itself.

A checkpoint carries its recipe, its number of threads and the digest of its contents. It is written
whole or not at all, continued with the recorded number of threads, and refused if it is damaged or
of another recipe. A run that is asked to end (SIGTERM) leaves one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from pretraining import pool as files
from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.storage import atomic
from tasklab.storage.tensors import write_tensors


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A pre-training run; chosen by the speed of two CPU cores and by validation accuracy.

    Attributes:
        steps: How many batches.
        batch_size: Pictures in each.
        lr: Highest learning rate.
        weight_decay: Of matrices.
        warmup: Steps before the highest learning rate.
        decay_share: Share of the steps over which the learning rate falls to zero.
        patch_dropout: Share of the patches that are left out until it falls.
        label_smoothing: Of classes.
        seed: Of the pictures, the weights and what is dropped.
        shard: Pictures that are drawn at once.
        pool: How many shards there are, to be seen again and again; of texts ever new ones.
        precision: Of matrix products, `"float32"` or `"bfloat16"`; a processor that is slower in
            bfloat16 computes in float32.
    """

    steps: int = 24_000
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 400
    decay_share: float = 0.15
    patch_dropout: float = 0.5
    label_smoothing: float = 0.0
    seed: int = 0
    shard: int = 8192
    pool: int = 250
    precision: str = "bfloat16"

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step: warm-up, constant, linear decay to zero."""
        decay = self.decay_share * self.steps
        return self.lr * min(1, (step + 1) / self.warmup, (self.steps - step) / decay)

    def decaying(self, step: int) -> bool:
        """Return whether the learning rate falls in this step."""
        return self.steps - step < self.decay_share * self.steps

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context in which the model is applied."""
        fast = device.type != "cpu" or machine.fast_in_bfloat16()
        enabled = self.precision == "bfloat16" and fast
        return torch.autocast(device.type, torch.bfloat16, enabled=enabled)

    def difference(self, other: dict, step: int) -> str:
        """Return in what another recipe (its fields) differs up to a step, "" for in nothing."""
        mine = asdict(self)
        named = {f.name: other.get(f.name, f.default) for f in fields(self)}
        if not any(r.decaying(step) for r in (self, Recipe(**named))) and step <= self.steps:
            mine["steps"] = named["steps"]
        return ", ".join(f"{k} {named[k]} and not {v}" for k, v in mine.items() if named[k] != v)


class Objective(Protocol):
    """What is learnt: a model, a stream of data in shards, a loss and an evaluation."""

    def model(self) -> nn.Module:
        """Return the model with random weights from torch's global seed."""

    def shard(self, index: int) -> tuple[Tensor, ...]:
        """Return a part of the stream, always the same."""

    def loss(self, model: nn.Module, *batch: object) -> Tensor:
        """Return the loss of a batch (the shard's tensors, cut) at a step (the last argument)."""

    def after_step(self, model: nn.Module) -> None:
        """Change the model after each step, where need be."""

    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return accuracies in % on n validation images of each task."""

    def shipped(self, model: nn.Module) -> nn.Module:
        """Return the part that is shipped."""


def batches(
    recipe: Recipe, objective: Objective, step: int, workers: int = 0
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batch of each step from `step` on.

    Args:
        recipe: How it is pre-trained.
        objective: What is learnt.
        step: Number of the step.
        workers: Processes that draw shards ahead, in order.
    """
    size = recipe.batch_size
    first, offset = divmod(step, recipe.shard // size)
    shards = DataLoader(
        range(first, sys.maxsize),  # type: ignore[arg-type]  # has a length and items
        batch_size=None,
        num_workers=workers,
        collate_fn=objective.shard,
        generator=torch.Generator(),  # or a seed of the workers is drawn from the global one
        worker_init_fn=_left_to_parent,
    )
    for data in shards:
        for start in range(offset * size, recipe.shard - size + 1, size):  # whole batches alone
            yield tuple(tensor[start : start + size] for tensor in data)
        offset = 0


@isolated  # float32 is no TF32 on a card
def run(
    recipe: Recipe,
    objective: Objective,
    out: Path,
    *,
    every: int = 250,
    images: int = 300,
    looks: int = 1,
    keep: Sequence[int] = (),
    device: str = "cpu",
    workers: int = 0,
) -> nn.Module:
    """Train, or go on training, and return the model.

    Args:
        recipe: What to do.
        objective: What to learn.
        out: Folder of `last.safetensors` (resumed from if present), `log.json` and fp16 snapshots.
        every: Steps between checkpoints.
        images: Validation images of each task in an evaluation.
        looks: Checkpoints between evaluations; at every fourth evaluation a snapshot is written.
        keep: Steps whose checkpoint is kept, for `branch`.
        device: Of the model. A run goes on bit for bit on the device that it began on.
        workers: Processes that draw the stream ahead; none draws it when it is needed.

    Raises:
        TasklabError: If the folder holds another recipe's checkpoint, or a damaged one.
        SystemExit: If the process was asked to end; a checkpoint is left.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(recipe.seed)
    model = objective.model().train().to(device)
    optimiser = adamw(model, recipe)
    step, log, average, last = 0, [], None, out / "last.safetensors"
    if last.exists():
        step, log, average = load(last, model, optimiser, recipe)
        atomic.write(out / "log.json", json.dumps(log, indent=1))
        print(f"resumed at step {step} of {recipe.steps}", flush=True)
    seconds = log[-1]["seconds"] if log else 0.0
    began, stream = time.time(), batches(recipe, objective, step, workers)
    # The math kernel is faster than the fused one at 17 tokens.
    with sdpa_kernel(SDPBackend.MATH), asked_to_end() as asked:
        while step < recipe.steps:
            for group in optimiser.param_groups:
                group["lr"] = recipe.lr_at(step)
            batch = (tensor.to(device, non_blocking=True) for tensor in next(stream))
            loss = objective.loss(model, *batch, step)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            objective.after_step(model)
            value = loss.item()
            if not math.isfinite(value):
                raise SystemExit(f"pre-training diverged at step {step}: loss {value}")
            average = value if average is None else 0.98 * average + 0.02 * value
            step += 1
            ended, due = step == recipe.steps, step % every == 0
            if ended or due or asked:
                spent = round(seconds + time.time() - began)
                entry = {"step": step, "loss": round(average, 4), "seconds": spent}
                if ended or step % (every * looks) == 0:
                    with torch.random.fork_rng(devices=[]):  # looking changes nothing
                        seen = model if device == "cpu" else copy.deepcopy(model).cpu()
                        entry |= objective.evaluate(seen, images)
                        if ended or step % (4 * every * looks) == 0:
                            export(objective.shipped(seen), out / f"step{step:05d}.safetensors")
                if ended or due:
                    log.append(entry)
                    print(entry, flush=True)
            if step in keep:
                save(kept(out, step), step, model, optimiser, log, recipe, average)
            if ended or due or asked:  # all before it is made again after a kill
                save(last, step, model, optimiser, log, recipe, average)
                atomic.write(out / "log.json", json.dumps(log, indent=1))
            if asked:
                raise SystemExit(f"asked to end: step {step} of {recipe.steps} is in {last}")
    return model


def _left_to_parent(worker: int) -> None:
    """Let the run end a worker, after a checkpoint, where their whole group is asked to end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def asked_to_end() -> Iterator[list[int]]:
    """Yield a list that stays empty until the process receives SIGTERM."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def kept(out: Path, step: int) -> Path:
    """Return the file of a kept checkpoint."""
    return out / f"kept{step:06d}.safetensors"


def branch(source: Path, recipe: Recipe, out: Path) -> None:
    """Let a shorter run begin with the last kept checkpoint of a longer one in which both agree.

    Args:
        source: Folder of the longer run.
        recipe: How it is pre-trained.
        out: Folder of the run.
    """
    if (out / "last.safetensors").exists():
        return
    steps = sorted(int(file.stem.removeprefix("kept")) for file in source.glob("kept*.safetensors"))
    steps = [step for step in steps if not recipe.decaying(step)]
    if steps:
        out.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(out / "last.safetensors") as draft:
            shutil.copyfile(kept(source, steps[-1]), draft)


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW that decays matrices and leaves gains and biases alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98), fused=True)


def save(
    path: Path, step: int, model: nn.Module, optimiser, log: list[dict], recipe: Recipe, loss: float
) -> None:
    """Write a checkpoint: weights, both moments of AdamW, step, random state, log and recipe.

    Args:
        path: The file.
        step: Number of the step.
        model: The model.
        optimiser: AdamW with its moments.
        log: What evaluations said, in order.
        recipe: How it is pre-trained.
        loss: The running mean of losses.
    """
    tensors = {f"model.{k}": v.contiguous().cpu() for k, v in model.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": torch.as_tensor(v).cpu() for k, v in state.items()}
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_initialized():
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    about = {"step": step, "log": log, "recipe": asdict(recipe), "loss": loss}
    files.write(path, tensors, about | {"threads": torch.get_num_threads()})


def load(
    path: Path, model: nn.Module, optimiser, recipe: Recipe
) -> tuple[int, list[dict], float | None]:
    """Restore a checkpoint and its number of threads; return its step, log and mean loss.

    Args:
        path: The file.
        model: The model.
        optimiser: AdamW with its moments.
        recipe: How it is pre-trained.

    Raises:
        TasklabError: If it is damaged, of another recipe or of another model.
    """
    try:
        tensors, about = files.read(path)
    except ValueError as error:
        raise TasklabError(f"{error}; delete it to begin anew, or give another folder") from error
    other = recipe.difference(about["recipe"], about["step"])
    if other:
        raise TasklabError(f"{path} is of another recipe ({other}): give another folder")
    torch.set_num_threads(about["threads"])
    torch.set_rng_state(tensors.pop("random"))
    if (state_there := tensors.pop("random_cuda", None)) is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state_there)
    state: dict[int, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith("adam.")]:
        _, i, key = name.split(".")
        state.setdefault(int(i), {})[key] = tensors.pop(name)
    try:
        model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    except RuntimeError as error:
        raise TasklabError(f"{path} is of another model: give another folder") from error
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    log = about["log"]
    return about["step"], log, about.get("loss", log[-1]["loss"] if log else None)


def export(model: nn.Module, path: Path) -> str:
    """Write the weights as fp16 safetensors; return the SHA-256 of the file."""
    half = {k: v.detach().half().contiguous() for k, v in model.state_dict().items()}
    with atomic.replacing(path) as draft:
        write_tensors(half, draft)
    return hashlib.sha256(path.read_bytes()).hexdigest()
