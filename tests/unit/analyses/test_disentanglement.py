"""Disentanglement errors against hand computations and slow evaluations of every cell."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from tasklab.analyses import disentanglement, evaluation
from tasklab.analyses.disentanglement import ErrorMap, error_map, symmetric_kl
from tasklab.evidence.records import images
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.storage.store import Store
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent
from tests.helpers import refuses

TASKS = ("a", "b")
GRID = (-1.5, -0.5, 0.0, 0.25, 1.0)


class Encoder:
    """A tanh network in float64, as a function of named parameters; counts its passes."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        rand = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
        self.params = {"in": rand(6, 8) / 2, "bias": rand(8), "out": rand(8, 4) / 2, "off": rand(4)}
        self.preprocessed = self.passes = 0

    def preprocess(self, x):
        self.preprocessed += len(x)
        return x

    def __call__(self, params, x):
        self.passes += len(x)
        return (x @ params["in"] + params["bias"]).tanh() @ params["out"] + params["off"]


class Toy(evaluation.Evaluator):
    """An evaluator of the network above, without a store; two tasks with 3 and 4 classes."""

    def __init__(self, n=(40, 40), batch_size=16):
        draw = torch.Generator().manual_seed(1)
        rand = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
        self.encoder, self.parts = Encoder(), memory.Parts(batch_size)
        self.clip = type("Clip", (), {"encoder": self.encoder})
        self.head = {"a": Head(rand(3, 4)), "b": Head(rand(4, 4), rand(4), False)}.__getitem__
        self.data = {
            task: type("Images", (), {"x": rand(k, 6), "y": torch.zeros(k)})
            for task, k in zip(TASKS, n, strict=True)
        }
        self.images = lambda task, split: self.data[task]
        params = self.encoder.params  # the vectors name overlapping parts of the parameters
        names = {"a": ("in", "bias", "out"), "b": ("in", "off")}
        self.vectors = {
            t: TaskVector({n: rand(*params[n].shape) / 3 for n in names[t]}) for t in TASKS
        }

    def preprocessed(self, task, split, most):
        return self.encoder.preprocess(self.images(task, split).x[:most])

    def tangent_features(self, vector, task, split):
        x = self.images(task, split).x
        return tangent.features(self.encoder, self.encoder.params, vector, x)


def slow_map(evaluator, linear, alphas, n):
    theta0 = evaluator.encoder.params

    def model(x, alpha1, alpha2):
        one, two = evaluator.vectors.values()
        tau = one * alpha1 + two * alpha2
        if not linear:
            return evaluator.encoder(tau.apply(theta0), x)
        return tangent.jvp(evaluator.encoder, theta0, tau, x).at(1.0)

    size = len(alphas)
    classifier, representation = np.zeros((size, size)), np.zeros((size, size))
    for i, alpha1 in enumerate(alphas):
        for j, alpha2 in enumerate(alphas):
            for task, own in (("a", (alpha1, 0.0)), ("b", (0.0, alpha2))):
                x = evaluator.images(task, "test").x[:n]
                alone, both = model(x, *own), model(x, alpha1, alpha2)
                head = evaluator.head(task)
                differ = head(alone).argmax(-1) != head(both).argmax(-1)
                classifier[i, j] += 100 * sum(differ.tolist()) / n
                for f, g in zip(alone.softmax(-1).tolist(), both.softmax(-1).tolist(), strict=True):
                    kl = [p * math.log(p / q) + q * math.log(q / p) for p, q in zip(f, g)]  # noqa: B905
                    representation[i, j] += sum(kl) / 2 / n
    return classifier, representation


@pytest.mark.parametrize("linear", [True, False])
def test_maps_equal_a_slow_evaluation(linear):
    evaluator = Toy()
    found = error_map(evaluator, evaluator.vectors, linear=linear, alphas=GRID, progress=False)
    classifier, representation = slow_map(evaluator, linear, GRID, 40)
    assert found.classifier == pytest.approx(classifier)
    assert found.representation == pytest.approx(representation, abs=1e-12)
    assert classifier.max() > 20 and not np.allclose(classifier, classifier.T)  # a case with errors
    evaluator = Toy(n=(40, 30))
    some = error_map(
        evaluator, evaluator.vectors, linear=linear, alphas=GRID, images=11, progress=False
    )
    assert some.n == 11
    assert some.classifier == pytest.approx(slow_map(evaluator, linear, GRID, 11)[0])
    most = error_map(
        evaluator, evaluator.vectors, linear=linear, alphas=GRID, images=None, progress=False
    )
    assert most.n == 30  # as many of either task
    evaluator, grid = Toy(n=(24, 30)), (-2.0, -1.0, 0.0, 1.0)
    found = error_map(evaluator, evaluator.vectors, linear=linear, alphas=grid, progress=False)
    rows = [r for r in found.rows("posthoc", 2) if r["metric"] == "xi_classifier"]
    assert found.classifier.max() > 0
    for r in rows:
        assert ("hits" in r) == (min(r["alpha1"], r["alpha2"]) >= -1)
        if "hits" in r:
            changed = images.unpacked(r["hits"], 2 * 24).reshape(2, 24)
            assert r["value"] == pytest.approx(100 * changed.mean(1).sum())


