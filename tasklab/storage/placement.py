"""The device of every tensor, and the code that moves it: one rule for every device.

A model computes where its parameters are: `Encoder.device`. From there:

| what | lives | moved by |
|---|---|---|
| parameters, features, labels, embedded patches, moments | on the encoder's device | its maker |
| images | on the device while they fit, else in a memory map on the CPU | `Encoder.preprocess` |
| task vectors | wherever they were read or made: on the device while they fit | who uses them |
| heads | where they were fitted | `Head.__call__`, to the features it is given |
| generators and their indices | on the CPU: every device sees the same order | who indexes |
| results | on the CPU, as numbers or NumPy arrays | who measures |

So a function that computes with an encoder takes vectors and heads from any device, and moves them
with `placed`. No other code depends on where they were. To add a vector to parameters by hand,
write `vector.apply(params, 0.5)`, which does it, or `params[k] + 0.5 * vector.to(device)[k]`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from tasklab.storage import seals

Placed = TypeVar("Placed")

_DECOMPOSED = 512  # side of the matrix by which a device is measured
_FREE = 0.5  # of a device's memory, which passes keep for themselves
_KEPT: dict[tuple[str, ...], tuple[int, Any]] = {}  # by age of its last use; with its stamp
_LATEST: dict[str, tuple[tuple[Any, ...], int, Any]] = {}  # what it was made of, a stamp, and it


def placed(what: Placed, device: torch.device | str) -> Placed:
    """Return tensors, heads or task vectors on a device; those on it are not copied.

    `what` may be a mapping or sequence of any depth; other values are returned as they are.

    >>> placed({"w": torch.ones(1), "n": 3}, "cpu")
    {'w': tensor([1.]), 'n': 3}
    """
    moved: Any = what
    if hasattr(what, "to"):
        moved = what.to(device)
    elif isinstance(what, Mapping):
        moved = {name: placed(one, device) for name, one in what.items()}
    elif isinstance(what, list):
        moved = [placed(one, device) for one in what]
    elif type(moved) is tuple:
        moved = tuple(placed(one, device) for one in moved)
    return moved


def device_of(what: Any) -> torch.device:
    """Return the device of the first tensor of a nested mapping; the CPU if it is empty.

    >>> device_of({"Signs": {"w": torch.ones(1)}})
    device(type='cpu')
    """
    while isinstance(what, Mapping) and what:
        what = next(iter(what.values()))
    return what.device if isinstance(what, Tensor) else torch.device("cpu")


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in its parameter's memory layout, which fused optimisers ask for.

    cuDNN returns the gradient of a convolution's weight in its own memory layout.

    >>> gradient = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> laid_out(gradient, torch.ones(2, 3, 4, 4)).stride()
    (48, 16, 4, 1)
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def fits(size: int, device: torch.device | str) -> bool:
    """Return whether a device can hold so many more bytes with half of its memory left free."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_initialized():
        return True
    free, total = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + idle - size >= _FREE * total


def resident(
    key: tuple[str, ...], device: torch.device | str, load: Callable[[], Placed]
) -> Placed:
    """Return tensors from a device's cache, loading them once; as loaded if they do not fit.

    The least recently used tensors are dropped first, `release` drops all. A CPU caches none.
    Tensors that were written to are loaded again.

    Args:
        key: Name of the tensors.
        device: Where they go.
        load: Reads a tensor, or a mapping or tuple of tensors, on the CPU.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return load()
    key = (str(device), *key)
    if (known := _KEPT.pop(key, None)) is not None and seals.stamp(known[1]) == known[0]:
        _KEPT[key] = known
        return known[1]
    loaded = load()
    size = sum(tensor.nbytes for tensor in _tensors(loaded))
    while not fits(size, device) and _KEPT:
        _KEPT.pop(next(iter(_KEPT)))
    if not fits(size, device):
        return loaded
    try:
        moved = placed(loaded, device)
    except torch.cuda.OutOfMemoryError:
        return loaded
    _KEPT[key] = seals.stamp(moved), moved
    return moved


def latest(name: str, of: tuple[Any, ...], make: Callable[[], Placed], stamp: int = 0) -> Placed:
    """Return the latest object of a name if it was made of the same objects, else make it.

    Args:
        name: Of the object.
        of: The objects that it is computed from.
        make: Makes the object, after the former one is dropped.
        stamp: `seals.stamp` of the originals of its copies, which may have changed in place.
    """
    known = _LATEST.pop(name, None)
    if (
        known is None
        or stamp != known[1]
        or any(a is not b for a, b in zip(known[0], of, strict=True))
    ):
        del known  # its memory first
        known = of, stamp, make()
    _LATEST[name] = known
    return known[2]


@functools.cache
def decomposes(device: torch.device) -> torch.device:
    """Return the faster place of float64 decompositions: a device, or the CPU.

    Cards for games and inference do a 32nd or 64th of their products in float64. The CPU is chosen
    where it is at least 1.5 times as fast, so that the answer is always the same on one machine.
    """
    if device.type == "cpu":
        return device
    A = torch.eye(_DECOMPOSED, dtype=torch.float64)
    here, there = (_seconds(A.to(place)) for place in ("cpu", device))
    return torch.device("cpu") if 1.5 * here < there else device


def _seconds(A: Tensor) -> float:
    """Return the shortest time of three decompositions, after one that starts the library."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        values, _ = torch.linalg.eigh(A)
        float(values[0])  # waits for a device
        times.append(time.perf_counter() - began)
    return min(times[1:])


def release() -> None:
    """Drop tensors cached on devices; their memory is freed unless another object uses it."""
    _KEPT.clear()
    _LATEST.clear()


def _tensors(what: Any) -> list[Tensor]:
    if isinstance(what, Tensor):
        return [what]
    parts = what.values() if isinstance(what, Mapping) else what
    return [tensor for part in parts for tensor in _tensors(part)]
