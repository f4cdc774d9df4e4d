"""The training transform, by Pillow and by products, is the papers' for each image."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop

from tasklab.models.encoder import Encoder
from tasklab.tasks.images import augment
from tasklab.tasks.images.decoding import Transform

BICUBIC = InterpolationMode.BICUBIC
UNCHANGED = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)  # mean and standard deviation
BARE = {"shorter": None, "resize": None, "device": "cpu", "_channels": UNCHANGED}


def random_boxes(size, count, seed=0):
    sizes = torch.tensor([size]).expand(count, 2)
    return augment.boxes(sizes, augment.generator(seed, 0)) * torch.tensor([*size, *size])


def noise(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def pil(x):
    return Image.fromarray(x.permute(1, 2, 0).numpy())


def reference(image, edges, side):
    left, top, right, bottom = (round(edge) for edge in edges)
    cut = resized_crop(image, top, left, bottom - top, right - left, [side, side], BICUBIC)
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)


def test_open_clips_transform_and_crops_by_seed():
    import open_clip

    first = open_clip.image_transform(224, is_train=True).transforms[0]
    assert (first.scale, first.interpolation) == (augment.SCALE, BICUBIC)
    assert tuple(first.ratio) == augment.RATIO
    sizes = torch.tensor([[640, 480], [100, 100]])
    first = augment.boxes(sizes, augment.generator(0, 3))
    assert torch.equal(first, augment.boxes(sizes, augment.generator(0, 3)))
    assert not torch.equal(first, augment.boxes(sizes, augment.generator(0, 4)))
    assert not torch.equal(first, augment.boxes(sizes, augment.generator(1, 3)))
    assert (first >= 0).all() and (first <= 1).all()
    # Drawn images are of the embedded models' size, so that no rounding touches them.
    x = noise(4, 3, 32, 32)
    encoder = SimpleNamespace(
        image_size=32, shorter=None, resize=None, device="cpu", _channels=UNCHANGED
    )
    assert torch.equal(Encoder.preprocess(encoder, x), x.float() / 255)


@pytest.mark.parametrize("size", [(640, 480), (300, 300), (231, 250), (1000, 300), (100, 280)])
def test_crops_are_distributed_as_torchvisions(size):
    count, image = 3000, torch.zeros(1, size[1], size[0])
    torch.manual_seed(0)
    drawn = [
        RandomResizedCrop.get_params(image, list(augment.SCALE), list(augment.RATIO))
        for _ in range(count)
    ]
    theirs = torch.tensor(drawn, dtype=torch.float64)  # top, left, height, width
    ours = random_boxes(size, count)
    ours = torch.stack(
        [ours[:, 1], ours[:, 0], ours[:, 3] - ours[:, 1], ours[:, 2] - ours[:, 0]], 1
    )
    assert torch.equal(ours.round().double(), ours.round())
    assert (ours - ours.round()).abs().max() < 1e-6
    error = (theirs.var(0) + ours.var(0)).div(count).sqrt().clamp_min(1e-9)
    assert ((theirs.mean(0) - ours.mean(0)).abs() / error).max() < 4
    assert torch.allclose(theirs.std(0), ours.std(0), rtol=0.1, atol=0.05)
    assert torch.equal(theirs.amax(0) >= 0, ours.amax(0) >= 0)


@pytest.mark.parametrize("side", [28, 64, 96])
def test_a_crop_of_an_image_kept_at_its_own_size_is_the_papers(side):
    x, target = noise(12, 3, side, side), 48
    edges = random_boxes((side, side), 12)
    theirs = torch.stack([reference(pil(x[i]), edges[i].tolist(), target) for i in range(12)])
    assert torch.equal(augment.crop(x, edges / side, target), theirs)
    products = augment.by_products(x, edges / side, target).int()
    assert (products - theirs.int()).abs().max() <= 1
    assert ((products - theirs) != 0).float().mean() < 0.02


@pytest.mark.parametrize("size", [(640, 480), (333, 500)])
def test_products_are_pillows_where_edges_are_within_pixels(size):
    """Pillow may take columns before rows or rows before columns: whole levels lie in between."""
    x = torch.from_numpy(load_sample_images().images[0][:256, :256].copy()).permute(2, 0, 1)
    edges = random_boxes(size, 8).double() / torch.tensor([*size, *size])
    x = x.expand(8, -1, -1, -1)
    difference = augment.by_products(x, edges, 224).int() - augment.by_pillow(x, edges, 224).int()
    assert difference.abs().max() <= 8
    assert (difference != 0).float().mean() < 0.2
    assert difference.float().abs().mean() < 0.2


@pytest.mark.parametrize("way", [augment.by_pillow, augment.by_products])
@pytest.mark.parametrize(("side", "target"), [(28, 224), (28, 32)])
def test_halves_are_rounded_as_pillow_rounds_them(side, target, way):
    """MNIST for full-size models: the factor 8 has weights of few digits, sums end in halves."""
    x = noise(6, 3, side, side) // 64 * 64
    ours = way(x, torch.tensor([[0.0, 0, 1, 1]] * 6), target)
    resized = [pil(one).resize((target, target), Image.Resampling.BICUBIC) for one in x]
    theirs = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in resized])
    assert torch.equal(ours, theirs)
    encoder = SimpleNamespace(
        image_size=target, shorter=None, resize=None, device="cpu", _channels=UNCHANGED
    )
    assert torch.equal((Encoder.preprocess(encoder, x) * 255).round().to(torch.uint8), theirs)


def test_interpolating_twice_changes_photographs_little():
    """Against the transform for each image, in grey levels from 0 to 255."""
    kept, differences, moved = augment.kept_side(224), [], []
    for photo in load_sample_images().images:
        image = Image.fromarray(photo).crop((0, 0, 480, 427))
        squares = torch.from_numpy(Transform("whole", kept)(image)).expand(8, -1, -1, -1)
        edges = random_boxes(image.size, 8)
        shares = edges / torch.tensor([*image.size, *image.size])
        ours = augment.crop(squares, shares, 224).float()
        theirs = torch.stack([reference(image, e, 224) for e in edges.tolist()]).float()
        differences.append((ours - theirs).abs().mean())
        moved.append((theirs[1:] - theirs[:-1]).abs().mean())  # two crops of the same image
    assert max(differences) < 2.5
    assert all(d < 0.2 * m for d, m in zip(differences, moved, strict=True)), (differences, moved)


@pytest.mark.parametrize(
    ("size", "new"),
    [
        ((64, 64), (224, 224)),
        ((256, 256), (224, 224)),
        ((90, 301), (48, 160)),
        ((32, 32), (224, 224)),
    ],
)
def test_resizing_is_pillows_to_the_letter(size, new):
    photograph = torch.from_numpy(load_sample_images().images[0].copy()).permute(2, 0, 1)
    x = torch.stack([noise(3, *size), photograph[:, : size[0], : size[1]]])
    resize = [pil(one).resize(new[::-1], Image.Resampling.BICUBIC) for one in x]
    theirs = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in resize])
    assert torch.equal(augment.resized(x, *new), theirs)


@pytest.mark.parametrize(("height", "width"), [(97, 160), (64, 20)])
@pytest.mark.parametrize("linear", [False, True])
def test_whole_images_are_resized_as_by_pillow(height, width, linear):
    x, how = noise(3, 3, 64, 48), Image.Resampling.BILINEAR if linear else Image.Resampling.BICUBIC
    theirs = [np.array(pil(one).resize((width, height), how)).transpose(2, 0, 1) for one in x]
    assert np.array_equal(augment.resized(x, height, width, linear=linear).numpy(), theirs)
