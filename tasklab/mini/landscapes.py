"""Scenes with a horizon."""

from __future__ import annotations

import torch
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.catalog import SCENES
from tasklab.mini.draw import (
    GRID_X,
    GRID_Y,
    Canvas,
    Rng,
    box,
    column,
    coverage,
    fraction,
    intersection,
    radius,
    render,
    union,
)

_SKY, _GRASS = (0.55, 0.72, 0.92), (0.35, 0.58, 0.25)
_STONE, _SNOW = (0.45, 0.45, 0.48), (0.93, 0.94, 0.96)
_WATER, _WOOD = (0.12, 0.33, 0.6), (0.5, 0.34, 0.2)
_NIGHT, _SAND = (0.1, 0.1, 0.15), (0.88, 0.74, 0.45)
_RED, _ORANGE = (0.72, 0.3, 0.22), (0.97, 0.55, 0.25)


class Landscape(Canvas):
    """A canvas whose v is measured downwards from the horizon."""

    phase: Tensor  #: A random number per image in [0, 1), (n, 1, 1)

    def backdrop(self, sky: Tensor, ground: Tensor) -> None:
        """Paint a sky that brightens upwards and an uneven ground."""
        self.fill(sky)
        self.shade(1 - 0.12 * self.v)
        uneven = (ground[:, :, None, None] * (1 + 0.07 * self.field(10))[:, None]).clamp(0, 1)
        below = coverage(-self.v)[:, None]
        self.image = self.image * (1 - below) + uneven * below


def _mountain(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_GRASS))
    ridge = 0.7 * (fraction(c.u * 0.9 + c.phase) - 0.5).abs()
    ridge = 2 * (ridge + 0.16 * (fraction(c.u * 2.3 + 3 * c.phase) - 0.5).abs())
    above = ridge - 0.95 - c.v
    c.paint(c.colour(*_STONE), intersection(above, c.v))
    c.paint(c.colour(*_SNOW), intersection(above, c.v + 0.55))


def _desert(c: Landscape) -> None:
    sand = c.colour(*_SAND)
    c.backdrop(c.colour(*_SKY), sand)
    dune = 0.25 + 0.12 * exact.sin(3 * c.u + 6 * c.phase)
    c.paint(sand * 0.85, intersection(dune - c.v, c.v - 0.5))
    cactus = union(box(c.u - 0.3, c.v, 0.06, 0.3), box(c.u - 0.3, c.v + 0.05, 0.2, 0.05))
    c.paint(c.colour(*_GRASS) * 0.7, cactus)


def _sea(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_WATER))
    foam = exact.sin(9 * c.u + 5 * exact.sin(7 * c.v)) + exact.sin(22 * c.v) > 1.3
    c.paint(c.colour(*_SNOW), foam & (c.v > 0.1))
    sail = intersection((c.u - 0.2).abs() - 0.4 * (c.v + 0.5), c.v, -(c.v + 0.5))
    c.paint(c.colour(*_SNOW), sail)


def _city(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_STONE))
    height = 0.6 * fraction(torch.floor(c.u * 3.5 + 9 * c.phase) * 0.618)
    c.paint(c.colour(*_NIGHT) + 0.2, (c.v > -0.3 - height) & (c.v < 0))
    window = (fraction(c.u * 10.5) < 0.45) & (fraction(c.v * 7) < 0.4)
    c.paint(c.colour(*_ORANGE), (c.v > -0.25 - height) & (c.v < 0) & window)


def _meadow(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_GRASS))
    flowers = c.speckle()
    c.paint(c.colour(*_ORANGE), (flowers > 0.93) & (c.v > 0.05))
    c.paint(c.colour(*_RED), (flowers < 0.05) & (c.v > 0.05))


def _fir(c: Landscape) -> Tensor:
    stem = (fraction(c.u * 1.3 + c.phase) - 0.5).abs() / 1.3
    return intersection(stem - 0.35 * (c.v + 0.5), c.v, -(c.v + 0.5))


def _snowfield(c: Landscape) -> None:
    c.backdrop(c.colour(0.72, 0.78, 0.85), c.colour(*_SNOW))
    c.paint(c.colour(*_SNOW), c.speckle() > 0.95)
    c.paint(c.colour(*_GRASS) * 0.5, _fir(c))


def _road(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_GRASS))
    c.paint(c.colour(*_STONE) * 0.8, intersection(c.u.abs() - 0.05 - 0.55 * c.v, -c.v))
    dashes = (c.u.abs() < 0.02 + 0.04 * c.v) & (c.v > 0) & (fraction(c.v * 5) < 0.5)
    c.paint(c.colour(*_SNOW), dashes)


def _sunset(c: Landscape) -> None:
    c.backdrop(c.colour(*_ORANGE), c.colour(*_WATER) * 0.5)
    c.paint(c.colour(*_RED) * 1.1, intersection(c.v, -0.35 - c.v))
    c.paint(c.colour(*_SAND) * 1.1, intersection(radius(c.u - 0.1, c.v + 0.1) - 0.35, c.v))
    c.paint(c.colour(*_ORANGE), (c.u - 0.1).abs() - 0.12 + (-c.v).clamp(min=0) * 9)


