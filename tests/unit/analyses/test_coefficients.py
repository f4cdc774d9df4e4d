"""Chosen coefficients against evaluations of the edited model, on a toy that is linear."""

import numpy as np
import pytest
import torch

from tasklab.analyses import coefficients, editing, evaluation
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures

TASKS = ("a", "b")


class Toy(evaluation.Evaluator):
    """Evaluates a linear encoder in float64: features x + sum_s a_s x W_s, without a store."""

    def __init__(self, bias=None):
        draw = torch.Generator().manual_seed(0)
        rand = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
        zero = torch.zeros(5, 5, dtype=torch.float64)
        encoder = type("Encoder", (), {"params": {"w": torch.eye(5).double()}})
        self.clip = type("Clip", (), {"encoder": encoder})
        self.heads = {t: Head(rand(4, 5), bias and rand(4), bias is None) for t in TASKS}
        self.head = self.heads.__getitem__
        self.data = {}
        for task in TASKS:
            for split, n in (("val", 60), ("test", 90)):
                x = rand(n, 5)
                y = self.heads[task](x + 1.5 * rand(n, 5)).argmax(-1)
                self.data[task, split] = type("Images", (), {"x": x, "y": y})
        self.images = lambda task, split: self.data[task, split]
        self.vectors = {t: TaskVector({"w": zero + 0.6 * rand(5, 5)}) for t in TASKS}
        self.evaluations = 0

    def features(self, params, task, split):
        self.evaluations += split == "val"
        return self.images(task, split).x @ params["w"]

    def tangent_features(self, vector, task, split):
        x = self.images(task, split).x
        return TangentFeatures(x, x @ vector["w"])


@pytest.mark.parametrize("bias", [None, True])
def test_exact_addition_equals_the_evaluator_at_every_coefficient(bias):
    evaluator = Toy(bias)
    found = coefficients.exact_addition(evaluator, evaluator.vectors)
    total = TaskVector.sum(evaluator.vectors.values())
    for split, name in (("val", "validation"), ("test", "test")):
        grid = np.linspace(0, 1, 41)
        slow = evaluator.sweep(total, TASKS, split, linear=True, alphas=grid)
        fast = np.array([curve.at(grid) for curve in getattr(found, name)]).T
        assert fast == pytest.approx(slow)
        share = editing.normalised(slow, found.single[name]).mean(1)
        assert found.curve(name).at(grid) == pytest.approx(share)
    slow = editing.addition(evaluator, evaluator.vectors, linear=True)
    assert found.grid_alpha == slow.alpha
    assert found.best.value >= found.curve().at(slow.alpha)  # the grid can only lose
    assert found.absolute(found.grid_alpha) == pytest.approx(slow.absolute)


def test_exact_negation_forgets_at_least_as_much_as_any_grid():
    evaluator = Toy()
    evaluator.suite = type("Suite", (), {"control": type("Task", (), {"name": "b"})})
    vector = evaluator.vectors["a"]
    found = coefficients.exact_negation(evaluator, "a", vector)
    grid = np.linspace(0, 1, 401)
    slow = editing.negation(evaluator, "a", vector, linear=True, alphas=grid)
    control = evaluator.evaluate(vector, "b", "val", -grid, linear=True)
    kept = control >= 0.95 * control[0]
    assert kept.any() and not kept.all()
    assert found.target_validation[0] <= slow.target_validation[kept].min()
    assert evaluator.evaluate(vector, "b", "val", -found.alpha, linear=True) >= 0.95 * control[0]
    for value, task in ((found.target, "a"), (found.control, "b")):
        assert value == evaluator.evaluate(vector, task, "test", -found.alpha, linear=True)
    assert [right.mean() * 100 for right in found.answers] == [found.target, found.control]


def test_rows_of_exact_addition_hold_the_curves():
    evaluator = Toy()
    found = coefficients.exact_addition(evaluator, evaluator.vectors)
    rows = [row for row in found.rows("linearized", 3) if row["split"] == "validation"]
    exact = [r for r in rows if r["metric"] == "normalised_exact" and r["task"] == "a"]
    assert [r["alpha"] for r in exact] == found.validation[0].knots[:-1].tolist()
    expected = pytest.approx(100 * found.validation[0].between[-1] / found.single["validation"][0])
    assert exact[-1]["value"] == expected
    chosen = [r for r in rows if r["metric"] == "chosen_exact"]
    assert np.mean([r["value"] for r in chosen]) == pytest.approx(found.best.value)
    assert {r["alpha"] for r in chosen} == {found.best.alpha}
    assert {(r["seed"], r["n"], r["n_tasks"]) for r in rows} == {(3, 60, 2)}


@pytest.mark.parametrize("linear", [True, False])
def test_own_coefficients_against_evaluations_of_the_edited_model(linear):
    """The toy is linear: both ways to edit it are the same model."""
    evaluator = Toy()
    found = coefficients.per_task(evaluator, evaluator.vectors, linear=linear)
    for accuracies, alphas in (
        (found.with_shared, [found.shared] * 2),
        (found.with_own, found.alphas),
    ):
        for split, name in (("val", "validation"), ("test", "test")):
            for i, task in enumerate(TASKS):
                x = evaluator.images(task, split).x
                moved = sum(a * (x @ v["w"]) for a, v in zip(alphas, evaluator.vectors.values()))  # noqa: B905
                slow = evaluator.accuracy(x + moved, task, split)
                assert accuracies[name][i] == pytest.approx(slow)
    own, shared = (
        x["validation"] / found.single["validation"] for x in (found.with_own, found.with_shared)
    )
    assert own.mean() >= shared.mean()
    assert ((found.alphas >= 0) & (found.alphas <= 1)).all()
    if linear:
        exact = coefficients.exact_addition(evaluator, evaluator.vectors)
        assert found.shared == pytest.approx(exact.best.alpha)


def test_what_a_search_of_own_coefficients_passes_and_records():
    evaluator = Toy()
    coefficients.per_task(evaluator, evaluator.vectors, linear=False)
    searched = 21 * 2 + 2 * (2 * 2 + 1)
    # and both tasks alone, and both choices at the end
    assert evaluator.evaluations == searched + 2 + 4
    evaluator = Toy()
    found = coefficients.per_task(evaluator, evaluator.vectors, linear=True)
    rows = found.rows("posthoc", 1)
    assert len(rows) == 2 * 2 * 2 * 2  # choices, splits, tasks, metrics
    own = {r["task"]: r for r in rows if (r["metric"], r["split"]) == ("normalised_own", "test")}
    assert [own[t]["alpha"] for t in TASKS] == found.alphas.tolist()
    share = 100 * found.with_own["test"] / found.single["test"]
    assert [own[t]["value"] for t in TASKS] == pytest.approx(share)
    shared = [
        r["value"] for r in rows if (r["metric"], r["split"]) == ("normalised_shared", "test")
    ]
    assert shared == pytest.approx(100 * found.with_shared["test"] / found.single["test"])
