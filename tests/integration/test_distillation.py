"""A run that a linearized teacher guides, against the linearized run."""

import dataclasses

import pytest

from tasklab.tuning import distillation, finetune, methods, session, tangent
from tests.unit.tuning.test_penalties import clip_of, few_images, other_images, run_of, train

pytestmark = pytest.mark.usefixtures(few_images.__name__)


def test_a_distilled_run_is_near_the_linearized_one_and_resumes(tmp_path, monkeypatch):
    table = dict(methods.TABLE)
    table["delta"] = dataclasses.replace(table["delta"], teacher=30.0)
    for module in (methods, distillation, finetune):
        monkeypatch.setattr(module, "TABLE", table)
    monkeypatch.setattr(session, "_REST", 0)
    slow = {"lr": 0.008, "steps": 10}
    clip, config = clip_of(), run_of("delta", penalty=0.0, **slow)
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
