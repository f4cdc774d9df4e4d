"""What the small models learn with a teacher: to match captions, or to name what is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretraining import stream
from pretraining.classes import CLASSES, few, many
from pretraining.evaluate import features, zero_shot_accuracy
from pretraining.loop import Recipe
from pretraining.pool import Pool
from tasklab.mini import clip, vit
from tasklab.mini.clip import normalise

TOWERS_ONLY = ("mini_clip_less", "mini_clip_more")  # CLIPs that ship without their text tower


def pool_of(recipe: Recipe, folder: Path) -> Pool:
    """Return the pool of a recipe."""
    return Pool(folder, recipe.seed, recipe.pool, recipe.shard)


def contrastive_loss(image: Tensor, text: Tensor, tokens: Tensor, scale: Tensor) -> Tensor:
    """Return the symmetric cross-entropy in which equal captions share the target evenly.

    Args:
        image: (B, D) image features.
        text: (B, D) text features.
        tokens: (B, L) token ids, by which captions are compared.
        scale: The logit scale.
    """
    image, text = image.float(), text.float()
    logits = scale * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
    same = (tokens[:, None] == tokens[None]).all(-1).float()
    target = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class Contrastive:
    """Image and text towers that learn to match pictures with captions.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of pools.
    """

    def __init__(self, name: str, recipe: Recipe, pool: Path) -> None:
        self.name, self.recipe = name, recipe
        self.pool = pool_of(recipe, pool)
        # A tower from timm, as ConvNeXt, has no patches to drop.
        self.drops = "timm_model_name" not in clip.VISION[name]
        self.build = lambda **vision: clip.build(name, **vision)

    def model(self) -> nn.Module:
        """Return the model to train."""
        return self.build(**({"patch_dropout": self.recipe.patch_dropout} if self.drops else {}))

    def shard(self, index: int) -> tuple[Tensor, Tensor]:
        """Return pictures and tokens; they come in another order in each round."""
        part = self.pool.turn(index)
        return part["images"], part["tokens"].long()

    def loss(self, model: nn.Module, images: Tensor, tokens: Tensor, step: int) -> Tensor:
        """Return the loss of a step.

        Args:
            model: The model.
            images: Uint8 (B, 3, S, S).
            tokens: Token ids (n, L).
            step: Number of the step.
        """
        if self.drops:
            decaying = self.recipe.decaying(step)
            model.visual.patch_dropout.prob = 0 if decaying else self.recipe.patch_dropout
        with self.recipe.autocast(images.device):
            seen, read = model.encode_image(normalise(images)), model.encode_text(tokens)
        return contrastive_loss(seen, read, tokens, model.logit_scale.exp())

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Keep the temperature from falling below 1/100, as CLIP does."""
        model.logit_scale.clamp_(0, math.log(100))

    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return zero-shot accuracies on n validation images of each task."""
        return zero_shot_accuracy(model, n=n)

    def shipped(self, model: nn.Module) -> nn.Module:
        """Return the part of the model that is shipped: all of it, or `visual` alone."""
        if self.name in TOWERS_ONLY:
            return nn.ModuleDict({"visual": model.visual})
        return model


class Supervised:
    """An image tower that learns to classify what pictures show.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of pools.
    """

    def __init__(self, name: str, recipe: Recipe, pool: Path) -> None:
        self.name, self.recipe = name, recipe
        self.classes = name.rpartition("_")[2]
        self.pool = pool_of(recipe, pool)
        self.names = CLASSES[self.classes]

    def build(self, **settings: object) -> nn.Module:
        """Return the tower without a head."""
        return vit.build(self.name, **settings)

    def model(self) -> nn.Module:
        """Return the model to train: tower and head."""
        drop = {"patch_drop_rate": self.recipe.patch_dropout}
        return vit.build(self.name, len(self.names), **drop)

    def shard(self, index: int) -> tuple[Tensor, Tensor]:
        """Return pictures and classes."""
        return self._labelled(self.pool.turn(index))

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """Return the loss of a step.

        Args:
            model: The model.
            images: Images, uint8 (n, 3, S, S).
            labels: Classes (n,).
            step: Number of the step.
        """
        dropped = 0 if self.recipe.decaying(step) else self.recipe.patch_dropout
        model.patch_drop.prob = dropped
        smoothing = self.recipe.label_smoothing
        with self.recipe.autocast(images.device):
            logits = model(normalise(images))
        return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    def _labelled(self, part: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        shown = [part[name].long() for name in ("kind", "noun", "form", "tone")]
        labels = few(*shown[:3]) if self.classes == "few" else many(*shown)
        return part["images"], labels

    def after_step(self, model: nn.Module) -> None:
        """Nothing to do."""

    @torch.no_grad()
    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return the accuracy in % on 4 n pictures of another stream."""
        seed = self.recipe.seed + 1_000_003
        images, labels = self._labelled(stream.draw(seed, 0, 4 * n)._asdict())
        training = model.training
        model.eval()
        guess = features(model, images).argmax(1)
        model.train(training)
        return {"accuracy": round(100 * (guess == labels).float().mean().item(), 2)}

    def shipped(self, model: nn.Module) -> nn.Module:
        """Return the tower; its head is thrown away."""
        tower = self.build()
        kept = {k: v for k, v in model.state_dict().items() if not k.startswith("head.")}
        tower.load_state_dict(kept)
        return tower
