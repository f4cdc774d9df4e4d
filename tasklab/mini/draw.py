"""Drawing by signed distances: coordinates, coverage, compositing, noise.

Axes: n images, S = 32 pixels a side, coordinates in [-1, 1] with y downwards. A *distance* is a
signed distance field (n, S, S), negative inside; a *mask* is a boolean field of the same shape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.catalog import COLOURS

Range = tuple[float, float]
SIZE = 32
PIXEL = 2 / SIZE
COLOUR_TABLE = torch.tensor(list(COLOURS.values()))
COLOUR_NAMES = tuple(COLOURS)
_axis = (torch.arange(SIZE) + 0.5) * PIXEL - 1
GRID_Y, GRID_X = torch.meshgrid(_axis, _axis, indexing="ij")


class Pose(NamedTuple):
    """Where things stand in their pictures: shift, half size and rotation in radians, each (n,)."""

    dx: Tensor
    dy: Tensor
    scale: Tensor
    angle: Tensor


class Rng:
    """Random numbers for n images at a time, all from one generator."""

    def __init__(self, *seed: int) -> None:
        mixed = 0
        for part in seed:  # a stable mix, so that neighbouring seeds give unrelated streams
            mixed = (mixed * 6364136223846793005 + part + 1442695040888963407) % 2**63
        self.generator = torch.Generator().manual_seed(mixed)
        self.words = random.Random(mixed)

    def uniform(self, n: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return (n,) numbers uniform in [low, high).

        Args:
            n: Number of images.
            low, high: Ends of the range.
        """
        return torch.rand(n, generator=self.generator) * (high - low) + low

    def integers(self, n: int, high: int) -> Tensor:
        """Return (n,) integers uniform in [0, high)."""
        return torch.randint(0, high, (n,), generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers of the given shape."""
        return exact.normal(shape, self.generator)

    def chance(self, n: int, p: float) -> Tensor:
        """Return (n,) booleans that are true with probability p."""
        return self.uniform(n) < p

    def pose(self, n: int, shift: Range, size: Range, turn: Range) -> Pose:
        """Return n poses, each part uniform in its range.

        Args:
            n: Number of images.
            shift: Range of both coordinates of the middle.
            size: Range of half sizes.
            turn: Range of rotations in radians.
        """
        return Pose(*(self.uniform(n, *limits) for limits in (shift, shift, size, turn)))

    def choice(self, items: Sequence[str]) -> str:
        """Return one of the items."""
        return self.words.choice(items)


def column(values: Tensor) -> Tensor:
    """Return (n,) values as (n, 1, 1), to broadcast over pixels."""
    return values[:, None, None]


def local(
    dx: Tensor, dy: Tensor, scale: Tensor, angle: Tensor, aspect: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return pixel coordinates (u, v) in frames moved, turned and scaled per image.

    Args:
        dx: Horizontal shifts (n,).
        dy: Vertical shifts (n,).
        scale: Half sizes (n,).
        angle: Rotations in radians (n,).
        aspect: Width by height (n,); `None` is 1.
    """
    x, y = GRID_X - column(dx), GRID_Y - column(dy)
    cos, sin = column(exact.cos(angle)), column(exact.sin(angle))
    u, v = (cos * x + sin * y) / column(scale), (cos * y - sin * x) / column(scale)
    return (u if aspect is None else u / column(aspect)), v


def coverage(distance: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return the share of each pixel inside, in [0, 1], for a distance in local units."""
    if scale is not None:
        distance = distance * column(scale)
    return (0.5 - distance / PIXEL).clamp(0, 1)


def flat(colour: Tensor) -> Tensor:
    """Return images (n, 3, S, S) of one colour (n, 3) each."""
    return colour[:, :, None, None].expand(-1, 3, SIZE, SIZE).clone()


def blend(image: Tensor, colour: Tensor, alpha: Tensor) -> Tensor:
    """Return images with a colour laid over them.

    Args:
        image: Pixels (n, 3, S, S) in [0, 1].
        colour: One per image (n, 3).
        alpha: Opacity in [0, 1] (n, S, S).
    """
    alpha = alpha[:, None]
    return image * (1 - alpha) + colour[:, :, None, None] * alpha


def palette(rng: Rng, index: Tensor, jitter: float = 0.06) -> Tensor:
    """Return named colours with noise (n, 3).

    Args:
        rng: Draws the noise.
        index: Places in `COLOUR_NAMES` (n,).
        jitter: Standard deviation of the noise; colours run from 0 to 1.
    """
    return (COLOUR_TABLE[index] + rng.normal(len(index), 3) * jitter).clamp(0, 1)


def field(rng: Rng, n: int, cells: int, channels: int = 1) -> Tensor:
    """Return smooth noise (n, channels, S, S) with features of S / cells pixels.

    Args:
        rng: Draws standard normal numbers.
        n: Number of images.
        cells: Numbers drawn along a side, between which the noise is interpolated.
        channels: Independent fields per image.
    """
    coarse = rng.normal(n, channels, cells, cells)
    return exact.resized(coarse, SIZE)


def fraction(x: Tensor) -> Tensor:
    """Return x - floor(x)."""
    return x - torch.floor(x)


def stripes(phase: Tensor) -> Tensor:
    """Return a soft square wave in [0, 1] of the phase in radians."""
    return (exact.sin(phase) * 2.5).clamp(-1, 1) * 0.5 + 0.5


def radius(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance to the origin, smoothed around it."""
    return exact.sqrt(u * u + v * v + 1e-9)


def box(u: Tensor, v: Tensor, half_width, half_height) -> Tensor:
    """Return the distance to an upright rectangle around the origin.

    Args:
        u, v: Local coordinates (n, S, S).
        half_width, half_height: Numbers, or fields (n, S, S).
    """
    return torch.maximum(u.abs() - half_width, v.abs() - half_height)


def polygon(u: Tensor, v: Tensor, sides: int, apothem: float, turn: float = 0.0) -> Tensor:
    """Return the distance to a regular polygon around the origin.

    Args:
        u, v: Local coordinates (n, S, S).
        sides: Number of sides.
        apothem: Distance of the sides from the origin.
        turn: Rotation in radians.
    """
    wedge = 2 * math.pi / sides
    angle = exact.remainder(exact.atan2(u, -v) + turn + wedge / 2, wedge) - wedge / 2
    return radius(u, v) * exact.cos(angle) - apothem


def union(*distances: Tensor) -> Tensor:
    """Return the distance to the union of shapes."""
    return torch.stack(torch.broadcast_tensors(*distances)).amin(0)


def intersection(*distances: Tensor) -> Tensor:
    """Return the distance to the intersection of shapes."""
    return torch.stack(torch.broadcast_tensors(*distances)).amax(0)


class Canvas:
    """A stack of n images of one class, painted in place.

    Args:
        rng: Draws everything random.
        u, v, scale, jitter: As the attributes; standard deviation of the noise on colours.

    Attributes:
        u, v: Local coordinates (n, S, S).
        scale: Local units per canvas unit (n,), which sets the width of an edge.
        image: The pixels so far, (n, 3, S, S) in [0, 1].
    """

    def __init__(self, rng: Rng, u: Tensor, v: Tensor, scale: Tensor, jitter: float) -> None:
        self.rng, self.u, self.v, self.scale, self.jitter = rng, u, v, scale, jitter
        self.image = torch.zeros(len(u), 3, SIZE, SIZE)

    def __len__(self) -> int:
        return len(self.u)

    def colour(self, r: float, g: float, b: float) -> Tensor:
        """Return a colour (n, 3) around (r, g, b), drawn anew for each image.

        Args:
            r, g, b: Mean of the colour in [0, 1]; `jitter` is its standard deviation.
        """
        return torch.tensor([r, g, b]) + self.rng.normal(len(self), 3) * self.jitter

    def field(self, cells: int) -> Tensor:
        """Return smooth noise (n, S, S)."""
        return field(self.rng, len(self), cells)[:, 0]

    def speckle(self) -> Tensor:
        """Return independent uniform numbers per pixel (n, S, S)."""
        return torch.rand(len(self), SIZE, SIZE, generator=self.rng.generator)

    def fill(self, colour: Tensor, cells: int = 0, grain: float = 0.0) -> None:
        """Cover every image with one colour.

        Args:
            colour: (n, 3).
            cells: Cells of a smooth unevenness along a side; 0 for none.
            grain: Its standard deviation, as a share of the brightness.
        """
        self.image = flat(colour)
        if cells:
            self.shade(1 + grain * self.field(cells))

    def shade(self, factor: Tensor) -> None:
        """Multiply the brightness by (n, S, S)."""
        self.image = self.image * factor[:, None]

    def paint(self, colour: Tensor, where: Tensor, opacity: float | Tensor = 1.0) -> None:
        """Lay a colour over a shape.

        Args:
            colour: (n, 3).
            where: The shape: a distance in local units, or a mask (n, S, S).
            opacity: From 0 to 1, a number or (n, S, S).
        """
        alpha = where.float() if where.dtype == torch.bool else coverage(where, self.scale)
        self.image = blend(self.image, colour, alpha * opacity)

    def veil(self, colour: Tensor, alpha: Tensor) -> None:
        """Lay a colour over everything with opacity (n, S, S)."""
        self.image = blend(self.image, colour, alpha)


def render(
    kind: type[Canvas],
    painters: Sequence[Callable[[Any], None]],
    index: Tensor,
    rng: Rng,
    at: tuple[Tensor, Tensor, Tensor],
    jitter: float,
    **own: Tensor,
) -> Tensor:
    """Return images (n, 3, S, S): each class is painted by its own function on its own canvas.

    Args:
        kind: Class of the canvases.
        painters: A function of a canvas for each class.
        index: Classes (n,).
        rng: Draws everything random.
        at: u, v (n, S, S) and scale (n,) of the canvases.
        jitter: Standard deviation of colours, which run from 0 to 1.
        **own: Further attributes of the canvases, (n,) each.
    """
    image = torch.zeros(len(index), 3, SIZE, SIZE)
    for k in index.unique().tolist():
        chosen = index == k
        u, v, scale = (part[chosen] for part in at)
        sheet = kind(rng, u, v, scale, jitter)
        vars(sheet).update({name: column(values[chosen]) for name, values in own.items()})
        painters[k](sheet)
        image[chosen] = sheet.image
    return image.clamp(0, 1)
