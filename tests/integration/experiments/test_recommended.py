"""Merges at recommended coefficients: what `tasklab merge` takes, and no image before the test."""

import pytest

from tasklab.analyses.merging import METHODS, defaults, merge
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab, recommended
from tasklab.taskvector import TaskVector

TASKS = ("Signs", "Places")


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=3, tasks=TASKS, progress=False)


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_merges_are_those_that_vectors_recommend(lab, method):
    table = recommended(lab, [method], ("arithmetic", "ties"))
    vectors, evaluator, linear = lab.vectors(method, 0), lab.evaluator, method == "linearized"
    known = defaults.Known.of(vectors.values(), lab.clip.encoder.params, method)
    made = {"none": TaskVector({})}
    for name in ("arithmetic", "ties"):
        options = METHODS[name].recommended(known)
        made[name] = merge(name, vectors, **options)
        rows = table[table["merge"] == name]
        assert {*rows["alpha"]} == {options["alpha"]}
        assert {*rows["option"].dropna()} == {options[k] for k in ("keep",) if k in options}
    assert {*zip(table["merge"], table["task"], strict=True)} == {
        (m, t) for m in made for t in TASKS
    }
    for row in table.to_dict("records"):
        right = evaluator.evaluate(made[row["merge"]], row["task"], "test", linear=linear)
        assert row["value"] == right and row["metric"] == "absolute" and row["split"] == "test"


def test_merges_without_a_recommendation_are_refused(lab):
    with pytest.raises(TasklabError, match="regmean"):
        recommended(lab, ["nonlinear"], ["regmean"])
