"""Small tasks to train a network on from scratch: rotated digits, and splits of 100 classes.

The paper on cross-task linearity pre-trains on MNIST or on five classes of CIFAR-100, and
fine-tunes on rotations or on other classes (appendix C.1.1). Here the digits are scikit-learn's,
scanned from handwriting, and the classes are things of the drawn world.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from tasklab.errors import TasklabError, choose, whole
from tasklab.mini.camera import to_uint8
from tasklab.mini.captions import KINDS
from tasklab.mini.catalog import DIGITS, LAND, PLACES, SCENES, SHAPES, SYMBOLS, TEXTURES, VEHICLES
from tasklab.mini.draw import Rng
from tasklab.mini.sampling import written_digits
from tasklab.tasks.drawn import Images

ANGLES = (22.5, 45.0, 67.5, 90.0)  # degrees, of the fine-tuning tasks: C.1.1
TRAIN_DIGITS = 1300  # of 1,797
PER_CLASS = {"train": 100, "test": 40}
GROUP = 5  # classes in a split: C.1.1
_SIDE, _INNER = 28, 20  # as MNIST: a digit of 20 x 20 in the middle, so that turning cuts nothing
_SEED = 21
_CHUNK = 400  # pictures drawn at a time

# The nouns of seven kinds of picture and of three signs, 100 in all.
_NOUNS = {
    "one object": SHAPES, "textures": TEXTURES, "characters": DIGITS, "land cover": LAND,
    "places": PLACES, "scenes": SCENES, "vehicles": VEHICLES, "signs": SYMBOLS[:3],
}  # fmt: skip


class Thing(NamedTuple):
    """A class: a kind of picture and its thing, in any colour or outline."""

    name: str
    kind: str
    noun: int


# In alphabetical order like CIFAR-100's, so that consecutive classes have little in common.
CLASSES = tuple(
    sorted(
        Thing(f"{name} sign" if kind == "signs" else name, kind, noun)
        for kind, names in _NOUNS.items()
        for noun, name in enumerate(names)
    )
)


@functools.lru_cache(maxsize=16)
def rotated_digits(angle: float, split: str) -> Images:
    """Return handwritten digits uint8 (N, 1, 28, 28), all turned by the same angle.

    They are the 8 x 8 digits of scikit-learn, enlarged to 20 x 20 in a black frame as MNIST's:
    1,300 for `"train"` and the other 497 for `"test"`, the same ones at every angle. The tensors
    are shared between calls: do not write to them.
    """
    from torchvision.transforms import InterpolationMode  # here, for it takes seconds
    from torchvision.transforms.v2.functional import rotate

    choose("split", split, PER_CLASS)
    part = slice(TRAIN_DIGITS) if split == "train" else slice(TRAIN_DIGITS, None)
    digits, labels = (each[part] for each in written_digits())
    large = F.interpolate(digits[:, None], (_INNER, _INNER), mode="bilinear", align_corners=False)
    framed = F.pad(large, [(_SIDE - _INNER) // 2] * 4)
    turned = rotate(framed, angle, interpolation=InterpolationMode.BILINEAR)
    return Images((turned * 255).round().clamp(0, 255).to(torch.uint8), labels)


def classes(index: int) -> tuple[int, ...]:
    """Return the labels of a split: its 5 consecutive classes of `CLASSES`."""
    index = whole("index", index, 0, len(CLASSES) // GROUP - 1)
    return tuple(range(index * GROUP, (index + 1) * GROUP))


@functools.lru_cache(maxsize=40)
def class_split(index: int, split: str, count: int | None = None) -> Images:
    """Return pictures uint8 (N, 3, 32, 32) of 5 consecutive classes out of 100, shuffled.

    Labels are those among all 100 classes. The returned tensors are shared between calls: do not
    write to them.

    Args:
        index: 0 to 19. The paper pre-trains on the first and fine-tunes on the next four.
        split: `"train"` or `"test"`, with `PER_CLASS` pictures a class.
        count: At most so many of each class, which take less time to draw.
    """
    choose("split", split, PER_CLASS)
    labels, most = classes(index), PER_CLASS[split]
    count = most if count is None else min(most, whole("count", count, 1))
    drawn = [_drawn(CLASSES[label].kind, split, count)[CLASSES[label].noun] for label in labels]
    x, y = torch.cat(drawn), torch.tensor(labels).repeat_interleave(count)
    seed = 2 * index + list(PER_CLASS).index(split)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return Images(x[order], y[order])


@functools.lru_cache(maxsize=2 * len(_NOUNS))
def _drawn(kind: str, split: str, wanted: int) -> UInt8[Tensor, "C n 3 32 32"]:
    """Return the same number of pictures of every noun in use of a kind.

    The class is drawn with the picture, so we draw until each class has enough.
    """
    count = len(_NOUNS[kind])
    rng = Rng(_SEED, list(PER_CLASS).index(split), list(KINDS).index(kind))
    pictures: list[list[Tensor]] = [[] for _ in range(count)]
    while min(map(len, pictures)) < wanted:
        drawn = KINDS[kind][0](rng, _CHUNK)
        for image, noun in zip(to_uint8(drawn.image), drawn.noun.tolist(), strict=True):
            if noun < count and len(pictures[noun]) < wanted:
                pictures[noun].append(image)
    return torch.stack([torch.stack(images) for images in pictures])


def replaced(one: Images, other: Images, ratio: float, seed: int = 0) -> Images:
    """Return the first data set with a share of its samples replaced by samples of the second.

    A measure of the similarity of two tasks (section 5 and figure 12): at 0 it is `one`, at 1 all
    samples are of `other`. With the same seed, samples replaced at a ratio are replaced at every
    larger one too, by the same ones.

    Args:
        one: N samples.
        other: At least ratio N samples of the same shape.
        ratio: Share of samples that are replaced, from 0 to 1.
        seed: Of the order in which samples are replaced.

    Raises:
        TasklabError: If the ratio is none, shapes differ, or `other` has too few samples.
    """
    if not 0 <= ratio <= 1:
        raise TasklabError(f"a share of samples is from 0 to 1, not {ratio}.")
    if one.x.shape[1:] != other.x.shape[1:]:
        shapes = tuple(one.x.shape[1:]), tuple(other.x.shape[1:])
        raise TasklabError(f"samples of shapes {shapes[0]} and {shapes[1]} cannot be mixed.")
    count = round(ratio * len(one.y))
    if count > len(other.y):
        raise TasklabError(
            f"{count} samples are to be replaced and the other data set has {len(other.y)}: "
            "lower the ratio or give more."
        )
    generator = torch.Generator().manual_seed(seed)
    out = torch.randperm(len(one.y), generator=generator)[:count]
    into = torch.randperm(len(other.y), generator=generator)[:count]
    return Images(*(a.index_copy(0, out, b[into]) for a, b in zip(one, other, strict=True)))
