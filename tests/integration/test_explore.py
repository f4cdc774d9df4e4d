"""Editing by hand: the editor of a page and the widgets of a running notebook."""

import numpy as np
import pytest

from tasklab.analyses.coefficients import affine_scores
from tasklab.bench.parameters import Parameters
from tasklab.book import explore
from tasklab.book.explore import sliders
from tasklab.book.explore.payload import percent
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
    made = sliders.Coefficients(lambda _: iter([("Signs", 50.0)]), ("Signs",), "nonlinear", 0.0)
    assert "<th>pre-trained, all at 0 (chosen)</th>" in made._table()
    assert made._table().count("<td>50.0</td>") == 2  # of the task and of the mean, once
    probed = sliders.Coefficients(made.at, made.tasks, "nonlinear", 0.3, start="probes")
    assert "<th>probes</th>" in probed._table() and "pre-trained" not in probed._table()


@pytest.mark.parametrize("method", METHODS)
def test_sliders_show_the_edited_model(lab, addition, method):
    made = explore.coefficients(lab, method, records=addition)
    top, common, *rows = made.widget().children
    whose, every, _ = common.children
    rows[0].children[1].value = 1.0
    assert (whose.value, every.value) == ("all tasks (mean)", 0.125)
    assert [row.children[1].value for row in rows[:-1]] == [1.0] + [0.0] * 7
    vector = lab.vectors(method, 0)[lab.suite.names[0]]
    linear = method == "linearized"
    control = lab.suite.control.name
    names = [*lab.suite.names, f"{control} (control)"]
    for label, row in zip(names, rows, strict=True):
        name, _, bar = row.children
        assert name.value == label
        task = label.removesuffix(" (control)")
        expected = lab.evaluator.evaluate(vector, task, "val", linear=linear)
        assert f"{percent(expected)} %" in bar.value
        assert f"pre-trained {percent(made.before[task])} %" in bar.value
    every.value = 0.5
    assert whose.value == "all tasks"
    assert [row.children[1].value for row in rows[:-1]] == [0.5] * 8
    reset, chosen, mean = top.children
    assert f"{made.chosen:g} (chosen)" in chosen.description
    assert chosen.layout.width == "auto"  # a label is not cut
    chosen.click()
    assert (whose.value, every.value) == ("all tasks", made.chosen)
    reset.click()
    assert every.value == 0
    before = sum(made.before[task] for task in lab.suite.names) / 8
    assert f"Mean accuracy {percent(before)} %" in mean.value


@pytest.mark.parametrize("where", ["log", "notebook"])
def test_without_a_kernel_sliders_are_a_table(lab, addition, monkeypatch, where):
    made, shown = explore.coefficients(lab, "nonlinear", records=addition), []
    monkeypatch.setattr(sliders, "output", lambda: where)
    monkeypatch.setattr("IPython.display.display", lambda one, **_: shown.append(one))
    made._ipython_display_()
    bundle, *widgets = shown
    assert set(bundle) == {"text/plain", "text/html"}
    assert [type(one).__name__ for one in widgets] == ["VBox"] * (where == "notebook")
    assert "<th>mean of the tasks</th>" in bundle["text/html"]
    assert f"<th>{lab.suite.control.name} (control)</th>" in bundle["text/html"]
    assert f"all at {made.chosen:g}" in bundle["text/html"]
