"""Methods compared at equal accuracy alone, and at equal length."""

import numpy as np
import pandas as pd
import pytest

from tasklab.evidence.records import matched
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.judgement import verdict
from tasklab.evidence.records.table import tidy
from tests.rows import crossed

RATES = (1e-4, 2e-4, 4e-4, 8e-4)
TASKS = ("Signs", "Places", "Scenes")


def grid(alone, norm, added, seeds=(0, 1, 2), rates=RATES):
    df = crossed(method=alone, seed=seeds, lr=rates, task=TASKS)
    places = [*zip(df["method"], df["lr"].map(rates.index), strict=True)]
    a, length = (np.array([table[method][i] for method, i in places]) for table in (alone, norm))
    t = df["task"].map(TASKS.index)
    one = a + t - 1  # tasks differ, their mean does not
    values = {
        ("single", "validation"): one, ("single", "test"): one, ("norm", "test"): length,
        ("absolute", "test"): added(a, length) + t, ("target", "test"): 50 - length,
    }  # fmt: skip
    df = pd.concat(df.assign(metric=m, split=s, value=v) for (m, s), v in values.items())
    df = df.assign(experiment="budget", model="mini", steps=240, n=1000)
    return tidy(pd.concat([df, df[df["lr"] == rates[1]].assign(steps=60, value=1.0)]))


ALONE = {"nonlinear": (60.0, 70.0, 80.0, 90.0), "linearized": (55.0, 65.0, 75.0, 70.0)}
NORM = {"nonlinear": (1.0, 2.0, 4.0, 8.0), "linearized": (1.0, 3.0, 5.0, 9.0)}


def value(method, setting, metric="absolute", table=None):
    table = grid(ALONE, NORM, lambda a, length: 100 - a) if table is None else table
    rows = matched.at_setting(table, setting, metric, ("linearized", "nonlinear"), method)
    return rows.groupby("task", sort=False)["value"].mean()


def test_sides_are_taken_back():
    # Linearized ends at 75 (its largest rate is worse); the non-linear one passes 75 halfway
    # between 70 and 80, where its sums have 30 and 20.
    assert value("linearized", "equal accuracy").tolist() == pytest.approx([25, 26, 27])
    assert value("nonlinear", "equal accuracy").tolist() == pytest.approx([25, 26, 27])
    # The chosen vectors are 8 and 5 long: the non-linear one is at 5 a quarter from 4 to 8.
    assert value("linearized", "equal length").tolist() == pytest.approx([25, 26, 27])
    assert value("nonlinear", "equal length").tolist() == pytest.approx([17.5, 18.5, 19.5])
    assert value("nonlinear", "equal length", "target").tolist() == pytest.approx([45] * 3)
    table = grid(ALONE, NORM, lambda a, length: 100 - a)
    lengths = table[(table["metric"] == "norm") & (table["task"] == "Signs")]
    pair = {"task": "Signs+Places", "metric": "xi_classifier_box"}
    table = tidy(pd.concat([table, lengths.assign(**pair)], ignore_index=True))
    # Alone 75 lies halfway between 70 and 80, where the non-linear vectors are 2 and 4 long.
    found = value("nonlinear", "equal accuracy", "xi_classifier_box", table)
    assert found.to_dict() == pytest.approx({"Signs+Places": 3.0})
    judged = verdict(BY_ID["tangent-fig10-linearized@accuracy"], table)
    assert judged.interval.effect == pytest.approx(3.0 - 5.0)  # linearized has the larger error
    found = value("linearized", "equal accuracy", "normalised")
    assert found.tolist() == pytest.approx([100 * 25 / 74, 100 * 26 / 75, 100 * 27 / 76])


def test_grids_turns_and_plateaus():
    high = {**ALONE, "nonlinear": (80.0, 85.0, 88.0, 90.0)}
    table = grid(high, NORM, lambda a, length: 100 - a)
    assert value("nonlinear", "equal accuracy", table=table).empty
    assert len(value("linearized", "equal accuracy", table=table)) == 3
    assert matched.at_setting(table.iloc[:0], "equal length", "absolute", ("a", "b"), "a").empty
    assert value("nonlinear", "equal accuracy", "single").empty  # what is made equal is no outcome
    way = pd.DataFrame({"lr": RATES, "x": [60.0, 50.0, 70.0, 80.0]})
    rows = pd.DataFrame({"lr": RATES, "seed": 0, "task": "a", "subset": "", "value": [0, 1, 2, 3]})
    assert matched.interpolated(rows, way, 55.0)["value"].tolist() == pytest.approx([1.25])
    assert matched.interpolated(rows, way, 80.0)["value"].tolist() == [3]
    assert matched.interpolated(rows, way, 49.0).empty
    flat = way.assign(x=[50.0, 70.0, 70.0, 80.0])
    assert matched.interpolated(rows, flat, 70.0)["value"].tolist() == [1]  # the smallest rate


def test_no_method_adds_better_at_equal_accuracy():
    # What is added depends on the accuracy alone, and so no method adds better at equal ones.
    rng = np.random.default_rng(0)
    table = grid(ALONE, NORM, lambda a, length: 100 - a)
    noise = rng.normal(0, 0.2, len(table)) * (table["metric"] == "absolute")
    table = table.assign(value=table["value"] + noise)
    equal = verdict(BY_ID["tangent-1-absolute@accuracy"], table, model="mini")
    assert equal.outcome == "undecided" and abs(equal.interval.effect) < 1
    assert equal.n_seeds == 3 and equal.n_tasks == 3
    longer = verdict(BY_ID["tangent-1-absolute@length"], table, model="mini")
    assert longer.outcome == "holds" and longer.interval.effect == pytest.approx(7.5, abs=0.5)
    share = verdict(BY_ID["tangent-1-normalised@accuracy"], table, model="mini")
    assert share.outcome == "undecided" and share.here.low < share.here.high


def test_a_way_ends_at_the_rate_of_the_search_and_what_hangs_on_it_is_told():
    later = {"nonlinear": (60.0, 70.0, 80.0, 90.0, 91.0), "linearized": (1.0,) * 5}
    norm = dict.fromkeys(later, (1.0, 2.0, 4.0, 8.0, 16.0))
    table = grid(later, norm, lambda a, length: length, seeds=(0,), rates=(*RATES, 1.6e-3))
    grid_ = matched.usual(table)
    assert matched.end_of(grid_, "nonlinear") == 8e-4  # 1.6e-3 is a little more accurate
    assert matched.walk(grid_, "nonlinear", "norm")["x"].iloc[-1] == 8
    sides = ("linearized", "nonlinear")
    found = matched.at_setting(table, "equal length", "absolute", sides, "linearized")
    assert found["value"].tolist() == pytest.approx([8.0, 9.0, 10.0])
