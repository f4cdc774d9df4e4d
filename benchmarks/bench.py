"""One table: how many times as long the papers' own procedures take (`make bench`).

    python benchmarks/bench.py [--models mini vitb32 --rounds 3] [--out FILE]

Each figure is measured in turns, tasklab and then the papers' procedure (`benchmarks/papers.py`),
on the same random weights and images, in float32, with one thread and the time of this process, so
that a busy machine matters less; the ratio is the median over rounds. Both give the same numbers,
which is checked. Where a procedure would take hours a part of it is measured and multiplied up, by
evaluations: `whole` says how many times. Figures:

- step: a linearized training step, with clipping and AdamW; beside it both as multiples of a
  standard step;
- sweep: a linearized model at 21 coefficients, from the images on;
- linearized map: the disentanglement error on 20 x 20 coefficients, from the images on;
- map: the same of the model itself;
- linearity: cross-task linearity of all pairs of tasks at three places between them, all blocks;
- merges by singular vectors (`--models vitl14` alone): TSV-M and Iso-C of eight vectors
  (`benchmarks/merges.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import merges
import numpy as np
import papers
import torch
import torch.nn.functional as F

from tasklab import machine
from tasklab.analyses import cost, cross_task, evaluation
from tasklab.analyses.disentanglement import ErrorMap, error_map, grid
from tasklab.analyses.merging import METHODS
from tasklab.mini import sample
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.records.table import provenance
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector

POINTS, REACH = 20, 3  # tangent, appendix A
BATCH = 128  # of the papers' evaluations: tangent, appendix A
PLACES = (0.25, 0.5, 0.75)
TOLD = {time.process_time: "time of the process", time.perf_counter: "time on the clock"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much of each figure is measured: enough to be told from the clock's noise."""

    step: int  # images of a step
    images: int  # of each task; few would make weights count that thousands of images hide
    features: int  # images of each task in linearity
    tasks: int  # whose pairs are compared in linearity
    points: int  # even, so that none is 0: of tasklab's map of the model itself
    alphas: int  # of the papers' sweep


SIZES = {
    "mini": Size(step=64, images=250, features=32, tasks=8, points=4, alphas=3),
    "vitb32": Size(step=4, images=32, features=8, tasks=3, points=4, alphas=2),
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
    """

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    whole: tuple[float, float] = (1.0, 1.0)
    check: Callable[[Any, Any], bool]


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
        self.folder, size, task = folder, self.size, self.pair[0]
        heads = self.evaluator().head
        close = 2 / size.images  # a tie that rounding breaks moves an image
        few = evaluation.ALPHAS[:: max(1, len(evaluation.ALPHAS) // size.alphas)][: size.alphas]

        def sweep() -> list[torch.Tensor]:
            known = self.evaluator().tangent_features(self.vectors[task], task, "test")
            return [heads(task)(known.at(alpha)).argmax(-1).cpu() for alpha in evaluation.ALPHAS]

        def same_classes(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
            kept = [ours[evaluation.ALPHAS.index(alpha)] for alpha in few]
            moved = zip(kept, theirs, strict=True)
            return all((a != b).double().mean() <= close for a, b in moved)

        yield Figure(
            name="sweep of 21 coefficients, linearized",
            ours=sweep,
            theirs=lambda: papers.sweep(
                papers.linearize, self.encoder, self.vectors[task], self.loaders[task],
                heads(task), few,
            ),
            whole=(1.0, len(evaluation.ALPHAS) / len(few)),
            check=same_classes,
        )  # fmt: skip
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
        yield self.linearity()

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
        width = self.encoder(self.encoder.params, self.encoder.preprocess(images[:1])).shape[1]
        draw = torch.Generator().manual_seed(0)
        head = Head(50 * F.normalize(torch.randn(16, width, generator=draw), dim=-1))
        table = cost.measure(
            self.encoder, head, images, labels, variants=["standard", "ours", "listing"],
            batch_sizes=[self.size.step], rounds=rounds, runs=["training"],
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


def measured(figure: Figure, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Return the row of a figure.

    Args:
        figure: What is compared; both ways end with numbers on the CPU.
        rounds: How often, in turns.
        clock: Seconds since any moment.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        results = []
        for way, scale, taken in zip(
            (figure.ours, figure.theirs), figure.whole, seconds, strict=True
        ):
            began = clock()
            results.append(way())
            taken.append(scale * (clock() - began))
        if not figure.check(*results):
            raise SystemExit(f"{figure.name}: the two ways disagree.")
    ratios = sorted(b / a for a, b in zip(*seconds, strict=True))
    ours, theirs = map(statistics.median, seconds)
    return {
        "figure": figure.name,
        "ours_s": ours,
        "papers_s": theirs,
        "ratio": statistics.median(ratios),
        "range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "whole": [round(scale, 1) for scale in figure.whole],
    }


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = {**SIZES, **merges.SHAPES}
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(known))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="figures whose name has this pattern")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    clock = time.perf_counter if gpu else time.process_time
    machine.keep_freed_memory()
    began, rows = time.perf_counter(), []
    print(f"{'model':8} {'figure':42} {'tasklab':>10} {'papers':>10}  times")
    for name in args.models:
        bench = Bench(name, SIZES[name], args.device) if name in SIZES else None
        with tempfile.TemporaryDirectory() as folder:
            figures = bench.figures(folder) if bench else merging(merges.SHAPES[name])
            asked = (f for f in figures if re.search(args.only, f.name))
            made = (measured(figure, args.rounds, clock) for figure in asked)
            stepped = bench and re.search(args.only, "step")
            first = [bench.step(2 * args.rounds)] if stepped else []
            for row in itertools.chain(first, made):
                rows.append({"model": name, **row})
                told = (f"{row[key]:9.2f} s" for key in ("ours_s", "papers_s"))
                print(f"{name:8} {row['figure']:42}", *told, f"{row['ratio']:6.2f}", flush=True)
        del bench
    seconds = round(time.perf_counter() - began, 1)
    settings = {"rounds": args.rounds, "threads": 1, "clock": TOLD[clock]}
    sizes = {name: dataclasses.asdict(known[name]) for name in args.models}
    notes = provenance({**settings, "sizes": sizes}, gpu=gpu, seconds=seconds)
    rows = [{**row, **{name: notes[name] for name in ("commit", "utc", "rounds")}} for row in rows]
    new = {(row["model"], row["figure"]) for row in rows}
    if args.out.is_file():  # what was not measured now stays, with its own commit
        before = json.loads(args.out.read_text())
        rows = [row for row in before["rows"] if (row["model"], row["figure"]) not in new] + rows
        notes["sizes"] = before["provenance"].get("sizes", {}) | notes["sizes"]
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
