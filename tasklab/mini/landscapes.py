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


def _sky(c: Landscape) -> Tensor:
    return c.colour(0.55, 0.72, 0.92)


def _grass(c: Landscape) -> Tensor:
    return c.colour(0.35, 0.58, 0.25)


def _stone(c: Landscape) -> Tensor:
    return c.colour(0.45, 0.45, 0.48)


def _snow(c: Landscape) -> Tensor:
    return c.colour(0.93, 0.94, 0.96)


def _water(c: Landscape) -> Tensor:
    return c.colour(0.12, 0.33, 0.6)


def _wood(c: Landscape) -> Tensor:
    return c.colour(0.5, 0.34, 0.2)


def _night(c: Landscape) -> Tensor:
    return c.colour(0.1, 0.1, 0.15)


def _sand(c: Landscape) -> Tensor:
    return c.colour(0.88, 0.74, 0.45)


def _red(c: Landscape) -> Tensor:
    return c.colour(0.72, 0.3, 0.22)


def _orange(c: Landscape) -> Tensor:
    return c.colour(0.97, 0.55, 0.25)


def _mountain(c: Landscape) -> None:
    c.backdrop(_sky(c), _grass(c))
    ridge = 0.7 * (fraction(c.u * 0.9 + c.phase) - 0.5).abs()
    ridge = 2 * (ridge + 0.16 * (fraction(c.u * 2.3 + 3 * c.phase) - 0.5).abs())
    above = ridge - 0.95 - c.v
    c.paint(_stone(c), intersection(above, c.v))
    c.paint(_snow(c), intersection(above, c.v + 0.55))


def _desert(c: Landscape) -> None:
    sand = _sand(c)
    c.backdrop(_sky(c), sand)
    dune = 0.25 + 0.12 * exact.sin(3 * c.u + 6 * c.phase)
    c.paint(sand * 0.85, intersection(dune - c.v, c.v - 0.5))
    cactus = union(box(c.u - 0.3, c.v, 0.06, 0.3), box(c.u - 0.3, c.v + 0.05, 0.2, 0.05))
    c.paint(_grass(c) * 0.7, cactus)


def _sea(c: Landscape) -> None:
    c.backdrop(_sky(c), _water(c))
    foam = exact.sin(9 * c.u + 5 * exact.sin(7 * c.v)) + exact.sin(22 * c.v) > 1.3
    c.paint(_snow(c), foam & (c.v > 0.1))
    sail = intersection((c.u - 0.2).abs() - 0.4 * (c.v + 0.5), c.v, -(c.v + 0.5))
    c.paint(_snow(c), sail)


def _city(c: Landscape) -> None:
    c.backdrop(_sky(c), _stone(c))
    height = 0.6 * fraction(torch.floor(c.u * 3.5 + 9 * c.phase) * 0.618)
    c.paint(_night(c) + 0.2, (c.v > -0.3 - height) & (c.v < 0))
    window = (fraction(c.u * 10.5) < 0.45) & (fraction(c.v * 7) < 0.4)
    c.paint(_orange(c), (c.v > -0.25 - height) & (c.v < 0) & window)


def _meadow(c: Landscape) -> None:
    c.backdrop(_sky(c), _grass(c))
    flowers = c.speckle()
    c.paint(_orange(c), (flowers > 0.93) & (c.v > 0.05))
    c.paint(_red(c), (flowers < 0.05) & (c.v > 0.05))


def _fir(c: Landscape) -> Tensor:
    stem = (fraction(c.u * 1.3 + c.phase) - 0.5).abs() / 1.3
    return intersection(stem - 0.35 * (c.v + 0.5), c.v, -(c.v + 0.5))


def _snowfield(c: Landscape) -> None:
    c.backdrop(c.colour(0.72, 0.78, 0.85), _snow(c))
    c.paint(_snow(c), c.speckle() > 0.95)
    c.paint(_grass(c) * 0.5, _fir(c))


def _road(c: Landscape) -> None:
    c.backdrop(_sky(c), _grass(c))
    c.paint(_stone(c) * 0.8, intersection(c.u.abs() - 0.05 - 0.55 * c.v, -c.v))
    c.paint(_snow(c), (c.u.abs() < 0.02 + 0.04 * c.v) & (c.v > 0) & (fraction(c.v * 5) < 0.5))


def _sunset(c: Landscape) -> None:
    c.backdrop(_orange(c), _water(c) * 0.5)
    c.paint(_red(c) * 1.1, intersection(c.v, -0.35 - c.v))
    c.paint(_sand(c) * 1.1, intersection(radius(c.u - 0.1, c.v + 0.1) - 0.35, c.v))
    c.paint(_orange(c), (c.u - 0.1).abs() - 0.12 + (-c.v).clamp(min=0) * 9)


