"""Tangent kernels against full Jacobians and closed forms, and where eigenfunctions live."""

import re

import pytest
import timm
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from torch import nn
from torch.func import functional_call, jacrev

from tasklab.analyses import kernels as spectral
from tasklab.analyses.kernels import gram, localization
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.models.loading import math_attention
from tests.helpers import refuses


def vit():
    vision = CLIPVisionCfg(layers=1, width=16, head_width=8, patch_size=16, image_size=32)
    text = CLIPTextCfg(context_length=4, vocab_size=8, width=8, heads=1, layers=1)
    return CLIP(5, vision, text, quick_gelu=True).visual


def convnext():
    return timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(4, 4, 6, 6), num_classes=5)


class Words(nn.Module):
    """Whole numbers in: an embedding, RMS normalisation, attention without biases, tied weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.scale = nn.Parameter(torch.rand(6))
        self.unused = nn.Parameter(torch.rand(3))
        self.out = nn.Linear(6, 5, bias=False)

    def forward(self, x):
        h = self.words(x)
        h = self.scale * h * h.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        h = torch.softmax(h @ h.mT, -1) @ h + self.words(x + 1)
        return self.out(torch.relu(h).mean(1))


MODELS = {"vit": vit, "convnext": convnext, "words": Words}


class Case:
    def __init__(self, name):
        torch.manual_seed(0)
        self.module = MODELS[name]().double().eval().requires_grad_(False)
        self.params = {k: p + 0.1 * torch.randn_like(p) for k, p in self.module.named_parameters()}
        draw = (
            (lambda n: torch.randint(0, 10, (n, 4)))
            if name == "words"
            else lambda n: torch.randn(n, 3, 32, 32, dtype=torch.float64)
        )
        self.x, self.control = draw(3), draw(2)
        self.head = Head(torch.randn(4, 5, dtype=torch.float64))

    def __call__(self, params, x):
        return functional_call(self.module, dict(params), (x,))

    def full(self, names=None):
        names = list(self.params) if names is None else names
        both = torch.cat([self.x, self.control])

        def scores(theta):
            return self.head.scores(self({**self.params, **theta}, both))

        with math_attention():
            jacobian = jacrev(scores)({name: self.params[name] for name in names})
        J = torch.cat([part.flatten(2) for part in jacobian.values()], 2)
        return torch.einsum("icp,jcp->cij", J[:3], J)

    def gram(self, **options):
        return gram(self, self.params, self.head, self.x, self.control, **options)


def agree(ours, theirs, tolerance=1e-11):
    assert ours.shape == theirs.shape and ours.dtype == torch.float64
    scale = theirs.abs().max().item()
    torch.testing.assert_close(ours, theirs.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("model", MODELS)
def test_kernels_equal_those_of_the_full_jacobian(model):
    case = Case(model)
    agree(case.gram(), case.full())


@pytest.mark.parametrize("chunk", [1, 2, 50])
@pytest.mark.parametrize("memory", [1, 20_000, 2**30])
def test_chunks_and_groups_change_nothing(chunk, memory):
    case = Case("vit")
    agree(case.gram(chunk=chunk, memory=memory, classes=[2]), case.full()[2:3])


def test_parts_and_square_kernels():
    case = Case("vit")
    names = [name for name in case.params if re.search(r"attn.*weight", name)]
    kernels = case.gram(classes=[3, 1], trainable=names)
    agree(kernels, case.full(names)[[3, 1]])
    assert (kernels - case.full()[[3, 1]]).abs().max() > 1e-3
    case = Case("convnext")
    kernels = gram(case, case.params, case.head, case.x)
    agree(kernels, case.full()[:, :, :3])
    agree(kernels, kernels.mT)
    assert (torch.linalg.eigvalsh(kernels) > 0).all()
    case = Case("words")
    refuses("needs images", lambda: gram(case, case.params, case.head, case.x[:0]))


@pytest.mark.parametrize("chunk", [1, 2])
def test_gradients_in_memory_stay_within_the_bound(monkeypatch, chunk):
    """Rows of one group and a chunk: never more than allowed, unless one parameter alone is."""
    case = Case("vit")
    sizes = {name: p.numel() for name, p in case.params.items() if "resblocks" in name}
    memory = 8 * (3 + chunk) * max(sizes.values())
    assert max(sizes.values()) < sum(sizes.values()) / 3
    held: list[int] = []
    plain = spectral._gradients

    def record(*args):
        parts = plain(*args)
        assert all(len(part) <= chunk for part in parts)
        held.append(sum(3 * part.shape[1] + part.numel() for part in parts))
        return parts

    monkeypatch.setattr(spectral, "_gradients", record)
    case.gram(chunk=chunk, memory=memory, classes=[0], trainable=list(sizes))
    assert max(held) * 8 <= memory
    assert len(held) > 3 * 3  # it took several groups


def test_the_mini_encoder_in_single_precision_is_left_as_it_was():
    encoder = loading.load("mini").encoder
    torch.manual_seed(0)
    x, head = torch.randn(3, 3, 32, 32), Head(torch.randn(2, 128))
    names = [name for name in encoder.params if "resblocks.5" in name or "conv1" in name]
    fast = gram(encoder, encoder.params, head, x[:2], x[2:], trainable=names)
    params = {name: p.double() for name, p in encoder.params.items()}
    double = Head(head.weight.double())
    slow = gram(encoder, params, double, x[:2].double(), x[2:].double(), trainable=names)
    agree(fast, slow, 1e-4)
    case = Case("words")
    before = {name: p.clone() for name, p in case.params.items()}
    case.params = {name: p.requires_grad_() for name, p in case.params.items()}
    assert not case.gram(memory=1).requires_grad
    for name, p in case.params.items():
        assert p.grad is None and torch.equal(p, before[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [4]}, "classes are numbers from 0 to 3"),
        ({"classes": [-1]}, "classes are numbers from 0 to 3"),
        ({"classes": []}, "at least one"),
        ({"trainable": ["nope"]}, "no parameter 'nope'"),
        ({"trainable": []}, "at least one parameter"),
        ({"chunk": 0}, "chunk must be at least 1"),
    ],
)
def test_mistakes_are_told(options, message):
    refuses(message, lambda: Case("words").gram(**options))


# --- Localization --------------------------------------------------------------------------------
def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_kernels_without_the_other_side_are_localized():
    block = random(3, 5, 8)
    kernels = torch.cat([block @ block.mT, torch.zeros(3, 5, 7)], 2)
    found = localization(kernels, 5)
    assert found.energy.shape == (3, 12) and found.share.tolist() == [1, 1, 1]
    torch.testing.assert_close(found.energy[:, 5:], torch.zeros(3, 7).double())
    # as many functions as points: each point is one
    torch.testing.assert_close(found.energy[:, :5], torch.ones(3, 5).double())


def test_energies_and_shares():
    kernels = random(2, 3, 7)
    energy = localization(kernels, 3).energy
    torch.testing.assert_close(energy.sum(1), torch.tensor([3.0, 3.0]).double())
    for kernel, one in zip(kernels, energy, strict=True):
        hat = kernel.T @ torch.linalg.solve(kernel @ kernel.T, kernel)  # projection
        torch.testing.assert_close(one, hat.diagonal())
    kernels = torch.ones(1, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(localization(kernels, 3).share, torch.tensor([0.5]).double())
    # Two equal images have one function, not two.
    kernels = random(1, 3, 6)[:, [0, 1, 1]]
    found = localization(kernels, 3)
    torch.testing.assert_close(found.energy.sum(), torch.tensor(2.0).double())


@pytest.mark.parametrize("own", [0, 6, 7])
def test_both_sides_need_a_column(own):
    refuses(f"{own} of 6 columns", lambda: localization(random(1, 3, 6), own))
