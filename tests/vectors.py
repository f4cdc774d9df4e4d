"""Random vectors, images and networks that tests of many rooms use."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tasklab.models.encoder import Encoder
from tasklab.taskvector import Base, TaskVector


def noise(
    params: Mapping[str, Tensor], seed: int = 0, size: float = 0.02, base: Base | None = None
) -> TaskVector:
    """Return normal noise of the shapes and types of a model's parameters."""
    draw = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in params.items()}
    return TaskVector({name: size * x for name, x in drawn.items()}, base)


def moved(params: Mapping[str, Tensor], seed: int = 0, share: float = 0.1) -> dict[str, Tensor]:
    """Return parameters with noise of a share of each one's standard deviation."""
    drawn = noise(params, seed, 1.0)
    return {n: x + share * x.std(correction=0) * drawn[n] for n, x in params.items()}


def pictures(count: int, seed: int = 1, side: int = 8) -> Tensor:
    """Return preprocessed images (N, 3, H, W) in float64."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=draw, dtype=torch.float64)


def plain(module: nn.Module, **named: Any) -> Encoder:
    """Return a network as an encoder whose images need no preprocessing."""
    encoder = Encoder.of(module, **named)
    object.__setattr__(encoder, "preprocess", lambda x: x)
    return encoder
