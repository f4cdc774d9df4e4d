"""Gains of merges for every number of tasks: the rule of verdicts, applied by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.judgement import gains, verdict
from tasklab.evidence.records.table import nothing, tidy
from tests.helpers import refuses

TASKS = [f"task {i}" for i in range(4)]


def value(merge, n, seed, task):
    gain = {"arithmetic": 0.0, "ties": 2.0, "wudi": 5.0 + n}[merge]
    return 60.0 + gain * (1 + 0.1 * seed + 0.05 * TASKS.index(task))


def records(model="mini", seeds=3, numbers=(2, 4), merges=("arithmetic", "ties", "wudi")):
    common = {"experiment": "merging", "model": model, "method": "nonlinear", "trials": 12}
    return [
        common | {
            "subset": "" if n == 4 else "+".join(TASKS[TASKS.index(task) // 2 * 2 :][:2]),
            "task": task, "n_tasks": n, "seed": seed, "merge": merge, "metric": "absolute",
            "value": value(merge, n, seed, task), "n": 100,
        }
        for n, seed, task, merge in itertools.product(numbers, range(seeds), TASKS, merges)
    ]  # fmt: skip


def test_an_interval_has_seeds_and_tasks_for_every_number_of_tasks():
    found = gains(tidy(records())).set_index(["n_tasks", "merge"])
    assert len(found) == 4 and (found["seeds"] == 3).all()
    for n, merge in itertools.product((2, 4), ("ties", "wudi")):
        every = np.array([[value(merge, n, s, t) - 60.0 for t in TASKS] for s in range(3)])
        row = found.loc[(n, merge)]
        assert row["effect"] == pytest.approx(every.mean())
        squared = sum(
            (stats.t.ppf(0.975, len(x) - 1) * stats.sem(x)) ** 2
            for x in (every.mean(1), every.mean(0))
        )
        assert row["high"] - row["effect"] == pytest.approx(math.sqrt(squared))
        assert math.isnan(row["others_effect"]) and row["pretrainings"] == 1


def test_one_number_or_seed():
    df = tidy(records())
    claim = BY_ID["merging-ties"]
    found = gains(df).set_index(["n_tasks", "merge"]).loc[(4, "ties")]
    assert tuple(verdict(claim, df).interval) == tuple(found[["effect", "low", "high"]])
    others = [records(f"mini_s_seed{i}", seeds=1 + i, numbers=(4,)) for i in range(2)]
    found = gains(tidy([*records(), *others[0], *others[1]])).set_index(["n_tasks", "merge"])
    assert (found["pretrainings"].loc[4] == 2).all() and (found["pretrainings"].loc[2] == 1).all()
    means = [
        np.mean([value("ties", 4, s, t) - 60.0 for s in range(1 + i) for t in TASKS])
        for i in range(2)
    ]
    assert found.loc[(4, "ties"), "others_effect"] == pytest.approx(np.mean(means))
    found = gains(tidy(records(seeds=1)))
    assert found["effect"].notna().all() and found["low"].isna().all()
    assert gains(nothing()).empty
    assert gains(tidy(records(merges=("ties", "wudi")))).empty  # nothing to compare with
    alone = {"experiment": "single", "model": "mini", "method": "nonlinear", "task": "task 1"}
    assert gains(tidy([alone | {"seed": 0, "metric": "single", "value": 1.0, "n": 9}])).empty


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"metric": "absolut"}, "did you mean 'absolute'"), ({"over": "tiers"}, "mean 'ties'")],
)
def test_a_metric_or_merge_that_is_none(asked, told):
    refuses(told, lambda: gains(tidy(records()), **asked))
