"""Every way of merging, on a rehearsal: what the table has, and that the best merge is the best."""

import gc
import sys
import weakref

import numpy as np
import pandas as pd
import pytest
import torch.nn.functional as F

from tasklab.analyses import editing, merging
from tasklab.bench.merges import MERGES, REHEARSAL, Bench, options
from tasklab.evidence.experiments import Lab, runner
from tasklab.evidence.experiments import merging as experiment
from tasklab.evidence.experiments.merging import merging_of
from tasklab.tasks.suites import suite
from tests.helpers import refuses

TASKS = ("Signs", "Places")
FEW = ("average", "arithmetic", "regmean", "best_span", "least_logits")  # in the linearized model


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False)


@pytest.fixture(scope="module")
def table(lab):
    return experiment(lab, ["nonlinear"])


@pytest.fixture(scope="module")
def tangent(lab):
    return experiment(lab, ["linearized", "posthoc"], FEW)


def test_every_merge_is_measured_by_name_and_group(table, lab):
    assert set(table["merge"]) == set(MERGES) and set(table["method"]) == {"nonlinear"}
    assert (table["n_tasks"] == 2).all()
    for name, rows in table.groupby("merge"):
        assert (rows["trials"] == REHEARSAL["looks"]).all()
        assert set(rows["option"].dropna()) <= set(options(name))
    told = table.groupby("merge")["option"].first()
    assert set(told.index[told.notna()]) == {n for n in MERGES if len(options(n)) > 1}
    counts = table.groupby(["method", "merge", "metric"]).size().unstack()
    assert (counts["absolute"] == 2).all() and (counts["normalised"] == 2).all()
    assert (counts["objective"] == 1).all()
    told = table[table["metric"] == "objective"]
    assert (told["task"] == "all").all() and (told["split"] == "validation").all()
    rest = table[table["metric"] != "objective"]
    assert set(rest["task"]) == set(TASKS) and (rest["split"] == "test").all()
    four = suite("mini").names[:2] + TASKS
    small = Lab(model="mini_xs", steps=1, tasks=dict.fromkeys(four), progress=False)
    table = experiment(small, ["nonlinear"], ["ties"], n_tasks=[2])
    assert table["subset"].nunique() == len(small.suite.names) // 2
    refuses("did you mean 'ties'", experiment, lab, ["nonlinear"], ["tie"])
    refuses("did you mean 'nonlinear'", experiment, lab, ["nonlinaer"])


def test_a_rehearsal_at_full_size_tries_one_option(lab, monkeypatch):
    trial = runner.Trial(lab=lab, experiment="merging", method="nonlinear", seed=0, tasks=TASKS)
    assert Bench(trial).options("ties") == options("ties") == (0.1, 0.2, 0.3)
    monkeypatch.setattr(Lab, "light", True)
    assert Bench(trial).options("ties") == (0.1,)
    assert Bench(trial).options("average") == (None,)
    assert Bench(trial).key("ties")["options"] == [0.1]


def test_a_rehearsal_at_full_size_merges_a_part_of_the_vectors(lab, monkeypatch):
    trial = runner.Trial(lab=lab, experiment="merging", method="nonlinear", seed=0, tasks=TASKS)
    assert Bench(trial).vectors is trial.vectors
    monkeypatch.setattr(Lab, "light", True)
    whole = trial.vectors[TASKS[0]]
    half = sum(x.numel() for x in whole.values()) // 2
    monkeypatch.setattr(sys.modules[Bench.__module__], "REHEARSED", half)
    bench = Bench(trial)
    part = bench.vectors[TASKS[0]]
    assert 0 < sum(x.numel() for x in part.values()) <= half
    assert len(part) < len(whole)
    assert all(part[name].data_ptr() == whole[name].data_ptr() for name in part)
    for name in ("ties", "regmean", "best_span"):
        assert bench.merged(name).keys() == part.keys()


def test_a_bench_lets_its_vectors_go(lab):
    """Those of large models are gigabytes: no cycle of references may hold them."""
    trial = runner.Trial(lab=lab, experiment="merging", method="nonlinear", seed=0, tasks=TASKS)
    bench = Bench(trial)
    assert bench.alone("val").shape == (2,)
    assert bench.alone("val") is bench.alone("val")  # measured once
    bench.choose("ties")
    known = [weakref.ref(trial), weakref.ref(bench)]
    gc.collect()
    gc.disable()
    try:
        del trial, bench
        assert [ref() for ref in known] == [None, None]
    finally:
        gc.enable()


