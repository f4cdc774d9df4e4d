"""Methods at other rates and lengths, end to end at the smallest setting."""

import sys

import pandas as pd
import pytest

from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments
from tasklab.evidence.experiments.budgets import below
from tasklab.evidence.records.table import tidy
from tests.helpers import refuses


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    parameters = Parameters(model="mini_xs", steps=2, store_root=store)
    return experiments.Lab(parameters, progress=False, tasks=["Signs", "Textures"])


def test_every_rate_and_length_is_measured_once_on_validation_images(lab):
    methods = ("nonlinear", "posthoc", "linearized")
    table = experiments.budgets(lab, methods, rates=(1e-4, 4e-4), lengths=(1, 2))
    usual = {m: lab.run("Signs", m, 0).lr for m in methods}
    for method, rows in table.groupby("method"):
        cells = set(rows[["lr", "steps"]].itertuples(index=False, name=None))
        assert cells == {(1e-4, 2), (4e-4, 2), (usual[method], 2), (usual[method], 1)}
        per = rows.groupby(["lr", "steps", "metric", "split"]).size().unstack(["metric", "split"])
        pairs = per.pop(("xi_classifier_box", "test"))
        assert (pairs == 1).all() and (per == 2).all(axis=None)  # tasks
        assert set(per) == {
            ("single", "validation"), ("single", "test"), ("absolute", "test"),
            ("absolute", "validation"),
            ("target", "test"), ("control", "test"), ("norm", "test"),
        }  # fmt: skip
    table = experiments.rate_search(lab, ["nonlinear"], (1e-4, 2e-4), prolong=False)
    assert set(table["split"]) == {"validation"} and set(table["metric"]) == {"single"}
    assert len(table) == 2 * 2 and set(table["lr"]) == {1e-4, 2e-4}
    table = experiments.budgets(lab, ("nonlinear", "posthoc"), rates=(8e-4,), lengths=(1, 2))
    norms = table[table["metric"] == "norm"].set_index(["method", "lr", "task", "steps"])["value"]
    for task in lab.suite.names:
        assert 0 < norms["nonlinear", 8e-4, task, 1] < norms["nonlinear", 8e-4, task, 2]
        assert norms["posthoc", 8e-4, task, 2] == norms["nonlinear", 8e-4, task, 2]
    usual = experiments.single(lab, ["nonlinear"])
    usual = usual[usual["method"] == "nonlinear"].set_index("task")["value"]
    alone = table.query("metric == 'single' and split == 'test' and method == 'nonlinear'")
    assert (alone[alone["steps"] == 2].set_index("task")["value"] == usual).all()


def test_the_search_goes_on_beyond_a_best_end(lab, monkeypatch):
    def searched(lab, method, rates):
        rows = [
            {"experiment": "rate_search", "model": "mini", "method": method, "task": "Signs",
             "split": "validation", "metric": "single", "value": 90 - abs(lr - 8e-4) * 1e4,
             "lr": lr, "seed": 0}
            for lr in rates
        ]  # fmt: skip
        return tidy(rows)

    monkeypatch.setattr(sys.modules["tasklab.evidence.experiments.budgets"], "_searched", searched)
    table = experiments.rate_search(lab, ["nonlinear"], (1e-4, 2e-4))
    assert sorted(table["lr"]) == pytest.approx([1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3])
    assert experiments.chosen_rate(table, "nonlinear") == pytest.approx(8e-4)


def test_a_rate_that_diverged_on_one_task_is_not_chosen():
    common = {"experiment": "rate_search", "model": "mini", "method": "nonlinear", "seed": 0}
    common |= {"split": "validation"}
    values = {(1e-4, "a"): 50.0, (1e-4, "b"): 60.0, (2e-4, "a"): 99.0}
    rows = [
        common | {"lr": lr, "task": task, "metric": "single", "value": value}
        for (lr, task), value in values.items()
    ]
    lost = common | {"lr": 2e-4, "task": "b", "metric": "diverged_at", "value": 7}
    table = pd.DataFrame([*rows, lost])
    assert experiments.chosen_rate(table, "nonlinear") == 1e-4
    refuses("no learning rate of 'linearized'", experiments.chosen_rate, table, "linearized")


def test_rates_have_accuracies_alone_and_of_merges_of_fewer_tasks(lab):
    usual = lab.run("Signs", "nonlinear", 0)
    found = list(below(lab, "nonlinear", (usual.lr / 4, usual.lr * 2, usual.lr)))
    assert found == [(usual.lr / 4, usual.steps), (usual.lr, usual.steps)]
    usual = lab.run("Signs", "nonlinear", 0).lr
    table = experiments.merging_rates(
        lab, ["nonlinear"], ["arithmetic", "ties"], rates=(usual / 2,)
    )
    assert set(table["lr"]) == {usual / 2, usual} and set(table["experiment"]) == {"merging_rates"}
    counts = table.groupby(["lr", "metric"]).size().unstack()
    assert (counts["single"] == 2).all() and (counts["absolute"] == 4).all()
    assert set(table["merge"].dropna()) == {"arithmetic", "ties"}
    refuses("did you mean 'ties'", experiments.merging_rates, lab, ["nonlinear"], ["tie"], rates=())
    four = lab.sibling(tasks=("Signs", "Textures", "Vehicles", "Scenes"))
    table = experiments.merging_rates(
        four, ["nonlinear"], ["average"], rates=(1.0,), n_tasks=(2, 4)
    )
    merged = table[table["metric"] == "absolute"]
    assert merged.groupby("n_tasks").size().to_dict() == {2: 4, 4: 4}
    assert merged.groupby("n_tasks")["subset"].nunique().to_dict() == {2: 2, 4: 1}
