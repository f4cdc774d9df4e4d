"""The papers' training transform, on the device where the images are.

The papers' protocol trains with open_clip's transform: a crop of 90 to 100 % of an image's area
and an aspect ratio from 3/4 to 4/3, resized to the model's square (bicubic, antialiased). Here the
images lie decoded as squares of one size, and a crop is a rectangle in such a square. On a
processor Pillow resizes it, as in the papers' transform; elsewhere it is two matrix products for a
batch,

    y = W_v x W_h^T,

with the weights that Pillow's resampling has for this rectangle, and whole grey levels in between
and at the end. Crops are drawn from the same distribution as torchvision's.

On a processor this is the transform for images that are kept at their own size; larger ones were
resized once before, so that they are interpolated twice (`benchmarks/pictures.py`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

VERSION = 3  # raise it when the same seed gives other images
SCALE = (0.9, 1.0)  # share of the area: open_clip's default
RATIO = (3 / 4, 4 / 3)  # width to height: torchvision's default
MARGIN = 8 / 7  # of the kept square to the model's: 256 for 224, as 0.9 of the area needs
_ONE = 1 << 22  # Pillow's weights are whole numbers of 1 / this
_PIXELS = 1 << 23  # of images that are resized at once: 64 MB in float64
_TRIES = 10  # torchvision's
_STEP = 1_000_003
_SALT = 0x5EED  # so that crops do not follow the order of the images


def kept_side(side: int) -> int:
    """Return the side of the squares that crops for a model of `side` are drawn from.

    >>> kept_side(224), kept_side(32)
    (256, 37)
    """
    return math.ceil(side * MARGIN)


def generator(seed: int, step: int) -> torch.Generator:
    """Return the source of one step's crops: a function of seed and step alone."""
    return torch.Generator().manual_seed((seed * _STEP + step) ^ (_SALT << 32))


def boxes(sizes: Int[Tensor, "B 2"], random: torch.Generator) -> Float[Tensor, "B 4"]:
    """Draw one crop for each image, as torchvision's `RandomResizedCrop` does.

    Returns:
        Left, top, right and bottom edge as shares of the image's width and height.
    """
    count = len(sizes)
    width, height = (sizes[:, i : i + 1].double() for i in (0, 1))
    area = width * height * _uniform(count, SCALE, random)
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = _uniform(count, (low, high), random).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)  # the first try that fits
    w, h = w.gather(1, first), h.gather(1, first)
    place = torch.rand(count, 2, generator=random, dtype=torch.float64)
    left = (place[:, :1] * (width - w + 1)).floor()
    top = (place[:, 1:] * (height - h + 1)).floor()
    # none fits: the largest centred rectangle of an allowed ratio
    own = width / height
    wide = torch.where(own > RATIO[1], (height * RATIO[1]).round(), width)
    tall = torch.where(own < RATIO[0], (width / RATIO[0]).round(), height)
    none = ~fits.any(1, keepdim=True)
    w, h = torch.where(none, wide, w), torch.where(none, tall, h)
    left = torch.where(none, ((width - w) / 2).floor(), left)
    top = torch.where(none, ((height - h) / 2).floor(), top)
    return torch.cat([left / width, top / height, (left + w) / width, (top + h) / height], 1)


def _uniform(count: int, limits: tuple[float, float], random: torch.Generator) -> Tensor:
    drawn = torch.rand(count, _TRIES, generator=random, dtype=torch.float64)
    return limits[0] + (limits[1] - limits[0]) * drawn


def crop(
    x: UInt8[Tensor, "B 3 H W"], edges: Float[Tensor, "B 4"], side: int
) -> UInt8[Tensor, "B 3 S S"]:
    """Cut a rectangle out of each image and resize it to a square, as torchvision does with Pillow.

    Args:
        x: Images.
        edges: Left, top, right and bottom (`boxes`), as shares of the image's width and height.
        side: Height and width S of the square.
    """
    return (by_pillow if x.device.type == "cpu" else by_products)(x, edges, side)


def by_pillow(
    x: UInt8[Tensor, "B 3 H W"], edges: Float[Tensor, "B 4"], side: int
) -> UInt8[Tensor, "B 3 S S"]:
    """Compute `crop` by Pillow, one channel of an image after another.

    Args:
        x: Images, on the CPU.
        edges: Left, top, right and bottom, as shares of the image's width and height.
        side: Height and width S of the square.
    """
    height, width = x.shape[-2:]
    pixels = edges * torch.tensor([width, height, width, height], dtype=edges.dtype)
    out, cubic = np.empty((len(x), 3, side, side), np.uint8), Image.Resampling.BICUBIC
    for image, box, resized in zip(x.numpy(), pixels.double().tolist(), out, strict=True):
        left, top, right, bottom = (round(edge, 6) for edge in box)
        first, above = math.floor(left), math.floor(top)
        cut = image[:, above : math.ceil(bottom), first : math.ceil(right)]  # nothing from outside
        inner = left - first, top - above, right - first, bottom - above
        for channel, target in zip(cut, resized, strict=True):
            target[:] = Image.fromarray(channel).resize((side, side), cubic, inner)
    return torch.from_numpy(out)


