"""The closed-vocabulary experiments at the smallest setting: every code path, and their sums."""

import dataclasses

import numpy as np
import pytest

from tasklab.analyses import evaluation
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments, figures
from tasklab.evidence.records import table as records
from tasklab.evidence.records.table import where as rows
from tasklab.models import heads
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune, probes
from tests.helpers import refuses

TASKS = ("Vehicles", "Textures", "Scenes")
ROLES = ("closed", "small")  # one without a text tower, one with


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    parameters = Parameters(model="mini_xs", steps=2, store_root=store)
    return experiments.Lab(parameters, progress=False, tasks=TASKS)


@pytest.fixture(scope="module")
def labs(main):
    return experiments.schemes(main, ROLES)


@pytest.fixture(scope="module")
def sums(labs):
    parts = [
        experiments.across(labs, experiments.probing),
        experiments.across(labs, experiments.closed_addition, ["nonlinear", "full"]),
    ]
    return records.combine(*parts)


def test_schemes_are_labs_whose_probing_is_the_probe(main, labs, sums):
    assert [lab.parameters.model for lab in labs] == ["mini_sup_few", "mini_xs"]
    assert {lab.parameters.vocabulary for lab in labs} == {"closed"}
    assert all(lab.suite.names == TASKS for lab in labs)
    refuses("role", experiments.schemes, main, ["sup_fwe"])
    lab, task = labs[0], TASKS[1]
    images = lab.evaluator.images(task, "test")
    how = lab.run(task, "nonlinear", 0).probe
    head = probes.fit(how, lab.clip, lab.suite, task, lab.store).head
    features = lab.clip.encoder({}, lab.clip.encoder.preprocess(images.x))
    expected = 100 * heads.accuracy(head(features), images.y)
    found = rows(sums, model="mini_sup_few", method="probe", task=task, split="test")
    for experiment, metric in (("single", "single"), ("addition", "absolute")):
        value = rows(found, experiment=experiment, metric=metric)["value"]
        assert value.tolist() == pytest.approx([expected])


@pytest.mark.parametrize("model", ["mini_sup_few", "mini_xs"])
def test_no_vector_is_probing(sums, model):
    start = rows(sums, model=model, experiment="sweep", metric="absolute", alpha=0.0)
    start = rows(start, method="nonlinear").set_index("task")["value"]
    probed = rows(sums, model=model, method="probe", split="validation").set_index("task")["value"]
    assert start.to_dict() == probed.to_dict() and set(start.index) == set(TASKS)


def test_the_sum_is_chosen_on_validation_and_each_head_is_plugged_in(labs, sums):
    for lab in labs:
        for method in ("nonlinear", "full"):
            mine = rows(sums, model=lab.parameters.model, method=method)
            sweep = rows(mine, experiment="sweep", metric="normalised")
            means = sweep.groupby("alpha")["value"].mean()
            added = rows(mine, experiment="addition")
            (chosen,) = rows(added, metric="lambda")["value"]
            assert chosen == means.idxmax() and set(added["alpha"]) == {chosen}
            runs = {task: lab.tune(task, method, 0) for task in TASKS}
            total = TaskVector.sum(run.vector for run in runs.values())
            params = total.apply(lab.clip.encoder.params, chosen)
            for task, run in runs.items():
                images = lab.evaluator.images(task, "test")
                features = lab.evaluator.features(params, task, "test")
                expected = 100 * heads.accuracy(run.head(features), images.y)
                found = rows(added, metric="absolute", task=task)["value"]
                assert found.tolist() == pytest.approx([expected])


def test_schemes_have_heads_of_their_own(labs):
    for lab in labs:
        probe = lab.tune(TASKS[0], "nonlinear", 0).head
        together = lab.tune(TASKS[0], "full", 0).head
        assert not together.normalise and together.weight.shape == probe.weight.shape
        assert (together.weight - probe.weight).norm() > 0.1
    grid = (0.0, 0.03, 0.05, 1.0)
    table = experiments.closed_addition(labs[1], ["nonlinear"], lambdas=grid)
    assert set(rows(table, experiment="sweep")["alpha"]) == set(grid)
    assert set(rows(table, experiment="addition")["alpha"]) <= set(evaluation.ALPHAS)
    assert rows(table, experiment="addition_fine")["alpha"].nunique() == 1
    table = experiments.closed_addition(labs[1], ["linearized", "attention", "posthoc"])
    assert set(table["method"]) == {"linearized", "attention", "posthoc"}
    start = rows(table, experiment="sweep", metric="absolute", alpha=0.0)
    assert start.groupby("task")["value"].nunique().eq(1).all()  # the same probes in all
    lab = labs[1].sibling(tasks=TASKS[:2], seeds=(0, 1))
    table = experiments.subsets(lab, ["full"], most=99)
    probed = rows(table, method="probe", metric="absolute")
    assert sorted(probed["seed"]) == [0, 0, 0, 1, 1, 1]  # two tasks and their sum
    assert (probed.groupby("subset")["value"].nunique() == 1).all()
    refuses("take a model with text", lambda: experiments.negation(labs[0], ["nonlinear"]))


