"""Exact curves against brute force over the coefficient, and searches with known ends."""

import numpy as np
import pytest

from tasklab.analyses.step_curves import (
    AffineScores,
    PiecewiseConstant,
    ascend,
    climb,
    exact_curve,
    mean_curve,
)
from tests.helpers import refuses


def slow(scores, slopes, labels, alpha):
    return 100 * ((scores + alpha * slopes).argmax(1) == labels).mean()


def drawn(seed, n=200, classes=7):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n, classes)),
        rng.normal(size=(n, classes)),
        rng.integers(classes, size=n),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 2.0)])
def test_exact_curve_equals_argmax_between_all_knots(seed, ends):
    """Real numbers do not tie: inside every interval, and on a dense grid, both must agree."""
    case = drawn(seed)
    curve = exact_curve(*case, *ends)
    assert (curve.knots[0], curve.knots[-1]) == ends and (np.diff(curve.knots) > 0).all()
    middles = (curve.knots[:-1] + curve.knots[1:]) / 2
    wide = np.diff(curve.knots) > 1e-12
    grid = np.linspace(*ends, 501)
    for alpha, value in zip(middles[wide], curve.between[wide], strict=True):
        assert value == pytest.approx(slow(*case, alpha), abs=1e-9)
    assert curve.at(grid) == pytest.approx([slow(*case, alpha) for alpha in grid], abs=1e-9)
    assert curve.best().value == pytest.approx(curve.between.max())
    assert (curve.between[1:] != curve.between[:-1]).mean() > 0.9  # hardly a knot without a step


@pytest.mark.parametrize("seed", range(20))
def test_exact_curve_breaks_ties_as_argmax_does(seed):
    """Whole scores and few slopes tie everywhere: at knots, on intervals, three at once."""
    rng = np.random.default_rng(seed)
    scores, slopes = rng.integers(-4, 5, (60, 5)), rng.choice([-8, 0, 8], (60, 5))
    labels = rng.integers(5, size=60)
    curve = exact_curve(scores, slopes, labels, -1, 1)
    grid = np.arange(-16, 17) / 16  # exact in binary; every crossing is a multiple of 1/16
    assert set(curve.knots) <= set(grid)
    assert curve.at(grid) == pytest.approx([slow(scores, slopes, labels, a) for a in grid])
    between = (grid[:-1] + grid[1:]) / 2
    assert curve.at(between) == pytest.approx([slow(scores, slopes, labels, a) for a in between])


def test_the_best_interval():
    # Class 0 is alpha, class 1 is 1/4, class 2 is 3/4 - alpha, which leads up to 3/8.
    curve = exact_curve(np.array([[0.0, 0.25, 0.75]]), np.array([[1.0, 0.0, -1.0]]), [0])
    assert curve.knots.tolist() == [0, 0.375, 1]  # class 1 never leads
    assert curve.best() == (0.375, 1.0, 100.0) and curve.best().alpha == 0.6875
    # Lines -alpha and alpha against 0 (class 0): class 0 leads nowhere but ties at alpha = 0.
    scores, slopes = np.zeros((1, 3)), np.array([[0.0, -1.0, 1.0]])
    curve = exact_curve(scores, slopes, [0], -1, 1)
    assert curve.at([-0.5, 0.0, 0.5]).tolist() == [0, 100, 0]
    assert curve.best().value == 0  # a point is nothing to choose
    knots = np.array([0, 0.1, 0.3, 0.6, 0.7, 1.0])
    curve = PiecewiseConstant(knots, np.array([9.0, 5, 9, 9, 5]), np.array([9.0, 5, 9, 9, 5, 5]))
    assert curve.best() == (0.3, 0.7, 9.0)
    apart = PiecewiseConstant(knots, np.array([9.0, 5, 9, 9, 5]), np.array([9.0, 5, 9, 5, 5, 5]))
    assert apart.best() == (0.3, 0.6, 9.0)


def test_mean_curve_is_the_weighted_mean_everywhere():
    curves = [exact_curve(*drawn(seed)) for seed in range(3)]
    weights = np.array([1.0, 2.0, 0.5])
    mean = mean_curve(curves, weights)
    grid = np.concatenate([np.linspace(0, 1, 300), mean.knots])
    wanted = sum(w * curve.at(grid) for w, curve in zip(weights, curves, strict=True)) / 3
    assert mean.at(grid) == pytest.approx(wanted)
    assert len(mean.knots) == len(np.unique(np.concatenate([c.knots for c in curves])))
    refuses("same interval", mean_curve, [exact_curve(*drawn(0)), exact_curve(*drawn(0), 0, 2)])
    refuses("known from 0 to 1", lambda: exact_curve(*drawn(0)).at(1.1))


