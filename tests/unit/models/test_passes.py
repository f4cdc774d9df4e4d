"""Passes without derivatives, and passes for them, give what the encoder gives."""

import pytest
import torch
import torch.nn.functional as F
from open_clip.transformer import QuickGELU, VisionTransformer

from tasklab.models import inference, loading, products, training
from tasklab.models.blocks import Layers
from tasklab.models.encoder import Encoder
from tasklab.models.intercept import back, front
from tasklab.tuning import memory, tangent
from tests.vectors import moved, pictures

NAMES = ["mini_xs", "mini_few"]  # of open_clip, of timm


def openai():
    torch.manual_seed(0)
    tower = VisionTransformer(32, 8, 32, 3, 4, 4.0, output_dim=16, act_layer=QuickGELU)
    blocks = tuple(f"transformer.resblocks.{i}" for i in range(3))
    return Encoder.of(tower, blocks=blocks, image_size=32)


def drawn(name, count=3):
    encoder = openai() if name == "openai" else loading.load(name, init="random").encoder
    return encoder, moved(encoder.params), pictures(count, side=32).float()


def near(one, two, share=3e-6, least=0.0):
    assert (one - two).abs().max() <= share * two.abs().max() + least


@pytest.fixture(params=[True, False])
def onednn(request, monkeypatch):
    monkeypatch.setattr(products, "by_onednn", lambda: request.param)
    monkeypatch.setattr(products, "_LEAST", 0)
    return request.param


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("name", ["openai", *NAMES])
def test_features_and_blocks_are_those_of_the_encoder(name):
    encoder, params, x = drawn(name, 17)
    alone, whole = inference.passes(encoder), inference.passes(encoder, tokens=True)
    usual = encoder(params, x)
    assert type(alone) is inference.Passes
    assert alone is inference.passes(encoder) is not whole  # known layers are found again
    near(alone(params, x), usual)
    near(whole(params, x), usual)
    blocks = Layers(encoder, x)(params, x)
    near(Layers(whole, x)(params, x), blocks)
    near(back(alone, params, x, 1, front(alone, params, x, 1)), usual)
    assert torch.equal(encoder(params, x), usual)  # the encoder is what it was
    assert alone.weights_hash == encoder.weights_hash


@pytest.mark.parametrize("name", ["openai", "mini_xs"])
def test_embedded_patches_stand_in_for_images(name):
    encoder, params, x = drawn(name)
    after, name, embed = inference.from_patches(inference.passes(encoder))
    near(after(params, embed(params[name], x)), encoder(params, x))
    change = params[name] - encoder.params[name]
    near(embed(encoder.params[name], x) + embed(change, x), embed(params[name], x))
    assert inference.from_patches(encoder) is None
    other = inference.passes(drawn("mini_few")[0])
    assert inference.from_patches(other) is None  # its patches have a bias
    assert inference.passes(encoder).module.conv1 is encoder.module.conv1


def derived(encoder, params, x):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    features = encoder(leaves, x)
    loss = (features * torch.linspace(-1, 1, features.shape[1])).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return features.detach(), dict(zip(leaves, gradients, strict=True))


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recomputed", [False, True])
def test_features_and_gradients_are_those_of_the_encoder(name, recomputed):
    encoder, params, x = drawn(name)
    quick = training.passes(encoder)
    assert quick is not encoder and quick.params is encoder.params
    usual, expected = derived(encoder, params, x)
    features, gradients = derived(memory.Recomputed(quick) if recomputed else quick, params, x)
    near(features, usual, 1e-5)
    for key, gradient in gradients.items():
        near(gradient, expected[key], 1e-5, 1e-6)
    near(encoder(params, x), usual, 1e-5)  # it is what it was; some processors round by alignment
    near(back(quick, params, x, 1, front(quick, params, x, 1)), usual, 1e-5)
    assert type(inference.passes(quick)) is inference.Passes
    near(inference.passes(quick)(params, x), usual, 1e-5)
    tau = {key: value - encoder.params[key] for key, value in params.items()}
    one, two = (tangent.jvp(some, some.params, tau, x).jtau for some in (encoder, quick))
    near(two, one, 1e-4)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    assert not inference.passes(encoder)(leaves, x).requires_grad  # refused, and not wrong


def test_convolutions_and_many_tokens(onednn):
    conv = torch.nn.Conv2d(3, 5, 4, stride=4)
    x = torch.randn(2, 3, 9, 14)
    patches = inference.like(conv, training._Patches)
    assert torch.allclose(patches(x), conv(x), atol=1e-5)
    known, params, x = drawn("mini_xs")
    other = Encoder.of(known.module)  # of no name that the table knows
    quick = training.passes(other)
    assert not other.math and (quick is other) is not onednn
    (usual, expected), (features, gradients) = derived(other, params, x), derived(quick, params, x)
    near(features, usual, 1e-5)
    for key, gradient in gradients.items():
        near(gradient, expected[key], 1e-5, 1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_attention_with_a_mask_is_pytorchs(fused):
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x, mask = torch.randn(2, 3, 8), torch.triu(torch.full((3, 3), float("-inf")), 1)
    quick = inference.like(attention, training._Attention, fused=fused)
    plain = {"need_weights": False}
    for options in ({"attn_mask": mask}, {"attn_mask": mask, **plain}, plain, {}):
        both = zip(quick(x, x, x, **options), attention(x, x, x, **options), strict=True)
        for got, expected in both:
            assert (got is expected is None) or torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["mini_convnext", "mini_t5"])
def test_of_what_is_not_known_linear_layers_alone_are_others(name, onednn):
    encoder = loading.load(name, init="random").encoder
    for quick in (inference.passes(encoder), training.passes(encoder)):
        assert type(quick) is type(encoder) and (quick is encoder) is not onednn
        x = encoder.preprocess(pictures(2, side=32)) if name == "mini_convnext" else encoder.blank
        near(quick(encoder.params, x), encoder(encoder.params, x), 1e-5)


def test_fine_tuning_writes_attention_out_but_for_linearized_models(tmp_path, monkeypatch):
    from tasklab.evidence.experiments import Lab

    called, usual = [], F.multi_head_attention_forward

    def counting(query, *others, **named):
        if query.requires_grad:  # not in the passes that make heads
            called.append(len(query))
        return usual(query, *others, **named)

    monkeypatch.setattr(F, "multi_head_attention_forward", counting)
    given = {"steps": 1, "store_root": tmp_path, "device": "cpu", "progress": False}
    lab = Lab("mini_xs", tasks="Signs", **given)
    lab.tune("Signs", "nonlinear", 0)
    assert not called
    lab.tune("Signs", "linearized", 0)
    assert called
