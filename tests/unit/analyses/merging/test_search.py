"""One rule and one budget for options and coefficients, on scores that are known."""

import numpy as np
import pytest
import torch

from tasklab.analyses.merging import METHODS, search
from tasklab.bench.merges import FULL, QUICK
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def make(option):
    return TaskVector({"w": torch.tensor([0.0 if option is None else option])})


def run(options, peak, scale=2.0, budget=search.BUDGET):
    looks = []

    def look(vector, a, least):
        looks.append((round(float(vector["w"]), 6), a))
        option, alpha = peak
        score = -((float(vector["w"]) - option) ** 2) - (np.log(a) - np.log(alpha)) ** 2
        return score if score >= least else -np.inf  # as much as a look need tell

    found = search.choose(make, options, lambda v: (scale, float(v["w"])), look, budget=budget)
    return found, looks


@pytest.mark.parametrize("options", [(None,), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0, 4.0, 5.0)])
def test_every_method_has_the_same_number_of_looks(options):
    found, looks = run(options, (0.0, 1.0))
    assert len(looks) == found.trials == search.BUDGET
    assert len(set(looks)) == search.BUDGET


def test_looks_count_for_their_coefficients_and_the_best_are_found():
    found, looks = run((0.1, 0.2, 0.3), (0.2, 0.7))
    assert found.option == 0.2 and float(found.vector["w"]) == pytest.approx(0.2)
    tried = {a for w, a in looks if w == 0.2}
    assert found.alpha == min(tried, key=lambda a: abs(np.log(a / 0.7)))
    assert found.scale == 2.0 and found.objective == pytest.approx(0.2)
    low, high = min(tried), max(tried)
    assert (low, high) == pytest.approx((2 * search.LOW, 2 * search.HIGH))
    found, _ = run((0.1, 0.2, 0.3), (0.3, 2.0), budget=5)
    assert found.alpha == 2.0 and found.option == 0.3  # the grid has 0.5 and 5
    flat = lambda vector, alpha, least: 0.0  # noqa: E731
    found = search.choose(make, (0.3, 0.1), lambda v: (1.0, 0.0), flat)
    assert found.alpha == pytest.approx(search.LOW) and found.option == 0.3


def test_looks_are_told_the_best_so_far_and_begin_near_the_tangent_models_coefficient():
    told = []

    def look(vector, alpha, least):
        told.append((float(vector["w"]), alpha, least))
        return -abs(alpha - 1.0)

    search.choose(make, (0.1, 0.2), lambda v: (1.0, 0.0), look, budget=6)
    assert [least for *_, least in told] == [-np.inf] + [0.0] * 5  # the first is at the peak
    far = [abs(np.log(alpha)) for _, alpha, _ in told[2:]]
    assert far == sorted(far) and {w for w, *_ in told[2:]} == {np.float32(0.1)}
    told.clear()
    found = search.choose(make, (None,), lambda v: (1.0, 0.0), look, budget=5)
    scores = [-abs(alpha - 1.0) for _, alpha, _ in told]
    best = [-np.inf, *np.maximum.accumulate(scores)[:-1]]  # also of a method without an option
    assert [least for *_, least in told] == pytest.approx(best)
    assert found.alpha == told[int(np.argmax(scores))][1]


@pytest.mark.parametrize(("scale", "size"), [(-1e-4, 1e-4), (0.0, 1.0)])
def test_where_the_tangent_models_coefficient_is_negative_its_size_is_searched(scale, size):
    found, looks = run((None,), (0.0, 1e-9), scale=scale)  # the less the better
    tried = [a for _, a in looks]
    assert (min(tried), max(tried)) == pytest.approx((size * search.LOW, size * search.HIGH))
    assert found.scale == size and found.objective == 1.0


def test_budgets_and_options():
    refuses("a budget of 3 looks .* 3 values", run, (0.1, 0.2, 0.3), (0.1, 1.0), budget=3)
    for name, method in METHODS.items():
        assert bool(method.searched) == bool(method.values), name
        if method.searched:
            assert method.searched in method.options and method.searched != "alpha"
            assert method.values == tuple(sorted(set(method.values)))
            assert 2 * len(method.values) <= min(FULL["looks"], QUICK["looks"])
