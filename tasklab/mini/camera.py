"""The camera between a picture and a data set: blur, light, colour, style, noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.mini import exact
from tasklab.mini.draw import Rng
from tasklab.mini.styles import FILTERS


@dataclass(frozen=True, kw_only=True)
class Camera:
    """How strongly each degradation acts."""

    blur: float = 0.0  #: Largest share of a 3 x 3 mean in the picture, 0 to 1
    #: Largest loss of contrast, 0 to 1; brightness shifts by up to a quarter of it.
    contrast: float = 0.0
    tint: float = 0.0  #: Standard deviation of the gain of each colour channel
    gray: float = 0.0  #: Probability of a picture without colour
    #: Probability that red and green are exchanged, as in false-colour imagery.
    infrared: float = 0.0
    negative: float = 0.0  #: Probability of inverted brightness
    noise: float = 0.0  #: Largest standard deviation of independent noise per pixel
    #: One of `styles.FILTERS`, several after each other as in `"negative+hue"`, or none.
    filter: str = ""
    filtered: float = 1.0  #: Probability of the filter

    def __call__(self, rng: Rng, image: Tensor) -> Tensor:
        """Return the pictures (n, 3, S, S) in [0, 1] as taken by this camera, same shape."""
        n = len(image)

        def per_image(values: Tensor) -> Tensor:
            return values[:, None, None, None]

        if self.blur:
            smooth = exact.box_blur(F.pad(image, (1, 1, 1, 1), mode="replicate"))
            share = per_image(rng.uniform(n) * self.blur)
            image = image * (1 - share) + smooth * share
        if self.contrast:
            gain = 1 - per_image(rng.uniform(n, 0, self.contrast))
            shift = per_image(rng.uniform(n, -0.25, 0.25) * self.contrast)
            image = (image - 0.5) * gain + 0.5 + shift
        if self.filter:
            chosen, seen = per_image(rng.chance(n, self.filtered)), image
            for name in self.filter.split("+"):
                seen = FILTERS[name](seen.clamp(0, 1))
            image = torch.where(chosen, seen, image)
        if self.tint:
            image = image * (1 + rng.normal(n, 3, 1, 1) * self.tint)
        if self.infrared:
            swapped = image[:, [1, 0, 2]]
            image = torch.where(per_image(rng.chance(n, self.infrared)), swapped, image)
        if self.negative:
            image = torch.where(per_image(rng.chance(n, self.negative)), 1 - image, image)
        if self.gray:
            mean = exact.channel_mean(image, 1)[:, None].expand_as(image)
            image = torch.where(per_image(rng.chance(n, self.gray)), mean, image)
        if self.noise:
            sigma = per_image(rng.uniform(n, 0.3, 1.0) * self.noise)
            image = image + rng.normal(*image.shape) * sigma
        return image.clamp(0, 1)


def to_uint8(image: Tensor) -> Tensor:
    """Return images in [0, 1] as uint8."""
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)
