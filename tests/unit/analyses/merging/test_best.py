"""The best merge, on the span and over all weights, against dense algebra in float64."""

import dataclasses
import itertools

import pytest
import torch
from torch import nn

from tasklab.analyses import meters
from tasklab.analyses.merging import average, best, minimum
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures
from tests.helpers import refuses
from tests.vectors import noise, pictures, plain

TASKS = ("a", "b", "c")


def stack(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), *(layer() for layer in layers))
    return plain(module.double(), image_size=2)


def curved():
    return stack(lambda: nn.Linear(12, 5), nn.Tanh, lambda: nn.Linear(5, 3, bias=False))


def vectors_of(encoder):
    return {task: noise(encoder.params, 7 + i, 1.0) for i, task in enumerate(TASKS)}


def data(count):
    return {task: pictures(count + i, 1 + i, side=2) for i, task in enumerate(TASKS)}


def flat(vector, encoder):
    return torch.cat([vector[name].reshape(-1) for name in encoder.params])


def dense(encoder, vectors, images):
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
    refuses("change no feature", lambda: best.relative(merged, [0 * one for one in own]))


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

    c = best.span_of_loss(f0, basis, heads, labels)
    slope = torch.func.grad(at)(c)
    assert slope.abs().max() < 1e-5 and at(c) < at(torch.zeros(3).double()) - 1e-3
    for move in itertools.product((-0.03, 0, 0.03), repeat=3):
        assert at(c) <= at(c + torch.tensor(move).double())
    again = best.span_of_loss(f0, basis, heads, labels, start=c.tolist())
    torch.testing.assert_close(again, c, rtol=1e-4, atol=1e-4)
    refuses("a head, and labels", lambda: best.span_of_loss(f0, basis, heads[:2], labels))
    refuses("at least one vector", best.span_of_loss, f0, [], heads, labels)


def test_what_cannot_be_solved_or_is_not_finite_is_refused():
    own = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])]
    torch.testing.assert_close(best.span([own, own], own), torch.tensor([0.5, 0.5]).double())
    refuses("at least one vector", best.span, [], [])
    refuses("same images", lambda: best.objective([torch.ones(2, 3)], [torch.ones(3, 3)]))
    encoder = curved()
    vectors, x = vectors_of(encoder), data(3)
    part = minimum.Part(x["a"], torch.ones(3, 3).double(), best.Metric())
    for parts in ([], [part, part.first(0)]):
        refuses("every task", minimum.minimum, encoder, parts, vectors["a"], rounds=[(9, 1)])
    bad = dataclasses.replace(part, images=x["a"] * float("nan"))
    refuses("finite|no feature", minimum.minimum, encoder, [bad], vectors["a"], rounds=[(9, 1)])


