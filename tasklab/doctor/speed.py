"""How fast a GPU multiplies, and how long fine-tuning takes on it.

A step of 128 images at full size was measured on an H100 (ViT-B/32 and ViT-L/14, bfloat16). With
compiled blocks it takes twice the time of its matrix products at the device's measured rate plus
12 ms; without a compiler 3.2 times that time plus 12 ms. `fine_tuning` computes with these numbers
before anything is loaded; a chapter that is opened measures a step of its own.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import time

from tasklab import machine
from tasklab.chapters import CHAPTERS, has_attention
from tasklab.models.zoo import REGISTRY, TEXT_MODELS, Spec
from tasklab.tasks.suites import suite
from tasklab.tuning.methods import POSTHOC, TABLE
from tasklab.tuning.recipe import PAPER_BATCH, QUICK_PAPER_STEPS

SIDE = 4096  # of the matrices that are multiplied
H100 = 400  # TFLOP/s: 40 % of its peak in bfloat16
PER_STEP = 0.012  # seconds beside the products
COMPILED, EAGER = 2.0, 3.2  # times the seconds of the products
PROCESSOR = 1.7  # the same of a processor: ViT-B/32 forward, on one core


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast fine-tuning is on the CUDA devices of a machine."""

    #: TFLOP/s of large matrix products in the precision of fine-tuning, by device; 0 for one that
    #: this build of torch cannot use.
    rates: tuple[float, ...]
    precisions: tuple[str, ...]  #: The precision that fine-tuning takes by default, by device
    compiler: str  #: Why blocks cannot be compiled; empty if they can
    #: Seconds on the first device, by model and chapter (`fine_tuning`).
    fine_tuning: dict[str, dict[str, float]]


def measure() -> Speed | None:
    """Measure the CUDA devices that torch sees; `None` if it sees none that it can use."""
    found = machine.devices()
    if all(one.useless for one in found):
        return None
    precisions = tuple("bfloat16" if one.bfloat16 else "float32" for one in found)
    rates = tuple(
        0.0 if one.useless else rate(number, precision)
        for number, (one, precision) in enumerate(zip(found, precisions, strict=True))
    )
    why, first = no_compiler(), next(one for one in rates if one)
    return Speed(rates, precisions, why, fine_tuning(first, compiled=not why))


def rate(number: int | None = 0, precision: str = "bfloat16", side: int = SIDE) -> float:
    """Return the rate of large matrix products on a CUDA device, or the processor, in TFLOP/s."""
    import torch  # here: most of what the doctor does needs none

    device = "cpu" if number is None else f"cuda:{number}"
    pair = torch.ones(2, side, side, device=device, dtype=getattr(torch, precision))

    def wait() -> None:
        if number is not None:
            torch.cuda.synchronize(number)

    def seconds(count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(*pair)
        wait()
        return time.perf_counter() - began

    seconds(3)
    if number is None:  # the fastest of twenty: others may compute on this processor
        return 2 * side**3 / min(seconds(1) for _ in range(20)) / 1e12
    count = max(1, min(50, round(0.1 / max(seconds(1), 1e-6))))  # a tenth of a second in all
    return 2 * side**3 * count / seconds(count) / 1e12


def no_compiler() -> str:
    """Return why blocks cannot be compiled for CUDA devices here, or nothing if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "there is no C compiler"
    return ""


def step(entry: Spec, tflops: float, *, compiled: bool, products: float = 1.0) -> float:
    """Return about how many seconds a training step of 128 images takes.

    `products` are those of the method, as multiples of a standard step's.
    """
    # Forward, and backward for inputs and weights; a multiplication is two operations.
    flops = 3 * 2 * (entry.tower.products if entry.tower else 0) * PAPER_BATCH * products
    return (COMPILED if compiled else EAGER) * flops / (tflops * 1e12) + PER_STEP


def fine_tuning(tflops: float, *, compiled: bool) -> dict[str, dict[str, float]]:
    """Return the seconds of a chapter's runs in the preset quick, one seed, by model."""
    tasks, found = len(suite("paper").names), dict[str, dict[str, float]]()
    for name, entry in REGISTRY.items():
        if entry.shipped or entry.tower is None or name in TEXT_MODELS:
            continue
        steps, found[name] = tasks * QUICK_PAPER_STEPS * entry.longer, {}
        for chapter, told in CHAPTERS.items():
            if not told.attention or has_attention(name):
                trained = {POSTHOC.get(one, one) for one in told.methods}
                products = (TABLE[one].products for one in trained)
                once = (step(entry, tflops, compiled=compiled, products=x) for x in products)
                found[name][chapter] = steps * sum(once)
    return found
