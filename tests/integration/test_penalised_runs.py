"""Runs with a penalty or a linearized teacher, against those without."""

import dataclasses

import pytest
import torch

from tasklab.tasks import drawn
from tasklab.tuning import distillation, finetune, methods, penalties, session, tangent
from tests.unit.tuning.test_penalties import (
    OTHERS,
    RUN,
    clip_of,
    exact,
    few_images,
    other_images,
    run_of,
    train,
)

OWN_OF = {"tau_jp": "linearized", "ortho_reg": "nonlinear", "off_diagonal": "nonlinear"}

pytestmark = pytest.mark.usefixtures(few_images.__name__)


@pytest.fixture
def clip():
    return clip_of()


def test_a_distilled_run_is_near_the_linearized_one_and_resumes(tmp_path, monkeypatch):
    table = dict(methods.TABLE)
    table["delta_even"] = dataclasses.replace(table["delta_even"], teacher=30.0)
    for module in (methods, distillation, finetune):
        monkeypatch.setattr(module, "TABLE", table)
    monkeypatch.setattr(session, "_REST", 0)
    slow = {"lr": 0.008, "steps": 10}
    clip, config = clip_of(), run_of("delta_even", penalty=0.0, **slow)
    x = clip.encoder.preprocess(other_images())

    # without a penalty its teacher is the linearized run
    lesson = train(run_of("linearized", **slow), clip, tmp_path / "teacher").vector
    aim = tangent.jvp(clip.encoder, clip.encoder.params, lesson, x).at(1.0)

    def away(vector):
        moved = {n: clip.encoder.params[n] + vector[n] for n in vector}
        return (clip.encoder({**clip.encoder.params, **moved}, x) - aim).norm()

    whole = train(config, clip, tmp_path / "whole")
    plain = train(run_of("nonlinear", **slow), clip, tmp_path / "plain")
    assert whole.vector.keys() == plain.vector.keys()  # no teacher among them
    assert away(whole.vector) < 0.8 * away(plain.vector)
    step, ends = distillation.Distilled.__call__, iter([False] * 5 + [True] + [False] * 11)

    def cut(self, *args):
        if next(ends):
            raise InterruptedError
        return step(self, *args)

    monkeypatch.setattr(distillation.Distilled, "__call__", cut)
    with pytest.raises(InterruptedError):
        train(config, clip_of(), tmp_path / "cut")
    resumed = train(config, clip_of(), tmp_path / "cut")
    assert resumed.vector == whole.vector and resumed.record["losses"] == whole.record["losses"]


@pytest.mark.parametrize("method", OWN_OF)
def test_without_weight_it_is_the_plain_method_bit_for_bit(clip, tmp_path, method):
    plain = train(run_of(OWN_OF[method]), clip, tmp_path)
    zero = train(run_of(method, penalty=0.0), clip, tmp_path)
    assert zero.vector == plain.vector and zero.record["losses"] == plain.record["losses"]
    assert plain.vector.norm() > 0.1


@pytest.mark.parametrize(("method", "weight"), [("tau_jp", 5.0), ("off_diagonal", 5.0)])
def test_with_weight_the_penalty_falls(clip, tmp_path, method, weight):
    x = torch.cat([drawn.DrawnImages.load(None, task).x[:8] for task in OTHERS])  # the fixture's

    def penalty(run):
        return float(penalties.measure(method, clip.encoder, run.vector, x, len(x)).value)

    plain = penalty(train(run_of(OWN_OF[method]), clip, tmp_path))
    some = penalty(train(run_of(method, penalty=weight / 10), clip, tmp_path))
    much = penalty(train(run_of(method, penalty=weight), clip, tmp_path))
    assert much < some < plain and much < 0.7 * plain


def test_the_loss_of_a_step_is_the_sum(clip, tmp_path):
    """With steps too small to move anything, the losses differ by the penalty of almost nothing."""
    first = train(run_of("tau_jp", penalty=2.0, steps=2), clip, tmp_path).record["losses"]
    plain = train(run_of("linearized", steps=2), clip, tmp_path).record["losses"]
    assert first[0] == plain[0]  # at delta = 0 it is 0
    assert first[1] > plain[1]


def test_a_run_with_it_moves_other_tasks_less(tmp_path):
    clip = clip_of()
    config = dataclasses.replace(RUN, method="tak_even", others=OTHERS)
    plain = train(dataclasses.replace(RUN, method="linearized"), clip, tmp_path)
    zero = train(dataclasses.replace(config, penalty=0.0), clip, tmp_path)
    assert zero.vector == plain.vector
    some = train(dataclasses.replace(config, penalty=5.0), clip, tmp_path)
    x = torch.cat([drawn.DrawnImages.load(None, task).x[:8] for task in OTHERS])
    lost = [exact(clip.encoder, run.vector, clip.encoder.preprocess(x)) for run in (plain, some)]
    assert lost[1] < 0.7 * lost[0] and some.vector.norm() > 0.1
    again = train(dataclasses.replace(config, penalty=5.0), clip_of(), tmp_path / "again")
    assert again.vector == some.vector
