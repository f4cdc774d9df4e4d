"""Functions of tensors with the same bits on every processor.

IEEE 754 fixes the results of +, -, *, /, sqrt, comparisons and rounding. It fixes neither sines,
logarithms and powers nor the order of a sum, and a library may fuse a product and a sum. So the
drawn worlds use elementwise operations of the first kind, each a call of its own, and these
functions, which consist of them: computed in float64, in a fixed order, rounded to float32 at the
end. A test refuses any other operation.

Sources: W. J. Cody and W. Waite, Software manual for the elementary functions (Prentice-Hall,
1980), for the reduction of arguments; polynomials are Taylor's, long enough for 50 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BLOCK = 16  # torch.randn makes normal numbers from blocks of 16 uniform ones: 8 radii, 8 angles
_CHUNK = 1 << 15  # numbers at a time: their temporaries stay in the cache
# pi / 2 as a sum of float64 numbers, the first with 33 bits: its products with small integers
# are exact.
_HALF_PI = 1.5707963267341256, 6.077100506506192e-11
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(10)]
_ATAN = [(-1) ** k / (2 * k + 1) for k in range(20)]
_ATANH = [1 / (2 * k + 1) for k in range(11)]
_LN2 = 0.6931471805599453
_CUBIC = -0.75


def sqrt(x: Tensor) -> Tensor:
    """Return square roots, correctly rounded (those of MKL are not, on some processors)."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def sin(x: Tensor) -> Tensor:
    """Return sines of radians below 10^5."""
    return _turned(x, 0)


def cos(x: Tensor) -> Tensor:
    """Return cosines of radians below 10^5."""
    return _turned(x, 1)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Return the angles of points (x, y), from -pi to pi."""
    x, y = (part.double() for part in torch.broadcast_tensors(x, y))
    across, up = x.abs(), y.abs()
    small, large = torch.minimum(across, up), torch.maximum(across, up)
    ratio = small / torch.where(large == 0, 1.0, large)
    # twice: atan r = 2 atan(r / (1 + sqrt(1 + r^2))), which ends below tan(pi / 16)
    for _ in range(2):
        ratio = ratio / (sqrt(ratio * ratio + 1) + 1)
    angle = ratio * _polynomial(_ATAN[:14], ratio * ratio) * 4
    angle = torch.where(up > across, math.pi / 2 - angle, angle)
    angle = torch.where(x < 0, math.pi - angle, angle)
    return torch.where(y < 0, -angle, angle).float()


def remainder(x: Tensor, divisor: float) -> Tensor:
    """Return x - divisor * floor(x / divisor)."""
    return x - torch.floor(x / divisor) * divisor


def channel_mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension, summed in its order."""
    return _sum(x.unbind(dim)) / x.shape[dim]


def box_blur(image: Tensor) -> Tensor:
    """Return means over 3 x 3 pixels, (n, c, h - 2, w - 2)."""
    height, width = (side - 2 for side in image.shape[-2:])
    total = torch.zeros_like(image[..., :height, :width])
    for i in range(3):
        for j in range(3):
            total = total + image[..., i : i + height, j : j + width]
    return total / 9


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return standard normal numbers: 16 or more are those of torch.randn but for their rounding.

    Equation: sqrt(-2 log(1 - u)) (cos, sin)(2 pi v), of uniform u and v (Box and Muller).
    """
    n = math.prod(shape)
    whole = n - n % _BLOCK
    drawn = torch.rand(max(n, _BLOCK), generator=generator)
    numbers = torch.empty(n)
    for block in range(0, whole, _CHUNK):
        part = slice(block, min(block + _CHUNK, whole))
        numbers[part] = _box_muller(drawn[part])
    if whole < n:  # the last 16 are drawn anew
        last = _box_muller(torch.rand(_BLOCK, generator=generator) if whole else drawn)
        start = max(0, n - _BLOCK)
        numbers[start:] = last[: n - start]
    return numbers.reshape(tuple(shape))


def resized(image: Tensor, size: int) -> Tensor:
    """Return images (n, c, size, size) by cubic convolution, as torch's `bicubic`."""
    cells = image.shape[-1]
    taps: list[list[tuple[int, float]]] = []
    for i in range(size):
        at = cells / size * (i + 0.5) - 0.5
        low = math.floor(at)
        shares = [_cubic(abs(at - low - k)) for k in (-1, 0, 1, 2)]
        places = [min(max(low + k, 0), cells - 1) for k in (-1, 0, 1, 2)]
        taps.append(list(zip(places, shares, strict=True)))
    index = torch.tensor([[place for place, _ in tap] for tap in taps]).T
    share = torch.tensor([[share for _, share in tap] for tap in taps]).T
    rows = _sum([image[..., index[k]] * share[k] for k in range(4)])
    return _sum([rows[..., index[k], :] * share[k][:, None] for k in range(4)])


