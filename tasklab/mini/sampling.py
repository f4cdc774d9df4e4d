"""Draw the images of the nine tasks.

`tasklab.mini.worlds` describes each task.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tasklab.errors import choose
from tasklab.isolation import isolated
from tasklab.mini import exact
from tasklab.mini.aerial import land, places
from tasklab.mini.camera import to_uint8
from tasklab.mini.catalog import PLATES, SIGNS, SYMBOLS, TASKS, VERSION
from tasklab.mini.draw import (
    COLOUR_NAMES,
    GRID_Y,
    SIZE,
    Pose,
    Rng,
    blend,
    column,
    coverage,
    field,
    flat,
    local,
    palette,
)
from tasklab.mini.landscapes import landscapes
from tasklab.mini.machines import signs, vehicles
from tasklab.mini.shapes import FONTS, glyph_alpha, shape_alpha
from tasklab.mini.textures import texture, textured_background
from tasklab.mini.worlds import LOOKS, Look
from tasklab.storage import shipped

SPLITS = ("train", "val", "test")
_SEEDS = {"train": 11, "val": 12, "test": 13}
_SHEETS = {"train": slice(997), "val": slice(997, 1297), "test": slice(1297, None)}  # of digits


def _vehicles(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    image = textured_background(rng, n, look.background)
    road = torch.full((n, 3), 0.4) + rng.normal(n, 3) * 0.1
    image = blend(image, road, coverage(column(rng.uniform(n, 0.3, 0.6)) - GRID_Y))
    colour = palette(rng, rng.integers(n, 12), look.jitter)
    pose, facing = rng.pose(n, look.shift, look.size, look.turn), torch.sign(rng.uniform(n, -1, 1))
    return vehicles(rng, image, y // 2, colour, (y % 2).float(), pose, facing)


def _textures(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    u, v = local(*rng.pose(n, look.shift, look.size, look.turn), rng.uniform(n, 0.75, 1.3))
    bend = field(rng, n, 4, 2) * 0.06
    values = texture(rng, y, u + bend[:, 0], v + bend[:, 1], rng.uniform(n, *look.frequency))
    first = torch.rand(n, 3, generator=rng.generator)
    step = torch.sign(rng.normal(n, 1)) * rng.uniform(n, *look.ink)[:, None]
    second = (first + step + rng.normal(n, 3) * 0.15).clamp(0, 1)
    return blend(flat(first), second, values) * (1 + 0.2 * field(rng, n, 3))


def _land(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    return land(rng, y, rng.uniform(n, *look.turn), rng.uniform(n, *look.frequency), look.jitter)


def _signs(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    parts = [(PLATES.index(p), COLOUR_NAMES.index(r), SYMBOLS.index(s)) for p, r, s in SIGNS]
    plate, rim, symbol = torch.tensor(parts)[y].T
    image = textured_background(rng, n, look.background)
    pose, font = rng.pose(n, look.shift, look.size, look.turn), rng.integers(n, len(FONTS))
    return signs(rng, image, plate, rim, symbol, pose, font)


@functools.cache
def written_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1,797 handwritten digits (n, 8, 8) in [0, 1], shuffled, and labels."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32) / 16
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def _handwritten(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    sources, labels = (part[_SHEETS[split]] for part in written_digits())
    small = torch.zeros(n, 8, 8)
    for digit in y.unique().tolist():
        m, pool = y == digit, sources[labels == digit]
        small[m] = pool[rng.integers(int(m.sum()), len(pool))]
    large = exact.resized(small[:, None], SIZE)
    u, v = local(*rng.pose(n, look.shift, look.size, look.turn))
    ink = exact.sampled(large, u, v).clamp(0, 1)
    return ink.expand(n, 3, SIZE, SIZE).clone()


def _places(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    return places(rng, y, rng.uniform(n, *look.turn), rng.uniform(n, *look.size), look.jitter)


def _scenes(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    image = landscapes(rng, y, rng.uniform(n, -0.1, 0.4), look.jitter)
    flip = rng.chance(n, 0.5)[:, None, None, None]
    image = torch.where(flip, image.flip(-1), image)
    u, v = local(*rng.pose(n, look.shift, look.size, look.turn))
    return exact.sampled(image, u, v, reflect=True)


def _house_numbers(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    wall = torch.rand(n, 3, generator=rng.generator)
    away = torch.where(exact.channel_mean(wall, 1) > 0.5, -1.0, 1.0)
    ink = (wall + (away * rng.uniform(n, *look.ink))[:, None] + rng.normal(n, 3) * 0.1).clamp(0, 1)
    image = flat(wall) * (1 + 0.2 * field(rng, n, 4))
    stroke, font = rng.uniform(n, 0.4, 1), rng.integers(n, len(FONTS))
    size, angle = rng.uniform(n, *look.size), rng.uniform(n, *look.turn)
    dx, dy = rng.uniform(n, -0.12, 0.12), rng.uniform(n, -0.15, 0.15)
    for side in (-1, 1):  # the neighbours in the number
        other = rng.integers(n, 10)
        beside = Pose(dx + side * size * 1.15, dy + rng.uniform(n, -0.1, 0.1), size, angle)
        neighbour = glyph_alpha(rng, other, font, beside, stroke=stroke)
        image = blend(image, ink, neighbour * column(rng.chance(n, look.others).float()))
    shear, warp, pose = rng.uniform(n, -0.2, 0.2), torch.full((n,), 0.04), Pose(dx, dy, size, angle)
    digit = glyph_alpha(rng, y, font, pose, shear=shear, warp=warp, stroke=stroke)
    return blend(image, ink, digit)


def _objects(rng: Rng, y: Tensor, split: str, look: Look) -> Tensor:
    n = len(y)
    image = textured_background(rng, n, look.background)
    for _ in range(2):  # small distractors
        size = rng.uniform(n, 0.12, 0.22)
        u, v = local(rng.uniform(n, -1, 1), rng.uniform(n, -1, 1), size, rng.uniform(n, 0, 6.28))
        alpha = shape_alpha(rng.integers(n, 20), u, v, size)
        image = blend(image, palette(rng, rng.integers(n, 12)), alpha)
    size = rng.uniform(n, *look.size)
    dx, dy, angle = (rng.uniform(n, *limits) for limits in (look.shift, look.shift, look.turn))
    u, v = local(dx, dy, size, angle, rng.uniform(n, 0.8, 1.25))
    return blend(image, palette(rng, rng.integers(n, 12), look.jitter), shape_alpha(y, u, v, size))


_DRAWERS: dict[str, Callable[[Rng, Tensor, str, Look], Tensor]] = {
    "Vehicles": _vehicles, "Textures": _textures, "LandCover": _land, "Signs": _signs,
    "Handwritten": _handwritten, "Places": _places, "Scenes": _scenes,
    "HouseNumbers": _house_numbers, "Objects": _objects,
}  # fmt: skip


@isolated
def sample(task: str, split: str, n: int) -> tuple[Tensor, Tensor]:
    """Return n images of a task, uint8 (n, 3, 32, 32), and labels int64 (n,), the same everywhere.

    Classes are balanced and shuffled. The splits are drawn from different seeds; those of the
    handwritten digits come from different sheets as well, so that no source is in two splits.

    Args:
        task: Name of a task.
        split: `"train"`, `"val"` or `"test"`.
        n: Number of images.
    """
    choose("task", task, _DRAWERS)
    choose("split", split, SPLITS)
    names = [t["name"] for t in TASKS]
    classes = len(TASKS[names.index(task)]["classes"])
    look, rng = LOOKS[task], Rng(2, _SEEDS[split], names.index(task))
    labels = torch.arange(n) % classes
    labels = labels[torch.randperm(n, generator=rng.generator)]
    draw = _DRAWERS[task]
    drawn = (draw(rng, part, split, look) for part in labels.split(1000))
    chunks = [to_uint8(look.camera(rng, images)) for images in drawn]
    return _corrected(torch.cat(chunks), f"{VERSION}/{task}/{split}/{n}"), labels


def _corrected(images: Tensor, name: str) -> Tensor:
    """Change the grey values of a split in which it differs from its first drawing, each by 1.

    The splits of `mini-2` were first drawn with library functions that round otherwise than those
    of `exact`: in 810 of 123 million grey values the difference survives the rounding to bytes.
    """
    images = images.contiguous()
    for change, at in _corrections().get(name, {}).items():
        images.view(-1)[torch.tensor(at, dtype=torch.int64)] += int(change) % 256
    return images


@functools.cache
def _corrections() -> dict[str, dict[str, list[int]]]:
    return json.loads(shipped.content(Path(__file__).with_name("corrections.json")))
