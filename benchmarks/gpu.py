"""Fine-tuning steps of the paper's models on a GPU, beside what a user of open_clip would write.

    python benchmarks/gpu.py [--models vitb32 vitl14 --batch 128] [--out FILE]
    python benchmarks/gpu.py --device cpu --tiny        # the same path on any machine, in seconds

Weights and images are random: neither matters here. Every row is measured eager and compiled, by
the same clock, in one process, in five minutes on an H100:

- `open_clip`: its network under autocast, cross-entropy with a frozen head, fused AdamW. Compiled
  is `torch.compile` of the whole network.
- methods: a step within a run of `tasklab.tuning.finetune`, with all that it does. Compiled are
  blocks, and the step of a small network is recorded (`tasklab.tuning.compiled`).

What a row holds:

- `seconds`: of a step: those of a run less those of a shorter one, by the steps between them.
- `compile_seconds`: what the first run takes longer.
- `of_open_clip`, `of_nonlinear`: the ratio of seconds to that row's, eager or compiled alike;
  `memory_of_nonlinear`: likewise of `peak_memory_mib`.
- `utilisation`: flops / (seconds * the device's published peak, dense, in the precision of the
  step). The flops are those of the method's own products and convolutions; a linearized step has
  5/3 of a standard one's. `null` where the peak is not known.
- `micro_batch`: images at a time; fewer than `batch` where memory did not suffice.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tasklab import machine
from tasklab.evidence.records.table import provenance
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.models.loading import Clip
from tasklab.models.zoo import REGISTRY
from tasklab.storage.store import Store
from tasklab.tasks.drawn import Images
from tasklab.tasks.suites import Suite, suite
from tasklab.tuning import compiled, finetune, multitask
from tasklab.tuning.methods import TABLE
from tasklab.tuning.recipe import recipe

TASK = "Textures"
PLAIN = "open_clip"
METHODS = ("nonlinear", "linearized", "attention")
JOINT = "joint"  # all eight tasks in turn
# Published TFLOP/s, dense, by the name that PyTorch gives the device; float32 without TF32, which
# PyTorch does not use for matrix products by default.
_H100 = {"bfloat16": 989.0, "float32": 67.0}  # SXM
_A100 = {"bfloat16": 312.0, "float32": 19.5}
PEAKS = {
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H200": _H100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
}
Run = Callable[[int], tuple[float, dict[str, Any]]]  # steps -> seconds, and what else is known


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["vitb32", "vitl14"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--precision", nargs="+", default=["bfloat16"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8, help="of the shorter run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the smallest model")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with one, or with --device cpu --tiny")
        sys.exit(2)
    if args.tiny:
        args.models, args.precision, args.batch, args.steps = ["mini_xs"], ["float32"], 4, 1
        compiled._backend = "eager"  # traced alone: making code takes a minute
    if "nonlinear" not in args.methods:
        parser.error("--methods needs nonlinear: the others are compared with it.")
    machine.keep_freed_memory()
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    began, rows = time.perf_counter(), []
    for name in args.models:
        clip = loading.load(name, init="random", device=args.device)
        for precision in args.precision:
            print(f"{name}, {precision}, batch {args.batch}, {gpu or args.device}")
            work, own = Work(clip, precision, args.batch), []
            for method, way in itertools.product((PLAIN, *args.methods), ("eager", "compiled")):
                own.append(measured(work, method, way, args.steps))
                compared(own[-1], own)
                told(own[-1])
            rows += own
        del clip
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    versions = {"cuda": torch.version.cuda, "peak_tflops": PEAKS.get(gpu)}
    notes = provenance(settings | versions, gpu=gpu, seconds=round(time.perf_counter() - began, 1))
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


class Work:
    """One model's step in one precision: random images, and a head for them."""

    def __init__(self, clip: Clip, precision: str, batch: int) -> None:
        self.clip, self.precision, self.batch = clip, precision, batch
        encoder, draw = clip.encoder, torch.Generator().manual_seed(0)
        side, classes = encoder.image_size, len(suite("mini")[TASK].classes)
        x = torch.randint(0, 256, (batch, 3, side, side), generator=draw, dtype=torch.uint8)
        y = torch.randint(0, classes, (batch,), generator=draw)
        self.images = Images(x.to(encoder.device), y.to(encoder.device))
        with torch.no_grad():
            width = encoder(encoder.params, encoder.preprocess(self.images.x[:1])).shape[1]
        weight = torch.randn(classes, width, generator=draw)
        self.head = Head(50 * F.normalize(weight, dim=-1)).to(encoder.device)


