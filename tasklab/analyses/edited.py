"""Models theta + alpha tau of which no copy is kept: made tensor by tensor, or in one buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tasklab.analyses.finite import as_coefficient
from tasklab.placement import fits
from tasklab.sums import check_fits
from tasklab.taskvector import TaskVector


class Edited(Mapping[str, Tensor]):
    """theta + alpha tau, each tensor made when it is asked for: nothing of it is held.

    Args:
        theta: Parameters, where tau begins.
        vector: tau.
        alpha: Its coefficient.

    Raises:
        TasklabError: If tau names a parameter that theta lacks, or one of another shape.

    >>> Edited({"w": torch.ones(1), "b": torch.zeros(1)}, {"w": torch.ones(1)}, 2.0)["w"]
    tensor([3.])
    """

    def __init__(
        self, theta: Mapping[str, Tensor], vector: Mapping[str, Tensor], alpha: float = 1.0
    ) -> None:
        check_fits(vector, theta)
        self._theta, self._vector, self._alpha = theta, _near(vector, theta), as_coefficient(alpha)

    def __getitem__(self, name: str) -> Tensor:
        start = self._theta[name]
        if name not in self._vector:
            return start
        return torch.add(start, self._vector[name].to(start), alpha=self._alpha)

    def __contains__(self, name: object) -> bool:  # without making it
        return name in self._theta

    def __iter__(self) -> Iterator[str]:
        return iter(self._theta)

    def __len__(self) -> int:
        return len(self._theta)


def _near(vector: Mapping[str, Tensor], theta: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a task vector where theta is, if it fits there: moved once, not tensor by tensor."""
    if not isinstance(vector, TaskVector) or not vector:
        return vector
    device = theta[next(iter(vector))].device
    if vector.device == device or not fits(sum(x.nbytes for x in vector.values()), device):
        return vector
    return vector.to(device)


class Line:
    """The models theta + alpha tau, one after another in the same memory.

    Each is one pass over the weights.

    Args:
        theta: Parameters of one type and on one device, where the line starts.
        vector: tau.

    Raises:
        TasklabError: If tau names a parameter that theta lacks, or one of another shape.

    >>> line = Line({"w": torch.ones(2), "b": torch.ones(1)}, {"w": torch.ones(2)})
    >>> line.at(0.5)
    {'b': tensor([1.]), 'w': tensor([1.5000, 1.5000])}
    """

    def __init__(self, theta: Mapping[str, Tensor], vector: Mapping[str, Tensor]) -> None:
        check_fits(vector, theta)
        self._fixed = {name: tensor for name, tensor in theta.items() if name not in vector}
        self._shapes = {name: tensor.shape for name, tensor in vector.items()}
        self._start, self._change = (
            torch.cat([terms[name].reshape(-1).to(theta[name]) for name in vector])
            if vector
            else torch.empty(0)
            for terms in (theta, vector)
        )
        self._total = torch.empty_like(self._start)

    def begin(self, theta: Mapping[str, Tensor]) -> Line:
        """Move the line's start to other parameters, in the same memory, and return it."""
        self._fixed = {name: tensor for name, tensor in theta.items() if name not in self._shapes}
        parts = self._start.split([shape.numel() for shape in self._shapes.values()])
        for (name, shape), part in zip(self._shapes.items(), parts, strict=True):
            part.view(shape).copy_(theta[name])
        return self

    def at(self, alpha: float) -> dict[str, Tensor]:
        """Return theta + alpha tau, valid until the next call, which writes over it."""
        torch.add(self._start, self._change, alpha=as_coefficient(alpha), out=self._total)
        parts = self._total.split([shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {**self._fixed, **{name: part.view(shape) for (name, shape), part in named}}
