"""Intervals of accuracies and gains: known values, and how often they contain the truth."""

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from tasklab.analyses import shares
from tests.helpers import refuses

DRAWS = 4000
ACCURACIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.983, 0.99, 0.999)


def every(n):
    """Return all numbers of gained and lost images of n."""
    gained, lost = (one.ravel() for one in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    return gained[gained + lost <= n], lost[gained + lost <= n]


def held(ends, truth):
    low, high = ends
    return (low <= truth + 1e-12) & (truth <= high + 1e-12)


def test_an_interval_is_the_corrected_score_interval():
    # R. Newcombe, Statistics in Medicine 17, 1998, table I, method 4
    for right, n, known in ((81, 263, (0.2535, 0.3682)), (15, 148, (0.0598, 0.1644)),
                            (0, 20, (0.0, 0.2005)), (1, 29, (0.0018, 0.1963))):  # fmt: skip
        found = shares.interval(np.array([right / n]), np.array([n]))
        assert found == pytest.approx(known, abs=6e-5)
        mirrored = shares.interval(np.array([1 - right / n]), np.array([n]))
        assert mirrored == pytest.approx((1 - known[1], 1 - known[0]), abs=6e-5)
    refuses("at least one image", shares.interval, np.array([0.5]), np.array([0]))
    for bad in ([1.5, 0.5], [-0.5, 0.5]):
        refuses("at least one image", shares.interval, np.array(bad), np.array([9, 9]))


@pytest.mark.parametrize("n", [10, 12, 17, 30, 100, 500])
def test_an_accuracy_lies_in_its_interval_at_any_size(n):
    """Computed exactly, for one task."""
    right = np.arange(n + 1)
    ends = shares.interval(right[:, None] / n, np.full((n + 1, 1), n))
    assert min(ends[0]) == 0 and max(ends[1]) == 1 and np.all(ends[1] - ends[0] > 0)
    for p in (*ACCURACIES, *np.linspace(0.01, 0.49, 25)):
        assert (binom.pmf(right, n, p) * held(ends, p)).sum() > 0.94, p


@pytest.mark.parametrize("n", [10, 15, 30])
@pytest.mark.parametrize(
    ("gained", "lost"),
    [(0.97, 0.0), (0.9, 0.05), (0.7, 0.2), (0.5, 0.3), (0.3, 0.0), (0.1, 0.1), (0.01, 0.0)],
)
def test_a_gain_lies_in_its_interval_at_any_size(n, gained, lost):
    """Computed exactly, for one task."""
    up, down = every(n)
    chance = multinomial.pmf(np.stack([up, down, n - up - down], -1), n,
                             [gained, lost, 1 - gained - lost])  # fmt: skip
    ends = shares.difference(up[:, None] / n, down[:, None] / n, np.full((len(up), 1), n))
    assert np.all(ends[0] >= -1) and np.all(ends[1] <= 1) and np.all(ends[1] > ends[0])
    assert np.nansum(chance * held(ends, gained - lost)) > 0.94
    mirrored = shares.difference(down[:, None] / n, up[:, None] / n, np.full((len(up), 1), n))
    np.testing.assert_allclose(mirrored[0], -ends[1], atol=1e-12)
    few, sure = up + down < shares.DISCORDANT, (ends[0] > 0) | (ends[1] < 0)
    assert not (few & sure).any() and (n < 15 or sure.any())


@pytest.mark.parametrize(
    ("accuracies", "sizes"),
    [
        ([0.97] * 8, [10] * 8),
        ([0.9] * 8, [10] * 8),
        ([0.3, 0.6, 0.9, 0.97, 0.99, 0.999, 0.8, 0.5], [10] * 8),
        ([0.97] * 8, [10, 100, 1000, 30, 20, 15, 50, 10]),
        ([1, 1, 1, 0.8], [15] * 4),
        ([0.5, 0.97], [400, 10]),
    ],
)
def test_a_mean_over_tasks_lies_in_its_interval(accuracies, sizes):
    draw, n = np.random.default_rng(0), np.array(sizes)
    found = draw.binomial(n, accuracies, (DRAWS, len(n))) / n
    ends = shares.interval(found, np.broadcast_to(n, found.shape))
    assert held(ends, np.mean(accuracies)).mean() > 0.93
    gained = draw.binomial(n, 0.2, found.shape)
    lost = draw.binomial(n - gained, np.linspace(0.0, 0.3, len(n)))
    truth = 0.2 - (0.8 * np.linspace(0.0, 0.3, len(n))).mean()
    ends = shares.difference(gained / n, lost / n, np.broadcast_to(n, found.shape))
    assert held(ends, truth).mean() > 0.93
    # many images: the width is that of the normal approximation with the tasks kept
    p, many = np.array(accuracies), np.full(len(n), 10**6)
    low, high = shares.interval(p, many)
    variance = (p * (1 - p) / many).sum() / len(p) ** 2
    assert (high - low) / 2 == pytest.approx(shares.Z95 * variance**0.5, rel=0.01)
    low, high = shares.difference(0.3 * p, 0.3 * (1 - p), many)  # of values 1, 0 and -1
    variance = ((0.3 - (0.3 * (2 * p - 1)) ** 2) / many).sum() / len(p) ** 2
    assert (high - low) / 2 == pytest.approx(shares.Z95 * variance**0.5, rel=0.01)


def test_copies_of_an_image_count_once():
    draw = np.random.default_rng(0)
    once = {"a": draw.random(12) < 0.5, "b": draw.random(20) < 0.9}
    later = {"a": draw.random(12) < 0.9, "b": draw.random(20) < 0.5}
    copied = [{t: np.repeat(x, 10) for t, x in side.items()} for side in (once, later)]
    copies = {task: np.repeat(np.arange(len(x)), 10) for task, x in once.items()}
    assert shares.accuracy(copied[0], copies) == pytest.approx(shares.accuracy(once))
    assert shares.gain(copied[1], copied[0], copies) == pytest.approx(shares.gain(later, once))
    assert shares.accuracy(copied[0]).half < 0.5 * shares.accuracy(once).half
    # nine images ten times are nine discordant ones
    wrong, right = {"a": np.zeros(90, bool)}, {"a": np.ones(90, bool)}
    nine = {"a": np.repeat(np.arange(9), 10)}
    assert shares.gain(right, wrong).sure and not shares.gain(right, wrong, nine).sure


def test_an_estimate_is_in_percent_and_knows_its_sign():
    before, after = {"a": np.arange(20) < 5}, {"a": np.arange(20) < 17}
    gain, back = shares.gain(after, before), shares.gain(before, after)
    assert gain.value == pytest.approx(60) and gain.sure and 20 < gain.low < 60 < gain.high < 90
    assert back == pytest.approx((-gain.value, -gain.high, -gain.low)) and back.sure
    assert gain.half == pytest.approx((gain.high - gain.low) / 2)
    low, high = shares.interval(np.array([0.85]), np.array([20]))
    assert shares.accuracy(after) == pytest.approx((85, 100 * low, 100 * high))
    assert shares.accuracy(after).named("mean")["mean_low"] == shares.accuracy(after).low
    few = {"a": np.arange(20) < 14}
    assert not shares.gain(few, before).sure  # nine discordant images, all gained
    assert shares.gain(few, before).low == 0
    signs = [
        shares.Estimate(0, *ends).sure for ends in ((-0.5, 0.5), (0.0, 2), (-2, 0.0), (0.5, 2))
    ]
    assert signs == [False, False, False, True] and shares.Estimate(-1, -2, -0.5).sure
