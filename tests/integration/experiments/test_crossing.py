"""The cross-examination on a rehearsal: it has what the chapters' experiments have."""

import itertools
import re

import pytest

from benchmarks.foretelling import foretelling
from tasklab.analyses import disentanglement
from tasklab.errors import TasklabError
from tasklab.evidence import experiments
from tasklab.evidence.experiments import Lab, crossing
from tasklab.evidence.records.schema import LEADING_MERGES
from tasklab.evidence.records.table import where
from tasklab.tasks.suites import suite
from tests.helpers import refuses

TASKS = suite("mini").names[:4]
METHODS = ["nonlinear", "posthoc"]
OF_TASKS = {
    "single", "absolute", "normalised", "lost_sum", "target", "control", "norm", "gap",
    "seconds_finetune", "trainable", *(f"lost_{merge}" for merge in LEADING_MERGES),
}  # fmt: skip
OF_PAIRS = {
    "lost", "xi_pair", "xi_classifier", "xi_representation", "distance", "coef", "base", "cosine",
    "gradient_cosine", "gradient_distance",
}  # fmt: skip


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False)


@pytest.fixture(scope="module")
def table(lab):
    return crossing(lab, METHODS)


def value(table, **of):
    return where(table, **of)["value"].item()


def test_every_metric_is_there_for_every_task_and_pair(table, lab):
    for method in METHODS:
        rows = table[table["method"] == method]
        alone, together = rows[rows["n_tasks"] == 1], rows[rows["n_tasks"] == 2]
        assert set(alone["metric"]) == OF_TASKS and set(together["metric"]) == OF_PAIRS
        assert (alone.groupby("metric").size() == 4).all()
        assert (together.groupby("metric").size() == 6).all()
    start = table[table["method"] == "pretrained"]
    assert {"single", "target", "control", "share"} == set(start["metric"])
    alone = experiments.single(lab, METHODS)
    merged = experiments.merging(lab, METHODS, ["ties", "best_span"], n_tasks=[4])
    for method, task, merge in itertools.product(METHODS, TASKS, ("ties", "best_span")):
        same = {"method": method, "task": task}
        reached = value(merged, metric="absolute", merge=merge, **same)
        lost = value(table, metric=f"lost_{merge}", **same)
        assert lost == pytest.approx(value(alone, **same) - reached)


def test_numbers_are_those_of_the_chapters(lab, table):
    one, other = TASKS[:2]
    pair = f"{one}+{other}"
    ctl = experiments.cross_task(lab, ["nonlinear"])
    ctl = ctl[ctl["block"].isna() & (ctl["alpha"] == 0.5)]
    for method in METHODS:  # a post-hoc method has the vectors of another
        expected = value(ctl, metric="distance", task=pair)
        assert value(table, method=method, metric="distance", task=pair) == expected
    vectors = {task: lab.vectors("nonlinear", 0)[task] for task in (one, other)}
    for method, linear in (("nonlinear", False), ("posthoc", True)):
        cell = disentanglement.error_map(
            lab.evaluator, vectors, linear=linear, alphas=[-0.5, 0.0, 0.5],
            images=lab.scale.map_images, progress=False,
        )  # fmt: skip
        found = value(table, method=method, metric="xi_representation", task=pair)
        assert found == pytest.approx(cell.representation[2, 2], rel=1e-4)
    alone, sums = experiments.single(lab, METHODS), experiments.addition(lab, METHODS)
    for method in METHODS:
        same = {"method": method, "task": one}
        lost = value(alone, **same) - value(sums, experiment="addition", metric="absolute", **same)
        assert value(table, metric="lost_sum", **same) == pytest.approx(lost)


def test_without_merges_with_penalties_or_too_few_tasks(lab):
    few = crossing(lab, ["tau_jp", "ortho_reg"], kernels=False, merges=())
    assert not few["metric"].str.match("lost_(?!sum)").any() and "share" not in set(few["metric"])
    for method in ("tau_jp", "ortho_reg"):
        metrics = set(few[few["method"] == method]["metric"])
        assert metrics == {m for m in OF_TASKS | OF_PAIRS if not re.match("lost_(?!sum)", m)}
    with pytest.raises(TasklabError, match="at least three tasks, not 2"):
        crossing(Lab(model="mini_xs", steps=1, tasks=TASKS[:2], progress=False), METHODS)
    refuses("did you mean 'posthoc'", crossing, lab, ["posthok"])
    refuses("merge.*did you mean 'ties'", crossing, lab, METHODS, merges=["tie"])


def test_a_pair_in_the_linearized_model_and_what_foretells_in_it(lab, table):
    one, other = TASKS[:2]
    vectors, evaluator, n = lab.vectors("nonlinear", 0), lab.evaluator, 4 * lab.scale.images
    changed = []
    for task in (one, other):
        parts = [evaluator.tangent_features(vectors[t], task, "test") for t in (one, other)]
        together = parts[0].f0 + 0.5 * (parts[0].jtau + parts[1].jtau)
        alone = parts[(one, other).index(task)].at(0.5)
        classes = [evaluator.logits(x[:n], task).argmax(-1) for x in (together, alone)]
        changed.append((classes[0] != classes[1]).double().mean().item())
    found = value(table, method="posthoc", metric="xi_pair", task=f"{one}+{other}")
    assert found == pytest.approx(50 * sum(changed))
    found = foretelling(table, "xi_pair", by=("method",))
    assert set(found["method"]) == set(METHODS) and {"cosine", "norm"} <= set(found["metric"])
    assert (found["units"] == 6).all()
