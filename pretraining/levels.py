"""What a pre-trained CLIP can do, by levels of the non-linear model on validation images.

    python -m pretraining.levels --weights runs/mini/step24000.safetensors

These are the numbers that the world, its recipes and the length of its pre-trainings were
settled by: zero-shot accuracy, accuracy alone after fine-tuning, accuracy of the sum of all task
vectors at one coefficient, and accuracy on the target of a negated task vector that leaves the
control at 95 % or more of what it was. No other method of fine-tuning is looked at here, and no
test image.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasklab import machine
from tasklab.mini import clip
from tasklab.mini.sampling import sample
from tasklab.tasks import drawn
from tasklab.tasks.suites import Task, suite

KEPT = 0.95  # of the control's accuracy
Params = dict[str, Tensor]


class World(NamedTuple):
    """The tasks that a model is judged by, and the control."""

    tasks: tuple[Task, ...]
    control: Task


def world_of(model: str) -> World:
    """Return the tasks of the world that a model was pre-trained on: eight, if there are more."""
    whole = suite(clip.world_of(model))
    return World(tuple(whole[name] for name in whole.usual or whole.names), whole.control)


@functools.lru_cache(maxsize=64)
def _images(world: str, task: str, split: str, n: int) -> tuple[Tensor, Tensor]:
    if world == "mini":
        return sample(task, split, n)
    images = drawn.images_of(suite(world))
    x, y = images.load(task, split, n=min(n, images.size(task, split)))
    return x, y


class Levels:
    """The image tower of a CLIP, its zero-shot heads and the images to judge it by.

    Args:
        model: The CLIP.
        name: Its name.
        train: Training images of each task.
        val: Validation images of each task.
        control: Validation images of the control task.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str = "mini",
        *,
        train: int = 3000,
        val: int = 500,
        control: int = 2000,
    ) -> None:
        self.name, self.world = name, world_of(name)
        self.tower = model.visual.eval().requires_grad_(False)
        self.start: Params = {k: v.detach().clone() for k, v in self.tower.named_parameters()}
        self.sizes = {"train": train, "val": val}
        self.control = control
        with torch.no_grad():
            scale = model.logit_scale.exp()
            self.heads = {
                task.name: scale * self._head(model.eval(), task)
                for task in (*self.world.tasks, self.world.control)
            }

    def _head(self, model: nn.Module, task: Task) -> Tensor:
        text = model.encode_text(clip.tokenize(task.prompts(), self.name), normalize=True)
        return F.normalize(text.view(len(task.classes), -1, text.shape[-1]).mean(1), dim=-1)

    def _load(self, task: str, split: str, n: int) -> tuple[Tensor, Tensor]:
        return _images(clip.world_of(self.name), task, split, n)

    def logits(self, params: Params, images: Tensor, task: str) -> Tensor:
        """Return scores (n, C) of images (n, 3, S, S) by the head of a task.

        Args:
            params: Parameters by name.
            images: Images, uint8 (n, 3, S, S).
            task: Name of a task.
        """
        with torch.autocast("cpu", torch.bfloat16, enabled=machine.fast_in_bfloat16()):
            features = functional_call(self.tower, params, (clip.normalise(images),))
        return F.normalize(features.float(), dim=-1) @ self.heads[task].T

    @torch.no_grad()
    def accuracy(self, params: Params, task: str) -> float:
        """Return the accuracy in % on the validation images of a task."""
        n = self.control if task == self.world.control.name else self.sizes["val"]
        images, labels = self._load(task, "val", n)
        guess = torch.cat([self.logits(params, x, task).argmax(1) for x in images.split(250)])
        return 100 * (guess == labels).float().mean().item()

    def finetune(self, task: str, *, lr: float, steps: int, batch: int, seed: int) -> Params:
        """Return the task vector of a run: AdamW, a tenth of warm-up, cosine, clipped at 1.

        Args:
            task: Name of a task.
            lr: Highest learning rate.
            steps: How many steps.
            batch: Images in a step.
            seed: Of everything random.
        """
        images, labels = self._load(task, "train", self.sizes["train"])
        params = {k: v.clone().requires_grad_() for k, v in self.start.items()}
        values = list(params.values())
        adamw = torch.optim.AdamW(values, lr=lr, betas=(0.9, 0.98), weight_decay=0.1)
        order = torch.Generator().manual_seed(seed)
        queue: list[int] = []
        for step in range(steps):
            warm = (step + 1) / max(1, steps // 10)
            share = min(1.0, warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
            adamw.param_groups[0]["lr"] = lr * share
            if len(queue) < batch:
                queue = torch.randperm(len(images), generator=order).tolist()
            chosen, queue = queue[:batch], queue[batch:]
            loss = F.cross_entropy(self.logits(params, images[chosen], task), labels[chosen])
            adamw.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(values, 1.0)
            adamw.step()
        return {k: params[k].detach() - v for k, v in self.start.items()}

    def at(self, vector: Params, alpha: float) -> Params:
        """Return the weights with alpha times a task vector added."""
        return {k: v + alpha * vector[k] for k, v in self.start.items()}


def measure(
    levels: Levels, *, lr: float, steps: int, batch: int = 64, seed: int = 0, step: float = 0.05
) -> dict:
    """Return the levels of a model.

    Args:
        levels: Of the model.
        lr: Learning rate of fine-tuning.
        steps: Its length.
        batch: Its images a step.
        seed: Of its order of images.
        step: Between coefficients, of which one is chosen on validation images.
    """
    eight, held_out = [task.name for task in levels.world.tasks], levels.world.control.name
    zero = {task: levels.accuracy(levels.start, task) for task in (*eight, held_out)}
    vectors = {
        task: levels.finetune(task, lr=lr, steps=steps, batch=batch, seed=seed) for task in eight
    }
    alone = {task: levels.accuracy(levels.at(vectors[task], 1.0), task) for task in eight}
    total = {k: sum(v[k] for v in vectors.values()) for k in levels.start}
    alphas = [round(step * i, 4) for i in range(1, round(0.7 / step) + 1)]
    sums = {a: {t: levels.accuracy(levels.at(total, a), t) for t in eight} for a in alphas}
    best = max(alphas, key=lambda a: sum(sums[a].values()))
    forgotten, held, chosen = {}, {}, {}
    for task in eight:
        forgotten[task], held[task], chosen[task] = zero[task], zero[held_out], 0.0
        for i in range(1, round(1 / (2 * step)) + 1):
            alpha = round(2 * step * i, 4)
            weights = levels.at(vectors[task], -alpha)
            control = levels.accuracy(weights, held_out)
            if control < 0.9 * KEPT * zero[held_out]:
                break  # it does not recover
            target = levels.accuracy(weights, task)
            if control >= KEPT * zero[held_out] and target < forgotten[task]:
                forgotten[task], held[task], chosen[task] = target, control, alpha
    parts = {"zero-shot": zero, "alone": alone, "sum": sums[best], "negated": forgotten}
    means = {k: round(sum(v[t] for t in eight) / len(eight), 2) for k, v in parts.items()}
    return {
        "recipe": {"lr": lr, "steps": steps, "batch": batch, "seed": seed},
        "means": means,
        "alpha of the sum": best,
        "control": round(zero[held_out], 2),
        "control kept": round(sum(held.values()) / len(eight), 2),
        "alphas of the negations": chosen,
        "tasks": {k: {t: round(x, 1) for t, x in v.items()} for k, v in parts.items()},
    }


def load(weights: Path, name: str = "mini") -> nn.Module:
    """Return a CLIP with exported weights."""
    model = clip.build(name)
    model.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    return model


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Levels of a pre-trained CLIP.")
    parser.add_argument("--weights", type=Path, required=True, help="an exported snapshot")
    parser.add_argument("--model", default="mini", choices=clip.VISION)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", type=int, default=2000, help="images of the control task")
    parser.add_argument("--out", type=Path, help="write the result there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    with sdpa_kernel(SDPBackend.MATH):
        model = load(options.weights, options.model)
        levels = Levels(model, options.model, control=options.control)
        result = measure(levels, lr=options.lr, steps=options.steps, seed=options.seed)
    result = {"weights": options.weights.name, **result}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
