"""Accelerators, found without importing torch."""

from __future__ import annotations

import dataclasses
import glob
import re
import shutil
import subprocess

BFLOAT16 = (8, 0)  # compute capability from which CUDA devices multiply in it: Ampere
_DRIVERS = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")  # NVIDIA, within Windows, AMD


@dataclasses.dataclass(frozen=True)
class Device:
    """A CUDA device; memory in bytes."""

    name: str
    total: int
    free: int
    capability: str
    bfloat16: bool
    useless: str = ""  #: Why this build of torch cannot run on it (`without_kernels`)


def accelerated() -> bool:
    """Return whether a device for torch seems present, without importing torch."""
    return any(glob.glob(name) for name in _DRIVERS) or shutil.which("nvidia-smi") is not None


def capabilities() -> list[tuple[int, int]]:
    """Return the compute capabilities of all CUDA devices by nvidia-smi, without a context."""
    ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [(int(a), int(b)) for a, b in re.findall(r"^(\d+)\.(\d+)$", output, re.MULTILINE)]


def driver() -> str | None:
    """Return the version of NVIDIA's driver; `None` without one."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(output.split()), None)
