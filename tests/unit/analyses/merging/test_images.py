"""What images tell of a task, in float64 against hooks and dense derivatives."""

import re

import pytest
import torch
from torch import nn

from tasklab.analyses import merging
from tasklab.analyses.merging import fisher_diagonals, grams
from tasklab.analyses.projections import second_moments
from tasklab.models.heads import Head
from tests.helpers import refuses
from tests.vectors import noise, pictures, plain

assert_close = torch.testing.assert_close


def test_grams_are_the_second_moments_of_what_the_blocks_read(encoder):
    x = pictures(5)
    found, expected = grams(encoder, x, batch_size=2), second_moments(encoder, x)
    scales = {name for name in encoder.params if re.search(r"ln_\w+\.weight$", name)}
    assert found.keys() - scales == expected.keys() and len(scales) == 6
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    for name in scales:  # of inputs whose squares have the mean 1
        assert found[name].mean().item() == pytest.approx(1, rel=1e-2)
    first = [name for name in scales if name.startswith("ln_pre")]
    seen = []
    hook = dict(encoder.module.named_modules())["ln_pre"].register_forward_hook(
        lambda module, x, y: seen.append((y - module.bias) / module.weight)
    )
    encoder({}, x)
    hook.remove()
    (normalised,) = seen
    torch.testing.assert_close(found[first[0]], normalised.square().flatten(0, 1).mean(0))
    moved = {name: 2 * p for name, p in encoder.params.items()}
    other = grams(encoder, x, params=moved)
    torch.testing.assert_close(other["transformer.resblocks.0.mlp.c_fc.weight"], second_moments(
        encoder, x, params=moved)["transformer.resblocks.0.mlp.c_fc.weight"])  # fmt: skip


def test_fisher_and_grams_of_a_transformers_parameters(encoder):
    x, every = pictures(3), grams(encoder, pictures(3))
    names = [n for n in every if ".mlp." in n][:2]
    names.append(next(name for name in encoder.params if name.endswith("bias")))
    some = grams(encoder, x, names=names)  # a bias reads nothing
    assert list(some) == names[:2]
    assert all(torch.equal(some[name], every[name]) for name in some)
    width = encoder({}, pictures(1)).shape[1]
    head = Head(torch.eye(width).double()[:3])
    chosen = ["proj", "transformer.resblocks.0.attn.in_proj_weight"]
    found = fisher_diagonals(encoder, head, pictures(2), names=chosen)
    assert {n: x.shape for n, x in found.items()} == {n: encoder.params[n].shape for n in chosen}
    assert all((x >= 0).all() and x.any() for x in found.values())
    assert fisher_diagonals(encoder, head, pictures(1)).keys() == encoder.params.keys()
    assert not any(p.requires_grad for p in encoder.params.values())


def test_fisher_information_is_the_mean_square_of_the_slopes():
    encoder = plain(nn.Sequential(nn.Flatten(), nn.Linear(192, 2, bias=False)).double())
    (name,) = encoder.params
    head = Head(torch.tensor([[1.0, 0], [0, 1], [1, -1]]).double(), normalise=False)
    x, theta = pictures(3), encoder.params[name].detach() * 0.1
    exact = torch.zeros_like(theta)
    for one in x:
        logits = lambda W, one=one: head.weight @ W @ one.flatten()  # noqa: E731
        chances = logits(theta).softmax(0)
        slopes = torch.func.jacrev(lambda W, f=logits: f(W).log_softmax(0))(theta)
        exact += (chances[:, None, None] * slopes.square()).sum(0) / len(x)
    found = fisher_diagonals(encoder, head, x, params={name: theta}, draws=4000)[name]
    torch.testing.assert_close(found, exact, rtol=0.15, atol=0.02 * float(exact.max()))
    usual = fisher_diagonals(encoder, head, x)[name]
    assert torch.equal(usual, fisher_diagonals(encoder, head, x, draws=1, seed=0)[name])
    few = [fisher_diagonals(encoder, head, x, seed=seed)[name] for seed in (1, *range(1, 12))]
    assert torch.equal(few[0], few[1])  # of few draws, two may be equal by chance
    assert not all(torch.equal(few[0], one) for one in few[2:])


def test_statistics_of_a_task_are_those_at_its_own_model(encoder):
    tau, x = noise(encoder.params), pictures(3)
    head = Head(torch.eye(encoder({}, x).shape[1]).double()[:3])
    name = "transformer.resblocks.0.mlp.c_fc.weight"
    for linear, params in ((False, tau.apply(encoder.params)), (True, None)):
        of = lambda needs: merging.of_images(needs, encoder, head, x, tau, linear=linear)  # noqa: B023, E731
        expected = grams(encoder, x, params=params)
        assert_close(of("grams"), expected)
        assert_close(of("readers")(tau, [name]), {name: expected[name]})
        assert_close(of("diagonals"), fisher_diagonals(encoder, head, x, params=params))


def test_what_cannot_be_read_is_refused(encoder):
    head = Head(torch.eye(2).double())
    refuses("at least one image", lambda: grams(encoder, pictures(0)))
    refuses("at least one image", lambda: fisher_diagonals(encoder, head, pictures(0)))
    refuses("no parameter 'x'", lambda: fisher_diagonals(encoder, head, pictures(1), names=["x"]))
    refuses("no parameter 'x'", lambda: grams(encoder, pictures(1), names=["x"]))
    refuses("draws", lambda: fisher_diagonals(encoder, head, pictures(1), draws=0))
    bare = plain(nn.Sequential(nn.Conv2d(3, 2, 8), nn.Flatten()).double())
    refuses("no linear layer", lambda: grams(bare, pictures(2)))
    refuses("not all finite", lambda: grams(encoder, pictures(1) * float("nan")))
