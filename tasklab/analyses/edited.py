"""Models theta + alpha tau without a copy: made tensor by tensor, or in one buffer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tasklab.analyses.finite import as_coefficient
from tasklab.storage import seals
from tasklab.storage.lazy import Lazy, like
from tasklab.storage.placement import device_of, fits, latest
from tasklab.sums import add_into, check_fits
from tasklab.taskvector import TaskVector

_SMALL = 1 << 28  # bytes that may stay on a CPU for the next coefficient


class Edited(Lazy):
    """theta + alpha tau by name; each tensor is computed on access and not stored.

    Args:
        theta: Parameters by name.
        vector: The task vector tau, or any tensors by some of these names.
        alpha: Its coefficient.

    >>> Edited({"w": torch.ones(1), "b": torch.zeros(1)}, {"w": torch.ones(1)}, 2.0)["w"]
    tensor([3.])
    """

    def __init__(
        self, theta: Mapping[str, Tensor], vector: Mapping[str, Tensor], alpha: float = 1.0
    ) -> None:
        check_fits(vector, theta)
        self._theta, self._vector, self._alpha = theta, _near(vector, theta), as_coefficient(alpha)
        self.names = theta

    def like(self, name: str) -> Tensor:
        """Return a tensor of the same shape and type: theta's."""
        return like(self._theta, name)

    def __getitem__(self, name: str) -> Tensor:
        start = self._theta[name]
        if name not in self._vector:
            return start
        return torch.add(start, self._vector[name].to(start), alpha=self._alpha)


def _near(vector: Mapping[str, Tensor], theta: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if not isinstance(vector, TaskVector) or not vector:
        return vector
    device = theta[next(iter(vector))].device
    if vector.device == device or not fits(sum(x.nbytes for x in vector.values()), device):
        return vector
    return vector.to(device)


class Line:
    """The models theta + alpha tau, one after another in the same memory.

    Each is one pass over the weights that tau changes, on a GPU one kernel.

    >>> line = Line({"w": torch.ones(2), "b": torch.ones(1)}, {"w": torch.ones(2)})
    >>> line.at(0.5)
    {'w': tensor([1.5000, 1.5000]), 'b': tensor([1.])}
    """

    @torch.inference_mode(False)  # written to in any mode
    def __init__(self, theta: Mapping[str, Tensor], vector: Mapping[str, Tensor]) -> None:
        check_fits(vector, theta)
        self._theta, self._vector = theta, _near(vector, theta)
        self._total = {name: torch.empty_like(theta[name].detach()) for name in vector}

    def begin(self, theta: Mapping[str, Tensor]) -> Line:
        """Move the line's start to other parameters, in the same memory, and return it."""
        self._theta = theta
        return self

    @torch.no_grad()
    def at(self, alpha: float) -> dict[str, Tensor]:
        """Return theta + alpha tau, valid until the next call, which writes over it."""
        add_into(self._total, self._theta, self._vector, as_coefficient(alpha))
        return {name: self._total.get(name, tensor) for name, tensor in self._theta.items()}


def line(theta: Mapping[str, Tensor], vector: Mapping[str, Tensor]) -> Line:
    """Return the line of a vector; repeated calls reuse its memory.

    The last line stays in memory, on a GPU or if it is small, until another one replaces it or
    memory is short (`placement.release`). Do not use the result of one `at` after calling another.
    """
    small = sum(theta[name].nbytes for name in vector if name in theta) <= _SMALL
    if small or device_of(theta).type == "cuda":
        moves = device_of(vector) != device_of(theta)  # a copy, of the vector as it is now
        stamp = seals.stamp(vector) if moves else 0
        return latest("line", (theta, vector), lambda: Line(theta, vector), stamp)
    return Line(theta, vector)
