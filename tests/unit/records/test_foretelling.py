"""Correlations over pairs that share tasks: by hand, and in simulations that a naive one fails."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from benchmarks.foretelling import correlated, foretelling, left_out
from tasklab.evidence import records, study
from tasklab.evidence.records.foretelling import units
from tasklab.evidence.records.table import nothing, tidy
from tests.helpers import refuses

NAMES = [f"task {i}" for i in range(8)]


def rows(values, names=NAMES, **more):
    common = {"experiment": "crossing", "model": "mini", "method": "nonlinear", "seed": 0, **more}
    return [
        {**common, "task": task, "n_tasks": 1 + ("+" in task), "metric": metric, "value": value}
        for task, metrics in values.items()
        for metric, value in metrics.items()
    ]


def pairs(draw, tasks=8, share=0.9, common=0.0):
    """Return x and y of all pairs, of whose variance a share belongs to the tasks.

    Args:
        draw: Generator.
        tasks: How many.
        share: Of the variance.
        common: Correlation of x and y, of the tasks' part and of the rest.
    """
    low, high = np.array(list(itertools.combinations(range(tasks), 2))).T

    def both(count):
        one, other = draw.standard_normal((2, count))
        return one, common * one + np.sqrt(1 - common**2) * other

    (a, b), (e, f) = both(tasks), both(len(low))
    of_tasks, rest = np.sqrt(share / 2), np.sqrt(1 - share)
    return pd.DataFrame(
        {
            "model": "mini", "init": "pretrained", "method": "nonlinear", "seed": 0,
            "one": [NAMES[i] for i in low], "other": [NAMES[i] for i in high],
            "x": of_tasks * (a[low] + a[high]) + rest * e,
            "y": of_tasks * (b[low] + b[high]) + rest * f,
        }
    )  # fmt: skip


def test_under_the_null_pairs_that_share_a_task_reject_at_the_level_and_a_naive_test_does_not():
    draw, repeats = np.random.default_rng(0), 150
    p, inside, naive = [], [], []
    for _ in range(repeats):
        table = pairs(draw)
        found, value, _ = correlated(table, "x", "y", repeats=200)
        p.append(value)
        inside.append(found.low <= 0 <= found.high)
        naive.append(scipy.stats.spearmanr(table["x"], table["y"]).pvalue)
    assert np.mean(np.array(naive) < 0.05) > 0.2
    assert np.mean(np.array(p) < 0.05) < 0.11  # three standard errors above 5 %
    assert np.mean(inside) > 0.88
    assert abs(np.mean(p) - 0.5) < 0.1  # p is uniform, not merely large


def test_what_is_there_is_found_in_any_order():
    draw, truth = np.random.default_rng(1), 0.67
    found = [
        correlated(pairs(draw, share=0.5, common=0.7), "x", "y", repeats=300) for _ in "x" * 60
    ]
    assert np.mean([p < 0.05 for _, p, _ in found]) > 0.7
    assert np.mean([c.low <= truth <= c.high for c, _, _ in found]) > 0.9
    table = pairs(np.random.default_rng(2))
    found, p, groups = correlated(table, "x", "y")
    assert found.value == pytest.approx(scipy.stats.spearmanr(table["x"], table["y"]).statistic)
    assert found.low < found.value < found.high and groups == 1
    turned = table.assign(one=table["other"], other=table["one"])
    assert correlated(turned, "x", "y")[0].value == pytest.approx(found.value)
    tasks = table.groupby("one").first().reset_index().assign(other=lambda t: t["one"])
    of_tasks = correlated(tasks, "x", "y")[0].value
    assert of_tasks == pytest.approx(scipy.stats.spearmanr(tasks["x"], tasks["y"]).statistic)
    draw = np.random.default_rng(3)
    one, two = pairs(draw), pairs(draw).assign(method="attention", y=lambda t: 100 + t["x"])
    found, _, groups = correlated(pd.concat([one, two]), "x", "y", repeats=300)
    alone = correlated(one, "x", "y", repeats=300)[0].value
    assert found.value == pytest.approx((alone + 1) / 2) and groups == 2
    constant = one.assign(method="posthoc", x=0.0)  # has no order: as linear models have no CTL
    same, _, groups = correlated(pd.concat([one, constant]), "x", "y", repeats=300)
    assert groups == 1 and same.value == pytest.approx(alone)
    assert np.isnan(correlated(constant, "x", "y")[0].value)


def test_metrics_of_tasks_and_pairs_side_by_side():
    values = {f"task {i}": {"single": 10.0 * i, "lost_sum": float(i)} for i in range(4)}
    for i, j in itertools.combinations(range(4), 2):
        values[f"task {i}+task {j}"] = {"lost": float(i + j), "distance": 0.1 * j}
    table = tidy(rows(values))
    of_pairs = units(table, 2).set_index("task")
    assert of_pairs.loc["task 1+task 3", "single"] == 20 and len(of_pairs) == 6
    of_tasks = units(table, 1).set_index("task")
    assert of_tasks.loc["task 0", "lost"] == 2 and of_tasks.loc["task 0", "single"] == 0
    assert of_tasks.loc["task 3", "distance"] == pytest.approx(0.3)
    found = foretelling(table).set_index("metric")
    assert set(found.index) == {"single", "distance"}
    assert found.loc["single", "value"] == pytest.approx(1)
    assert (found["tasks"] == 4).all() and (found["units"] == 6).all()
    assert (found["p_holm"] >= found["p"]).all() and (found["model"] == "mini").all()
    by_task = foretelling(table, "lost_sum", by=()).set_index("metric")
    assert by_task.loc["single", "value"] == pytest.approx(1) and "model" not in by_task


def test_what_a_merge_loses_is_an_outcome_that_foretells_no_other():
    values = {
        f"task {i}": {
            "norm": 1.0 * i, "lost_sum": i + 1.0, "lost_ties": 8.0 - i, "lost_wudi_exact": 2.0,
        }
        for i in range(6)
    }  # fmt: skip
    values["task 5"]["lost_ties"] = 3.5  # between those of the tasks 4 and 5 before it
    found = foretelling(tidy(rows(values)), "lost_ties", by=()).set_index("metric")
    assert list(found.index) == ["norm"]
    assert found.loc["norm", "value"] == pytest.approx(-1)
    constant = foretelling(tidy(rows(values)), "lost_wudi_exact", by=())
    assert constant["value"].isna().all()


def test_odd_input_and_other_records():
    whole = rows({f"task {i}": {"norm": 1.0 * i, "lost_ties": 1.0 * i} for i in range(6)})
    without = rows({f"task {i}": {"norm": -1.0 * i} for i in range(6)}, method="posthoc")
    found = foretelling(tidy(whole + without), "lost_ties", by=())
    assert found["groups"].item() == 1 and found["value"].item() == pytest.approx(1)
    table = pairs(np.random.default_rng(4))
    refuses("27 of 28 pairs have 'x' and 'y'", correlated, table.iloc[1:], "x", "y")
    few = pairs(np.random.default_rng(4), tasks=3)
    refuses("at least four of them, not 3", correlated, few, "x", "y")
    records = tidy(rows({"a": {"single": 1.0}, "a+b": {"distance": 1.0}}))
    refuses("no records of 'lost'", foretelling, records)
    refuses("did you mean 'lost'", foretelling, records, "last")
    single = {"experiment": "single", "model": "mini", "method": "nonlinear", "task": "Signs"}
    for df in (nothing(), tidy([single | {"seed": 0, "metric": "single", "value": 1.0, "n": 9}])):
        refuses("no records of the experiment 'crossing'", foretelling, df)


def test_a_rule_is_judged_on_tasks_that_it_has_not_seen():
    draw = np.random.default_rng(2)
    of = {
        "+".join(two): {"cosine": x, "lost": 1 + 3 * x, "base": draw.normal(), "coef": 5.0}
        for two, x in zip(itertools.combinations(NAMES[:5], 2), draw.normal(size=10), strict=True)
    }
    found = left_out(tidy(rows(of)), by=()).set_index("metric")
    assert found.index[0] == "cosine" and found.loc["cosine", "error"] == pytest.approx(0, abs=1e-9)
    names, lost = [*of], np.array([row["lost"] for row in of.values()])
    off = []
    for task in NAMES[:5]:  # by hand: the mean of the pairs without it
        away = np.array([task in name.split("+") for name in names])
        off += [*np.abs(lost[away] - lost[~away].mean())]
    assert found["mean_error"].tolist() == pytest.approx([np.mean(off)] * 3)
    assert found.loc["coef", "error"] == pytest.approx(np.mean(off))  # says nothing
    slope, start = np.polyfit(*np.array([[of[n]["base"], of[n]["lost"]] for n in names]).T, 1)
    fitted = np.mean([abs(start + slope * of[n]["base"] - of[n]["lost"]) for n in names])
    assert found.loc["base", "error"] > fitted  # which has seen them


def test_the_file_is_of_the_recorded_cross_examination():
    matrix = study.recorded("merging", "matrix")[0]
    known = records.foretold("lost").set_index("metric")
    for made, names in (
        (foretelling(matrix, "lost", by=(), repeats=0), ["value", "groups"]),
        (left_out(matrix, "lost", by=()), ["error", "mean_error"]),
    ):
        table = made.set_index("metric")
        assert {*table.index} == {*known.index}
        found = table.loc[known.index, names]
        pd.testing.assert_frame_equal(found, known[names], rtol=1e-5, check_dtype=False)
    each = records.foretold("lost", each=True)
    assert {*map(tuple, matrix[["model", "method"]].to_numpy())} >= {
        *map(tuple, each[["model", "method"]].to_numpy())
    }
    assert each["p_holm"].isna().all()  # of a method and encoder alone nothing is tested
    refuses("did you mean 'lost_sum'", records.foretold, "lost_sun")
