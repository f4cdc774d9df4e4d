"""Passes without derivatives give what the encoder gives."""

import pytest
import torch
from open_clip.transformer import QuickGELU, VisionTransformer

from tasklab.models import inference, loading, products
from tasklab.models.blocks import Layers
from tasklab.models.encoder import Encoder
from tasklab.models.intercept import back, front
from tests.vectors import moved


def openai():
    torch.manual_seed(0)
    tower = VisionTransformer(32, 8, 32, 3, 4, 4.0, output_dim=16, act_layer=QuickGELU)
    blocks = tuple(f"transformer.resblocks.{i}" for i in range(3))
    return Encoder.of(tower, blocks=blocks, image_size=32)


def shipped():
    return loading.load("mini_xs", init="random").encoder


def timm():
    return loading.load("mini_few", init="random").encoder


def images(encoder, count):
    side = encoder.image_size
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def near(one, two):
    assert (one - two).abs().max() < 3e-6 * two.abs().max()


@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("make", [openai, shipped, timm])
def test_features_and_blocks_are_those_of_the_encoder(monkeypatch, make, convolved):
    monkeypatch.setattr(products, "by_convolution", lambda: convolved)
    encoder = make()
    x, params = images(encoder, 17), moved(encoder.params)
    alone, whole = inference.passes(encoder), inference.passes(encoder, tokens=True)
    usual = encoder(params, x)
    assert type(alone) is inference.Passes
    near(alone(params, x), usual)
    near(whole(params, x), usual)
    blocks = Layers(encoder, x)(params, x)
    near(Layers(whole, x)(params, x), blocks)
    near(back(alone, params, x, 1, front(alone, params, x, 1)), usual)
    assert torch.equal(encoder(params, x), usual)  # the encoder is what it was
    assert alone.weights_hash == encoder.weights_hash


@pytest.mark.parametrize("make", [openai, shipped])
def test_embedded_patches_stand_in_for_images(make):
    encoder = make()
    x, params = images(encoder, 2), moved(encoder.params)
    after, name, embed = inference.from_patches(inference.passes(encoder))
    near(after(params, embed(params[name], x)), encoder(params, x))
    change = params[name] - encoder.params[name]
    near(embed(encoder.params[name], x) + embed(change, x), embed(params[name], x))
    assert inference.from_patches(encoder) is None
    assert inference.from_patches(inference.passes(timm())) is None  # its patches have a bias
    assert inference.passes(encoder).module.conv1 is encoder.module.conv1


def test_derivatives_are_refused_not_wrong():
    encoder = openai()
    leaves = {name: value.clone().requires_grad_() for name, value in encoder.params.items()}
    assert not inference.passes(encoder)(leaves, images(encoder, 1)).requires_grad


@pytest.mark.parametrize("name", ["mini_convnext", "mini_t5"])
def test_what_is_not_known_runs_as_it_was_written(name):
    encoder = loading.load(name, init="random").encoder
    assert inference.passes(encoder) is encoder
