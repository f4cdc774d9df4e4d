"""Views of pictures for self-distillation: crops, colours and blur, each picture's its own.

Those of DINO [Caron et al., 2021, appendix B]: a resized crop, colour jitter with probability 0.8,
grey with 0.2, solarised with 0.2 (one global view), blurred. Not mirrored, which would turn letters
and signs into others. All are drawn for a whole batch at once, from torch's global seed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_GREY = torch.tensor([0.299, 0.587, 0.114])
# Colours as brightness and two differences, in which a hue is an angle.
_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_RGB = torch.linalg.inv(_YIQ)


def view(
    images: Tensor, size: int, share: tuple[float, float], *, solarised: float = 0.0
) -> Tensor:
    """Return one view of each picture, float (n, 3, size, size) in [0, 1].

    Args:
        images: uint8 (n, 3, S, S).
        size: Height and width of the views.
        share: Least and largest share of the picture's area in a view.
        solarised: Probability that what is bright is inverted.
    """
    x = crop(images.float() / 255, size, share)
    x = torch.where(_chance(x, 0.8), jitter(x), x)
    x = torch.where(_chance(x, 0.2), _grey(x).expand_as(x), x)
    if solarised:
        x = torch.where(_chance(x, solarised) & (x > 0.5), 1 - x, x)
    soft = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    amount = torch.rand(len(x), 1, 1, 1, device=x.device) * _chance(x, 0.5)
    return x + amount * (soft - x)


def crop(images: Tensor, size: int, share: tuple[float, float]) -> Tensor:
    """Return a crop of random place, share and shape (3:4 to 4:3) of each picture, resized.

    Args:
        images: Images, uint8 (n, 3, S, S).
        size: Side of the result in pixels.
        share: Smallest and largest share of the area.
    """
    n, device = len(images), images.device
    area = torch.empty(n, device=device).uniform_(*share)
    shape = torch.empty(n, device=device).uniform_(-math.log(4 / 3), math.log(4 / 3)).mul(0.5).exp()
    half = torch.stack([area.sqrt() * shape, area.sqrt() / shape], 1).clamp(max=1)
    middle = (torch.rand(n, 2, device=device) * 2 - 1) * (1 - half)
    frame = torch.zeros(n, 2, 3, device=device)
    frame[:, 0, 0], frame[:, 1, 1], frame[:, :, 2] = half[:, 0], half[:, 1], middle
    grid = F.affine_grid(frame, [n, 3, size, size], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(x: Tensor) -> Tensor:
    """Return the pictures with brightness, contrast and saturation times 0.6 to 1.4, hue turned."""
    n, device = len(x), x.device
    light, contrast, saturation = (
        torch.empty(n, 1, 1, 1, device=device).uniform_(0.6, 1.4) for _ in range(3)
    )
    x = x * light
    x = (x - x.mean((1, 2, 3), keepdim=True)) * contrast + x.mean((1, 2, 3), keepdim=True)
    grey = _grey(x)
    x = (grey + (x - grey) * saturation).clamp(0, 1)
    angle = torch.empty(n, device=device).uniform_(-0.2 * math.pi, 0.2 * math.pi)
    turn = torch.zeros(n, 3, 3, device=device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = angle.cos()
    turn[:, 1, 2], turn[:, 2, 1] = -angle.sin(), angle.sin()
    return torch.einsum("nij,njhw->nihw", _RGB.to(device) @ turn @ _YIQ.to(device), x).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    return torch.einsum("nchw,c->nhw", x, _GREY.to(x.device))[:, None]


def _chance(x: Tensor, p: float) -> Tensor:
    return torch.rand(len(x), 1, 1, 1, device=x.device) < p
