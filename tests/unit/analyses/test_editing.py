"""Editing against closed forms: an evaluator whose accuracies are known in advance."""

import numpy as np
import pytest
import torch

from tasklab.analyses import editing, evaluation
from tasklab.errors import TasklabError
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


class Known(evaluation.Evaluator):
    """An evaluator whose accuracy is a function of (task, split, alpha) that the test gives."""

    def __init__(self, accuracy):
        self.known, self.asked = accuracy, []
        self.suite = type("Suite", (), {"control": type("Task", (), {"name": "control"})})

    def evaluate(self, vector, task, split, alpha=1.0, *, linear):
        self.asked += [(task, split, float(a)) for a in np.ravel(alpha)]
        values = np.array([self.known(task, split, float(a)) for a in np.ravel(alpha)])
        return values if np.ndim(alpha) else values[0]

    def reaches(self, accuracy, vector, task, split, alpha=1.0, *, linear):
        return self.evaluate(vector, task, split, alpha, linear=linear) >= accuracy

    def answers(self, vector, task, split, alpha=1.0, *, linear):
        share = self.evaluate(vector, task, split, alpha, linear=linear) / 100
        return np.arange(10_000) < round(10_000 * share)


VECTORS = {name: TaskVector({"w": torch.ones(2)}) for name in ("a", "b")}


def test_addition_chooses_alpha_on_validation_and_reports_test():
    """The peak lies at 0.3 on validation and at 0.8 on test; the answer is test at 0.3."""

    def accuracy(task, split, alpha):
        peak = 0.3 if split == "val" else 0.8
        return 90 - 50 * abs(alpha - peak)

    found = editing.addition(Known(accuracy), VECTORS, linear=False)
    assert found.alpha == 0.3
    assert found.absolute == pytest.approx([65, 65])
    assert found.single == pytest.approx([80, 80])
    assert found.normalised == pytest.approx([81.25, 81.25])
    assert found.validation.shape == (21, 2)


def test_addition_weighs_and_normalises_by_single_accuracies():
    # Alpha maximises the mean of normalised accuracies, not of accuracies.
    curves = {"a": (10.0, 5.0, 10.0), "b": (60.0, 70.0, 100.0)}  # at 0, 0.5 and 1

    def accuracy(task, split, alpha):
        return curves[task][int(2 * alpha)]

    found = editing.addition(Known(accuracy), VECTORS, linear=True, alphas=(0.0, 0.5))
    assert found.alpha == 0.0  # 1.0 + 0.6 against 0.5 + 0.7; unweighted 70 against 75
    # On test images they are the other way around, and so would be the choice.

    def accuracy(task, split, alpha):
        if split == "test" and alpha == 1:
            task = {"a": "b", "b": "a"}[task]
        return curves[task][int(2 * alpha)]

    found = editing.addition(Known(accuracy), VECTORS, linear=True, alphas=(0.0, 0.5))
    assert found.alpha == 0.0  # 1.0 + 0.6 against 0.5 + 0.7; with test's 0.1 + 6 against 0.05 + 7


def test_negation_keeps_its_share_of_the_control():
    def accuracy(task, split, alpha):
        if task == "control":
            return 50 - (10 * -alpha if split == "val" else 30 * -alpha)
        return 60 + 40 * alpha

    found = editing.negation(Known(accuracy), "a", VECTORS["a"], linear=True)
    assert found.alpha == 0.25  # 50 - 2.5 = 47.5 = 95 % of 50
    assert found.target == pytest.approx(50)
    assert found.control == pytest.approx(42.5)  # below the line: that was drawn on validation
    control = dict(zip((0.0, 0.25, 0.5, 0.75, 1.0), (50, 40, 40, 49, 49), strict=True))
    evaluator = Known(lambda task, split, a: control[-a] if task == "control" else 60 + 40 * a)
    found = editing.negation(evaluator, "a", VECTORS["a"], linear=False, alphas=tuple(control))
    assert found.alpha == 1.0 and found.target == 20
    assert found.target_validation.tolist() == [60, 50, 40, 30, 20]
    tried = [alpha for task, split, alpha in evaluator.asked if (task, split) == ("control", "val")]
    assert tried == [
        0.0,
        -1.0,
    ]  # what forgets less than a coefficient that may be taken says nothing


def test_negation_falls_back_to_the_unedited_model():
    control = Known(lambda task, split, a: 50 + 20 * a if task == "control" else 60 + 50 * a)
    found = editing.negation(control, "a", VECTORS["a"], linear=True, alphas=(0.0, 0.5, 1.0))
    assert found.alpha == 0.0 and found.target == 60
    with pytest.raises(TasklabError, match="alpha = 0"):
        editing.negation(Known(lambda *_: 50.0), "a", VECTORS["a"], linear=True, alphas=(0.1, 0.2))
    assert editing.groups("abcd", 4) == [tuple("abcd")]
    refuses("groups of 3", editing.groups, "abcd", 3)


@pytest.mark.parametrize("linear", [True, False])
def test_negation_chooses_as_a_search_of_the_whole_grid(linear):
    """Any curves: the lowest target that keeps the control, of equal ones the smallest alpha."""
    random = np.random.default_rng(0)
    for _ in range(200):
        curves = {
            name: random.integers(0, 20, len(editing.ALPHAS)) * 5.0 for name in ("a", "control")
        }
        known = Known(lambda task, split, alpha, at=curves: at[task][round(-20 * alpha)])
        kept = curves["control"] >= 0.95 * curves["control"][0]
        best = np.where(kept, curves["a"], np.inf).argmin()
        found = editing.negation(known, "a", VECTORS["a"], linear=linear)
        assert found.alpha == editing.ALPHAS[best]


@pytest.mark.parametrize("alphas", [(0.1, 0.0), (0.0, 0.0), (), (0.0, float("nan"))])
def test_a_grid_out_of_order_is_refused(alphas):
    with pytest.raises(TasklabError, match="alphas"):
        editing.addition(Known(lambda *_: 50.0), VECTORS, linear=False, alphas=alphas)
