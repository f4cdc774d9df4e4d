"""A ViT's values and tangents as plain functions against the library's, by architecture."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from open_clip.transformer import QuickGELU
from open_clip.transformer import VisionTransformer as OpenClip
from timm.models.vision_transformer import VisionTransformer as Timm
from torch import nn

from tasklab.models.encoder import Encoder
from tasklab.models.towers import tower
from tasklab.tuning import dual, tangent
from tests.helpers import in_bfloat16

CLIP = {"image_size": 9, "patch_size": 4, "width": 8, "layers": 2, "heads": 2, "mlp_ratio": 2.0}
VIT = {"img_size": 8, "patch_size": 4, "num_classes": 0, "embed_dim": 8, "depth": 2, "num_heads": 2}
KINDS = {
    "clip": lambda: OpenClip(**CLIP, output_dim=6),
    "quick": lambda: OpenClip(**CLIP, output_dim=6, act_layer=QuickGELU),
    "clip scaled": lambda: OpenClip(**CLIP, output_dim=6, ls_init_value=0.3),
    "clip mean": lambda: OpenClip(**CLIP, output_dim=6, pool_type="avg", no_ln_pre=True),
    "clip last": lambda: OpenClip(**CLIP, output_dim=6, pool_type="avg", final_ln_after_pool=True),
    "timm": lambda: Timm(**VIT),
    "timm no bias": lambda: Timm(**VIT, qkv_bias=False, pre_norm=True, act_layer="gelu_tanh"),
    "timm registers": lambda: Timm(**VIT, init_values=0.2, reg_tokens=2, no_embed_class=True),
    "timm mean": lambda: Timm(**VIT, global_pool="avg", class_token=False),
    "timm all": lambda: Timm(**VIT, global_pool="avg", pool_include_prefix=True, fc_norm=False),
}
TRAINED = {
    "all": lambda name: True,
    "attention": lambda name: "attn" in name and "weight" in name,
    "biases": lambda name: name.endswith("bias"),
    "last": lambda name: "proj" in name or "norm" in name.rpartition(".")[0],
}


def encoder_of(kind, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = KINDS[kind]().to(dtype)
        with torch.no_grad():
            for weight in module.parameters():  # norms and scales too are no ones
                weight.add_(0.1 * torch.randn_like(weight))
    return Encoder.of(module, image_size=9 if "clip" in kind or kind == "quick" else 8)


def images(encoder, count=3):
    generator = torch.Generator().manual_seed(1)
    side = encoder.image_size
    x = torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)
    return x.to(next(iter(encoder.params.values())).dtype)


def change(encoder, which):
    generator = torch.Generator().manual_seed(2)
    return {
        name: 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
        for name, weight in encoder.params.items()
        if TRAINED[which](name)
    }


def loss(features):
    return F.cross_entropy(3 * features, torch.arange(len(features)) % 3)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_pass_by_dual_numbers(kind):
    encoder = encoder_of(kind)
    plain, x = dual.passes(encoder), images(encoder)
    torch.testing.assert_close(plain({}, x), encoder({}, x), rtol=1e-12, atol=1e-12)
    for which in TRAINED:
        tau = change(encoder, which)
        expected = tangent.value_and_grad(encoder, encoder.params, tau, x, loss)
        for model in (plain, dataclasses.replace(plain, recompute=True)):
            value, gradients = tangent.value_and_grad(model, encoder.params, tau, x, loss)
            torch.testing.assert_close(value, expected[0], rtol=1e-12, atol=1e-12)
            assert list(gradients) == list(expected[1])
            torch.testing.assert_close(gradients, expected[1], rtol=1e-9, atol=1e-11)
    theta = {name: weight.clone().requires_grad_() for name, weight in encoder.params.items()}
    leaves = [*theta.values()]
    for model in (plain, dataclasses.replace(plain, recompute=True)):  # the standard gradient
        found, expected = (torch.autograd.grad(loss(f(theta, x)), leaves) for f in (model, encoder))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["quick", "timm"])
def test_in_bfloat16_it_is_as_near_to_float32_as_the_other_pass(kind):
    encoder = encoder_of(kind, torch.float32)
    x, tau = images(encoder, 8), change(encoder, "all")

    def gradient(model):
        _, found = tangent.value_and_grad(model, encoder.params, tau, x, loss)
        return torch.cat([one.flatten() for one in found.values()])

    exact = gradient(encoder)
    usual, side_by_side = in_bfloat16(lambda: (gradient(encoder), gradient(dual.passes(encoder))))
    error = [float((one - exact).norm() / exact.norm()) for one in (usual, side_by_side)]
    assert side_by_side.dtype == torch.float32
    assert 1e-4 < error[1] < 2 * error[0] < 0.2


def test_what_is_recomputed_keeps_only_the_inputs_of_blocks():
    encoder = encoder_of("clip")
    x, tau, kept = images(encoder), change(encoder, "all"), []
    for recompute in (False, True):
        plain, sizes = dataclasses.replace(dual.passes(encoder), recompute=recompute), []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        leaves = {name: weight.detach().requires_grad_() for name, weight in encoder.params.items()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            plain.pair(leaves, tau, x)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def changed(name, value):
    module = KINDS["timm"]()
    setattr(module.blocks[1], name, value)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(2, 2), OpenClip(**CLIP, output_dim=8, attentional_pool=True),
        Timm(**VIT, qk_norm=True), Timm(**VIT, global_pool="avgmax"),
        changed("norm1", nn.BatchNorm1d(8)), changed("mlp", nn.Identity()),
        changed("norm1", nn.LayerNorm(8, eps=0.1)),
    ],
    ids=["linear", "pooler", "normed keys", "avgmax", "batch norm", "no mlp", "another eps"],
)  # fmt: skip
def test_other_networks_are_none_of_these(module):
    assert tower(module) is None
    assert dual.passes(Encoder.of(module)) is None
