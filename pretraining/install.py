"""Put pre-trained weights and their cards into the package.

    python -m pretraining.install --folder /data/pretrain            # all that is done
    python -m pretraining.install --folder /data/pretrain mini mini_s

The folder is that of `pretraining.queue`. A card has what a model learnt from, how
long, its accuracies as it is shipped, its curve and the checksum of its file.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from pretraining import queue, t5
from pretraining.classes import CLASSES
from pretraining.evaluate import probe_accuracy, zero_shot_accuracy
from pretraining.icons.objective import zero_shot
from pretraining.objectives import TOWERS_ONLY
from pretraining.recipes import JOBS, SHORTER, Job
from tasklab.errors import TasklabError, choose
from tasklab.mini import clip, vit
from tasklab.mini.catalog import VERSION
from tasklab.mini.shipped import FOLDER, extra_folder
from tasklab.mini.t5 import NAME, build_t5
from tasklab.mini.text import TEXT_VERSION
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256
from tasklab.storage.tensors import write_tensors
from tasklab.tasks import icons

# The shorter runs, of which what they reach is recorded; and further seeds of the second world.
EXTRA = {f"mini_{share}" for share in SHORTER}
EXTRA |= {name for name in JOBS if name.startswith("icons_s_seed")}
SHIPPED = tuple(name for name in JOBS if name not in EXTRA)


def install(folder: Path, name: str, machine: str, into: Path | None = None) -> Path:
    """Put a finished run's weights and their card where they are looked for.

    Args:
        folder: Of all runs.
        name: One of `JOBS`.
        machine: Which machine it ran on, in words.
        into: Where to; by default the package, for those that are too many the data folder.

    Returns:
        The file of the weights.

    Raises:
        TasklabError: If there is no such run, or it is not finished.
    """
    choose("pre-training", name, JOBS)
    if not queue.finished(folder, name):
        raise TasklabError(f"{name} is not pre-trained yet in {folder}: run the queue first.")
    job, run = JOBS[name], folder / "runs" / name
    source = run / f"step{job.recipe.steps:05d}.safetensors"
    log = json.loads((run / "log.json").read_text("utf-8"))
    weights = _shipped(name, load_file(source))
    path = (into or (extra_folder() if name in EXTRA else FOLDER)) / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as draft:
        write_tensors(weights, draft)
    card = {
        "name": name,
        "data": seen(job),
        "recipe": asdict(job.recipe),
        "machine": machine,
        "torch": torch.__version__,
        "seconds": log[-1]["seconds"],
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        **_accuracies(name if name in TOWERS_ONLY else job.model, weights, log),
        "sha256": file_sha256(path),
        "curve": log,
    }
    atomic.write(path.with_suffix(".json"), json.dumps(card, indent=1) + "\n")
    return path


def _shipped(name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the part of the weights that is shipped."""
    if name not in TOWERS_ONLY:
        return weights
    return {key: tensor for key, tensor in weights.items() if key.startswith("visual.")}


def seen(job: Job) -> str:
    """Return what a model learnt from, in words."""
    recipe = job.recipe
    count = f"{recipe.steps * recipe.batch_size:,}"
    if job.model == NAME:
        return f"text world {TEXT_VERSION}, {count} texts"
    if clip.world_of(job.model) == clip.ICONS:
        return (
            f"drawings {icons.VERSION}, {count} image-caption pairs, about 196,000 of them distinct"
        )
    classes = job.model.rpartition("_")[2]
    kind = "image-caption pairs" if job.model in clip.VISION else "images"
    if classes in CLASSES:
        kind += f" of {len(CLASSES[classes])} classes ({classes})"
    distinct = f"{recipe.pool * recipe.shard:,} of them distinct"
    return f"drawn world {VERSION}, {count} {kind}, {distinct}"


def _accuracies(model: str, weights: dict, log: list[dict]) -> dict:
    """Return what the card says of accuracy, by the weights as they are shipped."""
    weights = {name: tensor.float() for name, tensor in weights.items()}
    if model == NAME:
        built = build_t5()
        built.load_state_dict(weights)
        key = "zero-shot accuracy, 500 validation texts a task (%)"
        return {key: t5.zero_shot_accuracy(built)}
    result = {}
    if model in clip.VISION and model not in TOWERS_ONLY:
        built = clip.build(model)
        built.load_state_dict(weights)
        key = "zero-shot accuracy, 500 validation images a task (%)"
        if clip.world_of(model) == clip.ICONS:
            return {"zero-shot accuracy, validation drawings of a task (%)": zero_shot(built)}
        result[key], tower = zero_shot_accuracy(built), built.visual
    elif model in clip.VISION:
        tower = clip.build(model).visual
        tower.load_state_dict({k.removeprefix("visual."): x for k, x in weights.items()})
    else:
        tower = vit.build(model)
        tower.load_state_dict(weights)
        if "accuracy" in log[-1]:
            result["accuracy on 2,000 new images (%)"] = log[-1]["accuracy"]
    key = "linear probe on 1,000 training images, accuracy on 500 validation images a task (%)"
    return result | {key: probe_accuracy(tower)}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Put pre-trained weights into the package.")
    parser.add_argument("names", nargs="*", help="which (default: all that are finished)")
    parser.add_argument("--folder", type=Path, required=True, help="of pools and runs")
    parser.add_argument("--machine", default=f"one core of {platform.machine()}")
    options = parser.parse_args(arguments)
    names = options.names or [n for n in SHIPPED if queue.finished(options.folder, n)]
    for name in names:
        try:
            print(install(options.folder, name, options.machine), flush=True)
        except TasklabError as error:
            raise SystemExit(f"tasklab: {error}") from None


if __name__ == "__main__":
    main()
