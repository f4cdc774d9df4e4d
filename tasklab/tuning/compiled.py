"""Compile or record runs for a GPU, and fall back where that fails.

- `torch.compile` makes few kernels of a block's elementwise operations: one function of all blocks
  (`tasklab.tuning.dual`), compiled once a process in 10 to 20 seconds.
- A small network has a thousand kernels, which take longer to launch than to run: its step is
  recorded once as a CUDA graph and then launched whole. A graph reads and writes at fixed
  addresses, so arguments are copied there (`Replayed`).

Both happen on a CUDA device where a run is long enough (`compiles`, `records`). `TASKLAB_COMPILE=0`
switches both off; `1` switches them on in short runs too, and compiles on every device. Results
differ by rounding. If either fails, one line is logged and the run continues without it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import first_line
from tasklab.models.encoder import Encoder
from tasklab.models.towers import Kind
from tasklab.models.zoo import REGISTRY
from tasklab.tuning import dual, memory
from tasklab.tuning.recipe import FineTune

SETTING = "TASKLAB_COMPILE"  # environment variable
NOTE = "compiling, about 20 s, once"
_STEPS = 100  # a run of fewer is over before a compilation has paid
_LARGE = 20_000_000  # parameters: below, launches take longer than kernels
_BOUND = 5e12  # flops of a step that takes a GPU less time than its launches: a ViT-B/32's, of 128
_CACHE = 64  # kinds of blocks in one process: methods, precisions, batches and models
_CHECKED = 2  # first calls at which a recorded step is compared with the computation
_OFF = 0.05  # of the gradients' norm: what rounding in bfloat16 changes at most
_WARM = 3  # calls before a recording: libraries choose kernels and make workspaces
_backend = "inductor"
_log = logging.getLogger(__name__)

Results = tuple[Tensor, dict[str, Tensor]]  # a loss and its gradients
Compute = Callable[[Tensor, Tensor], Results]


def compiles(config: FineTune, encoder: Encoder) -> bool:
    """Return whether a run's blocks are compiled, provided that their kind can be."""
    setting = os.environ.get(SETTING, "")
    if setting:
        return setting != "0"
    size = sum(tensor.numel() for tensor in encoder.params.values())
    return _on_gpu(encoder) and config.steps >= _STEPS and size >= _LARGE


def records(config: FineTune, encoder: Encoder) -> bool:
    """Return whether a run's step is recorded as a CUDA graph."""
    entry = REGISTRY.get(encoder.name)
    setting = os.environ.get(SETTING, "")
    if setting == "0" or (not setting and config.steps < _STEPS):
        return False
    if not _on_gpu(encoder) or type(encoder) is not Encoder or config.penalty:
        return False  # what a penalty computes, and texts, need numbers from the device
    if entry is None or entry.tower is None:
        return False
    return 6 * entry.tower.products * config.batch_size <= _BOUND


@functools.cache
def block(kind: Kind, dtype: torch.dtype) -> dual.Run:
    """Return the compiled function of a block; it is compiled when it is called."""
    limit = torch._dynamo.config
    limit.recompile_limit = max(limit.recompile_limit, _CACHE)
    made = dual.block_of(kind, dtype)
    return torch.compile(made, dynamic=False, fullgraph=True, backend=_backend)


class Quick:
    """A function with a `quick` form, which its `usual` form replaces for good after a failure.

    Args:
        quick: The fast form.
        usual: The function itself, used after a failure.
        said: What failed, for the warning.
    """

    failed: set[str] = set()  # noqa: RUF012 - of all: what fails once in a process fails again

    def __init__(self, quick: Callable[..., Any], usual: Callable[..., Any], said: str) -> None:
        self.quick, self.usual, self.said = quick, usual, said

    def __call__(self, *args: Any) -> Any:
        """Return the function's result."""
        if self.said not in self.failed:
            try:
                return self.quick(*args)
            except Exception as error:  # of a compiler, a driver, a library: there is no list
                if memory.is_out_of_memory(error):
                    raise
                self.failed.add(self.said)
                why = first_line(error, typed=True)
                _log.warning("%s (%s). The run goes on without.", self.said, why)
        return self.usual(*args)


