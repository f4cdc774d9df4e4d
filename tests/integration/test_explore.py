"""Editing by hand: the editor of a page and the widgets of a running notebook."""

import numpy as np
import pytest

from tasklab.analyses.coefficients import affine_scores
from tasklab.bench.parameters import Parameters
from tasklab.book import explore
from tasklab.book.explore import sliders
from tasklab.evidence import experiments
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

METHODS = ["nonlinear", "linearized"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    parameters = Parameters(model="mini_xs", steps=1, store_root=tmp_path_factory.mktemp("explore"))
    return experiments.Lab(parameters, progress=False)


@pytest.fixture(scope="module")
def addition(lab):
    return experiments.addition(lab, METHODS)


@pytest.fixture(scope="module")
def editor(lab, addition):
    return explore.editor(lab, "linearized", beside=addition, pictures=3)


def test_the_editor_is_an_output_with_the_evaluators_accuracies(lab, editor):
    vectors = lab.vectors("linearized", 0)
    scores = {t: affine_scores(lab.evaluator, [*vectors.values()], t, "val") for t in vectors}
    rng = np.random.default_rng(0)
    for alphas in [*np.eye(8), *rng.uniform(-1, 1, (20, 8))]:
        found = editor.payload.accuracies(alphas)
        for task, exact in scores.items():
            one = 100 / lab.evaluator.count(task, "val")
            assert abs(found[task] - exact.accuracy(alphas)) <= one + 1e-9
    merged = TaskVector.sum([vectors["Textures"], vectors["Scenes"] * -0.5])
    exact = lab.evaluator.evaluate(merged, "Textures", "val", linear=True)
    found = editor.payload.accuracies({"Textures": 1, "Scenes": -0.5})["Textures"]
    assert abs(found - exact) <= 100 / 8 + 1e-9
    assert editor._repr_html_() == editor._repr_html_()
    assert "8 task vectors" in repr(editor)
    refuses("'nonlinear' is not", explore.editor, lab, "nonlinear")
    refuses("split", explore.editor, lab, split="validaton")
    refuses("nonlinear", sliders.accuracies, lab, "nonlinaer")


def test_the_editor_shows_tasks_control_presets_and_the_recorded_curve(lab, editor, addition):
    content = editor.payload
    assert [task.name for task in content.tasks] == [*lab.suite.names, lab.suite.control.name]
    assert [task.pictures.shape for task in content.tasks] == [(3, 32, 32, 3)] * 9
    *tasks, control = [len(task.labels) for task in content.tasks]
    assert content.images == f"{tasks[0]} validation images of each task" and len({*tasks}) == 1
    assert content.counted == f"{content.images}, {control} of the control"
    chosen = addition[(addition["method"] == "linearized") & (addition["experiment"] == "addition")]
    expected = (chosen["alpha"].iloc[0],) * 8
    assert content.presets[f"all at {chosen['alpha'].iloc[0]:.2f} (chosen)"] == expected
    (curve,) = content.curves
    rows = addition[(addition["experiment"] == "sweep") & (addition["metric"] == "absolute")]
    rows = rows[(rows["method"] == "nonlinear") & (rows["alpha"] == 0.5)]
    below = (-1.0, -0.75, -0.5, -0.25)
    assert curve.label == "non-linear" and curve.alphas == (*below, *lab.scale.alphas)
    assert curve.means[5] == pytest.approx(rows["value"].mean(), abs=1e-3)
    total = TaskVector.sum([*lab.vectors("nonlinear", 0).values()])
    names = lab.suite.names
    there = [lab.evaluator.evaluate(total * -0.5, t, "val", linear=False) for t in names]
    assert curve.means[2] == pytest.approx(np.mean(there), abs=1e-3)


def test_grids_and_chosen_coefficients(lab):
    two = lab.sibling(tasks=lab.suite.names[:2])
    content = explore.editor(two, "nonlinear", pictures=1).payload
    one, other = two.vectors("nonlinear").values()
    for at in ((0.0, 0.0), (1.0, -0.75), (-0.5, 1.0)):
        found = content.accuracies(at)
        for name in found:
            exact = two.evaluator.evaluate(at[0] * one + at[1] * other, name, "val", linear=False)
            assert found[name] == pytest.approx(exact)
    assert content.presets["pre-trained"] == (0.0, 0.0) and len(content.presets) == 5


@pytest.mark.parametrize("method", METHODS)
def test_sliders_show_the_edited_model(lab, method, monkeypatch):
    tables = []
    monkeypatch.setattr(sliders, "display", tables.append)
    every, moved = explore.coefficients(lab, method).children
    names, linear = lab.suite.names, method == "linearized"
    moved.kwargs_widgets[0].value = 1.0
    if not linear:
        assert tables == []  # until it is asked for: a pass over all images
        moved.children[len(names)].click()
    vector = lab.vectors(method, 0)[names[0]]
    shown = [*names, lab.suite.control.name]
    expected = [lab.evaluator.evaluate(vector, name, "val", linear=linear) for name in shown]
    np.testing.assert_allclose(tables[-1]["edited"].iloc[:9], expected, atol=0.051)
    start = [lab.evaluator.evaluate(vector, name, "val", alpha=0.0) for name in shown]
    np.testing.assert_allclose(tables[-1]["pre-trained"].iloc[:9], start, atol=0.051)
    mean = tables[-1]["edited"]["mean of the tasks"]
    assert mean == pytest.approx(np.mean(expected[:8]), abs=0.051)  # without the control
    every.value = 0.5
    assert [one.value for one in moved.kwargs_widgets] == [0.5] * 8
