"""A smooth curve through few looks against the best look, on simulated answers of few images.

An image is answered correctly over an interval of coefficients, so that looks at the same images go
together, and in each look it may be answered at random. The curve of all images is known.
"""

import numpy as np
import pytest

from tasklab.analyses.merging import search, smooth
from tasklab.taskvector import TaskVector

X = np.linspace(-2.5, 2.5, 501)  # of all coefficients


class World:
    """Images that are right from some coefficient on, up to another one; in units of the best."""

    def __init__(self, seed, best=0.0, width=1.0):
        self.draw = np.random.default_rng(seed)
        self.best, self.width = best, width

    def images(self, count):
        low = self.best + self.draw.normal(-1.6, self.width, count)
        high = self.best + self.draw.normal(1.2, self.width, count)
        sure = self.draw.random(count)  # always right, never right, or by the interval
        return low, high, sure

    def accuracy(self, images, x, noise=0.0):
        low, high, sure = images
        right = np.where(sure < 0.4, True, np.where(sure > 0.9, False, (low < x) & (x < high)))
        flip = self.draw.random(len(low)) < noise
        return 100 * np.mean(right ^ flip)


def lost(rule, count, *, seeds=200, spread=0.3, noise=0.03):
    """Return how much below the best coefficient of all images a rule's choice is."""
    found = []
    for seed in range(seeds):
        world = World(seed, best=np.random.default_rng(10_000 + seed).normal(0, spread))
        every, few = world.images(4000), world.images(count)
        curve = np.array([world.accuracy(every, x) for x in X[::10]])
        chosen = rule(world, few)
        found.append(curve.max() - np.interp(chosen, X[::10], curve))
    return np.array(found)


def argmax(world, few, looks=8, noise=0.03):
    grid = np.log(np.geomspace(search.LOW, search.HIGH, looks))
    return grid[np.argmax([world.accuracy(few, x, noise) for x in grid])]


def curve(world, few, looks=8, noise=0.03):
    grid = smooth.places(looks)
    scores = [world.accuracy(few, x, noise) for x in grid]
    return np.log(smooth.peak(np.exp(grid), scores, center=1.0, images=len(few[0])).alpha)


@pytest.mark.parametrize("count", [80, 160, 640])
def test_it_loses_less_than_the_best_look(count):
    by_look, by_curve = lost(argmax, count), lost(curve, count)
    apart = by_look - by_curve
    error = apart.std(ddof=1) / np.sqrt(len(apart))
    assert apart.mean() > 2 * error, (by_look.mean(), by_curve.mean())


def test_a_curve_without_noise_is_found_and_few_images_stay_near_the_center():
    grid = smooth.places(9)
    clear = smooth.peak(np.exp(grid), 70 - 8 * (grid - 0.4) ** 2, center=1.0, images=1e6)
    assert np.log(clear.alpha) == pytest.approx(0.4, abs=0.05)
    assert clear.value == pytest.approx(70, abs=0.3)
    lucky = np.where(grid == grid[-1], 72.0, 70.0 - 2 * grid**2)
    far = smooth.peak(np.exp(grid), lucky, center=1.0, images=80).alpha
    assert abs(np.log(far)) < 0.3  # the best look is the last one, by luck
    sure = smooth.peak(np.exp(grid), lucky, center=1.0, images=1e7).alpha
    assert np.log(sure) > 0.9
    assert clear.error < smooth.peak(np.exp(grid), lucky, center=1.0, images=80).error


@pytest.mark.parametrize("options", [(None,), (0.1, 0.2, 0.3)])
def test_a_search_looks_as_often_as_any_and_goes_by_all_looks(options):
    looks = []

    def look(vector, alpha):
        looks.append(alpha)
        return 70 - 6 * np.log(alpha / 2.4) ** 2

    found = search.smoothly(
        lambda option: TaskVector({}), options, lambda v: (2.0, 0.5), look, images=1e5
    )
    assert len(looks) == found.trials == search.BUDGET
    assert found.alpha == pytest.approx(2.4, rel=0.05) and found.alpha not in looks