def _night_sky(c: Landscape) -> None:
    dark = _night(c)
    c.backdrop(dark, dark * 0.6)
    c.paint(_snow(c), (c.speckle() > 0.94) & (c.v < 0))
    c.paint(
        _sand(c),
        intersection(radius(c.u - 0.35, c.v + 0.6) - 0.25, 0.22 - radius(c.u - 0.48, c.v + 0.65)),
    )


def _canyon(c: Landscape) -> None:
    red = _red(c)
    c.backdrop(_sky(c), red)
    wall = intersection(0.35 + 0.1 * c.field(5) - c.u.abs(), -0.7 - c.v)
    c.paint(red * 0.75, wall)
    c.paint(red * 0.5, intersection(wall, (fraction(c.v * 4) - 0.5).abs() * 0.3 - 0.04))


def _village(c: Landscape) -> None:
    c.backdrop(_sky(c), _grass(c))
    middle = (fraction(c.u * 1.5 + c.phase) - 0.5).abs() / 1.5
    c.paint(_snow(c) * 0.9, intersection(middle - 0.2, c.v - 0.12, -0.18 - c.v))
    c.paint(_red(c), intersection(middle - 0.05 - 0.75 * (c.v + 0.45), c.v + 0.15, -0.45 - c.v))


def _lighthouse(c: Landscape) -> None:
    c.backdrop(_sky(c), _water(c))
    c.paint(_stone(c), radius(c.u, c.v - 0.1) - 0.35)
    tower = intersection(c.u.abs() - 0.12, c.v, -0.75 - c.v)
    c.paint(_snow(c), tower)
    c.paint(_red(c), intersection(tower, (fraction(c.v * 3) - 0.5).abs() * 0.3 - 0.07))
    c.paint(_orange(c), box(c.u, c.v + 0.8, 0.09, 0.08))


def _waterfall(c: Landscape) -> None:
    c.backdrop(_sky(c), _water(c))
    c.paint(_stone(c) * 0.8, intersection(c.u.abs() - 0.9, c.v, -0.9 - c.v))
    fall = c.u.abs() - 0.22 + 0.06 * exact.sin(12 * c.v)
    c.paint(_snow(c), intersection(fall, c.v - 0.15, -0.9 - c.v))


def _pyramid(c: Landscape) -> None:
    sand = _sand(c)
    c.backdrop(c.colour(0.6, 0.75, 0.9), sand)
    side = intersection(c.u.abs() * 0.75 - 0.6 * (c.v + 0.75), c.v - 0.1, -0.75 - c.v)
    c.paint(sand * 0.75, side)
    c.paint(sand * 0.55, intersection(side, -c.u))


def _windmill(c: Landscape) -> None:
    c.backdrop(_sky(c), _grass(c))
    tower = c.u.abs() - 0.08 - 0.15 * (c.v + 0.5)
    c.paint(_wood(c), intersection(tower, c.v - 0.05, -0.55 - c.v))
    cos, sin = exact.cos(6.28 * c.phase), exact.sin(6.28 * c.phase)
    a, b = cos * c.u + sin * (c.v + 0.55), cos * (c.v + 0.55) - sin * c.u
    c.paint(_snow(c), union(box(a, b, 0.5, 0.06), box(a, b, 0.06, 0.5)))


def _cave(c: Landscape) -> None:
    wood = _wood(c)
    c.backdrop(_night(c) * 1.8, wood * 0.6)
    c.paint(_sky(c), radius(c.u, c.v) - 0.42 + 0.12 * c.field(5))
    c.paint(wood * 0.9, c.v + 1.1 - 1.1 * (fraction(c.u * 2.5) - 0.5).abs())


PAINTERS = {
    "mountain": _mountain, "desert": _desert, "sea": _sea, "city": _city, "meadow": _meadow,
    "snowfield": _snowfield, "road": _road, "sunset": _sunset, "night sky": _night_sky,
    "canyon": _canyon, "village": _village, "lighthouse": _lighthouse, "waterfall": _waterfall,
    "pyramid": _pyramid, "windmill": _windmill, "cave": _cave,
}  # fmt: skip


def landscapes(rng: Rng, index: Tensor, horizon: Tensor, jitter: float) -> Tensor:
    """Return images (n, 3, S, S) of the scene `SCENES[index]`."""
    n = len(index)
    phase, shift = rng.uniform(n), rng.uniform(n, -0.3, 0.3)
    u, v = GRID_X + column(shift), GRID_Y - column(horizon)

    def canvas(m: Tensor) -> Landscape:
        sheet = Landscape(rng, u[m], v[m], torch.ones(int(m.sum())), jitter)
        sheet.phase = column(phase[m])
        return sheet

    return render(index, SCENES, PAINTERS, canvas)
