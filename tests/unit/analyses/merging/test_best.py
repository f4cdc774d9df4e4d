"""The best merge against dense least squares and brute force, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tasklab.analyses.merging import average, best, grams, loss, regmean
from tasklab.errors import TasklabError
from tasklab.models.encoder import Encoder
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector

TASKS = ("a", "b", "c")


def plain(*layers, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Flatten(), *(layer() for layer in layers)).double()
    encoder = Encoder.of(module, image_size=2)
    object.__setattr__(encoder, "preprocess", lambda x: x)
    return encoder


def linear():
    """4 features of 12 inputs: 48 weights."""
    return plain(lambda: nn.Linear(12, 4, bias=False))


def curved():
    """3 features of a network with 12 x 5 + 5 + 5 x 3 weights."""
    return plain(lambda: nn.Linear(12, 5), nn.Tanh, lambda: nn.Linear(5, 3, bias=False))


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 2, generator=generator, dtype=torch.float64)


def vectors_of(encoder):
    draw = torch.Generator().manual_seed(7)
    return {
        task: TaskVector(
            {
                name: torch.randn(x.shape, generator=draw, dtype=torch.float64)
                for name, x in encoder.params.items()
            }
        )
        for task in TASKS
    }


def data(count, seed=1):
    return {task: images(count + i, seed + i) for i, task in enumerate(TASKS)}


def flat(vector, encoder):
    return torch.cat([vector[name].reshape(-1) for name in encoder.params])


def dense(encoder, vectors, images):
    """Return the rows J(x) / sqrt(N) of all images and features, and J tau_t of the tasks' own."""
    rows, gives = [], []
    for task, x in images.items():
        J = torch.func.jacrev(lambda theta, x=x: encoder(theta, x))(dict(encoder.params))
        J = torch.cat([J[name].flatten(2) for name in encoder.params], 2).flatten(0, 1)
        rows.append(J.detach() / len(x) ** 0.5)
        gives.append(rows[-1] @ flat(vectors[task], encoder))
    return torch.cat(rows), torch.cat(gives)


def energy(encoder, vectors, images, tau):
    A, b = dense(encoder, vectors, images)
    return float((A @ flat(tau, encoder) - b).square().sum())


@pytest.mark.parametrize("model", [linear, curved])
def test_conjugate_gradients_reach_the_dense_least_squares(model):
    encoder = model()
    vectors, x = vectors_of(encoder), data(9)
    A, b = dense(encoder, vectors, x)
    expected = torch.linalg.pinv(A) @ b  # from 0, the solution of least length
    found = best.everywhere(encoder, vectors, x, steps=500, batch_size=4)
    torch.testing.assert_close(flat(found.vector, encoder), expected, rtol=1e-6, atol=1e-6)
    assert found.objective[-1] == pytest.approx(float((A @ expected - b).square().sum()), abs=1e-9)
    assert all(new <= old + 1e-9 for old, new in itertools.pairwise(found.objective))


def test_what_it_tells_of_every_step_is_what_the_vector_does():
    encoder = curved()
    vectors, x = vectors_of(encoder), data(9)
    start = average(vectors)
    zero = TaskVector.zeros_like(start)
    for begin in (None, start):
        for steps in (0, 1, 3):
            found = best.everywhere(encoder, vectors, x, start=begin, steps=steps)
            first = zero if begin is None else begin
            assert len(found.objective) == steps + 1
            assert found.objective[0] == pytest.approx(energy(encoder, vectors, x, first))
            assert found.objective[-1] == pytest.approx(energy(encoder, vectors, x, found.vector))


def test_of_a_linear_model_the_best_merge_is_regmean():
    encoder = linear()
    vectors, x = vectors_of(encoder), data(40)
    G = {task: grams(encoder, one) for task, one in x.items()}
    found = best.everywhere(encoder, vectors, x, steps=200)
    expected = regmean(vectors, G, ratio=1)
    torch.testing.assert_close(flat(found.vector, encoder), flat(expected, encoder))


def features(encoder, vector, images):
    A, _ = dense(encoder, dict.fromkeys(images, vector), images)
    rows = (A @ flat(vector, encoder)).split([len(x) * 3 for x in images.values()])
    each = zip(rows, images.values(), strict=True)
    return [row.reshape(len(x), 3) * len(x) ** 0.5 for row, x in each]


