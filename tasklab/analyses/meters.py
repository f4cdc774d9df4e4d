"""Meters of a step: seconds in turns, floating-point operations, and bytes of live tensors.

A step is any function without arguments; its result is discarded.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tasklab.models.products import counted

Step = Callable[[], object]


def turns(
    steps: Mapping[str, Step],
    rounds: int,
    clocks: Sequence[Callable[[], float]] = (time.perf_counter, time.process_time),
) -> dict[str, list[tuple[float, ...]]]:
    """Return the seconds of each step in each round, by each clock.

    Every step takes its turn in every round, each round in another order, so that all see the same
    load of the machine: compare seconds within a round.

    Args:
        steps: Functions by name.
        rounds: Number of rounds; in each, every step runs.
        clocks: Return seconds; by default of the wall and of the process, all its threads.

    Returns:
        By the step's name one row per round: seconds by each clock.
    """
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(rounds):
        for name in order:
            begin = [clock() for clock in clocks]
            steps[name]()
            end = [clock() for clock in clocks]
            taken[name].append(tuple(b - a for a, b in zip(begin, end, strict=True)))
        order = order[1:] + order[:1]
    return taken


def _products(_: Any, a: Sequence[int], b: Sequence[int], **ignored: Any) -> int:
    return 2 * torch.Size(a).numel() * b[-1]


# PyTorch counts these out of place only; `tangent.value_and_grad` adds second products in place.
_IN_PLACE = {torch.ops.aten.addmm_: _products, torch.ops.aten.baddbmm_: _products}


def flops(step: Step) -> int:
    """Return the floating-point operations of a step's products and convolutions.

    >>> flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    known = {**_IN_PLACE, **counted()}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        step()
    return counter.get_total_flops()


class _LiveMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, from when they are made until freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {
            x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)
        }
        result = func(*args, **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                memory = x.untyped_storage()
                key = memory._cdata
                if key not in given and key not in self.sizes:  # neither a view nor in place
                    self.sizes[key] = memory.nbytes()
                    self.live += memory.nbytes()
                    weakref.finalize(memory, self._freed, key).atexit = False
        self.peak = max(self.peak, self.live)
        return result

    def _freed(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


def peak_bytes(step: Step, device: torch.device | str = "cpu") -> int:
    """Return the peak of bytes in use during a step, above those before it.

    On a CPU these are the tensors between operations, counted: the same number every time, on every
    machine. Temporary memory within one operation is not counted. On a CUDA device this is the peak
    of PyTorch's allocator, which sees all; call the step once before, or it counts workspaces.

    >>> peak_bytes(lambda: torch.ones(256).add(1).add(1))  # two of three tensors at a time
    2048
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _LiveMemory() as memory:
        step()
    return memory.peak
