"""Devices by torch, and the speed of this processor."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable

import torch

from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.machine.drivers import BFLOAT16, Device


def devices() -> list[Device]:
    """Return the CUDA devices that torch sees."""
    devices = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        able = torch.cuda.get_device_capability(number)
        name = torch.cuda.get_device_name(number)
        text, useless = ".".join(map(str, able)), without_kernels(number)
        devices.append(Device(name, total, free, text, able >= BFLOAT16, useless))
    return devices


def check_device(device: torch.device | str) -> None:
    """Raise for a CUDA device that is absent, or has no kernels in this build of torch.

    Args:
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, ...

    Raises:
        TasklabError: The device is absent or has no kernels; the message says what to do.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = place.index
    if number is None:
        number = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if number >= count:
        raise TasklabError(
            f"device {str(device)!r} is not there ({count} CUDA devices): use 'cpu'."
        )
    if why := without_kernels(number):
        raise TasklabError(why)


def without_kernels(number: int) -> str:
    """Return why a CUDA device cannot run this build of torch, or an empty text if it can.

    Kernels of `sm_70` run on devices of compute capability 7.0 to 7.9, and code of `compute_70` is
    compiled for every later one.
    """
    able, kernels = torch.cuda.get_device_capability(number), torch.cuda.get_arch_list()
    found = re.findall(r"(sm|compute)_(\d+)", " ".join(kernels))
    if not found:  # of another maker, who names them by other words
        return ""
    for kind, digits in found:
        major, minor = divmod(int(digits), 10)
        if (major, minor) <= able and (kind == "compute" or major == able[0]):
            return ""
    told = ".".join(map(str, able))
    return (
        f"this build of torch ({', '.join(kernels)}) has no kernels for cuda:{number}, "
        f"{torch.cuda.get_device_name(number)} of compute capability {told}: install a build of "
        "torch for an older CUDA, or give device='cpu'."
    )


@functools.cache
def fast_in_bfloat16() -> bool:
    """Measure whether the processor multiplies bfloat16 matrices at least 1.5 times as fast.

    Instructions for bfloat16 do not suffice: the library of matrix products must use them. A
    processor that is about as fast in both takes float32, so that the answer is always the same.
    """

    def product(dtype: torch.dtype) -> Callable[[], object]:
        pair = torch.ones(512, 256, dtype=dtype), torch.ones(512, 256, dtype=dtype)
        return lambda: torch.nn.functional.linear(*pair)

    half, full = shortest(product(torch.bfloat16), product(torch.float32))
    return 1.5 * half < full


def shortest(*ways: Callable[[], object], rounds: int = 16) -> list[float]:
    """Return the shortest time of each function in seconds, on one thread.

    Several threads would wait for each other where a core is busy with other work.

    `ways` are called in turns, `rounds` times each.
    """
    times: list[list[float]] = [[] for _ in ways]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for way, seconds in [*zip(ways, times, strict=True)] * rounds:
            began = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return [min(seconds) for seconds in times]


def threads() -> int:
    """Return the number of threads of a PyTorch operation."""
    return torch.get_num_threads()


def free_on(device: str) -> int | None:
    """Return the free memory of a device, or of this machine for `cpu`, in bytes."""
    if device == "cpu":
        return machine.memory().available
    return torch.cuda.mem_get_info(device)[0]


def gpu_name(device: str) -> str | None:
    """Return the name of a CUDA device; `None` for the CPU."""
    if device == "cpu":
        return None
    return torch.cuda.get_device_name(device)