def _on_gpu(encoder: Encoder) -> bool:
    return encoder.device.type == "cuda" and torch.cuda.is_initialized()


class Replayed:
    """A computation of fixed shapes that is recorded at its first call.

    The recording is compared with the computation on the batch that it was made on, and on the next
    one: a replay that does nothing, or reads elsewhere, repeats the former numbers there.

    Args:
        compute: Images and labels -> the loss and its gradients. It reads all else from tensors
            that stay where they are, and reads no number from the device.
        shared: Gradients of all recordings that are given this mapping, by name: the first one to
            be recorded fills it, the others write into its tensors.
    """

    def __init__(self, compute: Compute, shared: dict[str, Tensor] | None = None) -> None:
        self.compute, self._shared = compute, shared
        self._again: Callable[[], Any] | None = None
        self._unchecked = _CHECKED

    def __call__(self, x: Tensor, y: Tensor) -> Results:
        """Return the loss, and the gradients in tensors that the next call writes over.

        Raises:
            RuntimeError: If the recording gives another loss or other gradients.
        """
        with _current(x.device):
            if self._again is None:
                self._inputs = x.clone(), y.clone()
                self._again, self._results = _cuda_graph(self._recorded)
                if self._shared is not None and not self._shared:
                    self._shared.update(self._results[1])
            for kept, given in zip(self._inputs, (x, y), strict=True):
                kept.copy_(given)
            if self._unchecked:
                self._check(x, y)
            else:
                self._again()
        value, gradients = self._results
        return value.clone(), dict(gradients)

    def _recorded(self) -> Results:
        value, gradients = self.compute(*self._inputs)
        if self._shared:
            torch._foreach_copy_([self._shared[name] for name in gradients], [*gradients.values()])
            gradients = self._shared
        return value, gradients

    def _check(self, x: Tensor, y: Tensor) -> None:
        """Replay, and raise if the results differ from the computation's."""
        expected, gradients = self.compute(x, y)
        value, found = self._results
        for tensor in (value, *found.values()):
            tensor.fill_(math.nan)  # what a replay leaves is no result of its own
        self._again()  # type: ignore[misc]  # it is recorded
        loss, replayed = float(expected), float(value)
        if not math.isclose(replayed, loss, rel_tol=1e-2, abs_tol=1e-3) and math.isfinite(loss):
            raise RuntimeError(f"the recorded step has loss {replayed:.4g}, not {loss:.4g}")
        norms = torch._foreach_norm([found[n] - one for n, one in gradients.items()])
        off, size = (
            float(torch.stack(parts).float().norm())
            for parts in (norms, torch._foreach_norm([*gradients.values()]))
        )
        if not off <= _OFF * size and math.isfinite(size):
            raise RuntimeError(
                f"the recorded step has gradients that are {off:.4g} away from those of norm "
                f"{size:.4g}"
            )
        self._unchecked -= 1


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Select a CUDA device for streams and graphs; ignore a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _memory(device: torch.device) -> tuple[Any, torch.cuda.Stream]:
    """Return the memory that all recordings of a device share, and the stream that records them.

    They are replayed one at a time, so that joint training on many tasks holds the activations of
    one step; a step's gradients are used before the next replay (`Replayed.shared`). PyTorch gives
    memory that work of one stream has freed to that stream alone.
    """
    return torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)


def _cuda_graph(run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
    """Run a function on the current device; return its replay, and its result."""
    device = torch.device("cuda", torch.cuda.current_device())
    pool, side = _memory(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            run()
    graph = torch.cuda.CUDAGraph()
    # Other threads, which load images, may go on calling what a recording forbids this one.
    with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
        results = run()
    torch.cuda.current_stream(device).wait_stream(side)
    return graph.replay, results
