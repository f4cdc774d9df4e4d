"""Correlations with intervals: by hand, against SciPy, and what counts as evidence."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from tasklab.analyses import statistics
from tests.helpers import refuses


def test_over_tasks_by_hand():
    df = pd.DataFrame({"task": list("abcde"), "x": [1, 2, 3, 4, 5], "y": [1, 8, 9, 100, 20]})
    found = statistics.over_tasks(df, "x", "y")
    assert found.value == pytest.approx(0.9)  # 1 - 6 * 2 / (5 * 24)
    assert found.value == pytest.approx(spearmanr(df["x"], df["y"]).statistic)
    assert -1 <= found.low < 0.9 <= found.high <= 1
    assert statistics.over_tasks(df, "x", "y") == found
    falling = statistics.over_tasks(df.assign(y=-(df["x"] ** 3)), "x", "y")
    assert falling == pytest.approx((-1, -1, -1))
    refuses("three tasks", lambda: statistics.over_tasks(df[:2], "x", "y"))
    # Copies of a task's row are no new evidence: the interval stays as wide.
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"task": list("abcdefgh"), "x": rng.normal(size=8), "y": rng.normal(size=8)})
    many = pd.concat([df] * 20)
    one, twenty = (statistics.over_tasks(d, "x", "y") for d in (df, many))
    assert twenty.high - twenty.low == pytest.approx(one.high - one.low, rel=0.1)


def pairs(models, seed=0, groups=("",)):
    rng = np.random.default_rng(seed)
    rows = [
        {"group": g, "one": f"m{i}", "other": f"m{j}", "x": rng.normal(), "y": rng.normal()}
        for g in groups
        for i, j in itertools.combinations(range(models), 2)
    ]
    return pd.DataFrame(rows)


def test_over_pairs_is_spearmans_within_groups():
    df = pairs(6)
    found = statistics.over_pairs(df, "x", "y")
    assert found.value == pytest.approx(spearmanr(df["x"], df["y"]).statistic)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert statistics.over_pairs(df.drop(columns="group"), "x", "y") == found
    monotone = statistics.over_pairs(df.assign(y=df["x"] ** 3), "x", "y")
    assert monotone == pytest.approx((1, 1, 1))
    df = pairs(3, groups=("a", "b"))
    assert len(statistics.models_of(df)) == 6
    weights = statistics.drawn_pairs(df, 50, np.random.default_rng(0))
    assert weights.shape == (50, 6)
    assert (weights[:, :3] != weights[:, 3:]).any()
    refuses("four models", lambda: statistics.over_pairs(df[:3], "x", "y"))
    assert np.isnan(statistics.over_pairs(pairs(5).assign(y=1.0), "x", "y").value)
    assert np.isnan(statistics.rank_correlation(np.array([]), np.array([])))


def test_a_sample_repeats_pairs_as_often_as_both_models_were_drawn(monkeypatch):
    df = pairs(4)
    monkeypatch.setattr(statistics, "times", lambda n, repeats, rng: np.array([[2, 1, 0, 1]]))
    rows = df.set_index(["one", "other"])
    rows = rows.loc[[("m0", "m1"), ("m0", "m1"), ("m0", "m3"), ("m0", "m3"), ("m1", "m3")]]
    found = statistics.over_pairs(df, "x", "y")
    expected = spearmanr(rows["x"], rows["y"]).statistic
    assert found.low == found.high == pytest.approx(expected)
