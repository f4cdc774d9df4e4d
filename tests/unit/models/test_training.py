"""Passes for a backward pass give the features and gradients of the encoder."""

import pytest
import torch
import torch.nn.functional as F

from tasklab.models import inference, loading, training
from tasklab.models.intercept import back, front
from tasklab.tuning import memory, tangent
from tests.vectors import moved, pictures

NAMES = ["mini_xs", "mini_few"]  # of open_clip, of timm


def drawn(name):
    encoder = loading.load(name, init="random").encoder
    return encoder, moved(encoder.params), pictures(3, side=32).float()


def derived(encoder, params, x):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    features = encoder(leaves, x)
    loss = (features * torch.linspace(-1, 1, features.shape[1])).sum()
    return features.detach(), dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recomputed", [False, True])
def test_features_and_gradients_are_those_of_the_encoder(name, recomputed):
    encoder, params, x = drawn(name)
    quick = training.passes(encoder)
    assert quick is not encoder and quick.params is encoder.params
    usual, expected = derived(encoder, params, x)
    features, gradients = derived(memory.Recomputed(quick) if recomputed else quick, params, x)
    assert (features - usual).abs().max() <= 1e-5 * usual.abs().max()
    for key, gradient in gradients.items():
        largest = expected[key].abs().max()
        assert (gradient - expected[key]).abs().max() <= 1e-5 * largest + 1e-6, key
    again = encoder(params, x)  # the encoder is what it was; some processors round by alignment
    assert torch.allclose(again, usual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_an_encoder_like_any_other(name):
    encoder, params, x = drawn(name)
    quick, usual = training.passes(encoder), encoder(params, x)
    assert torch.allclose(back(quick, params, x, 1, front(quick, params, x, 1)), usual, atol=1e-5)
    assert type(inference.passes(quick)) is inference.Passes
    assert torch.allclose(inference.passes(quick)(params, x), usual, atol=1e-5)
    tau = {key: value - encoder.params[key] for key, value in params.items()}
    one, two = (tangent.jvp(some, some.params, tau, x).jtau for some in (encoder, quick))
    assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)


def test_convolutions_and_many_tokens():
    conv = torch.nn.Conv2d(3, 5, 4, stride=4)
    x = torch.randn(2, 3, 9, 14)
    patches = inference.like(conv, training._Patches)
    assert torch.allclose(patches(x), conv(x), atol=1e-5)
    tower = loading.load("mini_xs", init="random").encoder.module
    other = loading.Encoder.of(tower)  # of no name that the table knows
    assert not other.math and training.passes(other) is other


def test_attention_with_a_mask_is_pytorchs(monkeypatch):
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x, mask = torch.randn(2, 3, 8), torch.triu(torch.full((3, 3), float("-inf")), 1)
    quick = inference.like(attention, training._Attention)
    for options in ({"attn_mask": mask}, {"attn_mask": mask, "need_weights": False}, {}):
        for got, expected in zip(
            quick(x, x, x, **options), attention(x, x, x, **options), strict=True
        ):
            assert (got is expected is None) or torch.allclose(got, expected, atol=1e-6)
    plain = quick(x, x, x, need_weights=False)[0]
    assert torch.allclose(plain, attention(x, x, x, need_weights=False)[0], atol=1e-6)


@pytest.mark.parametrize("name", ["mini_convnext", "mini_t5"])
def test_a_network_without_such_attention_runs_as_it_was_written(name):
    encoder = loading.load(name, init="random").encoder
    assert training.passes(encoder) is encoder


def test_fine_tuning_writes_attention_out_but_for_linearized_models(tmp_path, monkeypatch):
    from tasklab.experiments import Lab

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
