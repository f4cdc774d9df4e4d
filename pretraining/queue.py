"""Pre-train the embedded models, one after the other.

    python -m pretraining.queue --folder /data/pretrain             # all of mini, in order
    python -m pretraining.queue --folder /data/pretrain mini mini_s # these
    python -m pretraining.queue --folder /data/pretrain --list      # what is done

Each run has a folder under `runs`, the pools are in `pool`. What is finished is skipped, what was
begun goes on, and what another process works on is left to it, so that the same command, started
twice, uses two cores. A run that begins with a part of another comes last while that is not done.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pretraining import loop
from pretraining.dino import SelfDistillation
from pretraining.icons.objective import IconContrastive
from pretraining.loop import Recipe
from pretraining.mae import MaskedAutoencoder
from pretraining.objectives import Contrastive, Supervised
from pretraining.recipes import JOBS, Job
from tasklab.errors import TasklabError, unknown
from tasklab.mini import clip

EVERY, LOOKS, IMAGES = 250, 4, 500  # steps between checkpoints; checkpoints between evaluations


OBJECTIVES = {
    **dict.fromkeys(clip.VISION, Contrastive),
    **dict.fromkeys(("mini_sup_few", "mini_few", "mini_many"), Supervised),
    **dict.fromkeys(
        (name for name in clip.VISION if clip.world_of(name) == clip.ICONS), IconContrastive
    ),
    "mini_mae": MaskedAutoencoder,
    "mini_dino": SelfDistillation,
}


def objective(model: str, recipe: Recipe, pool: Path) -> loop.Objective:
    """Return how a model is pre-trained.

    Args:
        model: Its name.
        recipe: How long, at which rate.
        pool: Folder of pools.
    """
    if model == "mini_t5":
        from pretraining.t5 import Texts

        return Texts(recipe)
    return OBJECTIVES[model](model, recipe, pool)


def done(folder: Path, name: str) -> int:
    """Return how many steps of a job are done, by its log."""
    log = folder / "runs" / name / "log.json"
    try:
        return json.loads(log.read_text())[-1]["step"]
    except (OSError, ValueError, LookupError, TypeError):  # not there, or damaged: it is made anew
        return 0


def finished(folder: Path, name: str) -> bool:
    """Return whether a job's last snapshot is there."""
    steps = JOBS[name].recipe.steps
    return (folder / "runs" / name / f"step{steps:05d}.safetensors").exists() and (
        done(folder, name) == steps
    )


def waits(folder: Path, name: str) -> bool:
    """Return whether the run that a job branches off from is on its way to the branch."""
    job = JOBS[name]
    if not job.source or done(folder, name):
        return False
    branches = [step for step in JOBS[job.source].keep if not job.recipe.decaying(step)]
    return not loop.kept(folder / "runs" / job.source, max(branches, default=0)).exists()


def work(
    folder: Path, name: str, job: Job | None = None, device: str = "cpu", workers: int = 0
) -> None:
    """Begin a job or go on with it.

    Args:
        folder: Folder of all runs.
        name: Name of the model.
        job: What to do; `None` is the job of that name.
        device: As of `loop.run`.
        workers: As of `loop.run`.
    """
    job = job or JOBS[name]
    out = folder / "runs" / name
    if job.source:
        loop.branch(folder / "runs" / job.source, job.recipe, out)
    task = objective(job.model, job.recipe, folder / "pool")
    loop.run(
        job.recipe, task, out, every=EVERY, images=IMAGES, looks=LOOKS, keep=job.keep,
        device=device, workers=workers,
    )  # fmt: skip


@contextmanager
def alone(folder: Path, name: str) -> Iterator[bool]:
    """Yield whether no other process works on a job; none will until the end."""
    path = folder / "runs" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Pre-train the embedded models.")
    parser.add_argument("names", nargs="*", help="which (default: all)")
    parser.add_argument("--folder", type=Path, required=True, help="of pools and runs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the model")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw pictures ahead")
    parser.add_argument("--list", action="store_true", help="say what is done")
    options = parser.parse_args(arguments)
    names = options.names or [
        name for name in JOBS if clip.world_of(JOBS[name].model) != clip.ICONS
    ]
    for name in names:
        if name not in JOBS:
            parser.error(str(unknown("pre-training", name, JOBS)))
    torch.set_num_threads(1)
    if options.list:
        for name in names:
            steps = JOBS[name].recipe.steps
            print(f"{name:16} {done(options.folder, name):6} of {steps:6} steps")
        return
    later = [name for name in names if waits(options.folder, name)]
    for name in [*(name for name in names if name not in later), *later]:
        with alone(options.folder, name) as free:
            if not free or finished(options.folder, name):
                print(f"{name}: {'finished' if free else 'in work'}", flush=True)
                continue
            print(f"{name}: process {os.getpid()}", flush=True)
            try:
                work(options.folder, name, device=options.device, workers=options.workers)
            except TasklabError as error:
                raise SystemExit(f"tasklab: {error}") from None


if __name__ == "__main__":
    main()
