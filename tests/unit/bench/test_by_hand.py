"""Edits by hand: a researcher's first lines with a lab."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from tasklab import merge
from tasklab.__main__ import main
from tasklab.analyses import merging, shares
from tasklab.analyses.evaluation import Evaluator
from tasklab.bench.answers import Evaluation
from tasklab.bench.lab import Lab
from tasklab.bench.merges import Bench
from tasklab.bench.trial import Given
from tasklab.errors import TasklabError
from tasklab.evidence import experiments, figures
from tasklab.evidence.experiments.runner import Trial
from tasklab.tasks.drawn import DrawnImages, Images
from tasklab.taskvector import Base, TaskVector
from tests.helpers import refuses
from tests.vectors import noise

TASKS = ("Signs", "Textures")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    return Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False, store_root=root)


def drawn(lab, seed, method="nonlinear"):
    encoder = lab.clip.encoder
    base = Base(encoder.name, encoder.init, encoder.weights_hash, method)
    return noise(encoder.params, seed, base=base)


def test_a_vector_knows_its_task_and_method_and_is_multiplied(lab):
    one = lab.vector("Textures")
    assert one == lab.tune("Textures").vector == lab.vectors("nonlinear")["Textures"]
    assert one.method == "nonlinear" and one.device == lab.device and lab.tasks == TASKS
    assert (one + lab.vector("Signs")).method == "nonlinear"
    assert lab.vector("Signs", "posthoc").method == "posthoc"
    assert (one + lab.vector("Signs", "posthoc")).base[:3] == one.base[:3]
    known = "TaskVector(Textures, seed 0, nonlinear, mini_xs, "
    assert repr(one).startswith(known) and repr(2 * one).startswith("TaskVector(nonlinear, mini")
    assert "posthoc" in repr(lab.vector("Signs", "posthoc"))
    refuses("did you mean 'Textures'", lab.vector, "Texture")
    a, b = TaskVector({"w": [1, 2]}), TaskVector({"w": np.array([3.0, 4.0])})
    assert a @ b == 11 and a["w"].dtype == torch.float32


def test_vectors_are_evaluated_in_their_model_and_merged(lab):
    tau = drawn(lab, 0, "linearized")
    found = lab.evaluate(tau, ["Signs"])
    expected = lab.evaluator.evaluate(tau, "Signs", "test", linear=True)
    assert found.rows[0]["after"] == pytest.approx(expected) and "linearized" in found.title
    assert lab.evaluator.evaluate(tau, "Signs") == expected
    plain = lab.evaluate(tau, "Signs", linear=False).rows[0]["after"]
    assert plain == pytest.approx(lab.evaluator.evaluate(tau, "Signs", linear=False))
    vectors = {task: drawn(lab, seed) for seed, task in enumerate(TASKS)}
    assert lab.merge("TIES", vectors) == lab.merge("ties", vectors)
    known = merging.defaults.Known.of(vectors.values(), lab.clip.encoder.params)
    merge = merging.merge("ties", vectors, **merging.METHODS["ties"].recommended(known))
    assert lab.merge("ties", vectors) == merge == lab.merge("ties", [*vectors.values()])
    assert lab.merge("arithmetic", vectors, alpha=0.5) == 0.5 * sum(vectors.values())
    searched = lab.merge("average", vectors, search=True)
    assert searched.cosine(lab.merge("average", vectors)) == pytest.approx(1, abs=1e-6)
    refuses("did you mean 'keep'", lab.merge, "ties", vectors, kep=1)
    refuses("TaskVectors, not 3", lambda: lab.merge("ties", [drawn(lab, 0), 3]))


def test_recorded_experiments_draw_by_place_and_a_users_merge_by_content(lab):
    vectors = lab.vectors()
    for tasks in (TASKS, TASKS[::-1]):
        named = {task: vectors[task] for task in tasks}
        trial = Trial(lab=lab, experiment="merging", method="nonlinear", seed=0, tasks=tasks)
        recorded, own = (
            Bench(one).merged("dare", 0.5) for one in (trial, Given.of(lab, named, ""))
        )
        assert recorded == merging.merge("dare", named, drop=0.5, by_place=True)
        assert own == merging.merge("dare", vectors, drop=0.5)


def test_a_sum_of_two_methods_edits_the_model_of_both_or_none(lab):
    one, other = drawn(lab, 0, "linearized"), drawn(lab, 1, "tau_jp")
    both = one + other
    assert both.method == "linearized+tau_jp"
    merge = lab.merge("arithmetic", [one, other])
    for made in (both, merge):
        assert lab.evaluate(made, "Signs").title == lab.evaluate(one, "Signs").title
        expected = lab.evaluator.answers(made, "Signs", "test", linear=True).mean()
        assert lab.evaluator.evaluate(made, "Signs") == pytest.approx(100 * expected)
    mixed = one + drawn(lab, 2, "nonlinear")
    for ask in (lab.evaluate, lab.evaluator.evaluate):
        with pytest.raises(TasklabError, match="linearized edits the tangent model"):
            ask(mixed, "Signs")
    with pytest.raises(TasklabError, match="make no model together"):
        lab.merge("arithmetic", [one, drawn(lab, 2, "nonlinear")])
    assert lab.evaluate(mixed, "Signs", linear=True).title == lab.evaluate(one, "Signs").title
    plain = drawn(lab, 0, "nonlinear") + drawn(lab, 1, "attention")
    assert lab.evaluate(plain, "Signs").title == lab.evaluate(None, "Signs").title


def test_an_evaluation_is_a_table_with_paired_intervals():
    before = {"a": np.array([1, 0, 0, 0], bool), "b": np.array([1, 1], bool)}
    after = {"a": np.array([1, 1, 0, 1], bool), "b": np.array([1, 0], bool)}
    found = Evaluation(title="m", before=before, after=after, control="b")
    one = shares.gain({"a": after["a"]}, before)
    assert found.mean["gain"] == one.value == 50 and not found.harmful
    assert found.mean["half_interval"] == pytest.approx(one.half)
    assert (found.mean["low"], found.mean["high"]) == (one.low, one.high)
    both = Evaluation(title="m", before=before, after=after).mean
    assert both["gain"] == 0 and -100 <= both["low"] < 0 < both["high"] <= 100
    text, page = repr(found), found._repr_html_()
    assert "b (control)" in text and "+50.0" in text and page.count("<svg") == 2
    assert list(found.table()["task"]) == ["a", "b"] and found["a"] == found.rows[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells[:3] == ["a", "25", "75"] and not any("." in cell for cell in cells)
    large = [{task: np.repeat(x, 500) for task, x in side.items()} for side in (before, after)]
    assert ">25.0</td>" in Evaluation(title="m", before=large[0], after=large[1])._repr_html_()
    many = {"a": np.ones(100, bool)}, {"a": np.zeros(100, bool)}
    assert Evaluation(title="m", before=many[0], after=many[1]).harmful
    assert not Evaluation(title="m", before=many[1], after=many[0]).harmful
    few = [{task: x[:9] for task, x in side.items()} for side in many]  # all nine are lost
    assert not Evaluation(title="m", before=few[0], after=few[1]).harmful
    one_of_ten = many[0] | {"b": np.zeros(10, bool)}, many[0] | {"b": np.arange(10) < 1}
    assert not Evaluation(title="m", before=one_of_ten[1], after=one_of_ten[0]).harmful
    alone = Evaluation(title="m", before=before, after=before)
    assert "before" not in repr(alone) and "gain" not in repr(alone)
    assert (alone["a"]["low"], alone["a"]["high"]) == shares.accuracy({"a": before["a"]})[1:]


def test_a_figure_has_intervals_of_the_gain_or_of_the_accuracy(lab):
    before, after = {"a": np.arange(20) < 5}, {"a": np.arange(20) < 17}
    edited = Evaluation(title="m", before=before, after=after)
    for found, start in ((edited, 25), (Evaluation(title="m", before=after, after=after), 0)):
        (axes,) = figures.plot(found).axes
        drawn = {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2}
        row = found["a"]
        ends = np.clip([start + row["low"], start + row["high"]], 0, 100)
        assert (row["before"], row["after"]) in drawn
        assert any(np.allclose(one, ends) for one in drawn)


@pytest.mark.parametrize("right", [[0, 0], [1] * 5, [1] * 7 + [0], [0, 0, 1], [1]])
def test_an_interval_of_few_images_lies_within_0_and_100_percent(right):
    answers = {"A": np.array(right, bool)}
    text = str(Evaluation(title="m", before=answers, after=answers))
    low, high = map(float, re.search(r"(-?\d+\.\d) to (-?\d+\.\d)", text).groups())
    assert 0 <= low <= 100 * np.mean(right) <= high <= 100 and high - low > 40


def test_copies_of_an_image_are_counted_once(lab, monkeypatch):
    x, y = (part[:8] for part in lab.evaluator.images("Signs", "test"))
    monkeypatch.setattr(
        DrawnImages, "load", lambda *_, **__: Images(x.repeat(10, 1, 1, 1), y.repeat(10))
    )
    found = Lab(lab.parameters, tasks=TASKS, progress=False).evaluate(tasks="Signs")
    row, (right,) = found["Signs"], found.after.values()
    assert (row["images"], row["distinct"]) == (80, 8) and "80 (8 distinct)" in str(found)
    expected = shares.accuracy({"Signs": right[:8]})
    assert (row["after"], row["low"], row["high"]) == pytest.approx(expected)
    assert "8 distinct a task" in found._repr_html_()


def test_files_of_every_command_load(lab, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(lab.store.root))
    for seed, name in enumerate("ab"):
        drawn(lab, seed).save(f"{name}.st")
    assert main(["merge", "a.st", "b.st", "--model", "mini_xs", "--alpha", "0.5"]) == 0
    merged = TaskVector.load("merged.safetensors")
    assert merged == 0.5 * (drawn(lab, 0) + drawn(lab, 1)) and merged.method == "nonlinear"
    assert lab.vector("merged.safetensors") == merged and lab.vector("a.st") == drawn(lab, 0)
    lab.vectors()
    words = ["--model", "mini_xs", "--steps", "1", "--task", "Signs", "--method", "nonlinear"]
    assert main(["export", *words, "--seeds", "1"]) == 0, capsys.readouterr().err
    (folder,) = (tmp_path / "export").iterdir()
    assert TaskVector.load(folder) == lab.vector("Signs") == lab.vector(folder)
    other = Lab(model="mini_s", steps=1, tasks=TASKS, progress=False, store_root=lab.store.root)
    refuses("model 'mini_xs'", other.vector, "merged.safetensors")
    refuses("starts from mini_xs", other.evaluate, merged)


def test_plots_reprs_and_refusals(lab):
    assert isinstance(lab.plot(drawn(lab, 0), alphas=[0, 1]), Figure)
    assert isinstance(lab.plot(lab.evaluate(drawn(lab, 0))), Figure)
    assert isinstance(figures.plot(experiments.single(lab, ["nonlinear"])), Figure)
    refuses("records of x", figures.plot, pd.DataFrame({"experiment": ["x"]}))
    for thing in (lab.suite, lab.clip, lab.clip.encoder, lab.evaluator):
        assert "\n" not in repr(thing) and len(repr(thing)) < 200, repr(thing)
    assert isinstance(lab.evaluator, Evaluator)
    refuses("3 .* 2 tasks", lab.merge, "arithmetic", [drawn(lab, seed) for seed in range(3)])
    df = experiments.single(lab, ["nonlinear"])
    assert "hits" in df and "hits" not in repr(df) and "hits" not in df._repr_html_()
    assert "hits" not in repr(df[df["method"] == "nonlinear"])


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        (lambda lab, a: lab.evaluate([a, a]), "a + b adds two"),
        (lambda lab, a: lab.evaluate("Textures"), 'lab.vector("TASK")'),
        (lambda lab, a: lab.merge(a, a), 'lab.merge("ties", [a, b])'),
        (lambda lab, a: lab.merge("ties", a), 'lab.merge("ties", [a, b])'),
        (lambda lab, a: lab.vectors(["Textures"]), "lab.vectors(tasks=[...])"),
        (lambda lab, a: lab.vectors("Textures"), "lab.vectors(tasks=[...])"),
        (lambda lab, a: lab.vector(["Signs", "Textures"]), "lab.vectors(tasks=[...])"),
        (lambda lab, a: lab.vector("Signs", "linear"), "did you mean 'linearized'"),
        (lambda lab, a: lab.evaluate(a, "Texture"), "unknown task 'Texture'"),
        (lambda lab, a: lab.evaluate(a, split="validation"), "did you mean 'val'"),
        (lambda lab, a: a.apply(lab.clip), "vector.apply(lab.clip.encoder.params)"),
        (lambda lab, a: merging.merge([a, a], "ties"), 'merge("ties", [a, b])'),
        (lambda lab, a: lab.plot(), "lab.plot(a)"),
        (lambda lab, a: Lab("mini_xs", task="Signs"), "did you mean 'tasks'"),
        (lambda lab, a: lab.train("Signs"), 'lab.vector("TASK")'),
        (lambda lab, a: lab.forget("Signs"), "lab.evaluate(-0.5"),
        (lambda lab, a: lab.encoder, "lab.clip.encoder"),
        (lambda lab, a: lab.accuracy(a), "lab.evaluate(vector)"),
        (lambda lab, a: lab.best_merge(), 'lab.merge("ties", search=True)'),
        (lambda lab, a: lab.cosines(), "a.cosine(b)"),
        (lambda lab, a: lab.zero_shot(), "lab.evaluate()"),
        (lambda lab, a: lab.pretrained, "lab.clip"),
        (lambda lab, a: lab.images("Textures"), 'lab.evaluator.images("TASK", "test")'),
        (lambda lab, a: lab.evalute(a), "did you mean 'evaluate'"),
        (lambda lab, a: a.consine(a), "did you mean 'cosine'"),
        (lambda lab, a: lab.tune("Signs").accuracy, "lab.evaluate(run.vector)"),
        (lambda lab, a: lab.evaluate().to_dataframe(), "evaluation.table()"),
        (lambda lab, a: lab.evaluate().to_csv(), "evaluation.table().to_csv(path)"),
        (lambda lab, a: figures.plot(a), "lab.plot(a)"),
        (lambda lab, a: lab.evaluate().plot(), "lab.plot(evaluation)"),
        (lambda lab, a: lab.theta_0, "lab.clip"),
        (lambda lab, a: lab.ties(), 'lab.merge("ties"'),
        (lambda lab, a: lab.save("x"), "vector.save(path)"),
        (lambda lab, a: lab.merge("ties", []), 'no vectors to merge: lab.merge("ties", [a, b])'),
        (lambda lab, a: merge({"w": a["w"]}, [], "ties"), "no networks to merge"),
        (lambda lab, a: TaskVector.from_checkpoints("a"), "TaskVector.between(theta, theta0)"),
        (lambda lab, a: Lab.evalute(a), "did you mean 'evaluate'"),
        (lambda lab, a: a.cpu(), 'vector.to("cpu")'),
        (lambda lab, a: a.numel(), "dict(vector)"),
        (lambda lab, a: TaskVector.load(__file__), "Lab(model).vector(path)"),
    ],
)
def test_a_wrong_first_guess_is_told_the_right_one(lab, guess, advice):
    with pytest.raises((TasklabError, AttributeError), match=re.escape(advice)):
        guess(lab, TaskVector({"w": [1.0]}))
