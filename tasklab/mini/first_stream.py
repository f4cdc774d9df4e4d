"""What the models of the first world learn from: an endless stream of pictures.

They come with captions (`pretraining_shard`), or, for supervised pre-training, with a class
(`labelled_shard`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasklab.mini.captions import GENERIC, GENERIC_SHARE, SHOWN, WRONG_SHARE, mixture
from tasklab.mini.draw import Rng

FEW = 3  # of the nouns every third is among the few classes
CLASSES = {
    "few": -(-sum(nouns for nouns, _ in SHOWN.values()) // FEW),
    "many": sum(nouns * attributes for nouns, attributes in SHOWN.values()),
}


def pretraining_shard(seed: int, shard: int, n: int) -> tuple[Tensor, list[str]]:
    """Return pre-training pairs `shard`: uint8 (n, 3, S, S), shuffled, and n captions.

    The stream of shards for a seed is endless and each is reproducible by itself, so that a run
    can stop and resume anywhere.

    Args:
        seed: Of everything random.
        shard: Number of the part.
        n: How many pairs.
    """
    rng = Rng(seed, shard)
    drawn = mixture(rng, n).values()
    images = torch.cat([part.image for part in drawn])
    captions = [caption for part in drawn for caption in part.captions]
    told, order = rng.uniform(n), torch.randperm(n, generator=rng.generator)
    stray = rng.integers(n, n)
    said = [
        captions[stray[i]]
        if told[i] < WRONG_SHARE
        else rng.choice(GENERIC)
        if told[i] < WRONG_SHARE + GENERIC_SHARE
        else captions[i]
        for i in range(n)
    ]
    return images[order], [said[i] for i in order.tolist()]


def labelled_shard(seed: int, shard: int, n: int, classes: str) -> tuple[Tensor, Tensor]:
    """Return pictures uint8 (n, 3, S, S), shuffled, and their classes int64 (n,).

    Args:
        seed: Of the stream.
        shard: Its part; each is reproducible by itself.
        n: Pictures.
        classes: `"many"`: every noun with every attribute, on all pictures. `"few"`: every third
            noun, on pictures of these alone, as ImageNet-1k is a part of ImageNet-21k.
    """
    rng, images, labels, kept = Rng(seed, shard), [], [], 0
    while kept < n:
        pictures = mixture(rng, 2000)
        nouns = first = 0  # of the kinds before
        for kind, (kind_nouns, attributes) in SHOWN.items():
            drawn = pictures.get(kind)
            if drawn is not None:
                if classes == "many":
                    chosen = torch.ones_like(drawn.noun, dtype=torch.bool)
                    label = first + drawn.noun * attributes + drawn.attribute
                else:
                    chosen = (nouns + drawn.noun) % FEW == 0
                    label = (nouns + drawn.noun) // FEW
                images.append(drawn.image[chosen])
                labels.append(label[chosen])
                kept += len(labels[-1])
            nouns, first = nouns + kind_nouns, first + kind_nouns * attributes
    order = torch.randperm(kept, generator=rng.generator)[:n]
    return torch.cat(images)[order], torch.cat(labels)[order]
