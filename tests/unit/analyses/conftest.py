"""What tests of several analyses share."""

import pytest
import torch
from torch import nn

from tasklab.mini import clip as mini
from tests.vectors import plain


def tower(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = {"layers": 2, "width": 8, "head_width": 4, "patch_size": 4}
        module = mini.build(**shape, image_size=8).visual
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return module.double()


@pytest.fixture(scope="package")
def encoder():
    blocks = ("transformer.resblocks.0", "transformer.resblocks.1")
    return plain(tower(), name="mini", init="random", blocks=blocks, image_size=8)
