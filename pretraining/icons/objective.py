"""Contrastive pre-training on the second world, judged by the validation drawings of its tasks."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from pretraining.evaluate import features, frozen
from pretraining.icons.corpus import Corpus
from pretraining.loop import Recipe
from pretraining.objectives import Contrastive
from tasklab.mini.clip import tokenize
from tasklab.tasks import icons
from tasklab.tasks.suites import Task, suite


class IconContrastive(Contrastive):
    """As `Contrastive`, on the corpus of drawings.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of pools; the corpus lies beside it.
    """

    def __init__(self, name: str, recipe: Recipe, pool: Path) -> None:
        super().__init__(name, recipe, pool)
        self.corpus = Corpus(pool.parent, recipe.seed, recipe.shard)

    def shard(self, index: int) -> tuple[Tensor, Tensor]:
        """Return pictures and tokens."""
        part = self.corpus.turn(index)
        return part["images"], part["tokens"].long()

    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return zero-shot accuracies on at most n validation drawings of each task."""
        return zero_shot(model, n)


def head(model: nn.Module, task: Task) -> Tensor:
    """Return the zero-shot head (C, D) of a task, rows of length 1."""
    text = model.encode_text(tokenize(task.prompts(), icons.NAME), normalize=True)
    return F.normalize(text.view(len(task.classes), -1, text.shape[-1]).mean(1), dim=-1)


def zero_shot(model: nn.Module, n: int = 600, split: str = "val") -> dict[str, float]:
    """Return the accuracy in % on at most n drawings of each task, and the mean over the tasks."""
    world = suite(icons.NAME)
    result = {}
    with frozen(model):
        for task in (*world.tasks, world.control):
            images, labels = (x[:n] for x in icons.split(task.name, split))
            guess = (features(model.encode_image, images) @ head(model, task).T).argmax(1)
            result[task.name] = round(100 * (guess == labels).float().mean().item(), 2)
    mean = sum(result[task.name] for task in world.tasks) / len(world.tasks)
    return result | {"mean of all": round(mean, 2)}
