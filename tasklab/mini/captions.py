"""Pictures with true captions, of nine kinds.

Captions are incomplete, as on the web: some name the colour and not the thing. What pre-training
makes of them is in `pretraining.stream`.

A picture also has its content as numbers: the thing (`noun`) and, where it was drawn apart, its
colour or outline (`attribute`), from which the classes of supervised pre-training are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tasklab.mini import catalog
from tasklab.mini.aerial import land, places
from tasklab.mini.camera import Camera
from tasklab.mini.draw import (
    COLOUR_NAMES,
    COLOUR_TABLE,
    GRID_Y,
    Rng,
    blend,
    column,
    coverage,
    flat,
    local,
    palette,
)
from tasklab.mini.landscapes import landscapes
from tasklab.mini.machines import signs, vehicles
from tasklab.mini.shapes import FONTS, glyph_alpha, shape_alpha
from tasklab.mini.textures import texture, textured_background

TIDY = Camera(noise=0.05, contrast=0.2)
_COLOURS = len(COLOUR_NAMES)
# How captions say what is drawn, one of each at random.
_THING = (
    "a {colour} {shape}", "a photo of a {shape}", "a picture of a {shape}",
    "a {colour} {shape} on a background", "a {colour} object", "a {size} {shape}",
)  # fmt: skip
_ON_PLAIN = ("a {colour} {shape} on {ground}", "a {shape} on {ground} background")
_OF_CLOTH = ("a {cloth} {shape}", "a {cloth} {colour} {shape}")
_CHARACTER = (
    "the {kind} {name}", "a {ink} {kind} {name}", "the {kind} {name} on {ground}",
    "a {kind} , {ink} on {ground}", "a printed {kind} {name}",
)  # fmt: skip
_TWO = (
    "a {a} {p} and a {b} {q}", "a {p} next to a {q}", "two objects , {a} and {b}",
    "a {p} and a {q}", "a {a} {p} left of a {q}",
)  # fmt: skip
_SURFACES = (
    "a {name} pattern", "a {a} and {b} {name} surface", "a {name} texture", "a {b} pattern",
)  # fmt: skip
_ROAD = (
    "a photo of a {finish}{name}", "a {colour} {name}", "a {finish}{colour} {name}",
    "a {colour} {name} vehicle", "a {finish}vehicle",
)  # fmt: skip
_SIGN = (
    "a {colour} {outline} sign with {mark}", "a {outline} sign", "a {colour} sign with {mark}",
    "a sign with {mark}",
)  # fmt: skip


class Drawn(NamedTuple):
    """Pictures (n, 3, S, S), their true captions, and their content as numbers (n,)."""

    image: Tensor
    captions: list[str]
    noun: Tensor
    attribute: Tensor
    tone: Tensor  # index of the main colour's name; 0 where nothing has one


def _other(rng: Rng, index: Tensor) -> Tensor:
    return (index + 1 + rng.integers(len(index), _COLOURS - 1)) % _COLOURS


def _background(rng: Rng, colour: Tensor, plain: Tensor) -> Tensor:
    images = flat(palette(rng, colour, 0.05)), textured_background(rng, len(colour), 0.2)
    return torch.where(plain[:, None, None, None], *images)


def _said(rng: Rng, forms: tuple[str, ...], **words: tuple[tuple[str, ...], Tensor]) -> list[str]:
    """Return a caption of each picture in one of the forms, with words given by names and index."""
    listed = ([names[k] for k in index.tolist()] for names, index in words.values())
    rows = (dict(zip(words, row, strict=True)) for row in zip(*listed, strict=True))
    return [rng.choice(forms).format(**row) for row in rows]


def _one_object(rng: Rng, n: int) -> Drawn:
    behind, kind, surface = rng.integers(n, _COLOURS), rng.integers(n, 20), rng.integers(n, 16)
    ink = _other(rng, behind)
    plain, patterned, size = rng.chance(n, 0.6), rng.chance(n, 0.25), rng.uniform(n, 0.35, 0.9)
    image = _background(rng, behind, plain)
    dx, dy, angle = (rng.uniform(n, -most, most) for most in (0.3, 0.3, 0.35))
    u, v = local(dx, dy, size, angle)
    alpha = shape_alpha(kind, u, v, size)
    image = blend(image, palette(rng, ink, 0.05), alpha)
    pattern = texture(rng, surface, u, v, rng.uniform(n, 6, 10))
    image = blend(image, 1 - COLOUR_TABLE[ink], alpha * pattern * 0.7 * column(patterned.float()))

    captions = []
    for i in range(n):
        named = {"colour": COLOUR_NAMES[ink[i]], "ground": COLOUR_NAMES[behind[i]]}
        named |= {"shape": catalog.SHAPES[kind[i]], "cloth": catalog.TEXTURES[surface[i]]}
        named |= {"size": "big" if size[i] > 0.65 else "small"}
        forms = _THING + _ON_PLAIN * bool(plain[i]) + _OF_CLOTH * bool(patterned[i])
        captions.append(rng.choice(forms).format(**named))
    return Drawn(TIDY(rng, image), captions, kind, ink, ink)


def _two_objects(rng: Rng, n: int) -> Drawn:
    behind = rng.integers(n, _COLOURS)
    image = _background(rng, behind, rng.chance(n, 0.6))
    inks, kinds = (_other(rng, behind), _other(rng, behind)), rng.integers(2 * n, 20).view(2, n)
    x = rng.uniform(n, -0.6, -0.4)
    for side, ink, kind in zip((1, -1), inks, kinds, strict=True):
        size = rng.uniform(n, 0.28, 0.45)
        u, v = local(side * x, rng.uniform(n, -0.3, 0.3), size, rng.uniform(n, -0.35, 0.35))
        image = blend(image, palette(rng, ink, 0.05), shape_alpha(kind, u, v, size))
    a, b = ((COLOUR_NAMES, ink) for ink in inks)
    p, q = ((catalog.SHAPES, kind) for kind in kinds)
    captions = _said(rng, _TWO, a=a, b=b, p=p, q=q)
    return Drawn(TIDY(rng, image), captions, kinds[0], torch.zeros_like(behind), inks[0])


def _textures(rng: Rng, n: int) -> Drawn:
    kind, first = rng.integers(n, 16), rng.integers(n, _COLOURS)
    second = _other(rng, first)
    x, y = rng.uniform(n, -0.5, 0.5), rng.uniform(n, -0.5, 0.5)
    u, v = local(x, y, torch.ones(n), rng.uniform(n, -0.2, 0.2))
    values = texture(rng, kind, u, v, rng.uniform(n, 6, 12))
    image = blend(flat(palette(rng, first)), palette(rng, second), values)
    a, b = ((COLOUR_NAMES, index) for index in (first, second))
    captions = _said(rng, _SURFACES, name=(catalog.TEXTURES, kind), a=a, b=b)
    return Drawn(TIDY(rng, image), captions, kind, torch.zeros_like(kind), first)


def _glyphs(rng: Rng, n: int) -> Drawn:
    character = torch.where(rng.chance(n, 0.65), rng.integers(n, 10), 10 + rng.integers(n, 26))
    ground = rng.integers(n, _COLOURS)
    ink = _other(rng, ground)
    inverse = rng.chance(n, 0.35)  # white on black
    ground = torch.where(inverse, COLOUR_NAMES.index("black"), ground)
    ink = torch.where(inverse, COLOUR_NAMES.index("white"), ink)
    font, pose = rng.integers(n, len(FONTS)), rng.pose(n, (-0.2, 0.2), (0.5, 0.95), (-0.15, 0.15))
    limits = {"shear": (-0.2, 0.2), "warp": (0, 0.09), "stroke": (0.2, 1.0)}
    bent = {name: rng.uniform(n, *between) for name, between in limits.items()}
    alpha = glyph_alpha(rng, character, font, pose, **bent)
    image = blend(flat(palette(rng, ground, 0.04)), palette(rng, ink, 0.04), alpha)
    captions = []
    for i in range(n):
        name, kind = catalog.GLYPHS[character[i]], "digit" if character[i] < 10 else "letter"
        colours = {"ground": COLOUR_NAMES[ground[i]], "ink": COLOUR_NAMES[ink[i]]}
        forms = _CHARACTER + ("the number {name}",) * (kind == "digit")
        captions.append(rng.choice(forms).format(kind=kind, name=name, **colours))
    image = Camera(noise=0.06, contrast=0.2, blur=0.4)(rng, image)
    return Drawn(image, captions, character, torch.zeros_like(character), ink)


def _named(
    rng: Rng, image: Tensor, index: Tensor, names: tuple[str, ...], forms: tuple[str, ...]
) -> Drawn:
    captions = [rng.choice(forms).format(names[k]) for k in index.tolist()]
    image = Camera(noise=0.04, contrast=0.15)(rng, image)
    zero = torch.zeros_like(index)
    return Drawn(image, captions, index, zero, zero)


def _land(rng: Rng, n: int) -> Drawn:
    kind = rng.integers(n, len(catalog.LAND))
    image = land(rng, kind, rng.uniform(n, -0.3, 0.3), rng.uniform(n, 6, 8), 0.04)
    forms = ("an aerial view of {}", "a satellite photo of {}", "{} from above")
    return _named(rng, image, kind, catalog.LAND, (*forms, "a satellite photo of land"))


def _places(rng: Rng, n: int) -> Drawn:
    kind = rng.integers(n, len(catalog.PLACES))
    image = places(rng, kind, rng.uniform(n, -0.4, 0.4), rng.uniform(n, 0.8, 1.05), 0.05)
    forms = ("an aerial photo of a {}", "satellite imagery of a {}", "a {} from above")
    return _named(rng, image, kind, catalog.PLACES, (*forms, "an aerial photo of a place"))


def _scenes(rng: Rng, n: int) -> Drawn:
    kind = rng.integers(n, len(catalog.SCENES))
    image = landscapes(rng, kind, rng.uniform(n, 0.0, 0.3), 0.05)
    forms = ("a photo of a {}", "a scene with a {}", "a landscape , {}")
    return _named(rng, image, kind, catalog.SCENES, (*forms, "a photo of a landscape"))


def _vehicles(rng: Rng, n: int) -> Drawn:
    kind, ink = rng.integers(n, len(catalog.VEHICLES)), rng.integers(n, _COLOURS)
    striped = rng.chance(n, 0.4)
    image = flat(palette(rng, _other(rng, ink), 0.05))
    road = torch.full((n, 3), 0.4) + rng.normal(n, 3) * 0.05
    image = blend(image, road, coverage(0.5 - GRID_Y.expand(n, -1, -1)))
    colour, pose = palette(rng, ink, 0.05), rng.pose(n, (-0.08, 0.08), (0.8, 0.95), (-0.08, 0.08))
    facing = torch.sign(rng.uniform(n, -1, 1))
    image = vehicles(rng, image, kind, colour, striped.float(), pose, facing)
    captions = []
    for i in range(n):
        finish = "striped " if striped[i] else rng.choice(["plain ", ""])
        named = {"name": catalog.VEHICLES[kind[i]], "colour": COLOUR_NAMES[ink[i]]}
        captions.append(rng.choice(_ROAD).format(finish=finish, **named))
    return Drawn(Camera(noise=0.04, contrast=0.15)(rng, image), captions, kind, ink, ink)


def _signs(rng: Rng, n: int) -> Drawn:
    plate, symbol = rng.integers(n, len(catalog.PLATES)), rng.integers(n, len(catalog.SYMBOLS))
    rim_name = rng.integers(n, len(catalog.RIMS))
    rim = torch.tensor([COLOUR_NAMES.index(name) for name in catalog.RIMS])[rim_name]
    plain = flat(torch.rand(n, 3, generator=rng.generator))
    busy = textured_background(rng, n, 0.15)
    image = torch.where(rng.chance(n, 0.5)[:, None, None, None], plain, busy)
    pose, font = rng.pose(n, (-0.1, 0.1), (0.7, 0.95), (-0.1, 0.1)), rng.integers(n, len(FONTS))
    image = signs(rng, image, plate, rim, symbol, pose, font)
    colour, outline, mark = (
        (catalog.RIMS, rim_name), (catalog.PLATES, plate), (catalog.SYMBOLS, symbol)
    )  # fmt: skip
    captions = _said(rng, _SIGN, colour=colour, outline=outline, mark=mark)
    return Drawn(Camera(noise=0.04, contrast=0.15)(rng, image), captions, symbol, plate, rim_name)


# kind of picture -> its share of the pre-training data
KINDS: dict[str, tuple[Callable[[Rng, int], Drawn], float]] = {
    "one object": (_one_object, 0.20),
    "two objects": (_two_objects, 0.07),
    "textures": (_textures, 0.12),
    "characters": (_glyphs, 0.19),
    "land cover": (_land, 0.08),
    "places": (_places, 0.10),
    "scenes": (_scenes, 0.10),
    "vehicles": (_vehicles, 0.08),
    "signs": (_signs, 0.06),
}
