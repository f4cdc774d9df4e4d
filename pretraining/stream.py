"""The stream of pictures, captions and labels that the models learn from.

The pictures are those of `captions`; of the rough third, one in thirty is seen through each of the
filters of `styles`, so that the styles of the tasks are rare in pre-training and not unknown to it.
A picture also carries what it shows as numbers, from which `pretraining.classes` makes the classes
of supervised pre-training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasklab.mini.camera import Camera
from tasklab.mini.captions import GENERIC, GENERIC_SHARE, KINDS, WRONG_SHARE, mixture
from tasklab.mini.catalog import with_articles
from tasklab.mini.draw import Rng
from tasklab.mini.styles import FILTERS

RARE = tuple(Camera(filter=name, filtered=1 / 30) for name in FILTERS)


class Part(NamedTuple):
    """Some n pictures in random order."""

    images: Tensor  #: uint8 (n, 3, S, S)
    captions: list[str]  #: n texts
    kind: Tensor  #: (n,) index into `captions.KINDS`
    noun: Tensor  #: (n,) which thing of its kind
    form: Tensor  #: (n,) outline of a sign; 0 elsewhere
    tone: Tensor  #: (n,) index of the main colour, of a sign into `RIMS`; 0 where there is none


def draw(seed: int, shard: int, n: int) -> Part:
    """Return one part of the stream of pictures and captions, the same on every call.

    Args:
        seed: Of the stream.
        shard: Number of the part.
        n: Number of pictures.
    """
    rng = Rng(2, seed, shard)
    drawn = mixture(rng, n, RARE)
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
