"""A computation on a GPU that is recorded once and then launched whole: a CUDA graph.

The network of a small model has a thousand kernels, which take longer to launch than to run. A
graph has the addresses of all that it reads and writes: arguments are copied to where it reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Results = tuple[Tensor, dict[str, Tensor]]  # a loss and its gradients
Compute = Callable[[Tensor, Tensor], Results]
_WARM = 3  # calls before the recording: libraries choose kernels and make workspaces


class Replayed:
    """A computation of fixed shapes that is recorded at its first call.

    Args:
        compute: Images and labels -> the loss and its gradients. It reads all else from tensors
            that stay where they are, and reads no number from the device.
        record: Runs a function and returns what repeats it, and what it returned.
    """

    def __init__(
        self,
        compute: Compute,
        record: Callable[[Callable[[], Results]], tuple[Callable[[], Any], Results]] | None = None,
    ) -> None:
        self.compute, self.record = compute, record or _cuda_graph
        self._again: Callable[[], Any] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Results:
        """Return the loss, and the gradients in tensors that the next call writes over.

        Raises:
            RuntimeError: If the recording gives another loss than the computation.
        """
        if self._again is None:
            self._inputs = x.clone(), y.clone()
            loss = float(self.compute(*self._inputs)[0])
            self._again, self._results = self.record(lambda: self.compute(*self._inputs))
            self._again()
            found = float(self._results[0])
            if not math.isclose(found, loss, rel_tol=1e-2, abs_tol=1e-3) and math.isfinite(loss):
                self._again = None
                raise RuntimeError(f"the recorded step has loss {found:.4g}, not {loss:.4g}")
        for kept, given in zip(self._inputs, (x, y), strict=True):
            kept.copy_(given)
        self._again()
        value, gradients = self._results
        return value.clone(), dict(gradients)


def _cuda_graph(run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads, which load images, may go on calling what a recording forbids this one.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = run()
    return graph.replay, results
