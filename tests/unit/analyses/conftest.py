"""What tests of several analyses share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasklab.mini import clip as mini
from tasklab.models.loading import Encoder


@pytest.fixture(scope="module")
def encoder():
    """A vision transformer of open_clip with two blocks, biases too, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"layers": 2, "width": 8, "head_width": 4, "patch_size": 4}
        module = mini.build(**shape, image_size=8).visual
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    encoder = Encoder.of(module.double(), name="mini", init="random", image_size=8)
    object.__setattr__(encoder, "preprocess", lambda x: x)
    return encoder