def by_products(
    x: UInt8[Tensor, "B 3 H W"], edges: Float[Tensor, "B 4"], side: int
) -> UInt8[Tensor, "B 3 S S"]:
    """Compute `crop` by matrix products, for all images at once.

    Args:
        x: Images, on any device.
        edges: Left, top, right and bottom, as shares of the image's width and height.
        side: Height and width S of the square.
    """
    height, width = x.shape[-2:]
    edges = edges.to(x.device)
    across = resampling(edges[:, 0] * width, edges[:, 2] * width, width, side)
    down = resampling(edges[:, 1] * height, edges[:, 3] * height, height, side)
    across, down = across.float(), down.float()
    with torch.autocast(x.device.type, enabled=False):
        rows = torch.einsum("bchw,bsw->bchs", x.float(), across).add_(0.5).floor_().clamp_(0, 255)
        whole = torch.einsum("bchs,brh->bcrs", rows, down).add_(0.5).floor_().clamp_(0, 255)
    return whole.to(torch.uint8)


def resized(
    x: UInt8[Tensor, "B C h w"], height: int, width: int, *, linear: bool = False
) -> UInt8[Tensor, "B C H W"]:
    """Resize images as Pillow does (bicubic, antialiased), bit for bit on every device.

    Pillow multiplies by weights of 22 binary digits, columns first, then rows, each time to whole
    grey levels. These products and their sums are whole numbers that float64 holds.

    Args:
        x: Images.
        height, width: H and W of the result.
        linear: Whether to interpolate linearly in place of bicubically.
    """
    across = _weights(x.shape[-1], width, x.device, linear)
    down = _weights(x.shape[-2], height, x.device, linear)
    largest = max(height, x.shape[-2]) * max(width, x.shape[-1]) * x.shape[1]
    parts = []
    for part in x.split(max(1, _PIXELS // largest)):
        rows = _levels(part.double() @ across.T)
        parts.append(_levels(down @ rows).to(torch.uint8))
    return torch.cat(parts)


def _levels(sums: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Return grey levels of sums with fixed-point weights, rounded to whole ones, halves up."""
    return sums.add_(_ONE / 2).div_(_ONE).floor_().clamp_(0, 255)


@functools.lru_cache(maxsize=32)
def _weights(
    count: int, side: int, device: torch.device, linear: bool = False
) -> Float[Tensor, "S N"]:
    """Return the weights of `resampling` for a whole line, as whole numbers of `1 / _ONE`."""
    low, high = torch.zeros(1), torch.full((1,), float(count))
    exact = resampling(low, high, count, side, linear=linear)[0] * _ONE
    return (exact.sign() * (exact.abs() + 0.5).floor()).to(device)


def resampling(
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
    count: int,
    side: int,
    *,
    linear: bool = False,
) -> Float[Tensor, "B S N"]:
    """Return the weights of N pixels in each of S resampled ones, in float64.

    Pillow's bicubic resampling: the cubic of Keys with a = -1/2, widened where the image shrinks,
    cut off at the rectangle, and normalised.

    Args:
        low, high: Ends of each rectangle in pixels.
        count: Number N of pixels of the image.
        side: Number S of resampled pixels.
        linear: Whether to take Pillow's bilinear resampling, by a triangle.
    """
    reach, kernel = (1, _triangle) if linear else (2, _cubic)
    low, high = low.double()[:, None], high.double()[:, None]
    scale = (high - low) / side
    wide = scale.clamp_min(1)[..., None]
    at = torch.arange(side, device=low.device, dtype=torch.float64)
    centre = (low + (at + 0.5) * scale)[..., None]
    pixel = torch.arange(count, device=low.device, dtype=torch.float64)
    first = (centre - reach * wide + 0.5).floor()
    last = (centre + reach * wide + 0.5).floor()
    inside = (pixel >= torch.maximum(first, (low + 1e-6).floor()[..., None])) & (
        pixel < torch.minimum(last, (high - 1e-6).ceil()[..., None])
    )
    weight = kernel((pixel - centre + 0.5) / wide) * inside
    return weight / weight.sum(-1, keepdim=True)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    x, a = x.abs(), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
