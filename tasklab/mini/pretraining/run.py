"""Pre-train the small models on the drawn world.

    python -m tasklab.mini.pretraining.run --out runs/mini            # resumes if interrupted
    python -m tasklab.mini.pretraining.run --out runs/mini --install  # ... and ships the result
    python -m tasklab.mini.pretraining.run --model mini_s --out runs/mini_s

The CLIPs learn as in CLIP [Radford et al., 2021], with two differences that a small world asks for:
equal captions in a batch count as positives, and a quarter of the patches is dropped until the
learning rate decays. A model without a text tower learns to classify what its pictures show, or
from the pictures alone: by a masked autoencoder or by DINO. The data are an endless stream drawn
from the seed, in which every picture is new; one CLIP, `mini_clip_less`, sees a part of it again
and again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from tasklab.mini import clip, vit
from tasklab.mini.clip import FOLDER
from tasklab.mini.first_stream import CLASSES
from tasklab.mini.pretraining import loop
from tasklab.mini.pretraining.dino import SelfDistillation
from tasklab.mini.pretraining.evaluate import probe_accuracy, zero_shot_accuracy
from tasklab.mini.pretraining.loop import Recipe
from tasklab.mini.pretraining.mae import MaskedAutoencoder
from tasklab.mini.pretraining.objectives import TOWERS_ONLY, Contrastive, Supervised
from tasklab.mini.sampling import VERSION

RECIPES = {
    **dict.fromkeys(clip.VISION, Recipe()),
    "mini_convnext": Recipe(steps=3000, patch_dropout=0.0),  # it has no patches to drop
    "mini_clip_less": Recipe(pool=9),  # a sixteenth of the pairs of mini_s, as often in all
    # The larger one; the smaller ones see as many pictures.
    "mini_sup_few": Recipe(steps=1000, label_smoothing=0.1),
    "mini_few": Recipe(steps=1000, label_smoothing=0.1),
    "mini_many": Recipe(steps=1000, label_smoothing=0.1),
    "mini_mae": Recipe(steps=3000, patch_dropout=0.0),  # it masks patches by itself
    "mini_dino": Recipe(steps=3000, batch_size=64, patch_dropout=0.0),
}
OBJECTIVES = {
    **dict.fromkeys(clip.VISION, Contrastive),
    **dict.fromkeys(("mini_sup_few", "mini_few", "mini_many"), Supervised),
    "mini_mae": MaskedAutoencoder,
    "mini_dino": SelfDistillation,
}


def objective(name: str, recipe: Recipe, pool: Path | None = None) -> loop.Objective:
    """Return how a model is pre-trained; the second world's pools are in the folder `pool`.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of the second world's pools.
    """
    return OBJECTIVES[name](name, recipe, pool)


def pretrain(
    recipe: Recipe, out: Path, *, name: str = "mini", every: int = 250, images: int = 300
) -> torch.nn.Module:
    """Train, or go on training, and return the model.

    Args:
        recipe: What to do.
        out: Folder of `last.safetensors` (resumed from if present), `log.json` and fp16 snapshots.
        name: Which model.
        every: Steps between evaluations and checkpoints.
        images: Validation images of each task in an evaluation.
    """
    return loop.run(recipe, objective(name, recipe), out, every=every, images=images)


def install(
    name: str, model: torch.nn.Module, recipe: Recipe, log: list[dict], machine: str
) -> None:
    """Put the weights and their card into the package.

    Args:
        name: Name of the model.
        model: The model.
        recipe: How it is pre-trained.
        log: What evaluations said, in order.
        machine: Which machine, in words.
    """
    task = objective(name, recipe)
    shipped, path = task.shipped(model), FOLDER / f"{name}.safetensors"
    sha256 = loop.export(shipped, path)
    card = {
        "name": name,
        "data": _data(name, recipe),
        "recipe": asdict(recipe),
        **({"objective": task.settings} if hasattr(task, "settings") else {}),
        "machine": machine,
        "torch": torch.__version__,
        "seconds": log[-1]["seconds"],
        "parameters": sum(p.numel() for p in shipped.parameters()),
        **_accuracies(name, task, model, load_file(path)),
        "sha256": sha256,
        "curve": log,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n")


def _data(name: str, recipe: Recipe) -> str:
    """Return what a model was trained on, in words."""
    seen = f"{recipe.steps * recipe.batch_size:,}"
    world = f"drawn world {VERSION}, "
    if recipe.pool:
        return f"{world}{seen} image-caption pairs, {recipe.pool * recipe.shard:,} of them distinct"
    if OBJECTIVES[name] is Contrastive:
        return f"{world}{seen} image-caption pairs"
    if OBJECTIVES[name] is Supervised:
        classes = name.rpartition("_")[2]
        return f"{world}{seen} images of {CLASSES[classes]} classes ({classes})"
    return f"{world}{seen} images without labels"


def _accuracies(name: str, task: loop.Objective, trained: torch.nn.Module, kept: dict) -> dict:
    """Return what the card says of accuracy, by the weights as they are shipped (`kept`)."""
    result = {}
    if name in clip.VISION:
        rounded = clip.build(name)
        rounded.load_state_dict({**trained.state_dict(), **{k: x.float() for k, x in kept.items()}})
        key = "zero-shot accuracy, 500 validation images a task (%)"
        result[key] = zero_shot_accuracy(rounded)
        tower = rounded.visual
    else:
        tower = vit.build(name)
        tower.load_state_dict(kept)
        if isinstance(task, Supervised):
            key = "accuracy on 2,000 new images (%)"
            result[key] = task.evaluate(trained, 500)["accuracy"]
    if name in vit.TOWERS or name in TOWERS_ONLY:
        key = "linear probe on 1,000 training images, accuracy on 500 validation images a task (%)"
        result[key] = probe_accuracy(tower)
    return result


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Pre-train a small model of the mini benchmark.")
    parser.add_argument("--model", choices=RECIPES, default="mini")
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=250, help="steps between evaluations")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--install", action="store_true", help="put the weights into the package")
    parser.add_argument(
        "--machine", default=f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    usual = RECIPES[options.model]
    recipe = replace(usual, steps=options.steps or usual.steps, seed=options.seed)
    model = pretrain(recipe, options.out, name=options.model, every=options.every)
    if options.install:
        log = json.loads((options.out / "log.json").read_text())
        install(options.model, model, recipe, log, options.machine)


if __name__ == "__main__":
    main()
