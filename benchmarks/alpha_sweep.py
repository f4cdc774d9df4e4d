"""A sweep over 21 scaling coefficients: cached tangent features against a pass per coefficient.

    python benchmarks/alpha_sweep.py [--model vitb32 --images 16 --batch 8] [--out FILE]

- affine: f0 and J tau once, then alpha J tau + f0, normalise, head, argmax for every alpha;
- pass: the linearized model evaluated anew at every alpha;
- nonlinear: f(x; theta_0 + alpha tau) at every alpha, for which there is no short cut.

The first two give the same accuracies, which is checked. One round is one whole sweep of each kind;
ratios are medians over rounds, within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.models import loading
from tasklab.models.heads import accuracy, logits
from tasklab.records.table import provenance
from tasklab.tuning import tangent

ALPHAS = [round(0.05 * i, 2) for i in range(21)]
CLASSES = 16


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    encoder = loading.load(args.model, init="random", device=args.device).encoder
    generator = torch.Generator().manual_seed(0)
    size = encoder.image_size
    images = torch.randint(
        0, 256, (args.images, 3, size, size), generator=generator, dtype=torch.uint8
    ).to(args.device)
    labels = torch.randint(0, CLASSES, (args.images,), generator=generator).to(args.device)
    tau = {
        key: 0.1 * value.abs().mean() * torch.randn(value.shape, generator=generator).to(value)
        for key, value in encoder.params.items()
    }
    with torch.no_grad():
        width = encoder(encoder.params, encoder.preprocess(images[:1])).shape[1]
    head = 50 * F.normalize(torch.randn(CLASSES, width, generator=generator), dim=-1)
    head = head.to(args.device)

    def features(scale: float = 1.0) -> tangent.TangentFeatures:
        vector = {key: scale * value for key, value in tau.items()}
        return tangent.features(encoder, encoder.params, vector, images, args.batch)

    def score(outputs: Tensor) -> float:
        return accuracy(logits(outputs, head), labels)

    def affine() -> list[float]:
        once = features()
        return [score(once.at(alpha)) for alpha in ALPHAS]

    def each() -> list[float]:
        return [score(features(alpha).at(1.0)) for alpha in ALPHAS]

    def nonlinear() -> list[float]:
        scores = []
        for alpha in ALPHAS:
            theta = {key: value + alpha * tau[key] for key, value in encoder.params.items()}
            parts = [encoder(theta, encoder.preprocess(x)) for x in images.split(args.batch)]
            scores.append(score(torch.cat(parts)))
        return scores

    sweeps = {"affine": affine, "pass": each, "nonlinear": nonlinear}
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    taken: dict[str, list[float]] = {kind: [] for kind in sweeps}
    results: dict[str, list[float]] = {}
    features()  # warm-up
    began = time.perf_counter()
    with torch.no_grad():
        for _ in range(args.rounds):
            for kind, sweep in sweeps.items():
                start = clock()
                results[kind] = sweep()  # ends with numbers on the CPU
                taken[kind].append(clock() - start)
    # A tie broken by rounding may move one image in a few hundred
    gap = max(abs(a - b) for a, b in zip(results["affine"], results["pass"], strict=True))
    if gap > 2 / args.images:
        raise SystemExit(f"the two ways disagree: accuracies differ by {gap}")

    rows = []
    print(f"{args.model}, {args.images} images, {len(ALPHAS)} alphas, {args.threads} thread(s)")
    print(f"{'sweep':10} {'seconds':>9} {'of affine':>10}")
    for kind in sweeps:
        ratio = statistics.median(a / b for a, b in zip(taken[kind], taken["affine"], strict=True))
        rows.append(
            {
                "sweep": kind,
                "seconds": round(statistics.median(taken[kind]), 4),
                "ratio": round(ratio, 2),
            }
        )
        print(f"{kind:10} {rows[-1]['seconds']:9.3f} {ratio:9.1f}x")
    gpu = torch.cuda.get_device_name(args.device) if args.device != "cpu" else None
    settings = {
        key: getattr(args, key)
        for key in ("model", "images", "batch", "rounds", "device", "threads", "clock")
    }
    settings["alphas"] = len(ALPHAS)
    notes = provenance(settings, gpu=gpu, seconds=round(time.perf_counter() - began, 1))
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
