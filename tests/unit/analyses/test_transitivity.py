"""Transitivity of cross-task linearity, by hand and by slow loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr, t

from tasklab.analyses import transitivity
from tests.helpers import refuses


def pairs_of(values, base=1.0):
    rows = [(one, other, value, base) for (one, other), value in values.items()]
    return pd.DataFrame(rows, columns=["one", "other", "value", "base"])


BY_HAND = {"ab": 0.1, "bc": 0.2, "ca": 0.4, "ad": 0.3, "db": 0.5, "cd": 0.6}


def test_triples_by_hand():
    triples, summary = transitivity.transitivity(pairs_of(BY_HAND, base=2.0), 0.16)
    assert len(triples) == 4 * 3  # each triangle has three middles
    found = triples.set_index(["one", "middle", "other"])
    row = found.loc["a", "b", "c"]
    assert tuple(row[["predicted", "value", "excess"]]) == pytest.approx((0.2, 0.4, 2))
    assert tuple(row[["relative_predicted", "relative"]]) == pytest.approx((0.1, 0.2))
    assert tuple(found.loc["a", "c", "d"][["predicted", "value"]]) == pytest.approx((0.6, 0.3))
    # Below 0.32: ab, bc, ad. Both premises: (a b c): ca fails; (b a d): bd fails.
    (told,) = summary.to_dict("records")
    assert (told["held"], told["violations"]) == (2, 1.0)
    assert told["unsatisfied"] == pytest.approx(0.5)  # ca, db, cd fail, each in two triples of 12
    assert (told["n_models"], told["n_triples"], told["threshold"]) == (4, 12, 0.16)
    expected = spearmanr(triples["predicted"], triples["value"]).statistic
    assert told["rank"] == pytest.approx(expected)
    assert (triples["excess"] > 1).mean() == pytest.approx(1 / 3)
    x = np.random.default_rng(0).uniform(-0.1, 0.1, size=8)
    found = transitivity._jackknife(x.mean(), [np.delete(x, i).mean() for i in range(8)])
    low, high = t.interval(0.95, 7, loc=x.mean(), scale=x.std(ddof=1) / 8**0.5)
    assert found == pytest.approx((x.mean(), low, high))


def test_thresholds_by_hand():
    (told,) = transitivity.transitivity(pairs_of(BY_HAND), 0.2).summary.to_dict("records")
    assert (told["held"], told["violations"]) == (1, 1)  # a, b, c: 0.1 and 0.2, but 0.4
    (told,) = transitivity.transitivity(pairs_of(BY_HAND), 1.0).summary.to_dict("records")
    assert (told["held"], told["violations"], told["unsatisfied"]) == (12, 0, 0)
    (told,) = transitivity.transitivity(pairs_of(BY_HAND), 0.0).summary.to_dict("records")
    assert told["held"] == 0 and np.isnan(told["violations"]) and told["unsatisfied"] == 1
    pairs = pairs_of(BY_HAND, base=2.0)
    found = transitivity.transitivity(pairs, (0.1, 0.16)).summary
    alone = [transitivity.transitivity(pairs, t).summary for t in (0.1, 0.16)]
    assert found["held"].nunique() == 2
    pd.testing.assert_frame_equal(found, pd.concat(alone, ignore_index=True))


def table_of(V, names):
    return pairs_of(
        {(names[i], names[j]): V[i, j] for i, j in itertools.combinations(range(len(V)), 2)}
    )


def summary_of(V, **options):
    names = list("abcdefgh")[: len(V)]
    (told,) = transitivity.transitivity(table_of(V, names), **options).summary.to_dict("records")
    return told


def test_clusters_and_bad_models_by_hand():
    side, rng = np.arange(8) % 2, np.random.default_rng(0)
    told = summary_of((side[:, None] != side) + 0.1 * rng.uniform(size=(8, 8)), threshold=0.5)
    assert (told["held"], told["violations"]) == (2 * 4 * 3, 0)
    assert told["violations_unlinked"] > 0.5  # (a, c) and (b, d) hold, (a, b) does not
    assert told["unsatisfied"] == pytest.approx(96 / 168)
    bad = np.exp(np.random.default_rng(0).normal(size=8))
    told = summary_of(bad[:, None] + bad)
    assert told["rank_unlinked"] > 0.3
    assert abs(told["rank"] - told["rank_unlinked"]) < 0.1
    assert told["low"] < told["rank"] < told["high"]


def test_unlinked_and_groups_of_pairs():
    V = np.random.default_rng(1).uniform(size=(5, 5))
    V = V + V.T
    told = summary_of(V, threshold=1.0)
    fours = list(itertools.permutations(range(5), 4))
    x = np.array([max(V[i, j], V[m, k]) for i, j, m, k in fours])
    y = np.array([V[i, k] for i, _, _, k in fours])
    assert told["rank_unlinked"] == pytest.approx(spearmanr(x, y).statistic)
    assert 0 < told["violations_unlinked"] == pytest.approx((y[x <= 1] > 1).mean())
    told = summary_of(np.ones((3, 3)), threshold=0.5)
    assert np.isnan(told["rank_unlinked"]) and np.isnan(told["rank"]) and np.isnan(told["low"])
    assert np.isnan(told["violations_unlinked"]) and told["unsatisfied"] == 1
    one, two = pairs_of(BY_HAND), pairs_of({k: 1 - v for k, v in BY_HAND.items()})
    both = pd.concat([one.assign(layer="one"), two.assign(layer="two")])
    found = transitivity.transitivity(both, 0.5, by=["layer"])
    assert list(found.summary["layer"]) == ["one", "two"]
    for layer, table in (("one", one), ("two", two)):
        alone = transitivity.transitivity(table, 0.5)
        part = found.triples[found.triples["layer"] == layer].drop(columns="layer")
        pd.testing.assert_frame_equal(part.reset_index(drop=True), alone.triples)
    assert "relative" not in transitivity.transitivity(one.drop(columns="base")).triples


@pytest.mark.parametrize(
    ("table", "threshold", "told"),
    [
        (pairs_of(BY_HAND).drop(columns="base"), 0.5, "columns base"),
        (pairs_of({"ab": 1.0, "ba": 2.0, "bc": 1.0}), None, "one row a pair"),
        (pairs_of({"ab": 1.0}), None, "three models"),
    ],
)
def test_what_is_no_table_of_pairs_is_said(table, threshold, told):
    refuses(told, transitivity.transitivity, table, threshold)


def test_pairs_in_records_of_cross_task_linearity():
    rows = [
        {"method": "nonlinear", "seed": 0, "task": "a+b", "alpha": alpha, "block": block,
         "metric": metric, "value": value + alpha}
        for alpha in (0.25, 0.5)
        for block in (0, None)
        for metric, value in (("distance", 1.0), ("base", 2.0), ("coef", 3.0))
    ]  # fmt: skip
    records = pd.DataFrame(rows).astype({"block": "Int64"})
    (row,) = transitivity.pairs_in(records).to_dict("records")
    assert (row["one"], row["other"], row["value"], row["base"]) == ("a", "b", 1.5, 2.5)
    assert len(transitivity.pairs_in(records, alpha=0.25, block=0)) == 1
