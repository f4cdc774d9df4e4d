"""Products of tokens with weights, x W^T, by the library that is faster on this processor.

PyTorch gives matrix products of float32 to MKL, which takes only half as wide instructions on
processors of another maker, and convolutions to oneDNN, which takes the widest. A convolution with
a kernel of one pixel is the same product. Which one is faster is measured once, in milliseconds.

Nothing changes where derivatives are recorded, in other precisions, on other devices, and for fewer
than 16 images, for which PyTorch does not ask oneDNN.

Letters: B images, L tokens, D width of what comes in, E of what comes out.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tasklab import machine

_LEAST = 16  # images


def linear(
    x: Float[Tensor, "*B L D"], weight: Float[Tensor, "E D"], bias: Float[Tensor, " E"] | None
) -> Float[Tensor, "*B L E"]:
    """Return x W^T + b."""
    return _convolved(x, weight, bias) if _quick(x, weight) else F.linear(x, weight, bias)


def add_product(
    total: Float[Tensor, "*B L E"],
    x: Float[Tensor, "*B L D"],
    weight: Float[Tensor, "E D"],
    scale: float = 1.0,
) -> Tensor:
    """Return `total`, to which scale x W^T is added in place."""
    if _quick(x, weight):
        return total.add_(_convolved(x, weight, None), alpha=scale)
    rows = total.view(-1, total.shape[-1])
    rows.addmm_(x.reshape(-1, x.shape[-1]), weight.t(), alpha=scale)
    return total


@functools.cache
def by_convolution() -> bool:
    """Return whether this processor multiplies float32 matrices faster as a convolution.

    By a third or more, so that the answer is the same each time.
    """
    x, weight = torch.ones(_LEAST, 32, 256), torch.ones(256, 256)
    with torch.inference_mode():
        ways = (lambda: _convolved(x, weight, None), lambda: F.linear(x, weight))
        convolved, multiplied = machine.shortest(*ways)
    return 4 * convolved < 3 * multiplied


def _quick(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dim() > 2
        and x.shape[-2] > 1  # of one token alone it is slower
        and x.shape[:-2].numel() >= _LEAST
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and by_convolution()
    )


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    *lead, tokens, width = x.shape
    images = x.contiguous().view(-1, tokens, 1, width).permute(0, 3, 1, 2)  # channels last
    pixels = F.conv2d(images, weight.contiguous()[:, :, None, None], bias)
    return pixels.permute(0, 2, 3, 1).reshape(*lead, tokens, len(weight))
