"""What the table compares: the work of each figure, as tasklab does it and as the papers do."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import merges
import numpy as np
import papers
import pictures
import torch
import torch.nn.functional as F

from tasklab import machine
from tasklab.analyses import cost, cross_task, evaluation
from tasklab.analyses.disentanglement import ErrorMap, error_map, grid
from tasklab.analyses.merging import METHODS
from tasklab.mini import sample
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.storage.store import Store
from tasklab.tasks import drawn, own
from tasklab.tasks.images import finding
from tasklab.tasks.images.loader import DecodedImages
from tasklab.tasks.suites import Suite, suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune
from tasklab.tuning.finetune import batch
from tasklab.tuning.methods import trainable
from tasklab.tuning.recipe import FineTune, recipe

POINTS, REACH = 20, 3  # tangent, appendix A
BATCH = 128  # of the papers' evaluations: tangent, appendix A
PLACES = (0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much of each figure is measured: enough to be told from the clock's noise."""

    step: int  # images of a step
    steps: int  # of fine-tuning
    photos: int  # of an epoch of the loader
    images: int  # of each task; few would make weights count that thousands of images hide
    features: int  # images of each task in linearity
    tasks: int  # whose pairs are compared in linearity
    points: int  # even, so that none is 0: of tasklab's map of the model itself
    alphas: int  # of the papers' sweep


