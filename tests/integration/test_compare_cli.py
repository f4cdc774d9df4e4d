"""`tasklab compare` on trained vectors: what it finds, writes, keeps and refuses."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tasklab import checkpoints
from tasklab.__main__ import main
from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.merging import minimum, order
from tasklab.analyses.merging.best import tangents
from tasklab.analyses.merging.registry import costs
from tasklab.bench import contest as contests
from tasklab.bench import merges, minima, trial
from tasklab.bench.contest import Contest, Entry, Pair
from tasklab.bench.lab import Lab
from tasklab.bench.merges import Bench
from tasklab.book import contest as report
from tasklab.errors import TasklabError
from tasklab.evidence.study import results
from tasklab.models import loading
from tasklab.taskvector import TaskVector
from tests.helpers import mistaken
from tests.vectors import noise

MODEL, TASKS = "mini_xs", ("Vehicles", "Textures", "Signs")
WORDS = ["--model", MODEL, "--methods", "arithmetic,ties,tsv_m"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("compare")
    lab = Lab(model=MODEL, steps=25, tasks=TASKS, progress=False, store_root=here / "store")
    lab = Lab(lab.parameters, tasks=TASKS, progress=False)
    for task, vector in lab.vectors("nonlinear", 0).items():
        vector.save(here / f"{task}.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "VALIDATED", 300)  # of 1000 validation images; examples take all
        yield here


@pytest.fixture
def at(folder, monkeypatch):
    monkeypatch.setitem(merges.QUICK, "looks", 4)  # of 8 at validation images: the longest part
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TASKLAB_STORE", str(folder / "store"))
    return folder


def files(*tasks):
    return [f"{task}.safetensors" for task in tasks or TASKS]


def told(capsys, *words):
    assert main(["compare", *words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_what_is_forgotten_is_told(at, capsys):
    words = [*files("Signs", "Textures"), *WORDS[:2], "--methods", "arithmetic"]
    found = told(capsys, *words, "--json", "--out", "f.html")
    (control,) = found["merges"][0]["forgot"]
    assert control == Lab(MODEL, progress=False).suite.control.name
    told_of = ["--forget", "Vehicles", "--forget", control, "--out", "f.html"]
    found = told(capsys, *words, *told_of, "--json")
    forgot = found["merges"][0]["forgot"]
    lab, alpha = Lab(MODEL, progress=False), found["merges"][0]["alpha"]
    tau = alpha * sum(TaskVector.load(f"{task}.safetensors") for task in ("Signs", "Textures"))
    for task in ("Vehicles", control):
        after = lab.evaluator.evaluate(tau, task, "test", linear=False)
        before = 100 * lab.evaluator.start(task, "test").right.mean()
        assert forgot[task] == pytest.approx(after - before)
    assert f"{control}, a task without a vector, changes by" in (at / "f.html").read_text("utf-8")
    assert "Signs: it has a vector" in mistaken(["compare", *words, "--forget", "Signs"], capsys)


def test_fast_tries_three_and_says_how_often_that_was_right(at, capsys):
    words = [*files("Signs", "Textures"), "--model", MODEL, "--fast", "--out", "fast.html"]
    some = "average,arithmetic,ties,dare,tsv_m,iso_c"
    assert main(["compare", *words, "--methods", some, "--json"]) == 0
    out, err = capsys.readouterr()
    found, odds = json.loads(out), order.odds()
    assert {one["merge"] for one in found["merges"]} == {"average", "tsv_m", "iso_c"}
    assert found["fast"]["untried"] == ["arithmetic", "ties", "dare"]
    assert found["fast"]["recorded"]["best"] == odds.best
    assert "Trying 3 of 6 merges" in err
    assert f"In {odds.settings} recorded settings" in err
    told = mistaken(["compare", *words, "--forget", "Signs"], capsys)
    assert "Signs: it has a vector" in told  # and not first what it will try


def test_the_best_on_validation_is_written_and_scores_what_is_told(at, capsys, monkeypatch):
    words = [*files(), *WORDS, "--json", "--merged", "best.st", "--csv", "rows.csv"]
    found = told(capsys, *words)
    merges = {one["merge"]: one for one in found["merges"]}
    assert set(merges) == {"arithmetic", "ties", "tsv_m"} and found["useless"] == []
    assert found["leader"] == max(merges, key=lambda name: merges[name]["validation"])
    assert found["best"] == min(found["alike"], key=costs) and found["leader"] in found["alike"]
    assert found["images"]["val"] == dict.fromkeys(TASKS, 100)  # a third
    assert found["single"]["task"] in TASKS and 0.5 < found["single"]["probability"] <= 1
    for one in merges.values():
        assert 0 <= one["mean_low"] <= one["mean"] <= one["mean_high"] <= 100
        assert one["gain_low"] <= one["gain"] <= one["gain_high"]
    lab = Lab(model=MODEL, progress=False)
    tau = checkpoints.load("best.st", lab.clip.encoder)
    scores = [lab.evaluator.evaluate(tau, task, "test", linear=False) for task in TASKS]
    assert merges[found["best"]]["mean"] == pytest.approx(np.mean(scores), abs=1e-9)
    start = [lab.evaluator.evaluate(TaskVector({}), t, "test", linear=False) for t in TASKS]
    gain = np.mean(scores) - np.mean(start)
    assert merges[found["best"]]["gain"] == pytest.approx(gain, abs=1e-9) and gain > 5
    page = (at / "report.html").read_text("utf-8")
    assert "http" not in page and "<script" not in page and page.count("<tr>") > 15
    assert (at / "rows.csv").read_text().count("\n") == 1 + 3 * (1 + 1 + 3)

    def again(*_):
        raise AssertionError("a finished merge is chosen anew")

    monkeypatch.setattr(Bench, "choose", again)  # an interrupted comparison goes on
    assert told(capsys, *files(), *WORDS, "--json") == {
        **found, "written": {"--out": "report.html"}
    }  # fmt: skip
    with pytest.raises(AssertionError, match="anew"):  # another order is another key
        main(["compare", *reversed(files()), *WORDS])


def test_without_labels_the_merge_of_least_loss_is_written(at, capsys, monkeypatch):
    usual = Evaluator.right

    def checked(self, features, task, split, alpha=None):
        assert split == "test", "a label of a validation image is read"
        return usual(self, features, task, split, alpha)

    monkeypatch.setattr(Evaluator, "right", checked)
    words = ["--without-labels", "--json", "--merged", "least.st", "--csv", "least.csv"]
    found = told(capsys, *files(), *WORDS, *words, "--out", "least.html")
    merges = {one["merge"]: one for one in found["merges"]}
    assert found["best"] == min(merges, key=lambda name: merges[name]["loss"])
    assert all(one["validation"] is None and 0 < one["loss"] < 1 for one in merges.values())
    monkeypatch.undo()
    monkeypatch.chdir(at)
    lab, tau = Lab(model=MODEL, progress=False), TaskVector.load("least.st")
    vectors = {task: TaskVector.load(f"{task}.safetensors") for task in TASKS}
    evaluator = contests.evaluator_of(lab, TASKS)
    own = [tangents(evaluator, v, [t])[0] for t, v in vectors.items()]
    sizes = [float(x.square().sum() / len(x)) for x in own]
    moved = [tangents(evaluator, tau, [t])[0] for t in TASKS]
    apart = [float((a - b).square().sum() / len(a)) for a, b in zip(moved, own, strict=True)]
    expected = np.mean([x / size for x, size in zip(apart, sizes, strict=True)])
    assert merges[found["best"]]["loss"] == pytest.approx(expected, rel=1e-4)
    assert "without labels" in (at / "least.html").read_text("utf-8")


def test_the_solved_merge_is_compared_where_it_is_named_and_merge_writes_the_same(
    at, capsys, monkeypatch
):
    words = [*files(), *WORDS[:2], "--methods", "tsv_m,regmean,least_features", "--without-labels"]
    found = told(capsys, *words, "--json", "--out", "solved.html")
    merges = {one["merge"]: one for one in found["merges"]}
    assert found["best"] == "least_features" and merges["least_features"]["alpha"] > 0.9
    assert merges["least_features"]["loss"] < 0.8 * merges["regmean"]["loss"]
    assert "least E over all weights" in (at / "solved.html").read_text("utf-8")
    lab = Lab(MODEL, progress=False)
    vectors = {task: TaskVector.load(f"{task}.safetensors") for task in TASKS}
    bench = Bench(contests.Given.of(lab, vectors, "nonlinear"))
    solution = minima.solved(bench, "least_features").tensors()
    words = ["merge", *files(), *WORDS[:2], "--method", "least_features", "--out", "solved.st"]
    assert main([*words, "--json", "--model-out", "solved_model.safetensors"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["options"] == {"alpha": 1.0} and "solution" in answer["origin"]
    assert TaskVector.load("solved.st") == TaskVector(solution)
    card = (at / "solved_model.md").read_text("utf-8")
    assert "merged by least E over all weights (its own rule; alpha 1.0" in card
    assert lab.merge("least_features", vectors, alpha=0.5) == 0.5 * TaskVector(solution)
    size = minimum.size(vectors["Signs"])
    assert minima.memory(bench, "least_few") == size + len(vectors) * 256 * 3 * 32**2
    monkeypatch.setattr(minimum, "size", lambda vector: 2**60)
    assert minima.memory(bench, "least_features") == 0  # kept
    assert main(["least_few" if word == "least_features" else word for word in words]) == 2
    assert "least_few takes" in capsys.readouterr().err
    assert main(["merge", files()[0], *words[1:]]) == 2  # two of one task
    assert "one vector for each task" in capsys.readouterr().err


def test_a_vector_that_does_not_help_its_task_is_pointed_out(at, capsys):
    (-1 * TaskVector.load("Textures.safetensors")).save("wrong.st")
    words = [*files("Signs", "Vehicles"), "Textures=wrong.st", *WORDS[:2]]
    found = told(capsys, *words, "--methods", "average", "--json")
    assert found["useless"] == ["Textures"]


def test_own_folders_of_images_are_the_tasks(at, capsys):
    draw = np.random.default_rng(0)
    for task in ("dogs", "<b>cats</b>".replace("/", "")):
        for split, count in (("train", 6), ("val", 3), ("test", 4)):
            for name in ("one", "two"):
                place = at / "images" / task / split / name
                place.mkdir(parents=True, exist_ok=True)
                for i in range(count):
                    pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{i}.png")
    odd = "<b>cats<b>"
    words = ["dogs=Signs.safetensors", f"{odd}=Textures.safetensors", *WORDS[:2]]
    data = ["--data", "dogs=images/dogs", "--data", f"{odd}=images/{odd}"]
    found = told(capsys, *words, *data, "--methods", "regmean", "--json", "--out", "own.html")
    assert found["tasks"] == ["dogs", odd]
    page = (at / "own.html").read_text("utf-8")
    assert odd not in page and "&lt;b&gt;cats" in page


def test_a_base_stands_in_for_weights_that_are_not_here(at, capsys, monkeypatch):
    torch.manual_seed(0)
    network = loading.build(loading.spec(MODEL))
    torch.save(network.state_dict(), "whole.pt")
    torch.save(network.visual.state_dict(), "images.pt")
    for number, task in enumerate(TASKS[:2]):
        theta0 = network.visual.state_dict()
        torch.save(noise(theta0, number).apply(theta0), f"{task}.pt")

    def gone(*_, **__):
        raise TasklabError("the weights are not here.")

    for name in ("load", "shared", "outline", "locate", "both_towers"):
        monkeypatch.setattr(loading, name, gone)
    pair = [f"{task}.pt" for task in TASKS[:2]]
    words = ["--model", MODEL, "--base", "whole.pt"]
    assert main(["merge", *pair, *words, "--search", "--out", "s.st", "--model-out", "m.pt"]) == 0
    written, tau = torch.load("m.pt"), TaskVector.load("s.st")
    theta0 = network.visual.state_dict()
    for name, x in tau.items():
        torch.testing.assert_close(written[f"visual.{name}"], theta0[name] + x)
    assert torch.equal(written["token_embedding.weight"], network.token_embedding.weight)
    capsys.readouterr()
    some = ["--task", TASKS[0], "--json"]
    assert main(["evaluate", *words[1:], "--add", "s.st", *some]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tasks"]
    found = told(capsys, *pair, *words, "--methods", "average", "--out", "b.html", "--json")
    probed = ["--methods", "average", "--head", "probe", "--out", "b.html", "--csv", "b.csv"]
    told(capsys, *pair, "--model", MODEL, "--base", "images.pt", *probed, "--json")
    lab = Lab(model=MODEL, tasks=TASKS[:2], base="images.pt", head="probe", progress=False)
    assert lab.vector(pair[0]).base.weights == lab.clip.encoder.weights_hash
    rows = pd.read_csv("b.csv").query("model == 'pretrained'").set_index("task")["accuracy"]
    for task in TASKS[:2]:
        right = lab.evaluator_of(tasks=[task]).start(task, "test").right
        assert rows[task] == pytest.approx(100 * right.mean())
    assert found["tasks"] == list(TASKS[:2]) and 0 <= row["after"] <= 100
    assert main(["compare", *pair, "--model", MODEL, "--base", "images.pt"]) == 2
    assert "images.pt lacks a text tower" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*files("Signs"), *WORDS], "two VECTORs"),
        ([*files("Signs", "Textures"), *WORDS[:2], "--methods", "tie"], "'ties'"),
        ([*files("Signs"), "Cars=Textures.safetensors", *WORDS], "--data TASK=FOLDER"),
        ([*files("Signs"), "Signs=Textures.safetensors", *WORDS], "both of the task Signs"),
        ([*files(), *WORDS, "--out", "store"], "is a folder"),
        ([*files(), *WORDS, "--data", "nothing"], "TASK=FOLDER"),
        ([*files(), *WORDS, "--merged", "none/x.st"], "--merged"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_writes_nothing(at, words, expected, capsys):
    before = sorted(path.name for path in at.iterdir())
    assert expected in mistaken(["compare", *words], capsys)
    assert sorted(path.name for path in at.iterdir()) == before


def test_expected_gains_are_recorded_ones():
    rows = results.recorded("merging")[0].query("metric == 'absolute' and model == 'mini'")
    means = rows.groupby("merge")["value"].mean()
    expected = report.expected_gains(8)
    assert expected["regmean"] == pytest.approx(means["regmean"] - means["arithmetic"])
    assert expected["arithmetic"] == 0 and report.expected_gains(3) == report.expected_gains(4)


def test_the_page_warns_where_every_merge_does_harm():
    def entry(name, share, validation):
        answers = {task: np.arange(200) < 200 * share for task in "ab"}
        return Entry(name=name, title=name, answers=answers, validation=validation)

    own = {task: {task: np.arange(200) < 190} for task in "ab"}
    alone = {t: Entry(name="alone", title="", answers=own[t], validation=0) for t in "ab"}
    pair = Pair(tasks=("a", "b"), cosine=0.1, xi=3.0, lost=1.0)
    bad = Contest(start=entry("pretrained", 0.8, 0), alone=alone, alpha=0.3, pairs=[pair],
                  merges=[entry("ties", 0.4, 1), entry("tsv_m", 0.2, 0.5)])  # fmt: skip
    about = {"model": "m", "suite": "s", "written": [], "images": {}, "vectors": []}
    about["provenance"] = {
        "machine": {"gpu": None, "cpu": "c", "cores": 2}, "tasklab": "1", "torch": "2",
        "python": "3", "utc": "now", "seconds": 1.0, "weights": "abc",
    }  # fmt: skip
    assert "Every merge is worse" in report.page(bad, about)
    good = report.page(
        Contest(start=entry("pretrained", 0.3, 0), alone=alone, alpha=0.3, pairs=[pair],
                merges=bad.merges), about
    )  # fmt: skip
    assert "Every merge is worse" not in good


def test_a_linear_vector_is_compared_in_the_tangent_model(tmp_path):
    lab = Lab(model=MODEL, tasks=TASKS[:2], progress=False, store_root=tmp_path, steps=1)
    encoder = loading.load(MODEL).encoder
    vectors = {task: noise(encoder.params, seed) for seed, task in enumerate(TASKS[:2])}
    found = contests.contest(lab, vectors, "linearized", ["average"])
    best = found.best
    tau = contests.merged(lab, vectors, "linearized", best)
    for task in TASKS[:2]:
        expected = lab.evaluator.evaluate(tau, task, "test", linear=True)
        assert best.accuracy(task) == pytest.approx(expected)
