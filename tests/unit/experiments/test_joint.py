"""One model of several tasks: it learns from all of them, resumes, and is planned."""

import dataclasses

import pytest
import torch

from tasklab.evidence.experiments import Lab, joint
from tasklab.evidence.experiments.joint import _runs, _shares
from tasklab.storage.termination import Terminated
from tasklab.tasks import drawn
from tasklab.tuning import multitask, tangent
from tasklab.tuning.finetune import batch
from tasklab.tuning.multitask import multitask as together
from tasklab.tuning.session import Saver
from tests.helpers import refuses

TASKS = ("Signs", "Places")


@pytest.fixture
def lab(tmp_path):
    return Lab(model="mini_xs", steps=3, tasks=TASKS, progress=False, store_root=tmp_path)


def test_tasks_take_turns_on_the_batches_of_their_own_runs(lab, monkeypatch):
    seen = []
    call = multitask.Step.__call__

    def noted(step, what, images, labels, others):
        seen.append((step.config.task, labels.tolist()))
        return call(step, what, images, labels, others)

    monkeypatch.setattr(multitask.Step, "__call__", noted)
    table = joint(lab, ["nonlinear"])
    assert [task for task, _ in seen] == [*TASKS] * 3
    for task in TASKS:
        labels = drawn.images_of(lab.suite).load(task, "train").y
        run = lab.run(task, "nonlinear", 0)
        own = [labels[batch(run, k, len(labels))].tolist() for k in range(3)]
        assert [there for name, there in seen if name == task] == own
    assert table["task"].tolist() == list(TASKS) and set(table["n_tasks"]) == {2}
    assert all(share.kept for share in _shares(lab, ["nonlinear"]))
    assert not any(share.kept for share in _shares(lab, ["attention"]))


def test_the_schedule_is_that_of_a_run_over_all_steps(lab, monkeypatch):
    descend, configs = multitask.finetune.descend, []

    def noted(problem, session, gradient):
        configs.append(problem.config)
        descend(problem, session, gradient)

    monkeypatch.setattr(multitask.finetune, "descend", noted)
    runs = [dataclasses.replace(run, steps=4, warmup=2) for run in _runs(lab, "nonlinear", 0)]
    together(runs, lab.clip, lab.store, lab.suite, progress=False)
    assert configs == [dataclasses.replace(runs[0], steps=8, warmup=4)]


def test_one_task_together_with_none_is_its_own_run(tmp_path):
    one = Lab(model="mini_xs", steps=3, tasks=["Signs"], progress=False, store_root=tmp_path)
    runs = _runs(one, "linearized", 0)
    vector = together(runs, one.clip, one.store, one.suite, progress=False).vector
    usual = one.tune("Signs", "linearized", 0).vector
    assert all(torch.equal(vector[name], usual[name]) for name in usual)


@pytest.mark.parametrize(
    ("method", "head"), [("linearized", None), ("attention", None), ("nonlinear", "probe")]
)
def test_upper_rows_of_other_ways_and_of_the_closed_vocabulary(tmp_path, method, head):
    lab = Lab("mini_xs", steps=2, tasks=TASKS, head=head, progress=False, store_root=tmp_path)
    table = joint(lab, [method])
    vector = together(_runs(lab, method, 0), lab.clip, lab.store, lab.suite, progress=False).vector
    encoder, evaluator = lab.clip.encoder, lab.evaluator_of(method, 0, TASKS)
    trained = [name for name in vector if vector[name].any()]
    assert len(trained) == (2 * len(encoder.blocks) if method == "attention" else len(vector))
    expected = []
    for task in TASKS:
        images = evaluator.images(task, "test")
        if method == "linearized":
            features = tangent.features(encoder, encoder.params, vector, images.x).at(1.0)
        else:
            features = encoder(vector.apply(encoder.params), encoder.preprocess(images.x)).detach()
        right = evaluator.head(task)(features).argmax(-1) == images.y
        expected.append(100 * float(right.double().mean()))
    assert table["value"].tolist() == pytest.approx(expected)


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(lab, tmp_path, monkeypatch):
    runs = _runs(lab, "nonlinear", 0)
    whole = together(runs, lab.clip, lab.store, lab.suite, progress=False).vector
    store_root = tmp_path / "other"
    other = Lab(model="mini_xs", steps=3, tasks=TASKS, progress=False, store_root=store_root)
    maybe = Saver.maybe

    def cut(saver, journal, seconds):
        if len(journal) == 3:  # in the middle of a turn
            saver.save(journal, seconds)
            raise Terminated("here")
        maybe(saver, journal, seconds)

    monkeypatch.setattr(Saver, "maybe", cut)
    with pytest.raises(Terminated):
        together(runs, other.clip, other.store, other.suite, progress=False)
    monkeypatch.setattr(Saver, "maybe", maybe)
    resumed = together(runs, other.clip, other.store, other.suite, progress=False).vector
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_cannot_train_together_is_refused(lab):
    refuses("'posthoc' trains no vector", joint, lab, ["posthoc"])
    refuses("frozen heads, without a penalty", joint, lab, ["tau_jp"])
