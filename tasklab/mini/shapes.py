"""Twenty shapes as signed distances, and printed characters from an atlas of eight fonts."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.catalog import SHAPES
from tasklab.mini.draw import (
    SIZE,
    Pose,
    Rng,
    box,
    column,
    coverage,
    field,
    intersection,
    local,
    polygon,
    radius,
    union,
)

FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSansMono",
    "DejaVuSans-Oblique", "DejaVuSerif-Italic", "DejaVuSansMono-Bold",
)  # fmt: skip
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # in the order of catalog.GLYPHS


def arrow(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance to an arrow that points up."""
    head = intersection(u.abs() * 0.8 - (v + 0.95) * 0.6, v + 0.15)
    return union(box(u, v - 0.3, 0.22, 0.6), head)


def heart(u: Tensor, v: Tensor) -> Tensor:
    """Return a distance-like field of a heart."""
    x = u * 1.05
    y = 0.25 - v - 0.6 * exact.sqrt(x.abs())
    return exact.sqrt(y * y + x * x) - 0.85


def saltire(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance to a diagonal cross."""
    p, q = (u + v) * 0.7, (u - v) * 0.7
    return union(box(p, q, 0.2, 0.9), box(p, q, 0.9, 0.2))


def _wave(u: Tensor, v: Tensor, lobes: float) -> Tensor:
    return exact.cos(lobes * exact.atan2(u, -v))


DISTANCES = {
    "circle": lambda u, v: radius(u, v) - 0.85,
    "square": lambda u, v: box(u, v, 0.75, 0.75),
    "triangle": lambda u, v: polygon(u, v, 3, 0.5, math.pi),
    "star": lambda u, v: radius(u, v) - (0.58 + 0.34 * _wave(u, v, 5)),
    "cross": lambda u, v: union(box(u, v, 0.27, 0.9), box(u, v, 0.9, 0.27)),
    "ring": lambda u, v: (radius(u, v) - 0.68).abs() - 0.2,
    "heart": heart,
    "hexagon": lambda u, v: polygon(u, v, 6, 0.8),
    "diamond": lambda u, v: (u.abs() * 1.35 + v.abs() - 0.95) * 0.6,
    "crescent": lambda u, v: intersection(radius(u, v) - 0.9, 0.75 - radius(u - 0.45, v)),
    "arrow": arrow,
    "oval": lambda u, v: (radius(u, v / 0.5) - 0.95) * 0.6,
    "gear": lambda u, v: radius(u, v) - (0.72 + 0.16 * torch.sign(_wave(u, v, 8))),
    "flower": lambda u, v: radius(u, v) - (0.35 + 0.55 * _wave(u, v, 2.5).abs()),
    "dome": lambda u, v: intersection(radius(u, v - 0.35) - 0.95, v - 0.4),
    "hook": lambda u, v: union(box(u + 0.45, v, 0.25, 0.85), box(u, v - 0.6, 0.7, 0.25)),
    "tee": lambda u, v: union(box(u, v - 0.1, 0.22, 0.8), box(u, v + 0.6, 0.8, 0.22)),
    "bar": lambda u, v: box(u, v, 0.95, 0.25),
    "hourglass": lambda u, v: intersection((u.abs() - v.abs()) * 0.8 - 0.08, v.abs() - 0.85),
    "frame": lambda u, v: box(u, v, 0.8, 0.8).abs() - 0.14,
}


def shape_alpha(index: Tensor, u: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    """Return the opacity (n, S, S) of the shape `SHAPES[index]` in each image.

    Args:
        index: Shapes (n,).
        u, v: Local coordinates (n, S, S).
        scale: Local units per canvas unit (n,).
    """
    alpha = torch.zeros_like(u)
    for k in index.unique().tolist():
        m = index == k
        alpha[m] = coverage(DISTANCES[SHAPES[k]](u[m], v[m]), scale[m])
    return alpha


@functools.cache
def atlas() -> Tensor:
    """Return the opacities (8 fonts, 36 characters, 32, 32), drawn from matplotlib's own fonts."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    sheet = torch.zeros(len(FONTS), len(CHARACTERS), 32, 32)
    for i, name in enumerate(FONTS):
        font = ImageFont.truetype(
            str(folder / f"{name}.ttf"), 34, layout_engine=ImageFont.Layout.BASIC
        )
        for j, character in enumerate(CHARACTERS):
            big = Image.new("L", (64, 64), 0)
            ImageDraw.Draw(big).text((32, 32), character, 255, font=font, anchor="mm")
            left, top, right, bottom = big.getbbox()
            x, y = (left + right) // 2, (top + bottom) // 2
            small = big.crop((x - 18, y - 18, x + 18, y + 18)).resize((32, 32), Image.BILINEAR)
            sheet[i, j] = torch.from_numpy(np.asarray(small, dtype=np.float32) / 255)
    return sheet


def glyph_alpha(
    rng: Rng,
    character: Tensor,
    font: Tensor,
    pose: Pose,
    *,
    shear: Tensor | None = None,
    warp: Tensor | None = None,
    stroke: Tensor | None = None,
) -> Tensor:
    """Return the opacity (n, S, S) of one printed character per image.

    Args:
        rng: Draws everything random.
        character: (n,) index into `catalog.GLYPHS`.
        font: (n,) index into `FONTS`.
        pose: Places, sizes and rotations of the things.
        shear: (n,) slant, in local units of u per v.
        warp: (n,) size of a smooth random distortion, in local units.
        stroke: (n,) weight of the strokes, 0 thin to 1 thick.
    """
    u, v = local(*pose)
    if shear is not None:
        u = u + column(shear) * v
    if warp is not None:
        bend = field(rng, len(u), 4, 2)
        u, v = u + bend[:, 0] * column(warp), v + bend[:, 1] * column(warp)
    glyphs = atlas()[font, character][:, None]
    alpha = exact.sampled(glyphs, u, v)[:, 0]
    if stroke is not None:
        alpha = ((alpha - column(0.75 - 0.6 * stroke)) * 3 + 0.5).clamp(0, 1)
    return alpha.reshape(-1, SIZE, SIZE)