def separable(peaks, n=40, width=0.2):
    """Tasks whose accuracy depends on their own coefficient only, highest around a peak.

    Image i is right for |a - peak| < r_i: class 0 (the true one) leads -(a - peak) - r < 0 < ...
    """
    tasks = []
    for t, peak in enumerate(peaks):
        reach = np.linspace(width / n, width, n)
        base = np.stack([np.zeros(n), -peak - reach, peak - reach], axis=1)
        slopes = np.zeros((len(peaks), n, 3))
        slopes[t] = [0.0, 1.0, -1.0]
        tasks.append(AffineScores(base, slopes, np.zeros(n, dtype=int)))
    return tasks


def test_coordinate_ascent_and_lines_of_a_separable_toy():
    peaks = np.array([0.2, 0.5, 0.9])
    found = ascend(separable(peaks), np.full(3, 100.0), np.full(3, 0.45))
    assert found.alphas == pytest.approx(peaks, abs=1e-9)
    assert found.values[-1] == pytest.approx(100)
    assert found.sweeps == 2  # one that moves, one that finds nothing
    assert found.trials == 1 + 2 * 3
    (task, *_), _ = entangled(0)
    origin, direction = np.array([0.1, 0.2, 0.3, 0.0]), np.array([0.0, 0.5, 0.0, 1.0])
    curve = task.along(direction, origin)
    for alpha in np.linspace(0.01, 0.99, 31):
        assert curve.at(alpha) == pytest.approx(task.accuracy(origin + alpha * direction))


def entangled(seed, tasks=4, n=80, classes=6):
    rng = np.random.default_rng(seed)
    drawn = []
    for t in range(tasks):
        labels = rng.integers(classes, size=n)
        slopes = 0.7 * rng.normal(size=(tasks, n, classes))
        slopes[t, np.arange(n), labels] += 1.5
        drawn.append(AffineScores(rng.normal(size=(n, classes)), slopes, labels))
    single = np.array([task.accuracy(np.eye(tasks)[t]) for t, task in enumerate(drawn)])
    return drawn, single


@pytest.mark.parametrize("seed", range(4))
def test_coordinate_ascent_never_loses_and_ends_where_no_coefficient_helps(seed):
    tasks, single = entangled(seed)
    found = ascend(tasks, single, np.full(4, 0.5))
    assert (np.diff(found.values) >= 0).all() and found.values[-1] > found.values[0]
    assert ((found.alphas >= 0) & (found.alphas <= 1)).all()

    def objective(alphas):
        share = [100 * t.accuracy(alphas) / s for t, s in zip(tasks, single, strict=True)]
        return np.mean(share)

    assert objective(found.alphas) == pytest.approx(found.values[-1])
    for s in range(4):
        for alpha in np.linspace(0, 1, 101):
            trial = found.alphas.copy()
            trial[s] = alpha
            assert objective(trial) <= found.values[-1] + 1e-9


def test_climb_stays_in_its_box_and_budget():
    asked = []

    def objective(alphas):
        asked.append(tuple(np.round(alphas, 6)))
        return -np.abs(alphas - [0.3, 0.8]).sum()

    found = climb(objective, [0.5, 0.5], budget=100)
    assert found.alphas == pytest.approx([0.3, 0.8])
    assert found.trials == len(asked) == len(set(asked))
    asked.clear()
    one_sweep = climb(objective, [0.5, 0.5])
    assert one_sweep.trials == len(asked) == 5 and one_sweep.sweeps == 1
    assert one_sweep.alphas == pytest.approx([0.4, 0.6])
    assert climb(objective, [0.5, 0.5], budget=1).alphas.tolist() == [0.5, 0.5]
    assert climb(objective, [0.5, 0.5], budget=2).trials == 2
    refuses("budget", climb, objective, [0.5, 0.5], budget=0)
    refuses("above 0", climb, objective, [0.5, 0.5], step=0)
    found = climb(lambda alphas: alphas.sum(), [0.95], budget=50)
    assert found.alphas.tolist() == [1.0]
