"""Merges that are trained, against dense algebra and against losses that are written out."""

import pytest
import torch
from torch import nn

from tasklab.analyses.merging import arithmetic, average, best, distilling
from tasklab.analyses.merging.minimum import Part
from tasklab.taskvector import TaskVector
from tests.helpers import refuses
from tests.vectors import noise, pictures, plain

TASKS = 3


class Step(nn.Linear):
    """W tanh(x) + b."""

    def forward(self, x):
        return super().forward(x.tanh())


class Residual(nn.Module):
    """Two blocks behind an embedding: x + W tanh(x) + b."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(12, 5)
        self.blocks = nn.ModuleList(Step(5, 5) for _ in range(2))

    def forward(self, x):
        x = self.embed(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return x


def network(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "linear":
            module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        else:
            module = Residual()
    blocks = ("blocks.0", "blocks.1") if kind != "linear" else ()
    return plain(module.double(), image_size=2, blocks=blocks)


def problem(encoder, size=0.3, count=24):
    vectors = [noise(encoder.params, 7 + t, size) for t in range(TASKS)]

    def parts(seed, count):
        images = [pictures(count + t, seed + t, side=2) for t in range(TASKS)]
        each = zip(images, vectors, strict=True)
        own = [distilling.features(encoder, vector, x) for x, vector in each]
        return [Part(x, f, best.Metric()) for x, f in zip(images, own, strict=True)]

    return vectors, parts(1, count), parts(50, 16)


def near(one, two, rtol=1e-5):
    return (one - two).norm() <= rtol * two.norm()


def loss(encoder, tau, parts):
    theta = {name: encoder.params[name] + tau[name] for name in encoder.params}
    total = 0.0
    for part in parts:
        f = torch.func.functional_call(encoder.module, theta, encoder.preprocess(part.images))
        total += float((f - part.own).square().sum(1).mean())
    return total


def test_in_a_linear_network_distillation_nears_the_least_squares_solution():
    encoder = network("linear")
    vectors, parts, _ = problem(encoder)
    rows, gives = [], []
    for part in parts:
        x = encoder.preprocess(part.images).flatten(1)
        scale = len(x) ** -0.5
        rows.append(torch.cat([x, x.new_ones(len(x), 1)], 1) * scale)
        gives.append(part.own * scale)
    solution = torch.linalg.lstsq(torch.cat(rows), torch.cat(gives))
    least = float((torch.cat(rows) @ solution.solution - torch.cat(gives)).square().sum())
    found = distilling.distilled(
        encoder, parts, average(vectors), parts, rates=(1e-1,), steps=200, batch_size=24
    )
    assert loss(encoder, found.vector, parts) == pytest.approx(found.objective[-1], rel=1e-4)
    assert least * 0.999 < found.objective[-1] < least * 1.02 < found.objective[0] / 1.2


def test_other_images_choose_the_rate_and_the_look():
    encoder = network("curved")
    vectors, parts, checks = problem(encoder)
    how = {"steps": 40, "batch_size": 8}
    start = average(vectors)
    wild, slow = 3.0, 1e-3
    one, two = (
        distilling.distilled(encoder, parts, start, checks, rates=(rate,), **how)
        for rate in (wild, slow)
    )
    both = distilling.distilled(encoder, parts, start, checks, rates=(wild, slow), **how)
    assert min(two.checked) < min(one.checked)
    assert both.checked == two.checked and both.vector == two.vector
    # a rate that only harms leaves the start, which is a look as well
    assert min(one.checked[1:]) > one.checked[0] and near(one.vector, start)
    assert loss(encoder, both.vector, checks) == pytest.approx(min(both.checked), rel=1e-4)
    assert len(both.checked) == len(both.objective) == 1 + distilling.LOOKS


def test_checks_choose_where_training_images_would_go_on():
    encoder = network("curved")
    vectors, parts, checks = problem(encoder)
    false = [Part(one.images, torch.zeros_like(one.own), one.metric) for one in parts]
    how = {"rates": (1e-2,), "steps": 32, "batch_size": 8}
    found = distilling.distilled(encoder, false, average(vectors), checks, **how)
    assert found.objective.index(min(found.objective)) == distilling.LOOKS
    assert found.checked.index(min(found.checked)) < distilling.LOOKS
    assert loss(encoder, found.vector, checks) == pytest.approx(min(found.checked), rel=1e-4)


def test_prodistill_lowers_the_loss_of_each_block_behind_merged_ones():
    encoder = network("curved")
    vectors, parts, checks = problem(encoder)
    found = distilling.progressive(
        encoder, vectors, parts, checks, rates=(1e-2,), steps=60, batch_size=8
    )
    plain_sum = arithmetic(vectors, alpha=distilling.START)
    # what is in no block stays at the coefficient of the start
    assert torch.allclose(found.vector["embed.weight"], plain_sum["embed.weight"])
    assert torch.allclose(found.vector["embed.bias"], plain_sum["embed.bias"])

    def of_block(tau, block):
        """The published loss of one block: its input is the merged model's, its target task t's."""
        total = 0.0
        for vector, part in zip(vectors, parts, strict=True):
            merged, own = (
                {n: encoder.params[n] + one[n] for n in encoder.params} for one in (tau, vector)
            )
            states = []
            for theta in (merged, own):
                x = encoder.preprocess(part.images).flatten(1)
                x = x @ theta["embed.weight"].T + theta["embed.bias"]
                for k in range(block):
                    x = x + x.tanh() @ theta[f"blocks.{k}.weight"].T + theta[f"blocks.{k}.bias"]
                W, b = theta[f"blocks.{block}.weight"], theta[f"blocks.{block}.bias"]
                states.append(x.tanh() @ W.T + b)
            total += float((states[0] - states[1]).square().sum())
        return total

    first = {**plain_sum, **{n: x for n, x in found.vector.items() if "blocks.0" in n}}
    for block, before in ((0, plain_sum), (1, TaskVector(first))):
        after = TaskVector(
            {**before, **{n: x for n, x in found.vector.items() if f"blocks.{block}." in n}}
        )
        assert of_block(after, block) < 0.9 * of_block(before, block)
    assert found.objective[-1] < found.objective[0] and len(found.checked) == 3
    assert loss(encoder, found.vector, parts) == pytest.approx(found.objective[-1], rel=1e-4)
    # entries that no task moves stay where they are
    still = [TaskVector({**v, "blocks.0.bias": torch.zeros(5).double()}) for v in vectors]
    again = distilling.progressive(encoder, still, parts, checks, rates=(1e-2,), steps=5)
    assert not again.vector["blocks.0.bias"].any()


def test_equal_seeds_give_equal_weights_and_the_caller_keeps_its_random_numbers():
    encoder = network("curved")
    vectors, parts, checks = problem(encoder)
    before = torch.get_rng_state()
    for make in (
        lambda seed: distilling.distilled(
            encoder,
            parts,
            average(vectors),
            checks,
            rates=(1e-3,),
            steps=9,
            batch_size=4,
            seed=seed,
        ),
        lambda seed: distilling.progressive(
            encoder, vectors, parts, checks, rates=(1e-2,), steps=9, batch_size=4, seed=seed
        ),
    ):
        assert make(0).vector == make(0).vector
        assert not near(make(0).vector, make(1).vector, 1e-9)
    assert torch.equal(before, torch.get_rng_state())
    assert all(not x.requires_grad for x in encoder.params.values())


def test_what_cannot_be_distilled_is_refused():
    encoder = network("linear")
    vectors, parts, checks = problem(encoder)
    start = average(vectors)
    refuses("images of every task", distilling.distilled, encoder, parts, start, checks[:2])
    refuses("no blocks", distilling.progressive, encoder, vectors, parts, checks)
    refuses("2 vectors need", distilling.progressive, encoder, vectors[:2], parts, checks)
    empty = [Part(parts[0].images[:0], parts[0].own[:0], best.Metric()), *parts[1:]]
    refuses("every task", distilling.distilled, encoder, empty, start, checks)
    refuses("finite", distilling.distilled, encoder, parts, start, checks, rates=(1e200,), steps=9)