def _night_sky(c: Landscape) -> None:
    dark = c.colour(*_NIGHT)
    c.backdrop(dark, dark * 0.6)
    c.paint(c.colour(*_SNOW), (c.speckle() > 0.94) & (c.v < 0))
    disc, shadow = radius(c.u - 0.35, c.v + 0.6) - 0.25, 0.22 - radius(c.u - 0.48, c.v + 0.65)
    c.paint(c.colour(*_SAND), intersection(disc, shadow))


def _canyon(c: Landscape) -> None:
    red = c.colour(*_RED)
    c.backdrop(c.colour(*_SKY), red)
    wall = intersection(0.35 + 0.1 * c.field(5) - c.u.abs(), -0.7 - c.v)
    c.paint(red * 0.75, wall)
    c.paint(red * 0.5, intersection(wall, (fraction(c.v * 4) - 0.5).abs() * 0.3 - 0.04))


def _village(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_GRASS))
    middle = (fraction(c.u * 1.5 + c.phase) - 0.5).abs() / 1.5
    c.paint(c.colour(*_SNOW) * 0.9, intersection(middle - 0.2, c.v - 0.12, -0.18 - c.v))
    roof = intersection(middle - 0.05 - 0.75 * (c.v + 0.45), c.v + 0.15, -0.45 - c.v)
    c.paint(c.colour(*_RED), roof)


def _lighthouse(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_WATER))
    c.paint(c.colour(*_STONE), radius(c.u, c.v - 0.1) - 0.35)
    tower = intersection(c.u.abs() - 0.12, c.v, -0.75 - c.v)
    c.paint(c.colour(*_SNOW), tower)
    c.paint(c.colour(*_RED), intersection(tower, (fraction(c.v * 3) - 0.5).abs() * 0.3 - 0.07))
    c.paint(c.colour(*_ORANGE), box(c.u, c.v + 0.8, 0.09, 0.08))


def _waterfall(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_WATER))
    c.paint(c.colour(*_STONE) * 0.8, intersection(c.u.abs() - 0.9, c.v, -0.9 - c.v))
    fall = c.u.abs() - 0.22 + 0.06 * exact.sin(12 * c.v)
    c.paint(c.colour(*_SNOW), intersection(fall, c.v - 0.15, -0.9 - c.v))


def _pyramid(c: Landscape) -> None:
    sand = c.colour(*_SAND)
    c.backdrop(c.colour(0.6, 0.75, 0.9), sand)
    side = intersection(c.u.abs() * 0.75 - 0.6 * (c.v + 0.75), c.v - 0.1, -0.75 - c.v)
    c.paint(sand * 0.75, side)
    c.paint(sand * 0.55, intersection(side, -c.u))


def _windmill(c: Landscape) -> None:
    c.backdrop(c.colour(*_SKY), c.colour(*_GRASS))
    tower = c.u.abs() - 0.08 - 0.15 * (c.v + 0.5)
    c.paint(c.colour(*_WOOD), intersection(tower, c.v - 0.05, -0.55 - c.v))
    cos, sin = exact.cos(6.28 * c.phase), exact.sin(6.28 * c.phase)
    a, b = cos * c.u + sin * (c.v + 0.55), cos * (c.v + 0.55) - sin * c.u
    c.paint(c.colour(*_SNOW), union(box(a, b, 0.5, 0.06), box(a, b, 0.06, 0.5)))


def _cave(c: Landscape) -> None:
    wood = c.colour(*_WOOD)
    c.backdrop(c.colour(*_NIGHT) * 1.8, wood * 0.6)
    c.paint(c.colour(*_SKY), radius(c.u, c.v) - 0.42 + 0.12 * c.field(5))
    c.paint(wood * 0.9, c.v + 1.1 - 1.1 * (fraction(c.u * 2.5) - 0.5).abs())


PAINTERS = {
    "mountain": _mountain, "desert": _desert, "sea": _sea, "city": _city, "meadow": _meadow,
    "snowfield": _snowfield, "road": _road, "sunset": _sunset, "night sky": _night_sky,
    "canyon": _canyon, "village": _village, "lighthouse": _lighthouse, "waterfall": _waterfall,
    "pyramid": _pyramid, "windmill": _windmill, "cave": _cave,
}  # fmt: skip


def landscapes(rng: Rng, index: Tensor, horizon: Tensor, jitter: float) -> Tensor:
    """Return images (n, 3, S, S) of the scene `SCENES[index]`.

    Args:
        rng: Draws positions and colours.
        index: Classes (n,).
        horizon: Heights of the horizon in canvas units (n,), downwards.
        jitter: Standard deviation of colours, which run from 0 to 1.
    """
    n = len(index)
    phase, shift = rng.uniform(n), rng.uniform(n, -0.3, 0.3)
    at = GRID_X + column(shift), GRID_Y - column(horizon), torch.ones(n)
    painters = [PAINTERS[name] for name in SCENES]
    return render(Landscape, painters, index, rng, at, jitter, phase=phase)