def sampled(image: Tensor, u: Tensor, v: Tensor, *, reflect: bool = False) -> Tensor:
    """Return images sampled at coordinates in [-1, 1], linearly between pixels.

    Args:
        image: (n, c, S, S).
        u, v: Horizontal and vertical coordinates (n, H, W).
        reflect: Whether edges mirror the image; else it is 0 outside.

    Returns:
        Images (n, c, H, W).
    """
    n, channels, height, width = image.shape
    x, y = (
        _reflected((at + 1) * (side / 2) - 0.5, side) if reflect else (at + 1) * (side / 2) - 0.5
        for at, side in ((u, width), (v, height))
    )
    left, top = torch.floor(x), torch.floor(y)
    right_share, low_share = x - left, y - top
    pixels = image.flatten(2)
    parts = []
    for down, share_y in ((0, 1 - low_share), (1, low_share)):
        for over, share_x in ((0, 1 - right_share), (1, right_share)):
            column, row = (left + over).long(), (top + down).long()
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            at = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            at = at.flatten(1)[:, None].expand(n, channels, -1)
            value = pixels.gather(2, at).reshape(n, channels, *u.shape[1:])
            parts.append(torch.where(inside[:, None], value, 0.0) * (share_x * share_y)[:, None])
    return _sum(parts)


def _reflected(at: Tensor, side: int) -> Tensor:
    far = (at + 0.5).abs()
    turns = torch.floor(far / side)
    rest = far - turns * side
    inner = torch.where(turns - torch.floor(turns / 2) * 2 == 0, rest - 0.5, side - rest - 0.5)
    return inner.clamp(0, side - 1)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _cubic(x: float) -> float:
    if x <= 1:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def _quadrant(rest: Tensor, quadrant: Tensor) -> Tensor:
    """Return sin(rest + quadrant * pi / 2), |rest| <= pi / 4, the quadrant from 0 to 3."""
    square = rest * rest
    value = torch.where(
        quadrant - torch.floor(quadrant / 2) * 2 == 0,
        rest * _polynomial(_SIN, square),
        _polynomial(_COS, square),
    )
    return torch.where(quadrant >= 2, -value, value)


def _turned(x: Tensor, quarters: int) -> Tensor:
    turns = torch.round(x.double() * (2 / math.pi))
    rest = (x.double() - turns * _HALF_PI[0]) - turns * _HALF_PI[1]
    return _quadrant(rest, remainder(turns + quarters, 4)).float()


def _log(x: Tensor) -> Tensor:
    fraction, exponent = torch.frexp(x)  # exact
    low = fraction < math.sqrt(0.5)
    fraction = torch.where(low, fraction * 2, fraction)
    exponent = exponent.double() - low.double()
    ratio = (fraction - 1) / (fraction + 1)
    return exponent * _LN2 + ratio * _polynomial(_ATANH, ratio * ratio) * 2


def _box_muller(uniform: Tensor) -> Tensor:
    first, second = uniform.double().reshape(-1, 2, _BLOCK // 2).unbind(1)
    radius = sqrt(_log(1 - first) * -2)
    turns = torch.round(second * 4)
    rest = (second * 4 - turns) * (math.pi / 2)
    both = [_quadrant(rest, remainder(turns + k, 4)) * radius for k in (1, 0)]
    return torch.stack(both, 1).flatten().float()
