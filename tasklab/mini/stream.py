"""What the models learn from: the stream of pictures, captions and labels.

The pictures are those of `captions`; of the rough third, one in thirty is seen through each of the
filters of `styles`, so that the styles of the tasks are rare in pre-training and not unknown to it.
A picture also carries what it shows as numbers, from which supervised classes are made
(`labels`): things that are no class of the eight tasks, and elsewhere only which kind of picture
it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasklab.mini.camera import Camera
from tasklab.mini.captions import GENERIC, GENERIC_SHARE, KINDS, WRONG_SHARE, mixture
from tasklab.mini.catalog import COLOURS, GLYPHS, LETTERS, PLATES, RIMS, SHAPES, with_articles
from tasklab.mini.draw import Rng
from tasklab.mini.styles import FILTERS

RARE = tuple(Camera(filter=name, filtered=1 / 30) for name in FILTERS)
_KIND_NAMES = tuple(KINDS)


class Part(NamedTuple):
    """Some n pictures in random order.

    Attributes:
        images: uint8 (n, 3, S, S).
        captions: n texts.
        kind: (n,) index into `captions.KINDS`.
        noun: (n,) which thing of its kind.
        form: (n,) outline of a sign; 0 elsewhere.
        tone: (n,) index of the main colour, of a sign into `RIMS`; 0 where there is none.
    """

    images: Tensor
    captions: list[str]
    kind: Tensor
    noun: Tensor
    form: Tensor
    tone: Tensor


def draw(seed: int, shard: int, n: int) -> Part:
    """Return part `shard` of the stream of a seed; each is reproducible by itself.

    Args:
        seed: Of everything random.
        shard: Number of the part.
        n: How many pictures.
    """
    rng = Rng(2, seed, shard)
    drawn = mixture(rng, n, RARE)
    captions = [caption for part in drawn.values() for caption in part.captions]
    chance, stray = rng.uniform(n), rng.integers(n, n)
    said = [
        captions[stray[i]]
        if chance[i] < WRONG_SHARE
        else rng.choice(GENERIC)
        if chance[i] < WRONG_SHARE + GENERIC_SHARE
        else captions[i]
        for i in range(n)
    ]
    order = torch.randperm(n, generator=rng.generator)
    parts = drawn.values()
    signs = _KIND_NAMES.index("signs")
    kind = torch.cat(
        [torch.full((len(x.noun),), _KIND_NAMES.index(name)) for name, x in drawn.items()]
    )
    form = torch.where(kind == signs, torch.cat([x.attribute for x in parts]), 0)
    return Part(
        torch.cat([x.image for x in parts])[order],
        [with_articles(said[i]) for i in order.tolist()],
        kind[order],
        torch.cat([x.noun for x in parts])[order],
        form[order],
        torch.cat([x.tone for x in parts])[order],
    )


# --- Classes of the supervised models -----------------------------------------------------------

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
