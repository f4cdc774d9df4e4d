"""Fine-tuning steps of the paper's models on a GPU: seconds, memory, and the share of its peak.

    python benchmarks/gpu.py [--models vitb32 vitb16 vitl14 --batch 128] [--out FILE]
    python benchmarks/gpu.py --device cpu --tiny        # the same path on any machine, in seconds

The weights are random, the images the embedded suite's, resized: neither matters here.

- `seconds`, `peak_memory`, `flops`: `tasklab.analyses.cost` says what is measured. A step has
clipping and
  AdamW, and ends with the device's last kernel; medians over rounds in which methods take turns,
  and so the ratio to `nonlinear`.
- `utilisation`: flops / (seconds * the device's published peak, dense, in the precision of the
  step). The flops are those of the method's own products and convolutions; a linearized step has
  5/3 of a standard one's. `null` where the peak is not known.
- `run_seconds`: a step of `tasklab.tuning.finetune` as users see it, with the images' preparation
and the
  log of the loss: seconds of a run less those of a shorter one, by the steps between them.

Where a batch does not fit, all methods are measured at half of it, and `batch` says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tasklab import machine
from tasklab.analyses import cost
from tasklab.mini import sample
from tasklab.models import loading
from tasklab.models.encoder import Encoder
from tasklab.models.heads import Head
from tasklab.models.loading import Clip
from tasklab.records.table import provenance
from tasklab.storage.store import Store
from tasklab.tuning import finetune, memory
from tasklab.tuning.recipe import recipe

TASK = "Textures"
CLASSES = 16
VARIANT = {"nonlinear": "standard", "linearized": "ours", "attention": "attention"}
# Published TFLOP/s, dense, by the name that PyTorch gives the device; float32 without TF32, which
# PyTorch does not use for matrix products by default.
_H100 = {"bfloat16": 989.0, "float32": 67.0}  # SXM
_A100 = {"bfloat16": 312.0, "float32": 19.5}
PEAKS = {
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
}


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["vitb32", "vitb16", "vitl14"])
    parser.add_argument("--methods", nargs="+", default=list(VARIANT), choices=list(VARIANT))
    parser.add_argument("--precision", nargs="+", default=["bfloat16"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of runs; 0 leaves them out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the smallest model")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with one, or with --device cpu --tiny")
        sys.exit(2)
    if args.tiny:
        args.models, args.precision = ["mini_xs"], ["float32"]
        args.batch, args.rounds, args.steps = 4, 2, 2
    if "nonlinear" not in args.methods:
        parser.error("--methods needs nonlinear: the others are compared with it.")
    machine.keep_freed_memory()
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    began, rows = time.perf_counter(), []
    for name in args.models:
        clip = loading.load(name, init="random", device=args.device)
        for precision in args.precision:
            rows += _rows(clip, precision, gpu, args)
        del clip
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    versions = {"cuda": torch.version.cuda, "peak_tflops": PEAKS.get(gpu)}
    notes = provenance(settings | versions, gpu=gpu, seconds=round(time.perf_counter() - began, 1))
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


def _rows(
    clip: Clip, precision: str, gpu: str | None, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure one model's methods in one precision, and print them."""
    encoder, peak = clip.encoder, PEAKS.get(gpu or "", {}).get(precision)
    batch, found = _costs(encoder, precision, args)
    print(f"{encoder.name}, {precision}, batch {batch}, {gpu or args.device}")
    rows = []
    for method in args.methods:
        values = found[VARIANT[method]]
        seconds = values["seconds"]
        used = None if peak is None else values["flops"] / (seconds * peak * 1e12)
        run = _run_seconds(clip, method, precision, batch, args.steps)
        rows.append(
            {
                "model": encoder.name,
                "method": method,
                "precision": precision,
                "batch": batch,
                "seconds": seconds,
                "ratio": values["time_ratio"],
                "peak_memory_mib": values["peak_memory"],
                "flops": values["flops"],
                "utilisation": used,
                **run,
            }
        )
        told = "unknown" if used is None else f"{100 * used:.1f} %"
        real = f"{1e3 * run['run_seconds']:.1f} ms" if run else "not run"
        print(
            f"  {method:11} {1e3 * seconds:9.1f} ms {values['time_ratio']:5.2f}x "
            f"{values['peak_memory']:8.0f} MiB  utilisation {told}  in a run {real}"
        )
    return rows


def _costs(
    encoder: Encoder, precision: str, args: argparse.Namespace
) -> tuple[int, dict[str, dict[str, float]]]:
    """Return the batch that fits, and medians by variant and metric."""
    images, labels = sample(TASK, "train", args.batch)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        width = encoder(encoder.params, encoder.preprocess(images[:1])).shape[1]
    head = Head(50 * F.normalize(torch.randn(CLASSES, width, generator=draw), dim=-1))
    variants = [VARIANT[method] for method in args.methods]

    def attempt(plan: memory.Plan) -> Any:
        return cost.measure(
            encoder,
            head,
            images,
            labels.to(encoder.device),
            variants=variants,
            batch_sizes=[plan.size],
            rounds=args.rounds,
            runs=["training"],
            precision=precision,
        )

    table, left = memory.first_that_fits(attempt, memory.plans(args.batch), encoder.name)
    found: dict[str, dict[str, float]] = {}
    for row in table.to_dict("records"):
        found.setdefault(row["variant"], {})[row["metric"]] = float(row["value"])
    return left[0].size, found


def _run_seconds(
    clip: Clip, method: str, precision: str, batch: int, steps: int
) -> dict[str, float | int]:
    """Return the seconds of a step within runs, and the size of the parts it was computed in."""
    if not steps:
        return {}
    config = recipe(clip.encoder.name, TASK, method, init="random")
    config = dataclasses.replace(config, batch_size=batch)
    config = dataclasses.replace(config, precision=precision, lr=1e-6)  # must not diverge
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (steps, 3 * steps):  # the shorter run warms up
            short = dataclasses.replace(config, steps=count, warmup=0, checkpoint_every=10 * count)
            run = finetune.finetune(short, clip, Store(Path(folder)), progress=False)
            taken.append(run.record["seconds"])
    per_step = (taken[1] - taken[0]) / (2 * steps)
    return {"run_seconds": per_step, "micro_batch": run.record["micro_batch"]}


if __name__ == "__main__":
    main()
