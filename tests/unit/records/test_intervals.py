"""Intervals of effects with several sources of error."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasklab.evidence.records import images, intervals
from tasklab.evidence.records.intervals import Source, half_width, holm, p_value
from tests.helpers import refuses


def test_intervals_of_one_and_several_sources():
    values = [1.0, 2.0, 4.0, 4.5]
    source = intervals.of_means("seeds", values)
    theirs = stats.ttest_1samp(values, 0)
    found = intervals.interval(np.mean(values), [source])
    assert found[1:] == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert p_value(np.mean(values), [source]) == pytest.approx(theirs.pvalue)
    seeds = Source(name="seeds", variance=2.0, freedom=2)
    many = Source(name="images", variance=6.0)
    expected = math.hypot(stats.t.ppf(0.975, 2) * 2**0.5, stats.norm.ppf(0.975) * 6**0.5)
    assert half_width([seeds, many]) == pytest.approx(expected)
    assert half_width([many]) == pytest.approx(1.959964 * math.sqrt(6))
    half = half_width([seeds, many])
    assert p_value(half, [seeds, many]) == pytest.approx(0.05)
    assert p_value(2 * half, [seeds, many]) < 0.05 < p_value(0.5 * half, [seeds, many])
    source = intervals.of_tasks({"A+B": 1.0, "A+C": 2.0, "B+C": 4.0})
    assert source.variance == pytest.approx(28 / 9) and source.freedom == 2  # of 4, 2 and 1 left
    still = Source(name="seeds", variance=0.0, freedom=2)
    assert math.isnan(half_width([still])) and math.isnan(p_value(1.0, [still]))


def test_bootstrap_and_holm_by_hand():
    values = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 6.4])
    counts = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), 1999)
    drawn = [np.repeat(values, count) for count in counts]
    t = [(x.mean() - values.mean()) / stats.sem(x) if np.ptp(x) else np.nan for x in drawn]
    low, high = np.nanquantile(t, (0.025, 0.975))
    ends = [-high * stats.sem(values), -low * stats.sem(values)]
    assert np.allclose(intervals.bootstrap_t(0.0, values), ends, rtol=0.02)
    low, high = intervals.bootstrap_t(0.0, np.array([0.0] * 6 + [1.0]))  # a third draws zeros alone
    assert -1 < low < 0 and 1e6 < high < np.inf
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    found = holm([0.02, math.nan, 0.04])
    assert found[[0, 2]] == pytest.approx([0.04, 0.04]) and math.isnan(found[1])


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000])
def test_hits_survive_packing(n):
    hits = np.random.default_rng(n).random(n) < 0.5
    assert (images.unpacked(images.packed(hits), n) == hits).all()
    for text in (images.packed(np.ones(n + 8, bool)), "?"):
        refuses(f"not those of {n} images", images.unpacked, text, n)


def test_images_of_pairs_that_share_a_task_count_by_task():
    """B's images are the second half of one row and the first of the other."""
    rng, n, spread = np.random.default_rng(0), 60, []
    rows = pd.DataFrame({"task": ["A+B", "B+C"] * 2, "seed": [0, 0, 1, 1], "n": n})
    sets = images.sets_of(rows, "xi_classifier_box")
    for _ in range(400):
        a, b, c = (rng.random(n) < 0.3 for _ in "abc")
        spread.append(100 * (a.mean() + 2 * b.mean() + c.mean()) / 2)
        given = {"A+B": np.concatenate([a, b]), "B+C": np.concatenate([b, c])}
    told = images.crossed(rows, sets, lambda row: 200.0 * given[row["task"]])
    assert math.isnan(told)
    table = rows.assign(value=100 * (a.mean() + b.mean()))
    errors = images.standard_errors(table, "xi_classifier_box", None)
    bound = images.bounded(table.assign(error=errors, error_right=0.0), sets, 1.0)
    squared = errors.iloc[0] ** 2
    assert np.var(spread) < bound == pytest.approx(squared)  # at most, if all is by B's images
    assert np.var(spread) == pytest.approx(0.75 * squared, rel=0.25)  # (1 + 4 + 1) / 4 halves
    every = pd.DataFrame({"task": [f"{x}+{y}" for x, y in itertools.combinations("ABCDEFGH", 2)]})
    every = every.assign(error=3.0, error_right=4.0)
    sets = images.sets_of(every, "xi_classifier")
    assert images.bounded(every, sets, 1.0) == pytest.approx(25 * 2 / 8)  # alike: half for either
    assert math.isnan(images.bounded(every.assign(error=math.nan), sets, 1.0))
    apart = rows.assign(task=["A+B", "C+D"] * 2)
    given = {name: rng.random(2 * n) < 0.3 for name in apart["task"]}
    sets = images.sets_of(apart, "xi_classifier_box")
    assert images.crossed(apart, sets, lambda row: 200.0 * given[row["task"]]) > 0
