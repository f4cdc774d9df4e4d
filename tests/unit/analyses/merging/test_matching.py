"""MaTS, against one dense linear system in float64; its factors against gradients written out."""

import pytest
import torch
from torch import nn

from tasklab.analyses.merging import arithmetic, average, matching
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tasklab.tuning import kronecker
from tests.helpers import refuses
from tests.vectors import noise, pictures, plain

TASKS = 3


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
        return plain(nn.Sequential(*layers).double(), image_size=2)


def head(seed):
    draw = torch.Generator().manual_seed(seed)
    return Head(torch.randn(5, 3, generator=draw, dtype=torch.float64), normalise=False)


def problem(encoder, count=40):
    vectors = [noise(encoder.params, 7 + t, 0.5) for t in range(TASKS)]
    images = [pictures(count, t, side=2) for t in range(TASKS)]
    factors = [
        kronecker.fisher(encoder, head(t), x, params=v.apply(encoder.params), draws=2)
        for t, (x, v) in enumerate(zip(images, vectors, strict=True))
    ]
    return vectors, images, factors


def test_many_steps_reach_the_solution_of_the_dense_system():
    encoder = network()
    vectors, _, factors = problem(encoder)
    start = arithmetic(vectors, alpha=0.3)
    few, all_steps = matching.mats(vectors, factors, start, (1, 400))
    for name, bias in (("1.weight", "1.bias"), ("3.weight", "")):
        left, right = 0.0, 0.0
        for vector, one in zip(vectors, factors, strict=True):
            H = torch.kron(one.outputs[name], one.inputs[name])
            D = vector[name]
            D = torch.cat([D, vector[bias][:, None]], 1) if bias else D
            left, right = left + H, right + H @ D.flatten()
        exact = torch.linalg.lstsq(left, right[:, None]).solution.view(len(vectors[0][name]), -1)
        found = all_steps[name]
        if bias:
            found = torch.cat([found, all_steps[bias][:, None]], 1)
        residual = (left @ found.flatten() - right).norm() / right.norm()
        assert residual < 1e-6
        assert torch.allclose(found, exact, rtol=1e-2, atol=1e-3)
        far, near = ((one[name] - start[name]).norm() for one in (all_steps, few))
        assert 0 < near < far  # fewer steps stay nearer to the start


def test_what_has_no_factors_is_averaged():
    encoder = network()
    vectors, _, factors = problem(encoder)
    wide = [
        TaskVector({**v, "token": torch.full((2,), float(t)).double()})
        for t, v in enumerate(vectors)
    ]
    (found,) = matching.mats(wide, factors, average(wide), (3,))
    assert found["token"].tolist() == [1.0, 1.0]


def test_factors_are_those_of_the_likelihood_at_the_own_model():
    encoder, vectors = network(), None
    vectors, images, _ = problem(encoder)
    theta, x, own = vectors[1].apply(encoder.params), images[1][:8], head(1)
    one = kronecker.fisher(encoder, own, x, params=theta, draws=4000)
    a = torch.cat([x.flatten(1), x.new_ones(len(x), 1)], 1)
    assert torch.allclose(one.inputs["1.weight"], a.T @ a / len(x))
    h = a[:, :-1] @ theta["1.weight"].T + theta["1.bias"]
    f = h.tanh() @ theta["3.weight"].T
    p = (f @ own.weight.T).softmax(1)
    exact = torch.zeros(3, 3, dtype=torch.float64)
    for chances in p:  # the covariance of the gradient in the features, over all labels
        g = own.weight - chances @ own.weight
        exact += (chances[:, None] * g).T @ g / len(p)
    assert torch.allclose(one.outputs["3.weight"], exact, rtol=0.1, atol=0.02 * float(exact.max()))
    at_start = kronecker.fisher(encoder, own, x, draws=400)
    assert not torch.allclose(at_start.outputs["3.weight"], exact, rtol=0.1)


def test_factors_of_other_numbers_or_shapes_are_refused():
    encoder = network()
    vectors, _, factors = problem(encoder)
    refuses("as many factors", matching.mats, vectors, factors[:2], average(vectors))
    cut = [TaskVector({**v, "3.weight": v["3.weight"][:2]}) for v in vectors]
    refuses("3.weight belong to another shape", matching.mats, cut, factors, average(cut))
    with pytest.raises(Exception, match="counts"):
        matching.mats(vectors, factors, average(vectors), (0,))
