"""Styles: changes of a picture's colours or lines under which its content stays visible."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Brightness 0, 1/4, 1/2, 3/4, 1 as a heat camera shows it.
_HEAT = torch.tensor(
    [[0.02, 0.02, 0.1], [0.4, 0.05, 0.5], [0.85, 0.25, 0.25], [0.98, 0.7, 0.15], [1.0, 1.0, 0.85]]
)
_LUMA = 0.3, 0.55, 0.15


def brightness(image: Tensor) -> Tensor:
    """Return (n, S, S) of pictures (n, 3, S, S)."""
    red, green, blue = image.unbind(1)
    return red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]


def heat(image: Tensor) -> Tensor:
    """Return brightness in the colours of a heat camera."""
    at = brightness(image).clamp(0, 1) * (len(_HEAT) - 1)
    low = at.floor().clamp(max=len(_HEAT) - 2).long()
    share = (at - low)[..., None]
    colour = _HEAT[low] * (1 - share) + _HEAT[low + 1] * share
    return colour.permute(0, 3, 1, 2)


def night(image: Tensor) -> Tensor:
    """Return brightness in the greens of a night camera."""
    level = brightness(image).clamp(0, 1)[:, None]
    return torch.cat([level * level * 0.6, 0.1 + 0.85 * level, level * level * 0.5], 1)


def relief(image: Tensor) -> Tensor:
    """Return a grey relief, lit from the upper left."""
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    slope = brightness(padded[:, :, 2:, 2:] - padded[:, :, :-2, :-2])
    return (0.5 - 0.9 * slope)[:, None].expand(-1, 3, -1, -1)


def drawing(image: Tensor) -> Tensor:
    """Return dark lines on paper where the picture has edges."""
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]).abs()
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]).abs()
    lines = (across + down).amax(1, keepdim=True)
    return (0.97 - 1.3 * lines).expand(-1, 3, -1, -1)


def turned_hue(image: Tensor) -> Tensor:
    """Return the picture with red for green, green for blue and blue for red."""
    return image[:, [1, 2, 0]]


def negative(image: Tensor) -> Tensor:
    """Return the picture's negative."""
    return 1 - image


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "heat": heat, "night": night, "relief": relief, "drawing": drawing, "hue": turned_hue,
    "negative": negative,
}  # fmt: skip