SIZES = {
    "mini": Size(
        step=64, steps=5, photos=256, images=250, features=32, tasks=8, points=4, alphas=3
    ),
    "vitb32": Size(
        step=8, steps=2, photos=128, images=16, features=16, tasks=3, points=2, alphas=2
    ),
}
QUICK = {  # of `--quick`
    "mini": dataclasses.replace(SIZES["mini"], steps=3, images=64, photos=64, tasks=4),
    "vitb32": dataclasses.replace(SIZES["vitb32"], images=4, photos=32, features=2),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """What is compared.

    Attributes:
        name: Of the row.
        ours: tasklab's way.
        theirs: The papers'.
        whole: How many times what was measured the whole is, of either.
        check: Whether both results agree.
        difference: How far they are from each other, where that is to be told.
    """

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    whole: tuple[float, float] = (1.0, 1.0)
    check: Callable[[Any, Any], bool]
    difference: Callable[[Any, Any], float] | None = None


class Bench:
    """One model with random weights, random task vectors, heads and images.

    Args:
        name: Of the model.
        size: How much is measured.
        device: Where.
    """

    def __init__(self, name: str, size: Size, device: str = "cpu") -> None:
        self.size = size
        self.clip = loading.load(name, init="random", device=device)
        self.encoder = encoder = self.clip.encoder
        draw = torch.Generator().manual_seed(0)
        self.names = suite("mini").names[: max(2, size.tasks)]
        self.vectors = {
            task: TaskVector(
                {n: 0.1 * x.abs().mean() * torch.randn(x.shape, generator=draw).to(x)
                 for n, x in encoder.params.items()}
            )
            for task in self.names
        }  # fmt: skip
        data = drawn.images_of(suite("mini"))
        self.images = {task: data.load(task, "test", n=size.images).x for task in self.names}
        self.loaders = {
            task: papers.batches(encoder, images, BATCH) for task, images in self.images.items()
        }
        self.pair = self.names[:2]
        self.two = {task: self.vectors[task] for task in self.pair}

    def evaluator(self) -> evaluation.Evaluator:
        """Return an evaluator with an empty store, so that nothing is known before."""
        counts = {"test": self.size.images}
        store = Store(tempfile.mkdtemp(dir=self.folder))
        return evaluation.Evaluator(self.clip, suite("mini"), store, counts=counts)

    def figures(self, folder: str) -> Iterator[Figure]:
        """Yield what is compared, but for the step.

        Args:
            folder: For stores, which is removed afterwards.
        """
        self.folder = folder
        yield from self.trained()
        yield from self.loaded()
        yield from self.sweeps()
        yield from self.maps()
        yield self.linearity()

    def head(self) -> Head:
        """Return a random head of as many classes as a task has."""
        encoder = self.encoder
        image = encoder.preprocess(self.images[self.pair[0]][:1])
        width = encoder(encoder.params, image).shape[1]
        draw = torch.Generator().manual_seed(0)
        weight = 50 * F.normalize(torch.randn(16, width, generator=draw), dim=-1)
        return Head(weight).to(encoder.device)

    def trained(self) -> Iterator[Figure]:
        """Yield the figures of fine-tuning: ours as it is in a run, without its store."""
        size, task, data = self.size, self.pair[0], drawn.images_of(suite("mini"))
        head, low = self.head(), machine.fast_in_bfloat16()
        for method, precision in (
            ("nonlinear", "float32"),
            ("attention", "float32"),
            *([("nonlinear", "bfloat16"), ("attention", "bfloat16")] if low else ()),
        ):
            config = recipe(self.encoder.name, task, method, init="random")
            config = dataclasses.replace(
                config, steps=size.steps, warmup=0, batch_size=size.step, precision=precision
            )
            every = data.load(task, "train")
            order = [batch(config, step, len(every.y)) for step in range(size.steps)]
            images, labels = (every[i][torch.cat(order)] for i in range(2))
            loader = papers.batches(self.encoder, images, size.step, labels)
            names = trainable(self.encoder.params, method, self.encoder.name)

            def ours(config: FineTune = config) -> list[float]:
                checkpoint = Path(tempfile.mkdtemp(dir=self.folder)) / "checkpoint.safetensors"
                done = finetune.train(config, self.clip, suite("mini"), head, checkpoint, False)
                return done[1]["losses"]

            def theirs(config: FineTune = config, loader: Any = loader, names: Any = names) -> Any:
                return papers.train(self.encoder, head, loader, names, config)

            told = "" if precision == "float32" else ", bfloat16"
            near = 1e-3 if precision == "float32" else 0.05
            yield Figure(
                name=f"{size.steps} steps, {method}, {size.step} images{told}",
                ours=ours,
                theirs=theirs,
                check=lambda a, b, near=near: bool(np.allclose(a, b, rtol=near, atol=near)),
                difference=(lambda a, b: float(np.abs(np.subtract(a, b)).max())) if told else None,
            )

    def loaded(self) -> Iterator[Figure]:
        """Yield the figures of the loader."""
        folder, task = Path(self.folder) / "photos", "photos"
        for split in ("train", "test"):
            pictures.write(folder / split, self.size.photos)
        photos = Suite.from_tasks(own.from_folder(folder))
        where = {"root": Path(self.folder) / "decoded", "side": self.encoder.image_size}
        data = DecodedImages(suite=photos, jobs=1, progress=False, **where)
        for _ in data.decode():
            pass
        parts = finding.plan(photos[task], finding.find(photos[task]))  # what both ways read

        def summed(batches: Iterable[torch.Tensor]) -> tuple[int, float]:
            every = [(len(x), float(x.mean())) for x in batches]
            return sum(n for n, _ in every), statistics.mean(mean for _, mean in every)

        for split, told, near in (("train", "training", 0.05), ("test", "evaluation", 1e-3)):
            count = data.size(task, split)
            size = min(32, count)
            steps = range(count // size)

            def crops(step: int, among: int, size: int = size) -> torch.Tensor:
                return torch.arange(step * size, (step + 1) * size) % among

            def ours(split: str = split, size: int = size, steps: range = steps, crops=crops):
                if split == "test":
                    served = data.load(task, split, n=len(steps) * size).x.split(size)
                else:
                    device = self.encoder.device
                    batches = data.batches(task, crops, steps, seed=0, device=device)
                    served = (images.x for images in batches)
                return summed(self.encoder.preprocess(x) for x in served)

            def theirs(split: str = split, size: int = size, steps: range = steps):
                part = parts[split]
                files = [Path(part.split.files[row]) for row in part.rows[: len(steps) * size]]
                return summed(papers.batches(self.encoder, files, size, crops=split == "train"))

            yield Figure(
                name=f"loader, {len(steps) * size} photos for {told}",
                ours=ours,
                theirs=theirs,
                check=lambda a, b, near=near: a[0] == b[0] and abs(a[1] - b[1]) < near,
            )

    def sweeps(self) -> Iterator[Figure]:
        """Yield the figures of coefficients' grids."""
        size, task = self.size, self.pair[0]
        heads = self.evaluator().head
        close = 2 / size.images  # a tie that rounding breaks moves an image
        few = evaluation.ALPHAS[:: max(1, len(evaluation.ALPHAS) // size.alphas)][: size.alphas]

        def sweep() -> list[torch.Tensor]:
            known = self.evaluator().tangent_features(self.vectors[task], task, "test")
            return [heads(task)(known.at(alpha)).argmax(-1).cpu() for alpha in evaluation.ALPHAS]

        def passes() -> list[torch.Tensor]:
            known, vector = self.evaluator(), self.vectors[task]
            models = (vector.apply(self.encoder.params, alpha) for alpha in evaluation.ALPHAS)
            return [
                known.logits(known.features(model, task, "test"), task).argmax(-1).cpu()
                for model in models
            ]

        def same_classes(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
            kept = [ours[evaluation.ALPHAS.index(alpha)] for alpha in few]
            moved = zip(kept, theirs, strict=True)
            return all((a != b).double().mean() <= close for a, b in moved)

        for way, build, ours in (
            (", linearized", papers.linearize, sweep),
            ("", papers.apply, passes),
        ):
            yield Figure(
                name=f"sweep of 21 coefficients{way}",
                ours=ours,
                theirs=lambda build=build: papers.sweep(
                    build, self.encoder, self.vectors[task], self.loaders[task], heads(task), few,
                ),
                whole=(1.0, len(evaluation.ALPHAS) / len(few)),
                check=same_classes,
            )  # fmt: skip

    def maps(self) -> Iterator[Figure]:
        """Yield the figures of disentanglement."""
        size, heads = self.size, self.evaluator().head
        close = 2 / size.images  # a tie that rounding breaks moves an image
        for linear in (True, False):
            alphas = grid(REACH, POINTS if linear else size.points)
            at = (alphas[len(alphas) // 2], alphas[-1])

            def ours(linear: bool = linear, alphas: tuple[float, ...] = alphas) -> ErrorMap:
                known = self.evaluator().with_heads({name: heads(name) for name in self.pair})
                return error_map(known, self.two, linear=linear, alphas=alphas, progress=False)

            def theirs(linear: bool = linear, at: tuple = at) -> tuple[float, float]:
                pair = [self.loaders[t] for t in self.pair], [heads(t) for t in self.pair]
                build = papers.linearize if linear else papers.apply
                return papers.error_cell(build, self.encoder, list(self.two.values()), *pair, at)

            def agree(whole: ErrorMap, cell: tuple, at: tuple = at) -> bool:
                place = tuple(whole.alphas.index(alpha) for alpha in at)
                near = np.isclose(whole.representation[place], cell[1], rtol=1e-2, atol=1e-5)
                return abs(whole.classifier[place] - cell[0]) <= 200 * close and bool(near)

            passes = [p**2 + p for p in (POINTS, len(alphas))]
            yield Figure(
                name=f"map of {POINTS} x {POINTS} cells{', linearized' if linear else ''}",
                ours=ours,
                theirs=theirs,
                whole=(passes[0] / passes[1], POINTS**2),
                check=agree,
            )

    def linearity(self) -> Figure:
        """Return the figure of cross-task linearity."""
        pairs = list(itertools.combinations(self.names, 2))
        models = {task: vector.apply(self.encoder.params) for task, vector in self.vectors.items()}
        merges = [
            cross_task.Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
            for i, j in pairs
            for alpha in PLACES
        ]

        few = {task: images[: self.size.features] for task, images in self.images.items()}
        loaders = {task: papers.batches(self.encoder, x, BATCH) for task, x in few.items()}

        def ours() -> np.ndarray:
            table = cross_task.measure(self.encoder, models, merges, few)
            rows = table[table["metric"] == "distance"]
            return rows["value"].to_numpy().reshape(len(merges), -1)

        def theirs() -> np.ndarray:
            return np.array([
                papers.linearity(
                    self.encoder, self.vectors[i], self.vectors[j], alpha,
                    [loaders[i], loaders[j]],
                )
                for i, j in pairs
                for alpha in PLACES
            ])  # fmt: skip

        return Figure(
            name=f"linearity of {len(pairs)} pairs at {len(PLACES)} places",
            ours=ours,
            theirs=theirs,
            check=lambda a, b: bool(np.allclose(a, b, rtol=1e-3, atol=1e-6)),
        )

    def step(self, rounds: int) -> dict[str, Any]:
        """Return the row of a training step.

        Args:
            rounds: In which standard, linearized and listing take turns.
        """
        images, labels = sample(self.pair[0], "train", self.size.step)
        table = cost.measure(
            self.encoder, self.head(), images, labels, variants=["standard", "ours", "listing"],
            rounds=rounds,
        )  # fmt: skip
        value = table.set_index(["variant", "metric"])["value"]
        clock = "seconds" if self.encoder.device.type == "cuda" else "cpu_seconds"
        seconds = {kind: value[kind, clock] for kind in ("standard", "ours", "listing")}
        standard = [seconds[kind] / seconds["standard"] for kind in ("ours", "listing")]
        return {
            "figure": f"step, linearized, {self.size.step} images",
            "ours_s": seconds["ours"],
            "papers_s": seconds["listing"],
            "ratio": seconds["listing"] / seconds["ours"],
            "of_standard": [round(one, 2) for one in standard],
            "whole": [1.0, 1.0],
        }


def merging(shape: merges.Shape) -> Iterator[Figure]:
    """Yield the figures of merges by singular vectors.

    Args:
        shape: Of the model.
    """
    for name in merges.PUBLISHED:
        ours, theirs = merges.ways(name, shape)
        yield Figure(
            name=f"{METHODS[name].title} of {shape.tasks} vectors",
            ours=ours,
            theirs=theirs,
            whole=(1.0, float(shape.blocks)),
            check=merges.same,
        )
