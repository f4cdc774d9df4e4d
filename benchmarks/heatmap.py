"""Maps of the disentanglement error: cached features and reused passes against neither.

    python benchmarks/heatmap.py [--model vitb32 --images 16 --batch 8 --points 20] [--out FILE]

- linear, cached: every cell is arithmetic on f0, J tau_1 and J tau_2, which are there;
- linear, first: the same with the four forward-mode passes that make them;
- linear, pass: each cell evaluates two single models and the joint one by forward-mode passes;
- non-linear, reuse: single models once, joint models from one buffer (`disentangle.error_map`);
- non-linear, pass: each cell merges and evaluates two single models and the joint one.

The two linear ways are compared cell by cell. What would take hours is measured on a few cells
(`--cells`, `--points-nonlinear`) and multiplied up to the whole map; such lines say so. One round
is each kind once; ratios are medians over rounds, within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from tasklab.analyses import disentanglement, evaluation
from tasklab.analyses.disentanglement import error_map, grid
from tasklab.models import loading
from tasklab.records.table import provenance
from tasklab.storage.store import Store
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import tangent

TASKS = ("Textures", "Scenes")
REACH = 3  # tangent, appendix A


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--points", type=int, default=20, help="coefficients on an axis")
    parser.add_argument("--points-nonlinear", type=int, default=4, help="the same, non-linear")
    parser.add_argument("--cells", type=int, default=2, help="measured where every cell is passed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    clip = loading.load(args.model, init="random", device=args.device)
    encoder, theta0 = clip.encoder, clip.encoder.params
    draw = torch.Generator().manual_seed(0)
    vectors = {
        task: TaskVector(
            {n: 0.1 * x.abs().mean() * torch.randn(x.shape, generator=draw).to(x)
             for n, x in theta0.items()}
        )
        for task in TASKS
    }  # fmt: skip
    tau1, tau2 = vectors.values()
    alphas, few = grid(REACH, args.points), grid(REACH, args.points_nonlinear)
    places = [(alphas[i % args.points], alphas[-1 - i % args.points]) for i in range(args.cells)]

    def evaluator(folder: str) -> evaluation.Evaluator:
        counts = {"test": args.images}
        return evaluation.Evaluator(
            clip, suite("mini"), Store(folder), counts=counts, batch_size=args.batch
        )

    def xi(
        where: evaluation.Evaluator, features, alpha1: float, alpha2: float
    ) -> tuple[float, float]:
        """Return one cell of both maps: two single models and the joint one."""
        classifier = representation = 0.0
        for task, own in zip(TASKS, (tau1 * alpha1, tau2 * alpha2), strict=True):
            head = where.head(task)
            alone, both = (features(v, task) for v in (own, tau1 * alpha1 + tau2 * alpha2))
            changed = head(alone).argmax(-1) != head(both).argmax(-1)
            classifier += 100 * changed.double().mean().item()
            representation += disentanglement.symmetric_kl(alone, both).mean().item()
        return classifier, representation

    def cached():
        return error_map(kept, vectors, linear=True, alphas=alphas, progress=False)

    def first():
        with tempfile.TemporaryDirectory() as empty:
            fresh = evaluator(empty)
            fresh.head, fresh.images = kept.head, kept.images
            return error_map(fresh, vectors, linear=True, alphas=alphas, progress=False)

    def linear_cells():
        def features(vector, task):
            x = kept.images(task, "test").x
            return tangent.features(encoder, theta0, vector, x, args.batch).at(1.0)

        return [xi(kept, features, *place) for place in places]

    def reuse():
        return error_map(kept, vectors, linear=False, alphas=few, progress=False)

    def nonlinear_cells():
        def features(vector, task):
            return kept.features(vector.apply(theta0), task, "test")

        return [xi(kept, features, *place) for place in places]

    def passes(points: int) -> int:
        return 2 * points**2 + 2 * points

    by_cell = args.points**2 / args.cells
    by_pass = passes(args.points) / passes(args.points_nonlinear)
    kinds = {  # what is measured, how many times that a whole map is, what it is compared with
        "linear, cached": (cached, 1.0, "linear, cached"),
        "linear, first": (first, 1.0, "linear, cached"),
        "linear, pass": (linear_cells, by_cell, "linear, cached"),
        "non-linear, reuse": (reuse, by_pass, "non-linear, reuse"),
        "non-linear, pass": (nonlinear_cells, by_cell, "non-linear, reuse"),
    }
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    results = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kept = evaluator(folder)
        cached(), nonlinear_cells()  # warm-up, and the features that are there
        for _ in range(args.rounds):
            for kind, (measure, scale, _) in kinds.items():
                start = clock()
                results[kind] = measure()  # ends with numbers on the CPU
                taken[kind].append(scale * (clock() - start))
    whole, cells = results["linear, cached"], results["linear, pass"]
    for (alpha1, alpha2), (cell, _) in zip(places, cells, strict=True):
        fast = whole.classifier[alphas.index(alpha1), alphas.index(alpha2)]
        # A tie broken by rounding may move one image of either task
        if abs(fast - cell) > 200 / args.images + 1e-9:
            raise SystemExit(f"the two ways disagree at {alpha1, alpha2}: {fast} and {cell}")

    rows = []
    print(f"{args.model}, {args.points}² cells, {args.images} images, {args.threads} thread(s)")
    print(f"{'map':20} {'seconds':>9}   times")
    for kind, (_, scale, base) in kinds.items():
        ratio = statistics.median(a / b for a, b in zip(taken[kind], taken[base], strict=True))
        seconds = statistics.median(taken[kind])
        rows.append({"map": kind, "seconds": round(seconds, 3), "ratio": round(ratio, 2)})
        rows[-1] |= {"compared_with": base, "extrapolated": scale != 1}
        told = f"   (extrapolated x {scale:.0f})" if scale != 1 else ""
        print(f"{kind:20} {seconds:9.2f} {ratio:8.1f}x of {base}{told}")
    gpu = torch.cuda.get_device_name(args.device) if args.device != "cpu" else None
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    notes = provenance(settings, gpu=gpu, seconds=round(time.perf_counter() - began, 1))
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
