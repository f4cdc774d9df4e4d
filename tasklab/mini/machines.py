"""Vehicles from the side and road signs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tasklab.mini.catalog import PLATES, SYMBOLS, VEHICLES
from tasklab.mini.draw import (
    Pose,
    Rng,
    blend,
    box,
    column,
    coverage,
    intersection,
    local,
    palette,
    polygon,
    radius,
    union,
)
from tasklab.mini.shapes import DISTANCES, arrow, glyph_alpha, saltire

# One row a vehicle, all in half widths or heights of the frame:
# body length, body height, cab x, cab width, cab height, slant of the windows,
# box x, box width, box height, number of wheels, wheel radius
_BODIES = {
    "sedan": (0.85, 0.20, -0.05, 0.42, 0.26, 0.45, 0, 0, 0, 2, 0.17),
    "hatchback": (0.65, 0.22, -0.10, 0.45, 0.30, 0.25, 0, 0, 0, 2, 0.17),
    "van": (0.80, 0.25, -0.12, 0.66, 0.42, 0.15, 0, 0, 0, 2, 0.16),
    "bus": (0.95, 0.30, 0.00, 0.93, 0.45, 0.00, 0, 0, 0, 3, 0.13),
    "truck": (0.95, 0.14, 0.68, 0.24, 0.48, 0.10, -0.28, 0.62, 0.55, 3, 0.15),
    "pickup": (0.90, 0.20, 0.18, 0.26, 0.32, 0.20, 0, 0, 0, 2, 0.20),
    "coupe": (0.90, 0.17, -0.15, 0.36, 0.20, 0.80, 0, 0, 0, 2, 0.16),
    "jeep": (0.68, 0.28, -0.05, 0.50, 0.34, 0.00, 0, 0, 0, 2, 0.26),
    "tanker": (0.95, 0.12, 0.70, 0.22, 0.42, 0.10, -0.28, 0.62, 0.0, 3, 0.15),
    "tractor": (0.60, 0.22, -0.25, 0.25, 0.48, 0.00, 0, 0, 0, 2, 0.30),
}
_BODY_TABLE = torch.tensor([_BODIES[name] for name in VEHICLES], dtype=torch.float32)
_WHEEL_HEIGHT = 0.25


def vehicles(
    rng: Rng,
    image: Tensor,
    index: Tensor,
    colour: Tensor,
    striped: Tensor,
    pose: Pose,
    facing: Tensor,
) -> Tensor:
    """Return the images with the vehicle `VEHICLES[index]` drawn over them.

    Args:
        rng: Draws everything random.
        image: Backgrounds (n, 3, S, S).
        index: Classes (n,).
        colour: Of the vehicles (n, 3).
        striped: (n,) 1 for a contrasting stripe along the body, else 0.
        pose: Places, sizes and rotations of the things.
        facing: (n,) +1 or -1.
    """
    n, scale = len(index), pose.scale
    u, v = local(*pose)
    u = u * column(facing)
    table = _BODY_TABLE[index]
    table = table + rng.normal(*table.shape) * 0.012 * (table != 0)
    length, height, cab_x, cab_w, cab_h, slant, box_x, box_w, box_h, wheels, wheel = (
        column(table[:, i]) for i in range(11)
    )
    kind = column(index)
    nothing = torch.full_like(u, 9.0)
    roof = _WHEEL_HEIGHT - height
    narrowing = slant * (roof - v).clamp(min=0) * 0.9

    body = box(u, v - _WHEEL_HEIGHT, length, height)
    middle = (v - (roof - cab_h / 2)).abs()
    cab = intersection((u - cab_x).abs() - cab_w + narrowing, middle - cab_h / 2 - 0.02)
    cargo = box(u - box_x, v - (roof - box_h / 2), box_w, box_h / 2 + 0.03)
    tank = radius((u + 0.25) / 0.62, v / 0.26) * 0.3 - 0.3
    load = union(
        torch.where((box_w > 0.01) & (box_h > 0.01), cargo, nothing),
        torch.where(kind == VEHICLES.index("tanker"), tank, nothing),
    )
    image = blend(image, colour * 0.6, coverage(load, scale))
    image = blend(image, colour, coverage(union(body, cab), scale))
    window = intersection((u - cab_x).abs() - cab_w * 0.75 + narrowing, middle - cab_h * 0.28)
    image = blend(image, torch.tensor([[0.65, 0.75, 0.87]]).expand(n, 3), coverage(window, scale))
    stripe = coverage(box(u, v - _WHEEL_HEIGHT, length, 0.06), scale)
    image = blend(image, 1 - colour, stripe * column(striped))

    axle = _WHEEL_HEIGHT + height
    tractor = kind == VEHICLES.index("tractor")
    for k in range(3):
        three = torch.full_like(length, (-0.65, 0.0, 0.65)[k])
        x = torch.where(wheels > 2.5, three, (-0.6, 0.6, 0.6)[k] * length / 0.85)
        size = torch.where(tractor, wheel * (0.6 if k else 1.0), wheel)
        tyre = radius(u - x, v - axle) - size
        image = blend(image, torch.full((n, 3), 0.06), coverage(tyre, scale))
        image = blend(image, torch.full((n, 3), 0.6), coverage(tyre + size * 0.6, scale))
    return image


_DRAWN_SYMBOLS = {
    "arrow": arrow,
    "cross": saltire,
    "bar": DISTANCES["bar"],
    "dot": lambda u, v: radius(u, v) - 0.5,
}
# index into catalog.GLYPHS of every symbol that is a character, 0 for the drawn ones
_CHARACTERS = torch.tensor([0, 0, 0, 0, 1, 3, 5, 8, 10, 25, 17])


def signs(
    rng: Rng, image: Tensor, plate: Tensor, rim: Tensor, symbol: Tensor, pose: Pose, font: Tensor
) -> Tensor:
    """Return the images with a road sign drawn over them.

    Args:
        rng: Draws everything random.
        image: Backgrounds (n, 3, S, S).
        plate, symbol: (n,) indices into `PLATES` and `SYMBOLS`.
        rim, font: (n,) indices into `draw.COLOUR_NAMES` and `shapes.FONTS`.
        pose: Places, sizes and rotations of the things.
    """
    n, (dx, dy, scale, angle) = len(plate), pose
    u, v = local(*pose)
    round_, three = radius(u, v) - 0.95, polygon(u, v - 0.15, 3, 0.55, math.pi)
    eight, diamond = polygon(u, v, 8, 0.9), (u.abs() + v.abs()) * 0.72 - 0.78
    outlines = torch.stack([round_, three, eight, diamond, box(u, v, 0.85, 0.85)])  # as `PLATES`
    outline = outlines[plate, torch.arange(n)]
    image = blend(image, palette(rng, rim, 0.05), coverage(outline, scale))
    face = torch.tensor([0.93, 0.93, 0.9]) + rng.normal(n, 3) * 0.04
    image = blend(image, face, coverage(outline + 0.2, scale))

    low = plate == PLATES.index("triangle")  # the symbol of a triangle sits lower and is smaller
    size = scale * torch.where(low, 0.38, 0.55)
    at = Pose(dx, dy + scale * torch.where(low, 0.16, 0.0), size, angle)
    su, sv = local(*at)
    alpha = torch.zeros_like(u)
    for k, name in enumerate(SYMBOLS):
        m = symbol == k
        if name in _DRAWN_SYMBOLS and m.any():
            alpha[m] = coverage(_DRAWN_SYMBOLS[name](su[m], sv[m]), size[m])
    m = symbol >= len(_DRAWN_SYMBOLS)
    if m.any():
        bold = torch.full((int(m.sum()),), 0.8)
        own = Pose(*(part[m] for part in at._replace(scale=size * 1.15)))
        alpha[m] = glyph_alpha(rng, _CHARACTERS[symbol[m]], font[m], own, stroke=bold)
    ink = torch.tensor([0.08, 0.08, 0.1]) + rng.normal(n, 3) * 0.04
    return blend(image, ink, alpha)
