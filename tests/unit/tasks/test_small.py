"""Data to train from scratch on: deterministic, balanced, disjoint, and mixed as asked."""

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import rotate

from tasklab.mini import catalog
from tasklab.mini.captions import Drawn
from tasklab.tasks import small
from tasklab.tasks.drawn import Images
from tests.helpers import refuses

NOUNS = {
    "one object": catalog.SHAPES, "textures": catalog.TEXTURES, "characters": catalog.GLYPHS,
    "land cover": catalog.LAND, "places": catalog.PLACES, "scenes": catalog.SCENES,
    "vehicles": catalog.VEHICLES, "signs": catalog.SYMBOLS,
}  # fmt: skip


@pytest.mark.parametrize("split", ["train", "test"])
def test_digits_have_the_shape_and_size_of_mnist(split):
    x, y = small.rotated_digits(0.0, split)
    count = 1300 if split == "train" else 497
    assert x.shape == (count, 1, 28, 28) and x.dtype == torch.uint8
    assert y.shape == (count,) and y.dtype == torch.int64
    assert set(y.tolist()) == set(range(10))
    assert x[:, :, :4].eq(0).all() and x[..., -4:].eq(0).all()  # a frame
    assert x.max() > 240


def test_digits_turn_and_splits_share_none():
    parts = [small.rotated_digits(0.0, split).x for split in ("train", "test")]
    digits = torch.cat(parts)
    assert len(torch.unique(digits.flatten(1), dim=0)) == len(digits) == 1797
    upright, turned = (small.rotated_digits(angle, "test") for angle in (0.0, 90.0))
    assert torch.equal(turned.x, upright.x.rot90(1, (2, 3)))  # counter-clockwise
    assert torch.equal(turned.y, upright.y)
    upright, turned = (small.rotated_digits(angle, "test").x for angle in (0.0, 45.0))
    ink = turned.float().sum((1, 2, 3)) / upright.float().sum((1, 2, 3))
    assert (ink - 1).abs().max() < 0.05  # nothing is cut off
    back = rotate(turned.float(), -45.0, interpolation=InterpolationMode.BILINEAR)
    assert (back - upright.float()).abs().mean() < 3
    assert (turned.float() - upright.float()).abs().mean() > 10


def test_a_hundred_classes_with_names():
    names = [thing.name for thing in small.CLASSES]
    assert len(set(names)) == 100
    assert names == sorted(names)
    labels = [label for index in range(20) for label in small.classes(index)]
    assert labels == list(range(100))
    # Nouns are numbered as where the pictures are drawn, and no kind is short of one.
    for name, kind, noun in small.CLASSES:
        assert noun >= 0
        listed = NOUNS[kind][noun]
        assert name == (f"{listed} sign" if kind == "signs" else listed)


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(("split", "each"), [("train", 8), ("test", 4)])
def test_splits_are_balanced_and_of_their_own_classes(split, each):
    x, y = small.class_split(3, split)
    assert x.shape == (5 * each, 3, 32, 32) and x.dtype == torch.uint8
    assert torch.bincount(y, minlength=20).tolist() == [0] * 15 + [each] * 5
    assert y.dtype == torch.int64
    assert not torch.equal(y, y.sort().values)  # shuffled
    few = small.class_split(3, split, 2)
    assert torch.bincount(few.y).tolist() == [0] * 15 + [2] * 5
    whole, part = (set(map(bytes, one.flatten(1).numpy())) for one in (x, few.x))
    assert part < whole and len(small.class_split(3, split, 99).y) == len(y)


@pytest.mark.usefixtures("few_pictures")
def test_a_class_shows_its_noun(monkeypatch):
    """Pictures whose only brightness is the noun's number come out under their class."""

    def plain(rng, n):
        noun = rng.integers(n, 20)
        image = (noun / 255.0)[:, None, None, None].expand(n, 3, 32, 32)
        return Drawn(image, [], noun, noun, noun)

    monkeypatch.setattr(small, "KINDS", {kind: (plain, 0.0) for kind in small.KINDS})
    for cache in (small._drawn, small.class_split):
        cache.cache_clear()
    for index in range(5):
        x, y = small.class_split(index, "test")
        nouns = torch.tensor([small.CLASSES[label].noun for label in y.tolist()])
        assert torch.equal(x.long(), nouns[:, None, None, None].expand_as(x))


def numbered(start, count):
    values = torch.arange(start, start + count)
    return Images(values.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2), values)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 1.0])
def test_a_share_is_replaced_and_the_rest_stays_in_place(ratio):
    one, other = numbered(0, 40), numbered(100, 50)
    mixed = small.replaced(one, other, ratio, seed=3)
    foreign = mixed.y >= 100
    assert foreign.sum() == round(ratio * 40)
    assert torch.equal(mixed.y[~foreign], one.y[~foreign])
    assert len(mixed.y.unique()) == 40  # no sample twice
    assert torch.equal(mixed.x[:, 0, 0, 0].long(), mixed.y)  # labels come along
    assert torch.equal(one.y, torch.arange(40))


def test_few_samples_are_replaced_at_larger_ratios_too():
    mixed = small.replaced(numbered(0, 40), numbered(100, 20), 0.5)
    assert mixed.y[mixed.y >= 100].sort().values.tolist() == list(range(100, 120))
    one, other = numbered(0, 40), numbered(100, 50)
    few, many, else_ = (
        small.replaced(one, other, ratio, seed).y for ratio, seed in ((0.3, 1), (0.6, 1), (0.3, 2))
    )
    assert torch.equal(many[few >= 100], few[few >= 100])
    assert not torch.equal(few, else_)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: small.rotated_digits(0.0, "tests"), "did you mean 'test'"),
        (lambda: small.class_split(0, "val"), "unknown split"),
        (lambda: small.class_split(20, "test"), "index must be at most 19, not 20"),
        (lambda: small.classes(-1), "index must be at least 0, not -1"),
        (lambda: small.replaced(numbered(0, 4), numbered(0, 4), 1.5), "from 0 to 1"),
        (lambda: small.replaced(numbered(0, 4), numbered(0, 3), 1.0), "lower the ratio"),
        (
            lambda: small.replaced(small.rotated_digits(0.0, "test"), numbered(0, 4), 0.0),
            "cannot be mixed",
        ),
    ],
)
def test_what_cannot_be_is_said(call, told):
    refuses(told, call)
