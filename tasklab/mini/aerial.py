"""Land cover and places seen from above."""

from __future__ import annotations

import torch
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.catalog import LAND, PLACES
from tasklab.mini.draw import (
    Canvas,
    Rng,
    box,
    coverage,
    fraction,
    intersection,
    local,
    radius,
    render,
    stripes,
    union,
)

GRASS, DARK_GREEN = (0.35, 0.52, 0.25), (0.12, 0.3, 0.14)
SOIL, WATER = (0.6, 0.48, 0.3), (0.15, 0.3, 0.55)
CONCRETE, ROOF = (0.58, 0.57, 0.55), (0.65, 0.4, 0.33)
PALE, SCRUB = (0.85, 0.85, 0.83), (0.45, 0.45, 0.28)


class LandCanvas(Canvas):
    """A canvas with the spatial frequency of fields and roofs, (n, 1, 1)."""

    frequency: Tensor


def _meadow(c: Canvas) -> None:
    c.fill(c.colour(*GRASS), 5, 0.1)


def _forest(c: Canvas) -> None:
    c.fill(c.colour(*DARK_GREEN))
    c.veil(c.colour(*GRASS), (c.field(13) > 0.4).float() * 0.6)
    c.shade(1 + 0.18 * c.rng.normal(*c.u.shape))


def _river(c: Canvas) -> None:
    _meadow(c)
    bank = (c.u + 0.35 * exact.sin(2.5 * c.v + 0.4 * c.field(5))).abs() - 0.17
    c.paint(c.colour(*WATER), bank)


def _highway(c: Canvas) -> None:
    _meadow(c)
    middle = (c.u + 0.12 * c.v * c.v).abs()
    c.paint(c.colour(*CONCRETE), middle - 0.15)
    c.veil(c.colour(*PALE), coverage(middle) * 0.7)


def _houses(c: LandCanvas) -> None:
    _meadow(c)
    size = c.frequency * 0.45
    c.paint(c.colour(*ROOF), (fraction(c.u * size) < 0.55) & (fraction(c.v * size) < 0.5))
    c.paint(c.colour(*CONCRETE), fraction(c.v * size / 2) < 0.2)


def _factory(c: LandCanvas) -> None:
    c.fill(c.colour(*CONCRETE) * 0.8)
    lumps, size = c.field(5), c.frequency * 0.16
    hall = (fraction(c.u * size + 0.2 * lumps) < 0.62) & (fraction(c.v * size) < 0.7)
    c.paint(c.colour(*PALE), hall)
    c.paint(c.colour(*WATER), hall & (lumps > 0.8), 0.6)


def _cropland(c: LandCanvas) -> None:
    soil = c.colour(*SOIL)
    c.fill(soil)
    c.paint(c.colour(*GRASS), fraction(c.u * 0.9) < 0.5, 0.7)
    c.veil(soil * 0.7, stripes(c.frequency * 2.2 * c.v) * 0.35)


def _pasture(c: Canvas) -> None:
    _meadow(c)
    c.shade(torch.full_like(c.u, 1.08))


def _lake(c: Canvas) -> None:
    _meadow(c)
    c.paint(c.colour(*WATER), radius(c.u, c.v * 1.2) - 0.85 + 0.22 * c.field(5))


def _orchard(c: LandCanvas) -> None:
    _meadow(c)
    c.veil(c.colour(*SOIL), torch.full_like(c.u, 0.5))
    size = c.frequency * 1.2
    c.paint(c.colour(*DARK_GREEN), exact.cos(size * c.u) + exact.cos(size * c.v) > 0.5)


def _heath(c: Canvas) -> None:
    c.fill(c.colour(*SCRUB))
    c.paint(c.colour(*SOIL), c.field(13) > 0.2, 0.55)
    c.shade(1 + 0.06 * c.rng.normal(*c.u.shape))


LAND_PAINTERS = dict(
    forest=_forest, river=_river, highway=_highway, houses=_houses, factory=_factory,
    cropland=_cropland, pasture=_pasture, lake=_lake, orchard=_orchard, heath=_heath,
)  # fmt: skip


