"""What an interval draws, by what its sentence speaks of."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasklab.evidence.records import intervals, targets

SETS = ("A+B+C", "A+B+D", "C+D+E", "B+D+E", "A+C+E", "B+C+D")


def crossed(seed=0, *, tasks=2.0, company=0.0, sets=0.0, rest=0.5, seeds=3):
    rng, names = np.random.default_rng(seed), "ABCDE"
    a, b = (dict(zip(names, s * rng.normal(size=5), strict=True)) for s in (tasks, company))
    rows = []
    for one in SETS:
        c, members = sets * rng.normal(), one.split("+")
        for task in members:
            mean = a[task] + np.mean([b[other] for other in members if other != task]) + c
            rows += [(s, task, one, mean + rest * rng.normal()) for s in range(seeds)]
    return pd.DataFrame(rows, columns=["seed", "task", "subset", "difference"])


def test_in_one_set_noise_counts_once():
    """Two-way analysis of variance: tasks, seeds, and their interaction, by hand."""
    rng = np.random.default_rng(1)
    values = rng.normal(0, 2, (6, 1)) + rng.normal(0, 1, (1, 3)) + rng.normal(0, 1, (6, 3))
    rows = [(s, f"t{t}", "", values[t, s]) for t in range(6) for s in range(3)]
    table = pd.DataFrame(rows, columns=["seed", "task", "subset", "difference"])
    seeds, tasks = targets.sources(table, targets.TASKS)
    own = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    noise = (own**2).sum() / (2 * 5) / 18
    assert seeds.variance == pytest.approx(values.mean(0).var(ddof=1) / 3 - noise)
    assert tasks.variance == pytest.approx(values.mean(1).var(ddof=1) / 6)
    assert (seeds.freedom, tasks.freedom) == (2, 5)
    assert targets.interval(table, targets.TASKS).effect == pytest.approx(values.mean())
    (alone,) = targets.sources(table, targets.THESE)
    assert alone.variance == pytest.approx(values.mean(0).var(ddof=1) / 3)
    lacking = table.iloc[1:]  # a task lacks a seed: both sources in full
    assert targets.sources(lacking, targets.TASKS)[0].variance > seeds.variance
    one = targets.interval(table[table["seed"] == 0], targets.TASKS)
    assert one.effect == one.effect and math.isnan(one.low)


def test_sets_of_these_tasks_are_drawn_as_they_are():
    table = crossed()
    means = table.groupby(["subset", "seed"])["difference"].mean().unstack()
    seeds, sets = targets.sources(table, targets.SETS)
    theirs = stats.sem(means.mean(axis=1)) ** 2
    assert (sets.name, sets.freedom) == ("sets", 5) and sets.variance == pytest.approx(theirs)
    assert 0 <= seeds.variance <= intervals.of_means("seeds", means.mean()).variance


@pytest.mark.parametrize(("company", "sets"), [(0.0, 0.0), (1.5, 0.7)])
def test_components_have_the_largest_restricted_likelihood(company, sets):
    """Against the likelihood itself, with the inverse of the whole covariance."""
    table = crossed(5, company=company, sets=sets)
    units = table.pivot_table(index=["task", "subset"], columns="seed", values="difference")
    y, terms = units.mean(axis=1).to_numpy(), targets.design(units.index)
    parts = [z @ z.T for z in terms] + [np.eye(len(y))]

    def criterion(theta):
        covariance = sum(t * part for t, part in zip(theta, parts, strict=True))
        inverse, one = np.linalg.inv(covariance), np.ones(len(y))
        total = one @ inverse @ one
        rest = y - (one @ inverse @ y) / total
        return np.linalg.slogdet(covariance)[1] + math.log(total) + rest @ inverse @ rest

    found = targets.components(y, terms)
    best = criterion(found.variances)
    for k in range(4):
        for step in (0.9, 1.1):
            other = found.variances.copy()
            other[k] = other[k] * step or 1e-3
            assert criterion(other) > best - 1e-6
    weights = [(z.mean(0) ** 2).sum() for z in terms] + [1 / len(y)]
    assert found.source.variance == pytest.approx(float(np.dot(weights, found.variances)))


def test_degrees_of_freedom_are_those_of_tasks_where_tasks_alone_differ():
    """Every task in every set: the mean over six tasks is Student's with five degrees."""
    index = pd.MultiIndex.from_product([list("ABCDEF"), ["one", "two"]], names=["task", "subset"])
    own = np.repeat(np.eye(6), 2, axis=0)
    values = own @ np.array([1.0, 4.0, 2.0, -3.0, 0.5, 2.5])
    values += 0.01 * np.tile([1.0, -1.0], 6)
    found = targets.components(values, [own])
    assert len(index) == len(values)
    assert found.source.freedom == pytest.approx(5, rel=1e-3)
    theirs = stats.sem(values.reshape(6, 2).mean(1)) ** 2
    assert found.source.variance == pytest.approx(theirs, rel=1e-3)


def test_sets_without_a_common_task_are_drawn_as_units():
    """Own term, company and rest are one; the mean is Student's over the four pairs."""
    pairs, rng = ("A+B", "C+D", "E+F", "G+H"), np.random.default_rng(2)
    own = dict(zip(pairs, (1.0, 4.0, -2.0, 6.0), strict=True))
    rows = [
        (s, task, one, own[one] + 0.1 * rng.normal())
        for one in pairs for task in one.split("+") for s in range(3)
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["seed", "task", "subset", "difference"])
    _, found = targets.sources(table, targets.TASKS)
    means = table.groupby("subset")["difference"].mean()
    assert found.variance == pytest.approx(stats.sem(means) ** 2, rel=0.01)
    assert found.freedom == pytest.approx(3, rel=0.02)


def test_what_does_not_vary_has_no_interval():
    table = crossed().assign(difference=1.0)
    assert targets.interval(table, targets.SETS).effect == 1.0
    found = dataclasses.asdict(targets.sources(table, targets.TASKS)[1])
    assert found["variance"] < 1e-12
