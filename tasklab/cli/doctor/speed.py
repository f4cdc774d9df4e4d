"""Measure how fast a device multiplies, and whether blocks can be compiled for it."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import time

from tasklab import machine

SIDE = 4096  # of the matrices that are multiplied


@dataclasses.dataclass(frozen=True)
class Speed:
    """Rates of the CUDA devices of a machine."""

    #: TFLOP/s of large matrix products in the precision of fine-tuning, by device; 0 for one that
    #: this build of torch cannot use.
    rates: tuple[float, ...]
    precisions: tuple[str, ...]  #: The precision that fine-tuning takes by default, by device
    compiler: str  #: Why blocks cannot be compiled; empty if they can


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
    return Speed(rates, precisions, no_compiler())


def rate(number: int = 0, precision: str = "bfloat16", side: int = SIDE) -> float:
    """Return the rate of large matrix products on a CUDA device, in TFLOP/s.

    Args:
        number: Of the device.
        precision: Name of a type of torch.
        side: Rows and columns of both matrices.
    """
    import torch  # here: most of what the doctor does needs none

    device = f"cuda:{number}"
    pair = torch.ones(2, side, side, device=device, dtype=getattr(torch, precision))

    def seconds(count: int) -> float:
        torch.cuda.synchronize(number)
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(*pair)
        torch.cuda.synchronize(number)
        return time.perf_counter() - began

    seconds(3)
    count = max(1, min(50, round(0.1 / max(seconds(1), 1e-6))))  # a tenth of a second in all
    return 2 * side**3 * count / seconds(count) / 1e12


def no_compiler() -> str:
    """Return why blocks cannot be compiled for CUDA devices here, or an empty text if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "there is no C compiler"
    return ""