def land(rng: Rng, index: Tensor, angle: Tensor, frequency: Tensor, jitter: float) -> Tensor:
    """Return images (n, 3, S, S) of land cover `LAND[index]` from above.

    Args:
        rng: Draws positions and colours.
        index: Classes (n,).
        angle: Rotations in radians (n,).
        frequency: Of fields, houses and trees (n,).
        jitter: Standard deviation of colours, which run from 0 to 1.
    """
    n = len(index)
    one = torch.ones(n)
    u, v = local(rng.uniform(n, -0.3, 0.3), rng.uniform(n, -0.3, 0.3), one, angle)
    painters = [LAND_PAINTERS[name] for name in LAND]
    return render(LandCanvas, painters, index, rng, (u, v, one), jitter, frequency=frequency)


# --- places -------------------------------------------------------------------------------------

_GREY, _WHITE = (0.5, 0.5, 0.5), (0.88, 0.88, 0.86)
_CLAY, _GREEN = (0.62, 0.45, 0.3), (0.4, 0.52, 0.3)
_SAND, _RED = (0.85, 0.77, 0.55), (0.7, 0.35, 0.28)


def _ground(c: Canvas) -> None:
    c.fill(c.colour(0.4, 0.52, 0.3), 10, 0.12)


def _sea(c: Canvas) -> None:
    c.fill(c.colour(0.15, 0.35, 0.6), 10, 0.08)


def _airport(c: Canvas) -> None:
    _ground(c)
    asphalt, white, u, v = c.colour(*_GREY), c.colour(*_WHITE), c.u, c.v
    c.paint(asphalt, union(box(u, v, 0.16, 1.6), box(u - 0.55, v - 0.3, 0.3, 0.35)))
    c.paint(white, union(box(u - 0.5, v - 0.3, 0.06, 0.24), box(u - 0.5, v - 0.25, 0.22, 0.05)))
    c.paint(white, (u.abs() < 0.03) & (fraction(v * 4) < 0.5))


def _bridge(c: Canvas) -> None:
    _sea(c)
    c.paint(c.colour(*_GREY), box(c.u, c.v, 1.6, 0.16))
    c.paint(c.colour(*_WHITE), (c.v.abs() - 0.17).abs() - 0.03)


def _roundabout(c: Canvas) -> None:
    _ground(c)
    roads = union(box(c.u, c.v, 1.6, 0.14), box(c.u, c.v, 0.14, 1.6))
    c.paint(c.colour(*_GREY), union(roads, radius(c.u, c.v) - 0.55))
    c.paint(c.colour(*_GREEN), radius(c.u, c.v) - 0.26)


def _harbor(c: Canvas) -> None:
    _sea(c)
    u, v = c.u, c.v
    c.paint(c.colour(*_GREY), box(u, v + 0.85, 2, 0.35))
    c.paint(c.colour(*_CLAY), intersection((fraction(u * 1.6) - 0.5).abs() / 1.6 - 0.06, v - 0.4))
    berth = (fraction(u * 1.6 + 0.25) < 0.2) | (fraction(u * 1.6 + 0.75) < 0.2)
    c.paint(c.colour(*_WHITE), berth & (fraction(v * 3) < 0.7) & (v < 0.35) & (v > -0.45))


def _crossroads(c: Canvas) -> None:
    _ground(c)
    u, v = c.u, c.v
    c.paint(c.colour(*_GREY), union(box(u, v, 1.6, 0.18), box(u, v, 0.18, 1.6)))
    near, far = union(u.abs(), v.abs()), intersection(u.abs(), v.abs())
    dashes = ((u.abs() < 0.03) | (v.abs() < 0.03)) & (near < 0.05) & (far > 0.25)
    c.paint(c.colour(*_WHITE), dashes)


def _parking(c: Canvas) -> None:
    c.fill(c.colour(*_GREY), 10, 0.08)
    u, v = c.u, c.v
    c.paint(c.colour(*_WHITE), (fraction(u * 4) < 0.2) & (fraction(v * 1.2) < 0.7))
    bay = (fraction(u * 4 - 0.35) < 0.5) & (fraction(v * 1.2 - 0.1) < 0.45)
    c.paint(c.colour(*_RED), bay & (c.field(5) > -0.1))


def _baseball(c: Canvas) -> None:
    _ground(c)
    u, v = c.u, c.v
    fan = intersection(-(u + v) * 0.7 - 0.7, (u - v) * 0.7 - 0.7, radius(u, v + 0.9) - 1.15)
    c.paint(c.colour(*_CLAY), fan)
    c.paint(c.colour(*_GREEN), (u.abs() + (v + 0.3).abs()) * 0.7 - 0.33)


