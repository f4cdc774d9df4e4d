"""The loop that pre-trains the small models: seeded, checkpointed, resumed bit for bit.

The learning rate is constant after the warm-up and falls linearly over the last fifth, so that a
run can be prolonged from any earlier checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


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
        pool: How many shards there are, to be seen again and again; 0: ever new ones.
    """

    steps: int = 4500
    batch_size: int = 192
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 200
    decay_share: float = 0.2
    patch_dropout: float = 0.25
    label_smoothing: float = 0.0
    seed: int = 0
    shard: int = 6144
    pool: int = 0

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step: warm-up, constant, linear decay to zero."""
        decay = self.decay_share * self.steps
        return self.lr * min(1, (step + 1) / self.warmup, (self.steps - step) / decay)

    def decaying(self, step: int) -> bool:
        """Return whether the learning rate falls in this step."""
        return self.steps - step < self.decay_share * self.steps


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


def batches(recipe: Recipe, objective: Objective, step: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batch of each step from `step` on."""
    per_shard = recipe.shard // recipe.batch_size
    loaded = -1
    while True:
        index, offset = divmod(step, per_shard)
        if index != loaded:
            data, loaded = objective.shard(index), index
        part = slice(offset * recipe.batch_size, (offset + 1) * recipe.batch_size)
        yield tuple(tensor[part] for tensor in data)
        step += 1


def run(
    recipe: Recipe, objective: Objective, out: Path, *, every: int = 250, images: int = 300
) -> nn.Module:
    """Train, or go on training, and return the model.

    Args:
        recipe: What to do.
        objective: What to learn.
        out: Folder of `last.safetensors` (resumed from if present), `log.json` and fp16 snapshots.
        every: Steps between evaluations and checkpoints.
        images: Validation images of each task in an evaluation.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(recipe.seed)
    model = objective.model().train()
    optimiser = adamw(model, recipe)
    step, log, last = 0, [], out / "last.safetensors"
    if last.exists():
        step, log = load(last, model, optimiser)
        print(f"resumed at step {step} of {recipe.steps}", flush=True)
    average, seconds = (log[-1]["loss"], log[-1]["seconds"]) if log else (None, 0.0)
    began, stream = time.time(), batches(recipe, objective, step)
    with sdpa_kernel(SDPBackend.MATH):  # faster than the fused kernel at 17 tokens
        while step < recipe.steps:
            for group in optimiser.param_groups:
                group["lr"] = recipe.lr_at(step)
            loss = objective.loss(model, *next(stream), step)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            objective.after_step(model)
            if not math.isfinite(loss.item()):
                raise SystemExit(f"pre-training diverged at step {step}: loss {loss.item()}")
            average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
            step += 1
            if step % every == 0 or step == recipe.steps:
                with torch.random.fork_rng(devices=[]):  # looking changes nothing
                    accuracy = objective.evaluate(model, images)
                spent = round(seconds + time.time() - began)
                log.append({"step": step, "loss": round(average, 4), "seconds": spent, **accuracy})
                print(log[-1], flush=True)
                save(last, step, model, optimiser, log)
                (out / "log.json").write_text(json.dumps(log, indent=1))
                if step % (4 * every) == 0 or step == recipe.steps:
                    with torch.random.fork_rng(devices=[]):
                        export(objective.shipped(model), out / f"step{step:05d}.safetensors")
    return model


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW that decays matrices and leaves gains and biases alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98), fused=True)


def save(path: Path, step: int, model: nn.Module, optimiser, log: list[dict]) -> None:
    """Write a checkpoint atomically: weights, both moments of AdamW, step, random state, log."""
    tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
    tensors["random"] = torch.get_rng_state()
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, {"step": str(step), "log": json.dumps(log)})
    os.replace(partial, path)


def load(path: Path, model: nn.Module, optimiser) -> tuple[int, list[dict]]:
    """Restore a checkpoint; return its step and log."""
    with safe_open(path, "pt") as file:
        meta = file.metadata()
    tensors = load_file(path)
    torch.set_rng_state(tensors.pop("random"))
    state: dict[int, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith("adam.")]:
        _, i, key = name.split(".")
        state.setdefault(int(i), {})[key] = tensors.pop(name)
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return int(meta["step"]), json.loads(meta["log"])


def export(model: nn.Module, path: Path) -> str:
    """Write the weights as fp16 safetensors; return the SHA-256 of the file."""
    half = {k: v.detach().half().contiguous() for k, v in model.state_dict().items()}
    path.touch()
    usual = path.stat().st_mode
    save_file(half, path)
    path.chmod(usual)  # safetensors leaves a file that only its owner can read
    return hashlib.sha256(path.read_bytes()).hexdigest()
