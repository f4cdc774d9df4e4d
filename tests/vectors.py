"""Random vectors that tests of many rooms use."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tasklab.taskvector import Base, TaskVector


def noise(
    params: Mapping[str, Tensor], seed: int = 0, size: float = 0.02, base: Base | None = None
) -> TaskVector:
    """Return normal noise of the shapes and types of a model's parameters."""
    draw = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in params.items()}
    return TaskVector({name: size * x for name, x in drawn.items()}, base)