def weighed(encoder, vectors, x, name):
    f0 = [encoder({}, one).detach() for one in x.values()]
    jtau = [features(encoder, v, x)[t] for t, v in enumerate(vectors.values())]
    own = [TangentFeatures(*each) for each in zip(f0, jtau, strict=True)]
    draw = torch.Generator().manual_seed(3)
    weights = 3 * torch.randn(3, 4, 3, generator=draw, dtype=torch.float64)
    heads = [Head(w, normalise=t != 1) for t, w in enumerate(weights)]
    by, G = best.metrics(name, own, heads), []
    for head, one in zip(heads, own, strict=True):
        A = torch.stack([torch.func.jacrev(head)(f) for f in one.at(1.0)])
        p = head(one.at(1.0)).softmax(-1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        eye = torch.eye(3).double().expand(len(p), 3, 3)
        scale = {"features": 1.0, "normalised": float(1 / one.jtau.square().sum(1).mean())}
        G.append(A.mT @ middle @ A if name == "logits" else scale[name] * eye)
    return own, by, G


@pytest.mark.parametrize("name", best.METRICS)
def test_metrics_are_those_of_dense_matrices(name):
    encoder = curved()
    vectors, x = vectors_of(encoder), data(9)
    own, by, G = weighed(encoder, vectors, x, name)
    for metric, dense_g, one in zip(by, G, own, strict=True):
        metric, dense_g = dataclasses.replace(metric, weight=4 * metric.weight), 4 * dense_g
        e, rows = torch.randn_like(one.jtau), torch.tensor([4, 1])
        torch.testing.assert_close(metric(e), (dense_g @ e[..., None])[..., 0])
        torch.testing.assert_close(metric(e[rows], rows), metric(e)[rows])
        numbers = torch.Generator().manual_seed(0)
        few = torch.zeros(20_000, dtype=torch.long)  # of the first image
        v = metric.draw(e[few], few, numbers)
        torch.testing.assert_close(v.T @ v / len(v), dense_g[0], atol=0.05, rtol=0.05)
    features_of = [one.jtau for one in own]
    doubled = [2 * one for one in features_of]
    assert best.relative(doubled, features_of, by) == pytest.approx(1)
    assert float(best.span([doubled], features_of, by)[0]) == pytest.approx(0.5)
    if name == "normalised":
        assert best.total(features_of, by) == pytest.approx(3)


@pytest.mark.parametrize("name", best.METRICS)
def test_conjugate_gradients_reach_the_dense_minimum_from_any_start(name):
    encoder = stack(lambda: nn.Linear(12, 3), nn.Tanh, lambda: nn.Linear(3, 3, bias=False))
    vectors, x = vectors_of(encoder), data(24)  # more equations than weights: one minimum
    own, by, G = weighed(encoder, vectors, x, name)
    parts = [*map(minimum.Part, x.values(), (o.jtau for o in own), by)]
    H, b = 0, 0
    for (task, images), g in zip(x.items(), G, strict=True):
        rows, _ = dense(encoder, {task: vectors[task]}, {task: images})
        J = rows.unflatten(0, (len(images), 3))
        H_t = (J.mT @ g @ J).sum(0)
        H, b = H + H_t, b + H_t @ flat(vectors[task], encoder)
    expected = torch.linalg.pinv(H, rtol=1e-9) @ b
    for start in (average(vectors), 3 * vectors["b"])[: 1 + (name == "features")]:
        found = minimum.minimum(
            encoder, parts, start, epochs=20, rounds=[(8, 3), (99, 400)], batch_size=20
        )
        assert found.residual[-1] < 1e-6 < 0.1 < found.residual[1]
        assert all(new <= old + 1e-12 for old, new in itertools.pairwise(found.objective))
        move = flat(found.vector, encoder) - expected  # 0, but in what no image reads
        assert float(move @ H @ move) < 1e-9 * float(expected @ H @ expected)
        least = best.objective(features(encoder, found.vector, x), [o.jtau for o in own], by)
        assert least == pytest.approx(found.objective[-1])


def test_preconditioned_steps_come_nearer_than_plain_ones(monkeypatch):
    norm = nn.LayerNorm(6)
    norm.weight.data.copy_(torch.logspace(-1, 1, 6))
    encoder = stack(lambda: nn.Linear(12, 6), nn.Tanh, lambda: norm, lambda: nn.Linear(6, 3))
    scales = torch.logspace(-0.7, 0.7, 12).double().reshape(3, 2, 2)
    vectors, x = vectors_of(encoder), {task: scales * one for task, one in data(60).items()}
    own = [features(encoder, v, x)[t] for t, v in enumerate(vectors.values())]
    parts = [*map(minimum.Part, x.values(), own, [best.Metric()] * 3)]

    def least(steps, epochs=0):
        how = {"epochs": epochs, "rounds": [(99, steps)]}
        return minimum.minimum(encoder, parts, average(vectors), **how).objective[-1]

    floor, found, start, batches = least(400), least(12), least(0), least(0, epochs=30)
    monkeypatch.setattr(minimum, "_inverse", lambda *_: dict)
    assert found - floor < 0.6 * (least(12) - floor)
    assert batches - floor < 0.4 * (start - floor)
    monkeypatch.setattr(minimum, "_LENGTH", 20.0)  # it diverges
    assert least(0, epochs=3) == start


def test_steps_on_batches_count_tasks_alike_whatever_their_number_of_images():
    encoder = stack(lambda: nn.Linear(12, 3), nn.Tanh, lambda: nn.Linear(3, 3, bias=False))
    vectors = vectors_of(encoder)
    x = {task: pictures(n, n, side=2) for task, n in zip(TASKS, (40, 400, 60), strict=True)}
    own = [features(encoder, v, x)[t] for t, v in enumerate(vectors.values())]
    parts = [*map(minimum.Part, x.values(), own, [best.Metric()] * 3)]

    def least(steps, epochs=0):
        how = {"epochs": epochs, "rounds": [(999, steps)]}
        return minimum.minimum(encoder, parts, average(vectors), **how).objective[-1]

    floor, start = least(60), least(0)
    assert least(0, epochs=10) - floor < 0.25 * (start - floor)


def test_the_minimum_that_is_kept_is_the_best_on_images_held_out():
    encoder = curved()
    vectors, x = vectors_of(encoder), data(30)
    own, by, _ = weighed(encoder, vectors, x, "features")
    parts = [
        minimum.Part(*each) for each in zip(x.values(), (o.jtau for o in own), by, strict=True)
    ]
    early = minimum.minimum(
        encoder, parts, average(vectors), [one.first(2) for one in parts], rounds=[(99, 400)]
    )  # the tau of least E on two images
    least = [one[:2] for one in features(encoder, early.vector, x)]
    first = [one.first(2) for one in parts]
    at = best.objective(least, [p.own for p in first], [p.metric for p in first])
    assert at == pytest.approx(min(early.checked)) and len(early.checked) < 401
    assert early.checked.index(min(early.checked)) == len(early.checked) - 3  # two were no better
    parts = [dataclasses.replace(part, own=3 * part.own) for part in parts]
    scaled = minimum.minimum(encoder, parts, 3 * average(vectors), rounds=[(99, 5)])
    plain = [dataclasses.replace(part, own=part.own / 3) for part in parts]
    plain = minimum.minimum(encoder, plain, average(vectors), rounds=[(99, 5)])
    assert scaled.residual == pytest.approx(plain.residual)  # of norms relative to the first


def test_the_memory_of_the_minimum_is_known_before():
    module = stack(lambda: nn.Linear(12, 80), *[nn.Tanh, lambda: nn.Linear(80, 80)] * 12).module
    encoder = plain(module.float(), image_size=2)
    vector = TaskVector({name: x.detach() / 9 for name, x in encoder.params.items()})
    part = minimum.Part(data(8)["a"].float(), torch.ones(8, 80), best.Metric())
    size = minimum.size(vector)
    assert size == 4 * (25 * 80**2 + 12**2) + 32 * (80 * 13 + 12 * 80 * 81)
    wide = minimum.size(TaskVector({"w": torch.zeros(400, 3, 2, 2), "b": torch.zeros(9)}))
    assert wide == 8 * (400**2 + 12**2) + 16 * 4809
    peak = meters.peak_bytes(
        lambda: minimum.minimum(encoder, [part], vector, rounds=[(8, 3)], factors=8)
    )
    assert 0.8 * size < peak < 1.2 * size
