"""Linearized models against finite differences, autograd through jvp, and closed forms."""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from tasklab.models.loading import math_attention
from tasklab.tuning import tangent
from tests import towers
from tests.helpers import in_bfloat16, refuses

TOLERANCE = 1e-10  # relative to the largest entry


class Oddities(nn.Module):
    """What the models above do not do: in place, several results, masks, no bias, a constant."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3 * 32 * 32, 24, bias=False)
        self.scale = nn.Parameter(torch.rand(24))
        self.norm = nn.LayerNorm(24, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.bias_only = nn.Conv1d(8, 8, 1)
        self.unused = nn.Parameter(torch.rand(3))

    def forward(self, x):
        x = self.first(x.flatten(1))
        x = x * 2.0 - x.mean(0, keepdim=True) / 3
        x.mul_(self.scale)
        x = x + self.scale[1] ** 2
        x = self.norm(x) + torch.ones_like(x)
        top, where = x.topk(12, dim=-1)
        a, b = torch.cat([top.sin(), x[:, :12].softmax(-1)], 1).chunk(2, -1)
        tokens = torch.cat([a, b], -1).view(len(x), 3, 8)
        mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
        tokens = tokens + self.attention(tokens, tokens, tokens, attn_mask=mask)[0]
        tokens = F.scaled_dot_product_attention(tokens, tokens.tanh(), tokens, is_causal=True)
        tokens = F.relu(self.bias_only(tokens.mT), inplace=True)
        return tokens.flatten(1) * where.double().mean()


MODELS = {name: make for name, (make, _) in towers.MODELS.items()} | {"oddities": Oddities}


class Case:
    """A model as a function, theta_0, tau, images and a loss, in float64."""

    def __init__(self, make, part="", dtype=torch.float64):
        torch.manual_seed(0)
        self.module = make().to(dtype).eval().requires_grad_(False)
        # Away from the special values of an initialisation: zero biases, unit scales.
        self.params = {
            name: p + 0.05 * torch.randn_like(p) for name, p in self.module.named_parameters()
        }
        names = [name for name in self.params if re.search(part, name)]
        self.tau = {name: 0.02 * torch.randn_like(self.params[name]) for name in names}
        self.x = torch.randn(3, 3, 32, 32, dtype=dtype)
        self.labels = torch.tensor([0, 3, 1])

    def __call__(self, params, x):
        return functional_call(self.module, dict(params), (x,))

    def loss(self, features):
        return F.cross_entropy(20 * F.normalize(features, dim=-1), self.labels)

    def reference(self):
        tau = {name: t.clone().requires_grad_() for name, t in self.tau.items()}
        start = {name: self.params[name] for name in tau}

        def model(params):
            return self({**self.params, **params}, self.x)

        with math_attention():
            f0, jtau = torch.func.jvp(model, (start,), (tau,))
            loss = self.loss(f0 + jtau)
        grads = torch.autograd.grad(loss, list(tau.values()), materialize_grads=True)
        return f0.detach(), jtau.detach(), loss.detach(), dict(zip(tau, grads, strict=True))


def agree(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    scale = theirs.abs().max().item() or 1.0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale, check_dtype=False)


PARTS = [
    *((model, "") for model in MODELS),
    *((model, r"attn.*weight") for model in ("vit", "timm")),  # attention-only fine-tuning
    ("vit", "conv1|class_embedding"),  # tangents from the first operation on, no later weights
    ("vit", r"ln_post|proj$"),  # tangents in the last operations only
    ("vit", r"bias"),
    ("convnext", "norm|gamma"),
]


@pytest.mark.parametrize(("model", "part"), PARTS)
def test_values_and_gradients_equal_autograd_through_jvp(model, part):
    case = Case(MODELS[model], part)
    values = tangent.jvp(case, case.params, case.tau, case.x)
    f0, jtau, loss, grads = case.reference()
    agree(values.f0, f0, TOLERANCE)
    agree(values.jtau, jtau, TOLERANCE)
    assert not values.jtau.requires_grad and not values.f0.requires_grad

    value, ours = tangent.value_and_grad(case, case.params, case.tau, case.x, case.loss)
    agree(value, loss, TOLERANCE)
    assert list(ours) == list(case.tau)
    for name, grad in grads.items():
        agree(ours[name], grad, TOLERANCE)
        assert not ours[name].requires_grad


def test_parameters_of_no_use_have_neither_tangent_nor_gradient():
    case = Case(Oddities)
    assert not tangent.jvp(case, case.params, {}, case.x).jtau.any()
    only = {"unused": torch.ones(3).double()}
    assert not tangent.jvp(case, case.params, only, case.x).jtau.any()
    _, grads = tangent.value_and_grad(case, case.params, only, case.x, case.loss)
    assert not grads["unused"].any()


def test_features_come_in_parts_and_nothing_is_changed():
    case = Case(towers.vit)
    whole = tangent.jvp(case, case.params, case.tau, case.x)
    parts = tangent.features(case, case.params, case.tau, case.x, batch_size=2)
    agree(parts.f0, whole.f0, 1e-12)
    agree(parts.jtau, whole.jtau, 1e-12)
    before = {name: p.clone() for name, p in case.params.items()}
    fast = torch.backends.mha.get_fastpath_enabled()
    tangent.value_and_grad(case, case.params, case.tau, case.x, case.loss)
    assert all(torch.equal(before[name], p) for name, p in case.params.items())
    assert not any(p.requires_grad or p.grad is not None for p in case.params.values())
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_tangents_under_bfloat16_autocast():
    case = Case(functools.partial(towers.vit, layers=1), dtype=torch.float32)
    jtau = in_bfloat16(lambda: tangent.jvp(case, case.params, case.tau, case.x).jtau)
    assert jtau.dtype == torch.float32
    exact = tangent.jvp(case, case.params, case.tau, case.x).jtau
    assert not torch.equal(jtau, exact)
    assert F.cosine_similarity(jtau.flatten(), exact.flatten(), dim=0) > 0.99


@pytest.mark.parametrize(
    ("tau", "message"),
    [({"ghost": torch.ones(1)}, "ghost"), ({"unused": torch.ones(4)}, r"unused.*\(4,\).*\(3,\)")],
)
def test_a_vector_of_another_model_is_named(tau, message):
    case = Case(Oddities)
    refuses(message, tangent.jvp, case, case.params, tau, case.x)
    refuses(message, tangent.value_and_grad, case, case.params, tau, case.x, case.loss)
