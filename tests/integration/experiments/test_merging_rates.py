"""Merges over learning rates: a method's own and the lower ones, of the usual length."""

import pytest

from tasklab.experiments import Lab, merging_rates
from tasklab.experiments.budgets import below
from tests.helpers import refuses


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=1, tasks=("Signs", "Places"), progress=False)


def test_rates_have_accuracies_alone_and_of_merges_of_fewer_tasks(lab):
    usual = lab.run("Signs", "nonlinear", 0)
    found = list(below(lab, "nonlinear", (usual.lr / 4, usual.lr * 2, usual.lr)))
    assert found == [(usual.lr / 4, usual.steps), (usual.lr, usual.steps)]
    usual = lab.run("Signs", "nonlinear", 0).lr
    table = merging_rates(lab, ["nonlinear"], ["arithmetic", "ties"], rates=(usual / 2,))
    assert set(table["lr"]) == {usual / 2, usual} and set(table["experiment"]) == {"merging_rates"}
    counts = table.groupby(["lr", "metric"]).size().unstack()
    assert (counts["single"] == 2).all() and (counts["absolute"] == 4).all()
    assert set(table["merge"].dropna()) == {"arithmetic", "ties"}
    refuses("did you mean 'ties'", merging_rates, lab, ["nonlinear"], ["tie"], rates=())
    four = lab.sibling(tasks=("Signs", "Places", "Vehicles", "Scenes"))
    table = merging_rates(four, ["nonlinear"], ["average"], rates=(1.0,), n_tasks=(2, 4))
    merged = table[table["metric"] == "absolute"]
    assert merged.groupby("n_tasks").size().to_dict() == {2: 4, 4: 4}
    assert merged.groupby("n_tasks")["subset"].nunique().to_dict() == {2: 2, 4: 1}