def test_costs_are_what_was_recorded(labs):
    lab = labs[0]
    table = experiments.closed_cost(lab, ["nonlinear"])
    tuned = rows(table, metric="seconds_finetune")
    expected = [lab.tune(task, "nonlinear", 0).record["seconds"] for task in TASKS]
    assert tuned["value"].tolist() == pytest.approx(expected)
    counts = table.groupby("metric").size().to_dict()
    assert counts == {
        "seconds_features": 3, "seconds_probe": 3, "seconds_finetune": 3, "seconds_sweep": 1,
    }  # fmt: skip
    assert (table["value"] > 0).all()


def test_learning_rates_use_validation_images_and_survive_divergence(labs, monkeypatch):
    lab = labs[1]
    table = experiments.learning_rates(lab, ["probe", "nonlinear"], rates=(1e-3, 1e30))
    assert set(table["split"]) == {"validation"} and set(table["task"]) == {"Vehicles"}
    assert set(rows(table, method="probe")["lr"].dropna()) == set(probes.RATES)
    tuned = rows(table, method="nonlinear").set_index("lr")
    assert tuned["metric"].to_dict() == {1e-3: "single", 1e30: "diverged_at"}
    run = dataclasses.replace(lab.run("Vehicles", "nonlinear", 0), lr=1e-3)
    found = finetune.finetune(run, lab.clip, lab.store, progress=False)
    features = lab.evaluator.features(
        found.vector.apply(lab.clip.encoder.params), "Vehicles", "val"
    )
    images = lab.evaluator.images("Vehicles", "val")
    expected = 100 * heads.accuracy(found.head(features), images.y)
    assert tuned["value"][1e-3] == pytest.approx(expected)


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_every_subset(labs, method):
    lab = labs[1]
    table = experiments.subsets(lab, [method], most=99)
    mine = rows(table, experiment="subsets", method=method, metric="absolute")
    assert sorted(mine["n_tasks"]) == [1, 1, 1, 2, 2, 2, 3]
    runs = {task: lab.tune(task, method, 0) for task in TASKS}
    evaluator, linear = lab.evaluator_of(method, 0), method == "linearized"
    for row in mine.to_dict("records"):
        tasks = row["subset"].split("+")
        total = TaskVector.sum(runs[task].vector for task in tasks)
        values = [
            evaluator.evaluate(total, task, "test", row["alpha"], linear=linear) for task in tasks
        ]
        assert row["value"] == pytest.approx(np.mean(values), abs=1e-6)
    probed = rows(table, method="probe", metric="absolute")
    assert set(probed["alpha"]) == {0.0} and len(probed) == 7


def test_open_vocabulary(main):
    (lab,) = experiments.schemes(main, ["small"], head="zero_shot")
    table = records.combine(
        experiments.probing(lab), experiments.closed_addition(lab, ["nonlinear", "full"])
    )
    assert set(table["vocabulary"]) == {"open"}
    start = rows(table, method="pretrained", split="test", experiment="single")
    usual = experiments.single(lab, [])
    assert start["value"].tolist() == pytest.approx(usual["value"].tolist())
    head = lab.tune(TASKS[0], "full", 0).head
    assert head.normalise and (head.weight - lab.evaluator.head(TASKS[0]).weight).norm() > 0
    refuses("head='probe'", experiments.subsets, lab)


def test_maps_of_schemes_and_figures(labs, sums):
    maps = experiments.across(labs, experiments.disentanglement, ["nonlinear", "full"], n_pairs=1)
    figures.scheme_maps(maps)
    figures.scheme_maps(maps, method="full")
    figures.lambda_curves(sums)
    figures.regimes(sums)
    figures.beside_paper(sums).to_html()
    figures.subset_curves(experiments.across(labs, experiments.subsets))
    linear = experiments.across(labs, experiments.cross_task, ["nonlinear"], alphas=(0.5,))
    figures.linearity_against_addition(linear, sums)