def _round_farm(c: Canvas) -> None:
    c.fill(c.colour(*_SAND), 10, 0.08)
    disc = radius(c.u, c.v) - 0.75
    c.paint(c.colour(0.15, 0.2, 0.18), disc)
    c.paint(c.colour(*_GREEN), intersection(disc, (exact.atan2(c.u, c.v) - 0.6).abs() - 0.5))


def _tennis(c: Canvas) -> None:
    _ground(c)
    u, v, white = c.u, c.v, c.colour(*_WHITE)
    c.paint(c.colour(*_RED), box(u, v, 0.55, 0.85))
    lines = union(box(u, v, 0.42, 0.7).abs() - 0.035, box(u, v, 0.55, 0.03), box(u, v, 0.03, 0.4))
    c.paint(white, lines)


def _stadium(c: Canvas) -> None:
    c.fill(c.colour(*_GREY) * 0.7, 10, 0.08)
    oval = radius(c.u * 1.26, c.v)
    c.paint(c.colour(*_GREY), oval - 0.95)
    c.paint(c.colour(*_RED), oval - 0.7)
    c.paint(c.colour(*_GREEN), radius(c.u * 1.34, c.v) - 0.52)


def _island(c: Canvas) -> None:
    _sea(c)
    shore = radius(c.u, c.v) + 0.18 * c.field(5)
    c.paint(c.colour(*_SAND), shore - 0.62)
    c.paint(c.colour(*_GREEN), shore - 0.45)


def _beach(c: Canvas) -> None:
    _sea(c)
    shore = c.u - 0.15 + 0.12 * c.field(5)
    c.paint(c.colour(*_SAND), shore)
    c.paint(c.colour(*_WHITE), (shore - 0.05).abs() - 0.05)
    c.paint(c.colour(*_GREEN), shore + 0.7)


def _tanks(c: Canvas) -> None:
    c.fill(c.colour(*_CLAY), 10, 0.08)
    tank = radius(fraction(c.u * 1.2 + 0.5) - 0.5, fraction(c.v * 1.2 + 0.5) - 0.5)
    c.paint(c.colour(*_WHITE), tank - 0.34)
    c.paint(c.colour(*_GREY), tank - 0.1)


def _railway(c: Canvas) -> None:
    c.fill(c.colour(*_CLAY), 10, 0.08)
    u, v = c.u, c.v
    c.paint(c.colour(*_GREY) * 0.8, box(u, v, 0.5, 2))
    c.paint(c.colour(*_CLAY) * 0.6, (fraction(v * 4) < 0.4) & (u.abs() < 0.42))
    c.paint(c.colour(*_WHITE) * 0.8, ((u.abs() - 0.3).abs() < 0.05) | (u.abs() < 0.04))


def _pool(c: Canvas) -> None:
    _ground(c)
    c.paint(c.colour(*_WHITE), box(c.u, c.v, 0.62, 0.45))
    c.paint(c.colour(0.11, 0.59, 0.74), box(c.u, c.v, 0.5, 0.33))
    c.paint(c.colour(*_RED), box(c.u + 0.2, c.v + 1, 0.6, 0.3))


PLACE_PAINTERS = {
    "airport": _airport, "bridge": _bridge, "roundabout": _roundabout, "harbor": _harbor,
    "crossroads": _crossroads, "parking": _parking, "baseball field": _baseball,
    "round farm": _round_farm, "tennis court": _tennis, "stadium": _stadium, "island": _island,
    "beach": _beach, "storage tanks": _tanks, "railway": _railway, "pool": _pool,
}  # fmt: skip


def places(rng: Rng, index: Tensor, angle: Tensor, scale: Tensor, jitter: float) -> Tensor:
    """Return images (n, 3, S, S) of the place `PLACES[index]` from above.

    Args:
        rng: Draws positions and colours.
        index: Classes (n,).
        angle: Rotations in radians (n,).
        scale: Half sizes in canvas units (n,).
        jitter: Standard deviation of colours, which run from 0 to 1.
    """
    n = len(index)
    u, v = local(rng.uniform(n, -0.15, 0.15), rng.uniform(n, -0.15, 0.15), scale, angle)
    painters = [PLACE_PAINTERS[name] for name in PLACES]
    return render(Canvas, painters, index, rng, (u, v, scale), jitter)