def measured(work: Work, method: str, way: str, steps: int) -> dict[str, Any]:
    """Return the row of a method's step.

    Args:
        method: Of `METHODS` or a penalised one, `JOINT` or `PLAIN`.
        way: `"eager"` or `"compiled"`.
        steps: Of the shorter run.
    """
    os.environ[compiled.SETTING] = str(int(way == "compiled"))
    encoder = work.clip.encoder
    gpu = torch.cuda.get_device_name(encoder.device) if encoder.device.type == "cuda" else None
    peak = PEAKS.get(gpu or "", {}).get(work.precision)
    if method == PLAIN:
        run: Run = plain(work, way == "compiled")
    elif method == JOINT:
        run, steps = functools.partial(together, work), max(1, steps // 4)
    else:
        run = functools.partial(within, work, method)
    row = {"model": encoder.name, "method": method, "way": way, "precision": work.precision}
    row |= {"batch": work.batch} | timed(run, steps, encoder.device)
    flops = 6 * REGISTRY[encoder.name].tower.products * work.batch
    flops *= 1.0 if method in (PLAIN, JOINT) else TABLE[method].products
    row["flops"] = flops
    row["utilisation"] = None if peak is None else flops / (row["seconds"] * peak * 1e12)
    return row


def timed(run: Run, steps: int, device: torch.device) -> dict[str, Any]:
    """Return seconds of a step, of the compilation, and the most memory that was allocated."""
    gpu = device.type == "cuda"
    gc.collect()  # what was compiled before holds itself
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    first, _ = run(steps)
    short, _ = run(steps)
    long, more = run(3 * steps)
    most = torch.cuda.max_memory_allocated(device) / 2**20 if gpu else None
    found = {"seconds": max(long - short, 1e-9) / (2 * steps)}
    return found | {"compile_seconds": max(0.0, first - short), "peak_memory_mib": most} | more


def compared(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Add a row's ratios to those that it is compared with."""
    for name, other, what in (
        ("of_open_clip", PLAIN, "seconds"),
        ("of_nonlinear", "nonlinear", "seconds"),
        ("memory_of_nonlinear", "nonlinear", "peak_memory_mib"),
    ):
        base = next((r for r in rows if r["method"] == other and r["way"] == row["way"]), None)
        known = base is not None and base[what] is not None
        row[name] = row[what] / base[what] if known else None


def told(row: dict[str, Any]) -> None:
    """Print a row."""
    used, most = row["utilisation"], row["peak_memory_mib"]
    of = {name: row[f"of_{name}"] for name in (PLAIN, "nonlinear")}
    ratios = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in of.items() if ratio is not None)
    print(
        f"  {row['method']:11} {row['way']:8} {1e3 * row['seconds']:9.1f} ms  {ratios}, "
        f"utilisation {'unknown' if used is None else f'{100 * used:.1f} %'}, "
        f"{'' if most is None else f'{most / 1024:.1f} GiB, '}first {row['compile_seconds']:.0f} s "
        f"longer",
        flush=True,
    )


def plain(work: Work, compile_it: bool) -> Run:
    """Return open_clip's network, autocast and fused AdamW, as a user would write them."""
    encoder, head, images = work.clip.encoder, work.head, work.images
    network = copy.deepcopy(encoder.module).requires_grad_(True)
    adamw = torch.optim.AdamW(network.parameters(), lr=1e-6, weight_decay=0.1, fused=True)
    call = torch.compile(network, backend=compiled._backend) if compile_it else network
    x, device = encoder.preprocess(images.x), encoder.device.type

    def run(steps: int) -> tuple[float, dict[str, Any]]:
        synchronised(encoder.device)
        began = time.perf_counter()
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=work.precision == "bfloat16"):
                features = call(x)
            loss = F.cross_entropy(head(features.float()), images.y)
            loss.backward()
            adamw.step()
            adamw.zero_grad()
        synchronised(encoder.device)
        return time.perf_counter() - began, {"micro_batch": len(images.y)}

    return run


def within(work: Work, method: str, steps: int) -> tuple[float, dict[str, Any]]:
    """Run so many steps of fine-tuning, as `tasklab` does."""
    tasks = dataclasses.replace(suite("mini"), data=Same(work.images))
    others = [name for name in tasks.names if name != TASK] if TABLE[method].others else None
    config = recipe(work.clip.encoder.name, TASK, method, init="random", others=others)
    config = dataclasses.replace(
        config, batch_size=work.batch, precision=work.precision, steps=steps, warmup=0,
        lr=1e-6, checkpoint_every=10 * steps,  # must not diverge, nor write
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.safetensors"
        _, record = finetune.train(config, work.clip, tasks, work.head, file, False)
    return record["seconds"], {"micro_batch": record["micro_batch"]}


def together(work: Work, steps: int) -> tuple[float, dict[str, Any]]:
    """Run so many rounds of joint training on all tasks; the seconds are those of one task."""
    whole = suite("mini")
    few = min(len(whole[name].classes) for name in whole.names)
    tasks = dataclasses.replace(whole, data=Same(Images(work.images.x, work.images.y % few)))
    runs = [
        dataclasses.replace(
            recipe(work.clip.encoder.name, name, "nonlinear", init="random", steps=steps),
            batch_size=work.batch, precision=work.precision, warmup=0, lr=1e-6,
            checkpoint_every=10 * steps * len(whole.names),
        )
        for name in whole.names
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder) / "checkpoint.safetensors", Store(folder)
        _, record = multitask._train(runs, work.clip, store, tasks, file, False)
    return record["seconds"] / len(runs), {"micro_batch": work.batch, "tasks": len(runs)}


@dataclasses.dataclass(frozen=True)
class Same:
    """The same images in every step, where the model is (`tasklab.tasks.drawn.SuiteImages`)."""

    images: Images

    @property
    def suite(self) -> Suite:
        """The suite whose tasks all have these images."""
        return suite("mini")

    def size(self, task: str, split: str) -> int:
        """Return how many there are."""
        return len(self.images.y)

    def load(self, task: str, split: str, *, n: int | None = None, device: Any = "cpu") -> Images:
        """Return the first n of them."""
        return Images(*(part[:n].to(device) for part in self.images))

    def batches(
        self, task: str, order: Any, steps: range, *, seed: int, device: Any
    ) -> Iterator[Images]:
        """Yield them for each step, in another order."""
        rows = [order(step, len(self.images.y)).to(device) for step in steps]
        for row in rows:
            yield Images(*(part[row] for part in self.images))


def synchronised(device: torch.device) -> None:
    """Wait for all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
