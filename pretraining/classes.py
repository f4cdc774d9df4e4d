"""Classes of the supervised models: things that are no class of the tasks, and kinds of picture."""

from __future__ import annotations

import torch
from torch import Tensor

from tasklab.mini.captions import KINDS
from tasklab.mini.catalog import COLOURS, GLYPHS, LETTERS, PLATES, RIMS, SHAPES

_KIND_NAMES = tuple(KINDS)
_DIGITS = len(GLYPHS) - len(LETTERS)
# Few classes, in this order: shapes, letters, outlines of signs, and kinds of picture.
_COARSE = ("two objects", "textures", "characters", "land cover", "places", "scenes", "vehicles")
FEW = (
    *SHAPES,
    *(f"letter {letter}" for letter in LETTERS),
    *(f"{plate} sign" for plate in PLATES),
    "two objects", "pattern", "digit", "land from above", "place from above", "landscape",
    "vehicle",
)  # fmt: skip
_UNTINTED = len(FEW) - 4, len(FEW) - 3, len(FEW) - 2  # from above and landscapes: of no one colour


def few(kind: Tensor, noun: Tensor, form: Tensor) -> Tensor:
    """Return the class (n,) of each picture, an index into `FEW`.

    Args:
        kind: Kind of each picture (n,).
        noun: What each picture shows (n,).
        form: Its form (n,).
    """
    first = len(SHAPES) + len(LETTERS)
    coarse = torch.full((len(_KIND_NAMES),), -1)
    for i, name in enumerate(_COARSE):
        coarse[_KIND_NAMES.index(name)] = first + len(PLATES) + i
    label = coarse[kind]
    label = torch.where(kind == _KIND_NAMES.index("one object"), noun, label)
    letter = (kind == _KIND_NAMES.index("characters")) & (noun >= _DIGITS)
    label = torch.where(letter, len(SHAPES) + noun - _DIGITS, label)
    return torch.where(kind == _KIND_NAMES.index("signs"), first + form, label)


def _many_names() -> tuple[str, ...]:
    names = []
    for i, name in enumerate(FEW):
        tones = RIMS if name.endswith(" sign") else ("",) if i in _UNTINTED else tuple(COLOURS)
        names += [f"{tone} {name}".strip() for tone in tones]
    return tuple(names)


MANY = _many_names()


def many(kind: Tensor, noun: Tensor, form: Tensor, tone: Tensor) -> Tensor:
    """Return the class (n,) of each picture, an index into `MANY`: one of `FEW` and its colour.

    Args:
        kind: Kind of each picture (n,).
        noun: What each picture shows (n,).
        form: Its form (n,).
        tone: Its colour (n,).
    """
    start, at = [], 0
    for i, name in enumerate(FEW):
        start.append(at)
        at += len(RIMS) if name.endswith(" sign") else 1 if i in _UNTINTED else len(COLOURS)
    return torch.tensor(start)[few(kind, noun, form)] + tone


CLASSES = {"few": FEW, "many": MANY}