@pytest.mark.parametrize("alphas", [GRID, GRID[:2] + GRID[3:]], ids=["with 0", "without"])
def test_a_nonlinear_map_evaluates_single_models_once(alphas):
    evaluator = Toy(n=(24, 24))
    error_map(evaluator, evaluator.vectors, linear=False, alphas=alphas, progress=False)
    cells, line = len(alphas) ** 2, len(alphas)
    saved = 2 * line if 0 in alphas else 0  # cells whose model has one vector
    assert evaluator.encoder.passes == 24 * (2 * cells + 2 * line - saved)  # not 24 * 4 * cells
    assert evaluator.encoder.preprocessed == 2 * 24  # decoded once


def test_a_linear_map_takes_four_passes_and_none_for_empty_vectors():
    evaluator = Toy(n=(24, 24))
    error_map(evaluator, evaluator.vectors, linear=True, alphas=GRID, progress=False)
    assert evaluator.encoder.passes == 4 * 24
    empty = {task: TaskVector({}) for task in TASKS}
    refuses("nothing to merge", lambda: error_map(Toy(), empty, linear=False))
    evaluator = Toy()
    refuses("not of 1", error_map, evaluator, {"a": evaluator.vectors["a"]}, linear=True)
    refuses("ascend", error_map, evaluator, evaluator.vectors, linear=True, alphas=(1.0, 0.0))
    refuses("at least 1", error_map, evaluator, evaluator.vectors, linear=True, images=0)


def test_grids_and_rows_hold_every_cell_once():
    assert (len(disentanglement.GRID_TANGENT), disentanglement.GRID_TANGENT[0]) == (20, -3.0)
    found = (len(disentanglement.GRID_LINEAR_LAYERS), disentanglement.GRID_LINEAR_LAYERS[-1])
    assert found == (15, 2.0)
    assert 0.0 in disentanglement.GRID_LINEAR_LAYERS
    values = np.arange(4.0).reshape(2, 2)
    rows = ErrorMap(TASKS, (0.0, 1.0), values, values + 10, 7).rows("posthoc", 2)
    assert len(rows) == 8
    keys = Counter((r["metric"], r["alpha1"], r["alpha2"]) for r in rows)
    assert set(keys.values()) == {1}
    known = {(r["metric"], r["alpha1"], r["alpha2"]): r["value"] for r in rows}
    assert known["xi_classifier", 0.0, 1.0] == 1 and known["xi_representation", 1.0, 0.0] == 12
    assert {(r["method"], r["task"], r["seed"], r["n"]) for r in rows} == {("posthoc", "a+b", 2, 7)}


@pytest.mark.parametrize(
    ("linear", "kept", "embeds"),
    [(True, 2**30, True), (False, 2**30, True), (False, 2**30, False), (False, 0, True)],
    ids=["linear", "patches", "one vector's patches", "images"],
)
def test_map_on_the_shipped_architecture(linear, kept, embeds, tmp_path, monkeypatch):
    """The evaluator itself, float32: store, heads and preprocessing fit together."""
    monkeypatch.setattr(disentanglement, "_PATCHES", kept)
    clip = loading.load("mini_xs", init="random")
    evaluator = evaluation.Evaluator(
        clip, suite("mini"), Store(tmp_path), counts={"test": 12}, batch_size=5
    )
    draw = torch.Generator().manual_seed(0)
    vectors = {
        task: TaskVector(
            {n: 0.3 * x.std() * torch.randn(x.shape, generator=draw)
             for n, x in clip.encoder.params.items()
             if x.ndim == 2 or x.ndim == 4 and (embeds or task == "Scenes")}
        )
        for task in ("Textures", "Scenes")
    }  # fmt: skip

    def features(vector, task):  # as the library computes them
        x = clip.encoder.preprocess(evaluator.images(task, "test").x)
        return clip.encoder(vector.apply(clip.encoder.params), x)

    alphas = (-1.0, 0.0, 1.0)
    found = error_map(evaluator, vectors, linear=linear, alphas=alphas, images=8, progress=False)
    one, two = vectors.values()
    cell = found.classifier[0, 2]
    wanted = apart = 0.0
    for task, own in (("Textures", one * -1.0), ("Scenes", two * 1.0)):
        if linear:
            alone, both = (evaluator.tangent_features(v, task, "test").at(1.0)
                           for v in (own, one * -1.0 + two))  # fmt: skip
        else:
            alone, both = (features(v, task) for v in (own, one * -1.0 + two))
        head = evaluator.head(task)
        wanted += 100 * (head(alone).argmax(-1) != head(both).argmax(-1))[:8].double().mean().item()
        apart += symmetric_kl(alone, both)[:8].double().mean().item()
    assert cell == wanted
    assert math.isclose(found.representation[0, 2], apart, rel_tol=1e-4)
    assert found.classifier[1, 1] == 0
    assert abs(found.representation[1, 1]) < 1e-12  # nats; both sides to rounding