def test_no_loss_or_merge_on_the_span_is_better_than_the_best(table, tangent, lab):
    told = pd.concat([table[table["merge"].isin(FEW)], tangent])
    told = told[told["metric"] == "objective"].pivot(
        index="method", columns="merge", values="value"
    )
    assert (told["average"] - told["arithmetic"]).abs().max() < 1e-5  # one direction
    assert (told["best_span"] <= told["average"] + 1e-6).all()
    within = (told > 0) & (told <= 1 + 1e-6)  # at 0 it is 1
    assert (within | told.isna()).all(axis=None)  # of one method only some are measured
    trial = next(runner.grid(lab, "merging", ["linearized"], over=[list(TASKS)]))
    bench = Bench(trial)

    def loss(name):
        made, total = bench.merged(name), 0.0
        for task in TASKS:
            features = lab.evaluator.tangent_features(made, task, "val")
            scores = lab.evaluator.head(task)(features.f0 + features.jtau)
            total += float(F.cross_entropy(scores, lab.evaluator.images(task, "val").y))
        return total

    assert loss("best_loss") <= loss("best_span") + 1e-5
    coefficients = bench._least_loss()
    assert len(coefficients) == len(TASKS)


def test_the_coefficient_is_the_one_that_validation_chooses(lab, table):
    vectors = lab.vectors("nonlinear", 0)
    own = [lab.evaluator.tangent_features(v, t, "val").jtau for t, v in vectors.items()]
    alone = editing.single_task(lab.evaluator, vectors, "val", linear=False)

    def best(name, vector, multiples):
        moved = merging.best.tangents(lab.evaluator, vector, TASKS)
        (scale,) = merging.best.span([moved], own).tolist()
        grid = sorted(scale * c for c in multiples)
        found = lab.evaluator.sweep(vector, TASKS, "val", linear=False, alphas=grid)
        share = editing.normalised(found, alone).mean(1)
        return share.max(), grid[int(share.argmax())]

    rows = table[(table["metric"] == "absolute") & (table["task"] == TASKS[0])]
    rows = rows.set_index("merge")
    grid = tuple(np.geomspace(0.25, 2.5, 4))
    _, alpha = best("average", merging.average(vectors), grid)
    assert rows["alpha"]["average"] == pytest.approx(alpha)
    keep = rows["option"]["ties"]
    scores = {k: best("ties", merging.ties(vectors, keep=k), (1.0,))[0] for k in options("ties")}
    assert scores[keep] == max(scores.values())
    _, alpha = best("ties", merging.ties(vectors, keep=keep), (0.25, 1.0))
    assert rows["alpha"]["ties"] == pytest.approx(alpha)
    vector = merging.ties(vectors, keep=keep)
    accuracy = lab.evaluator.evaluate(vector, TASKS[0], "test", alpha, linear=False)
    assert rows["value"]["ties"] == pytest.approx(accuracy)


def test_what_is_kept_is_not_measured_again(lab, table, monkeypatch):
    monkeypatch.setattr(editing, "single_task", None)
    assert experiment(lab, ["nonlinear"]).equals(table)


def test_what_another_process_merges_comes_last_and_stands_in_its_place(lab, table, monkeypatch):
    taken, module = [], sys.modules[merging_of.__module__]
    one, few = module.merging_of, ["average", "ties", "arithmetic"]

    def told(bench, name):
        taken.append(name)
        return one(bench, name)

    def making(self, kind, config):
        return config.get("merge") == "average"

    monkeypatch.setattr(module, "merging_of", told)
    monkeypatch.setattr(type(lab.store), "making", making)
    rows = experiment(lab, ["nonlinear"], few)
    assert taken == ["ties", "arithmetic", "average"]
    assert rows["merge"].unique().tolist() == few
    kept = table[table["merge"].isin(few)].sort_values(["merge", "metric", "task"])
    again = rows.sort_values(["merge", "metric", "task"])
    pd.testing.assert_series_equal(
        again["value"], kept["value"], check_index=False, check_names=False
    )
