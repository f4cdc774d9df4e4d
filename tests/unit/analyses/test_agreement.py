"""Merged against single models: known values on a linear encoder, the pair's xi, and errors."""

import pytest
import torch

from tasklab.analyses import agreement, disentanglement
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

TASKS = ("Signs", "Places")


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False)


@pytest.fixture(scope="module")
def vectors(lab):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = {n: x for n, x in lab.clip.encoder.params.items() if x.dim() == 2}
        changes = [{n: 0.02 * torch.randn_like(x) for n, x in params.items()} for _ in TASKS]
        return dict(zip(TASKS, map(TaskVector, changes), strict=True))


def told(lab, vector, vectors, linear, count=4):
    alone = agreement.singles(lab.evaluator, vectors, count, linear=linear)
    found = {
        task: agreement.features(lab.evaluator, vector, task, "test", linear=linear)
        for task in vectors
    }
    rows = agreement.agreement(lab.evaluator, found, alone)
    return {(row["task"], row["metric"]): row for row in rows}


@pytest.mark.parametrize("linear", [False, True])
def test_the_sum_of_two_has_the_papers_xi(lab, vectors, linear):
    rows = told(lab, TaskVector.sum(vectors.values()), vectors, linear)
    errors = disentanglement.error_map(
        lab.evaluator, vectors, linear=linear, alphas=[0.0, 1.0], images=None, progress=False
    )
    for metric, cells in (
        ("xi_classifier", errors.classifier),
        ("xi_representation", errors.representation),
    ):
        total = sum(rows[task, metric]["value"] for task in TASKS)
        assert total == pytest.approx(cells[1, 1], rel=1e-4)
        assert total > 0


def test_means_are_of_slow_passes_and_own_vectors_do_not_err(lab, vectors):
    mean = TaskVector.sum(vectors.values()) / 2
    for task in TASKS:
        tangent, network = (told(lab, mean, vectors, linear) for linear in (True, False))
        assert tangent[task, "distance"]["value"] == pytest.approx(0, abs=1e-6)
        assert tangent[task, "coef"]["value"] == pytest.approx(1, abs=1e-4)
        assert network[task, "distance"]["value"] > 1e-4
        assert tangent[task, "distance"]["n"] == 4 < tangent[task, "xi_classifier"]["n"]
    alone = agreement.singles(lab.evaluator, vectors, 4, linear=False)
    theta = lab.clip.encoder.params
    for task in TASKS:
        x = lab.clip.encoder.preprocess(lab.evaluator.images(task, "test").x[:4])
        with torch.no_grad():
            each = [lab.clip.encoder(v.apply(theta), x) for v in vectors.values()]
        torch.testing.assert_close(alone.mean[task], sum(each) / 2, rtol=1e-4, atol=1e-5)
    rows = told(lab, vectors["Signs"], vectors, False)
    assert rows["Signs", "xi_classifier"]["value"] == 0
    assert rows["Signs", "xi_representation"]["value"] == pytest.approx(0, abs=1e-9)
    assert rows["Places", "xi_representation"]["value"] > 0
    with pytest.raises(TasklabError, match="at least two tasks"):
        agreement.singles(lab.evaluator, {"Signs": vectors["Signs"]}, 8, linear=False)
    alone = agreement.singles(lab.evaluator, vectors, 4, linear=False)
    few = {task: features[:1] for task, features in alone.own.items()}
    refuses("'Signs'", lambda: list(agreement.agreement(lab.evaluator, few, alone)))
