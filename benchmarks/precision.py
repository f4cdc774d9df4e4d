"""What lower precision does to evaluation: predictions that change, accuracies, and seconds.

    python benchmarks/precision.py [--models mini icons_s minilm --tasks 4] [--out FILE]

Of each model a few tasks are fine-tuned by the quick preset. Each task's own model and the sum of
all, at coefficient 0.3, classify the test images in float32, in bfloat16 (autocast, as
fine-tuning does) and with operands of products cut to the ten bits that TF32 keeps (as tensor cores
read them: not faster here). Told are, over all images,

- `changed`: the share of predictions that differ from those in float32, in %,
- `accuracy`: the change of the accuracy in points, with an interval (95 %, over images),
- `xi`: the change of the share of images on which the sum disagrees with the single model, in
  points, which is what the disentanglement error counts,
- `features`: the median relative error of the features,
- `seconds`: of this process, for all passes.

A precision is fit for evaluation where it changes less than one prediction in a thousand (`FIT`):
disentanglement errors count changed predictions, and are compared where they are a few percent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tasklab import Lab, machine
from tasklab.evidence.records.table import provenance
from tasklab.isolation import isolated
from tasklab.models import inference, training
from tasklab.models.encoder import Encoder, math_attention

FIT = 0.1  # % of predictions
COEFFICIENT = 0.3
_PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "convolution", "_linear_pointwise")


class Cut(TorchDispatchMode):
    """Within it, operands of matrix products and convolutions keep ten bits of their mantissa."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            added = {"addmm": 1, "addmm_": 1, "baddbmm": 1}.get(name, 0)
            factors = range(added, added + 2)
            args = tuple(cut(x) if place in factors else x for place, x in enumerate(args))
        return func(*args, **(kwargs or {}))


def cut(x: Tensor) -> Tensor:
    """Return numbers without the last 13 bits of float32.

    >>> cut(torch.tensor([1 + 2**-10, 1 + 2**-11]))
    tensor([1.0010, 1.0000])
    """
    return x.contiguous().view(torch.int32).bitwise_and(-(2**13)).view(torch.float32)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Have products as TF32 makes them, attention's too."""
    with math_attention(), Cut():
        yield


WAYS: dict[str, tuple[Callable[[Encoder], Encoder], Callable[[], Any]]] = {
    "float32": (inference.passes, contextlib.nullcontext),
    "bfloat16": (training.passes, lambda: torch.autocast("cpu", torch.bfloat16)),
    "tf32": (lambda encoder: encoder, tf32),
}


@isolated
@torch.no_grad()  # in which composite operations come as their products
def features(way: str, encoder: Encoder, params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return features of images (N, ...) in some precision."""
    passes, within = WAYS[way]
    quick = passes(encoder)
    parts = []
    for part in x.split(100):
        ready = encoder.preprocess(part)
        with within():
            parts.append(quick(params, ready).float())
    return torch.cat(parts)


def measured(lab: Lab, tasks: list[str]) -> list[dict[str, Any]]:
    """Return a row for each lower precision."""
    encoder, evaluator = lab.clip.encoder, lab.evaluator
    vectors = {task: lab.tune(task, "nonlinear", 0).vector for task in tasks}
    total = sum(vectors[task] for task in tasks[1:]) + vectors[tasks[0]]
    edited = total.apply(encoder.params, COEFFICIENT)
    found: dict[str, list[tuple[Tensor, ...]]] = {way: [] for way in WAYS}
    seconds = dict.fromkeys(WAYS, 0.0)
    for task in tasks:
        images = evaluator.images(task, "test")
        single = vectors[task].apply(encoder.params)
        for way in WAYS:
            begun = time.process_time()
            both = [features(way, encoder, params, images.x) for params in (single, edited)]
            seconds[way] += time.process_time() - begun
            classes = [evaluator.logits(one, task).argmax(-1) for one in both]
            found[way].append((torch.cat(both), torch.stack(classes, 1), images.y))
    base, rows = found.pop("float32"), []
    for way, results in found.items():
        pairs = [*zip(results, base, strict=True)]
        changed = torch.cat([(a[1] != b[1]).double().flatten() for a, b in pairs])
        moved = torch.cat([
            ((a[1] == a[2][:, None]).double() - (b[1] == b[2][:, None]).double()).flatten()
            for a, b in pairs
        ])  # fmt: skip
        apart = [torch.cat([(x[1][:, 0] != x[1][:, 1]).double() for x in side])
                 for side in zip(*pairs, strict=True)]  # fmt: skip
        errors = torch.cat([((a[0] - b[0]).norm(dim=1) / b[0].norm(dim=1)) for a, b in pairs])
        # as if one more had become right, and one wrong: none of so few is not none of all
        half = 196 * (float(moved.var()) / len(moved) + 2 / len(moved) ** 2) ** 0.5
        mean = 100 * float(moved.mean())
        rows.append({
            "model": lab.clip.encoder.name, "precision": way, "predictions": len(changed),
            "changed": 100 * float(changed.mean()),
            "accuracy": mean, "interval": [mean - half, mean + half],
            "xi": 100 * float(apart[0].mean() - apart[1].mean()),
            "xi_float32": 100 * float(apart[1].mean()),
            "features": float(errors.median()),
            "seconds": seconds[way], "seconds_float32": seconds["float32"],
            "fit": 100 * float(changed.mean()) < FIT,
        })  # fmt: skip
    return rows


def main() -> None:
    """Measure, print a table, and write the numbers with their provenance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mini", "icons_s", "minilm"])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    machine.keep_freed_memory()
    begun, rows = time.perf_counter(), []
    print(f"{'model':10} {'precision':9} {'changed':>8} {'accuracy':>9} {'xi':>7} {'times':>6}")
    for model in args.models:
        with tempfile.TemporaryDirectory() as store:
            given = {"steps": args.steps} if args.steps else {}
            lab = Lab(model, device="cpu", store_root=store, progress=False, **given)
            for row in measured(lab, list(lab.suite.names[: args.tasks])):
                rows.append(row)
                speed = row["seconds_float32"] / row["seconds"]
                told = f"{row['changed']:7.3f}% {row['accuracy']:+9.3f} {row['xi']:+7.3f}"
                print(f"{model:10} {row['precision']:9} {told} {speed:6.2f}", flush=True)
    seconds = round(time.perf_counter() - begun, 1)
    notes = provenance({"tasks": args.tasks, "fit": FIT}, threads=1, seconds=seconds)
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
