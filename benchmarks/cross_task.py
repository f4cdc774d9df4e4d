"""Cross-task linearity of all pairs: shared single-model features against collected ones.

    python benchmarks/cross_task.py [--images 32 --tasks 8 --alphas 3] [--out FILE]

- shared: `tasklab.analyses.cross_task.measure`: features of single models once a batch, for every
pair and alpha;
- collected: for every pair and alpha, features of the merged model and of both single models are
  collected over the images of both tasks, and compared afterwards, layer by layer, in float64: the
  merged with the mean, the models with each other, the merged with either, as the procedure of the
  paper's section 4.1 reads.

Both give the same metrics (`ctl.METRICS`), and the same numbers, which is checked. One round is
each kind once; ratios are medians over rounds, within a round. Bytes are those of the features that
are held at a time.

Time is passes through the network: for 28 pairs and 3 alphas 504 passes over a task's images when
collected, and 168 + 64 when shared, a ratio of 2.2. With more alphas it grows towards 3, since the
merged models' own passes cannot be shared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import torch

from tasklab.analyses import cross_task
from tasklab.mini import sample
from tasklab.models import loading
from tasklab.models.blocks import Layers
from tasklab.records.table import provenance
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini")
    parser.add_argument("--images", type=int, default=32, help="of each task")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--alphas", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    encoder = loading.load(args.model, init="random").encoder
    draw = torch.Generator().manual_seed(0)
    names = suite("mini").names[: args.tasks]
    noise = {
        task: TaskVector(
            {n: 0.1 * x.abs().mean() * torch.randn(x.shape, generator=draw).to(x)
             for n, x in encoder.params.items()}
        )
        for task in names
    }  # fmt: skip
    single = {task: vector.apply(encoder.params) for task, vector in noise.items()}
    data = {task: sample(task, "test", args.images)[0] for task in names}
    alphas = [(i + 1) / (args.alphas + 1) for i in range(args.alphas)]
    pairs = list(itertools.combinations(names, 2))
    merges = [
        cross_task.Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
        for i, j in pairs
        for alpha in alphas
    ]

    def shared() -> dict[str, float]:
        found = cross_task.measure(encoder, single, merges, data)
        rows = found[found["block"].isna() & (found["metric"] == "distance")]
        return dict(zip(rows["merge"], rows["value"], strict=True))

    def compare(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """Return 1 - cos and the coefficient, in float64: they are differences of near numbers."""
        x, y = x.double(), y.double()
        product, size = (x * y).sum(1), y.norm(dim=1)
        cosine = product / (x.norm(dim=1) * size)
        return (1 - cosine).mean().item(), (product / size**2).mean().item()

    @torch.no_grad()
    def collected() -> dict[str, float]:
        layers = Layers(encoder, encoder.preprocess(data[names[0]][:1]))

        def collect(params, tasks) -> list[torch.Tensor]:
            kept: list[list[torch.Tensor]] = [[] for _ in layers.sizes]
            for task in tasks:
                for part in data[task].split(50):
                    outputs = layers.cut(layers(params, encoder.preprocess(part)))
                    for place, output in zip(kept, outputs.values(), strict=True):
                        place.append(output)
            return [torch.cat(place) for place in kept]

        found = {}
        for merge in merges:
            u = collect(cross_task.merged(single, merge.weights), merge.on)
            one, two = (collect(single[name], merge.on) for name in merge.weights)
            a, b = merge.weights.values()
            for f_u, f_i, f_j in zip(u, one, two, strict=True):
                v = a * f_i + b * f_j
                told = [compare(f_u, v), compare(f_i, f_j), compare(f_u, f_i), compare(f_u, f_j)]
            found[merge.name] = told[0][0]
        return found

    layers = Layers(encoder, encoder.preprocess(data[names[0]][:1]))
    row = 4 * sum(layers.sizes.values())  # bytes of an image's features in one model
    held = {"shared": min(50, args.images) * (len(names) + 1), "collected": 6 * args.images}
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    taken: dict[str, list[float]] = {"shared": [], "collected": []}
    began, results = time.perf_counter(), {}
    for _ in range(args.rounds):
        for kind, measure in (("shared", shared), ("collected", collected)):
            start = clock()
            results[kind] = measure()
            taken[kind].append(clock() - start)
    for name, value in results["shared"].items():
        if abs(value - results["collected"][name]) > 1e-6:
            raise SystemExit(f"the two ways disagree on {name}: {value}")
    rows = []
    print(f"{args.model}, {len(pairs)} pairs x {len(alphas)} alphas, {args.images} images a task")
    for kind, seconds in taken.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, taken["shared"], strict=True))
        mib = row * held[kind] / 2**20
        rows.append({"kind": kind, "seconds": round(statistics.median(seconds), 3),
                     "ratio": round(ratio, 2), "features_mib": round(mib, 1)})  # fmt: skip
        print(f"{kind:10} {rows[-1]['seconds']:8.2f} s {ratio:6.2f}x   features {mib:.0f} MiB")
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    notes = provenance(settings, seconds=round(time.perf_counter() - began, 1))
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
