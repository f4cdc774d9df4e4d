"""Addition over subsets of tasks: which coefficient is chosen on what, and what is reported."""

import numpy as np
import pytest

from tasklab.analyses import subsets

GRID = tuple(round(0.05 * n, 2) for n in range(21))
SINGLE = {"val": np.array([50.0, 100.0]), "test": np.array([100.0, 50.0])}


def accuracies(subset, coefficient, split):
    top = {"val": (0.2, 0.6), "test": (0.8, 0.4)}[split]
    return np.array([50 - 40 * (coefficient - top[task]) ** 2 for task in subset])


@pytest.mark.parametrize("whole", [True, False])
def test_a_coefficient_is_chosen_on_validation_images_and_test_ones_reported(whole):
    sums = subsets.search(accuracies, SINGLE, subsets.subsets_of(2), GRID, whole=whole)
    # normalised, the first task weighs twice as much as the second: (2 * 0.2 + 0.6) / 3
    both = min(GRID, key=lambda c: 2 * (c - 0.2) ** 2 + (c - 0.6) ** 2)
    assert [(one.subset, one.coefficient) for one in sums] == [
        ((0,), 0.2), ((1,), 0.6), ((0, 1), both),
    ]  # fmt: skip
    for one in sums:
        assert np.array_equal(one.absolute, accuracies(one.subset, one.coefficient, "test"))
    assert [one.tried for one in sums] == [21] * 3 if whole else max(o.tried for o in sums) < 21


def test_a_sample_of_subsets_has_every_size(monkeypatch):
    chosen = subsets.subsets_of(5, most=3)
    assert [sum(len(one) == size for one in chosen) for size in range(1, 6)] == [5, 3, 3, 3, 1]
    assert len(set(chosen)) == 15 and all(list(one) == sorted(one) for one in chosen)
    every, some = subsets.subsets_of(8), subsets.subsets_of(8, most=3)
    assert len(every) == 255 == len(set(every)) and set(some) <= set(every)
    assert [len(s) for s in every] == sorted(len(s) for s in every)
    assert some == subsets.subsets_of(8, most=3) != subsets.subsets_of(8, 3, seed=1)

    class Scores:
        def __init__(self, task):
            self.task = task

        def accuracy(self, alphas):
            return float({"A": 100, "B": 10, "C": 1}[self.task] * (alphas @ [1, 2, 4]))

    monkeypatch.setattr(subsets, "check_vectors", lambda vectors: None)
    monkeypatch.setattr(
        subsets.coefficients, "affine_scores", lambda evaluator, every, task, split: Scores(task)
    )
    sums = subsets.affine(None, dict.fromkeys("ABC"))
    assert sums((0, 2), 0.5, "val").tolist() == [250.0, 2.5]


TWO_TOPS, HILLS = [1, 2, 0, 5, 4], [0, 1, 3, 2, 0, 5, 9]
CLIMBS = [(TWO_TOPS, 0, 1), (TWO_TOPS, 4, 3), (TWO_TOPS, 2, 3), (HILLS, 1, 2), (HILLS, 4, 6)]
CLIMBS += [([1.0] * 21, 5, 5)]  # a plateau
CLIMBS += [
    ([-abs(i - top) for i in range(21)], at, top) for top in (0, 7, 20) for at in (0, 10, 20)
]


@pytest.mark.parametrize(("heights", "start", "top"), CLIMBS)
def test_climbing_ends_on_a_top(heights, start, top):
    assert subsets.climb(heights.__getitem__, len(heights), start) == top


def two_hills(subset, coefficient, split):
    """Best at 0.1, with a lower local maximum at 0.9."""
    hills = 80 - 400 * (coefficient - 0.1) ** 2, 60 - 400 * (coefficient - 0.9) ** 2
    return np.full(len(subset), max(*hills, 0.0))


@pytest.mark.parametrize("whole", [True, False])
def test_of_two_hills_the_higher_one_is_found(whole):
    (one,) = subsets.search(two_hills, SINGLE, [(0, 1)], GRID, whole=whole)
    assert one.coefficient == 0.1