def test_the_minimum_on_the_span_is_that_of_brute_force():
    encoder = curved()
    vectors, x = vectors_of(encoder), data(9)
    basis = [features(encoder, vector, x) for vector in vectors.values()]
    own = [basis[t][t] for t in range(3)]
    c = best.span(basis, own)

    def at(weights):
        total = [sum(w * one[t] for w, one in zip(weights, basis, strict=True)) for t in range(3)]
        return best.objective(total, own)

    merged = TaskVector.sum(float(w) * v for w, v in zip(c, vectors.values(), strict=True))
    assert at(c) == pytest.approx(energy(encoder, vectors, x, merged))
    for step in (0.3, 0.03, 0.003):  # a finer and finer grid around it
        for move in itertools.product((-step, 0, step), repeat=3):
            assert at(c) <= at(c + torch.tensor(move).double())
    everywhere = best.everywhere(encoder, vectors, x, start=merged, steps=300)
    assert everywhere.objective[0] == pytest.approx(at(c)) and everywhere.objective[-1] < at(c)


def test_the_best_coefficient_of_one_vector_and_how_near_it_comes():
    encoder = curved()
    vectors, x = vectors_of(encoder), data(9)
    own = [features(encoder, vector, x)[t] for t, vector in enumerate(vectors.values())]
    merged = features(encoder, average(vectors), x)
    (alpha,) = best.span([merged], own).tolist()
    errors = [
        best.objective([a * one for one in merged], own) for a in (alpha, alpha - 0.1, alpha + 0.1)
    ]
    assert errors[0] < min(errors[1:])
    assert best.relative([0 * one for one in merged], own) == pytest.approx(1)
    assert best.relative(own, own) == 0
    with pytest.raises(TasklabError, match="change no feature"):
        best.relative(merged, [0 * one for one in own])


@pytest.mark.parametrize("normalise", [True, False])
def test_the_least_loss_on_the_span_is_that_of_brute_force(normalise):
    encoder = curved()
    vectors, x = vectors_of(encoder), data(30)
    basis = [features(encoder, vector, x) for vector in vectors.values()]
    f0 = [encoder({}, one).detach() for one in x.values()]
    draw = torch.Generator().manual_seed(3)
    labels = [torch.randint(0, 4, (len(one),), generator=draw) for one in f0]
    weights = torch.randn(3, 4, 3, generator=draw, dtype=torch.float64)
    heads = [Head(weight, normalise=normalise) for weight in weights]

    def at(c):
        total = 0.0
        for t, (head, y) in enumerate(zip(heads, labels, strict=True)):
            edited = f0[t] + sum(w * one[t] for w, one in zip(c, basis, strict=True))
            total = total + nn.functional.cross_entropy(head(edited), y)
        return total

    c = loss.span_of_loss(f0, basis, heads, labels)
    slope = torch.func.grad(at)(c)
    assert slope.abs().max() < 1e-5 and at(c) < at(torch.zeros(3).double()) - 1e-3
    for move in itertools.product((-0.03, 0, 0.03), repeat=3):
        assert at(c) <= at(c + torch.tensor(move).double())
    again = loss.span_of_loss(f0, basis, heads, labels, start=c.tolist())
    torch.testing.assert_close(again, c, rtol=1e-4, atol=1e-4)
    with pytest.raises(TasklabError, match="a head, and labels"):
        loss.span_of_loss(f0, basis, heads[:2], labels)
    with pytest.raises(TasklabError, match="at least one vector"):
        loss.span_of_loss(f0, [], heads, labels)


def test_equal_vectors_have_a_span_too():
    own = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])]
    torch.testing.assert_close(best.span([own, own], own), torch.tensor([0.5, 0.5]).double())


def test_what_cannot_be_solved_is_refused():
    encoder = curved()
    vectors, x = vectors_of(encoder), data(3)
    with pytest.raises(TasklabError, match="needs images of task 'c'"):
        best.everywhere(encoder, vectors, {"a": x["a"], "b": x["b"]})
    with pytest.raises(TasklabError, match="needs images of task 'a'"):
        best.everywhere(encoder, vectors, {**x, "a": x["a"][:0]})
    with pytest.raises(TasklabError, match="give at least 2"):
        best.everywhere(encoder, {"a": vectors["a"]}, x)
    with pytest.raises(TasklabError, match="no parameters"):
        best.everywhere(encoder, vectors, x, start=TaskVector({}))
    with pytest.raises(TasklabError, match="not all finite"):
        best.everywhere(encoder, vectors, {**x, "a": x["a"] * float("nan")})
    with pytest.raises(TasklabError, match="at least one vector"):
        best.span([], [])
    with pytest.raises(TasklabError, match="same images"):
        best.objective([torch.ones(2, 3)], [torch.ones(3, 3)])
