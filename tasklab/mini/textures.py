"""Sixteen textures as functions of local coordinates, a frequency and some noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.catalog import TEXTURES
from tasklab.mini.draw import Rng, blend, column, field, flat, fraction, local, radius, stripes


class Surface(NamedTuple):
    """Inputs of a texture: all (n, S, S), the frequency f as (n, 1, 1)."""

    u: Tensor
    v: Tensor
    f: Tensor
    soft: Tensor
    fine: Tensor
    lumps: Tensor


def _brick(s: Surface) -> Tensor:
    size = s.f * 0.35
    row = torch.floor(s.v * size)
    along = s.u * size * 0.5 + 0.5 * exact.remainder(row, 2)
    return 1 - ((fraction(s.v * size) < 0.22) | (fraction(along) < 0.14)).float()


def _scale(s: Surface) -> Tensor:
    size = s.f * 0.3
    row = torch.floor(s.v * size)
    u = fraction(s.u * size + 0.5 * exact.remainder(row, 2)) - 0.5
    return radius(u, fraction(s.v * size)).clamp(0, 1)


def _woven(s: Surface) -> Tensor:
    over = exact.sin(s.f * 0.5 * s.u) * exact.sin(s.f * 0.5 * s.v) > 0
    return torch.where(over, stripes(s.f * 1.3 * s.u), stripes(s.f * 1.3 * s.v))


VALUES = {
    "striped": lambda s: stripes(s.f * s.v),
    "banded": lambda s: (fraction(s.u * s.f * 0.2) > 0.65).float(),
    "checkered": lambda s: (exact.sin(s.f * 0.7 * s.u) * exact.sin(s.f * 0.7 * s.v) > 0).float(),
    "dotted": lambda s: (exact.cos(s.f * 0.9 * s.u) + exact.cos(s.f * 0.9 * s.v) > 1).float(),
    "grid": lambda s: (
        (fraction(s.u * s.f * 0.22) < 0.25) | (fraction(s.v * s.f * 0.22) < 0.25)
    ).float(),
    "wavy": lambda s: stripes(s.f * s.v + 2.2 * exact.sin(4.5 * s.u)),
    "zigzag": lambda s: stripes(s.f * (s.v + 0.72 * (fraction(s.u * 1.6) - 0.5).abs())),
    "grainy": lambda s: (0.5 + 0.35 * s.fine).clamp(0, 1),
    "blotchy": lambda s: (s.soft > 0.25).float(),
    "marbled": lambda s: stripes(s.f * 0.55 * s.u + 2.6 * s.soft),
    "bricked": _brick,
    "spiral": lambda s: stripes(s.f * 1.1 * radius(s.u, s.v) + exact.atan2(s.u, s.v)),
    "radial": lambda s: stripes(exact.atan2(s.u, s.v) * torch.round(s.f * 0.7)),
    "woven": _woven,
    "scaly": _scale,
    "cracked": lambda s: (s.lumps.abs() < 0.16).float(),
}


def texture(rng: Rng, index: Tensor, u: Tensor, v: Tensor, frequency: Tensor) -> Tensor:
    """Return values in [0, 1], (n, S, S), of the texture `TEXTURES[index]` in each image.

    Args:
        rng: Draws the noise in the textures.
        index: Textures (n,).
        u, v: Local coordinates (n, S, S).
        frequency: Of stripes, bricks and dots (n,).
    """
    n = len(index)
    soft, fine, lumps = field(rng, n, 6)[:, 0], rng.normal(*u.shape), field(rng, n, 11)[:, 0]
    whole = Surface(u, v, column(frequency), soft, fine, lumps)
    values = torch.zeros_like(u)
    for k in index.unique().tolist():
        m = index == k
        values[m] = VALUES[TEXTURES[k]](Surface(*(part[m] for part in whole)))
    return values


def textured_background(rng: Rng, n: int, contrast: float) -> Tensor:
    """Return images (n, 3, S, S) of a random texture in two related random colours.

    Args:
        rng: Draws textures and colours.
        n: Number of images.
        contrast: Standard deviation of the second colour around the first.
    """
    first = torch.rand(n, 3, generator=rng.generator)
    second = (first + rng.normal(n, 3) * contrast).clamp(0, 1)
    index = rng.integers(n, len(TEXTURES))
    dx, dy, angle = (rng.uniform(n, *limits) for limits in ((-1, 1), (-1, 1), (0, 6.28)))
    u, v = local(dx, dy, torch.ones(n), angle)
    return blend(flat(first), second, texture(rng, index, u, v, rng.uniform(n, 5, 14)))
