"""What a chapter will take is counted from its parameters and the store."""

import dataclasses

import pytest

from tasklab import Lab, progress
from tasklab.chapters import CHAPTERS
from tasklab.experiments import estimate, outlook, small_networks
from tasklab.experiments.registry import find


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab("mini_xs", steps=3, store_root=tmp_path_factory.mktemp("store"), progress=False)


def own(lab, chapter):
    return outlook.outlook(lab, chapter).own


def test_runs_steps_and_images_follow_from_the_recipe_and_the_store(lab):
    tasks = len(lab.suite.names)
    work = own(lab, "tangent")  # post-hoc vectors are the non-linear ones
    assert (work.runs, work.kept, work.steps) == (2 * tasks, 0, 2 * tasks * 3)
    assert work.trained == work.steps * lab.run("Textures", "nonlinear", 0).batch_size
    assert work.equivalent == pytest.approx(work.trained * (1 + 5 / 3) / 2)
    more = own(lab.sibling(seeds=2), "tangent")
    assert (more.runs, more.passed) == (2 * work.runs, 2 * work.passed)
    before = own(lab, "tangent")
    lab.tune("Textures", "nonlinear", 0)
    after = own(lab, "tangent")
    assert (after.runs, after.kept) == (before.runs - 1, before.kept + 1)
    assert after.steps == before.steps - 3
    scale = dataclasses.replace(lab.scale, pairs=1, points=4, map_images=5)
    other = lab.sibling()
    other.scale = scale
    assert find("disentanglement").passes(other) == 2 * (16 + 4) * 5
    other.scale = dataclasses.replace(scale, points=5)  # with 0, where one vector is known
    assert find("disentanglement").passes(other) == 2 * 25 * 5


@pytest.mark.parametrize("chapter", [name for name, one in CHAPTERS.items() if not one.apart])
def test_time_grows_with_the_work(lab, chapter, monkeypatch):
    monkeypatch.setattr(small_networks, "seconds_a_step", lambda *setting: 0.0)
    work = own(lab, chapter)
    pace = estimate.Pace(step=0.5, passed=0.25)
    assert pace.seconds(work) == 0.5 * work.equivalent + 0.25 * work.passed > 0
    assert pace.seconds(estimate.Plan()) == 0


def test_more_images_are_measured_where_few_take_no_time(lab, monkeypatch):
    seen = []
    quick = estimate.inference.passes(lab.clip.encoder)

    def passes(encoder):
        return lambda params, x: seen.append(len(x)) or quick(params, x)

    monkeypatch.setattr(estimate.inference, "passes", passes)
    monkeypatch.setattr(estimate, "SHORT", 1e9)
    found = estimate.pace(lab)
    assert sorted(set(seen)) == [2, 8, 32] and 0 < found.passed and 0 < found.step
    monkeypatch.setattr(estimate, "SHORT", 0.0)
    seen.clear()
    estimate.pace(lab)
    assert set(seen) == {2}
    monkeypatch.setattr(estimate, "SHORT", 1e9)
    monkeypatch.setattr(type(lab), "light", True)
    seen.clear()
    estimate.pace(lab)
    assert set(seen) == {2}  # the batches of a rehearsal at full size


def test_a_lab_of_a_chapter_says_so_before_anything_runs(tmp_path, capsys, monkeypatch):
    lab = Lab("mini_xs", steps=3, store_root=tmp_path, chapter="linear_layers")
    told, runs = capsys.readouterr().err, outlook.outlook(lab, "linear_layers").own.runs
    expected = f"{runs} fine-tuning runs, {3 * runs} steps"
    assert runs > 8 and expected in told and "on this machine" in told
    Lab("mini_xs", steps=3, store_root=tmp_path)
    assert "fine-tuning runs" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "output", lambda: "notebook")
    Lab("mini_xs", steps=3, store_root=tmp_path, chapter="linear_layers")
    shown = capsys.readouterr()
    assert shown.out.count(expected) == 1
    assert "fine-tuning runs" not in shown.err
