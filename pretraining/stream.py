"""The stream of pictures, captions and labels that the models learn from.

The pictures are those of `mini.captions`. Of their captions 7 % are replaced by one that says
nothing (`GENERIC`) and 8 % by another picture's, as on the web. Most pictures are plain and tidy.
One in three went through a worse camera, and of these one in thirty is seen through each of the
filters of `styles`, so that the styles of the tasks are rare in pre-training and not unknown to it.
A picture also carries what it shows as numbers, from which `pretraining.classes` makes the classes
of supervised pre-training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasklab.mini.camera import Camera, to_uint8
from tasklab.mini.captions import KINDS, Drawn
from tasklab.mini.catalog import with_articles
from tasklab.mini.draw import Rng
from tasklab.mini.styles import FILTERS

GENERIC = ("a photo", "a picture of something", "an image", "a thing on a background")
WRONG_SHARE, GENERIC_SHARE = 0.08, 0.07
ROUGH = Camera(
    noise=0.12, contrast=0.4, tint=0.15, blur=0.6, gray=0.12, infrared=0.05, negative=0.05
)
ROUGH_SHARE = 0.35
RARE = tuple(Camera(filter=name, filtered=1 / 30) for name in FILTERS)


class Part(NamedTuple):
    """Some n pictures in random order."""

    images: Tensor  #: uint8 (n, 3, S, S)
    captions: list[str]  #: n texts
    kind: Tensor  #: (n,) index into `captions.KINDS`
    noun: Tensor  #: (n,) which thing of its kind
    form: Tensor  #: (n,) outline of a sign; 0 elsewhere
    tone: Tensor  #: (n,) index of the main colour, of a sign into `RIMS`; 0 where there is none


def draw_kind(kind: str, n: int, rng: Rng, rare: tuple[Camera, ...] = ()) -> Drawn:
    """Return n pictures of one kind, uint8 (n, 3, S, S), with true captions.

    Args:
        kind: One of `KINDS`.
        n: Number of pictures.
        rng: Draws everything random.
        rare: Further cameras for the rough third of the pictures.
    """
    drawn = KINDS[kind][0](rng, n)
    rough = int(n * ROUGH_SHARE)
    for camera in (ROUGH, *rare):
        drawn.image[:rough] = camera(rng, drawn.image[:rough])
    return drawn._replace(image=to_uint8(drawn.image))


def _mixture(rng: Rng, n: int) -> dict[str, Drawn]:
    """Return n pictures by kind, in the shares of `KINDS`."""
    weights = torch.tensor([share for _, share in KINDS.values()])
    counts = torch.bincount(
        torch.multinomial(weights, n, replacement=True, generator=rng.generator),
        minlength=len(KINDS),
    )
    each = zip(KINDS, counts.tolist(), strict=True)
    return {kind: draw_kind(kind, count, rng, RARE) for kind, count in each if count}


def draw(seed: int, shard: int, n: int) -> Part:
    """Return one part of the stream of pictures and captions, the same on every call.

    Args:
        seed: Of the stream.
        shard: Number of the part.
        n: Number of pictures.
    """
    rng = Rng(2, seed, shard)
    drawn = _mixture(rng, n)
    captions = [caption for part in drawn.values() for caption in part.captions]
    chance, stray = rng.uniform(n), rng.integers(n, n)
    said = [*captions]
    for i in range(n):
        if chance[i] < WRONG_SHARE:
            said[i] = captions[stray[i]]
        elif chance[i] < WRONG_SHARE + GENERIC_SHARE:
            said[i] = rng.choice(GENERIC)
    order = torch.randperm(n, generator=rng.generator)
    parts = drawn.values()
    kinds = tuple(KINDS)
    kind = torch.cat([torch.full((len(x.noun),), kinds.index(name)) for name, x in drawn.items()])
    form = torch.where(kind == kinds.index("signs"), torch.cat([x.attribute for x in parts]), 0)
    whole = (torch.cat([getattr(x, part) for x in parts]) for part in ("image", "noun", "tone"))
    image, noun, tone = whole
    texts = [with_articles(said[i]) for i in order.tolist()]
    return Part(image[order], texts, kind[order], noun[order], form[order], tone[order])
