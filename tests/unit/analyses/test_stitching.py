"""Stitched models by fewer passes are those by a pass for each front and each back."""

import pytest
import torch

from tasklab.analyses import stitching
from tasklab.models import inference, loading
from tasklab.models.heads import Head
from tasklab.tasks.drawn import Images
from tasklab.taskvector import TaskVector


@pytest.fixture(scope="module")
def case():
    encoder, draw = loading.load("mini_xs", init="random").encoder, torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    x = rand(12, 3, encoder.image_size, encoder.image_size)
    width = encoder(encoder.params, x[:1]).shape[1]
    head = Head(50 * torch.nn.functional.normalize(rand(4, width), dim=-1))
    own, other = (
        TaskVector({n: 0.3 * p.abs().mean() * rand(*p.shape) for n, p in encoder.params.items()})
        for _ in range(2)
    )
    return encoder, head, Images(x, torch.arange(12) % 4), own, other


def test_addition_at_all_blocks_is_three_fronts(case, monkeypatch):
    encoder, head, data, own, other = case
    blocks = range(len(encoder.blocks))
    slow = [
        row
        for block in blocks
        for row in stitching.sums(encoder, head, data, own, other, 1.0, [block])
    ]
    passes = []
    monkeypatch.setattr(stitching, "front", None)  # no pass stops at a block
    usual = stitching.outputs
    monkeypatch.setattr(stitching, "outputs", lambda *given: passes.append(1) or usual(*given))
    quick = inference.passes(encoder)
    assert list(stitching.sums(quick, head, data, own, other, 1.0, blocks)) == slow
    assert len(passes) == 3 and len({value for *_, value in slow}) > 1


def test_negation_by_lighter_passes(case):
    encoder, head, data, vector, _ = case
    alphas, block = (0.5, 1.0), len(encoder.blocks) - 1  # the one whose first token is computed
    slow = list(stitching.negations(encoder, head, data, vector, alphas, block))
    quick = inference.passes(encoder)
    assert list(stitching.negations(quick, head, data, vector, alphas, block)) == slow


def test_features_that_are_stitched_are_those_of_the_definition(case, monkeypatch):
    encoder, head, data, own, other = case
    monkeypatch.setattr(stitching, "accuracy", lambda *given: given[-1])  # what is put in place
    alpha, block = 0.5, 1

    def f(*terms):
        theta = {
            name: x + sum(scale * vector[name] for scale, vector in terms if name in vector)
            for name, x in encoder.params.items()
        }
        return stitching.front(encoder, theta, data.x, block)

    start, one, two = f(), f((alpha, own)), f((alpha, other))
    both = f((alpha / 2, own), (alpha / 2, other))
    wanted = {"own": one, "other": two, "edited": both, "both": (one + two) / 2}
    found = {n: h for _, n, h in stitching.sums(encoder, head, data, own, other, alpha, [block])}
    wanted |= {"features": start - (one - start), "weights": f((-alpha, own))}
    found |= {n: h for _, n, h in stitching.negations(encoder, head, data, own, [alpha], block)}
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
