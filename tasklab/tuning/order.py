"""The order of the images: a function of seed and step alone."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tasklab.tuning.recipe import FineTune


def batch(config: FineTune, step: int, count: int) -> Tensor:
    """Return the indices (B,) of a step's images: shuffled epochs, one after another."""
    position, parts, missing = step * config.batch_size, [], config.batch_size
    while missing:
        epoch, start = divmod(position, count)
        parts.append(_order(config.seed, epoch, count)[start : start + missing])
        position, missing = position + len(parts[-1]), missing - len(parts[-1])
    return torch.cat(parts)


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)
