"""A CLIP of a few numbers in float64, for tests that train."""

import zlib

import torch
from torch import nn

from tasklab.models.loading import Clip, Encoder

SIZE, WIDTH = 4, 6


class Affine(nn.Module):
    """Affine in its parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * SIZE * SIZE, WIDTH, dtype=torch.float64)

    def forward(self, x):
        return self.linear(x.double().flatten(1))


class Curved(Affine):
    """Not affine."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        return self.last(torch.tanh(super().forward(x)))


def text(prompts):
    seeds = [zlib.crc32(prompt.encode()) for prompt in prompts]
    rows = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows).double()


def tiny(module_class=Curved):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = module_class()
    encoder = Encoder.of(module, name="mini", image_size=SIZE)
    return Clip(encoder=encoder, text=text, logit_scale=10.0)
