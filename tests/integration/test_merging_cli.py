"""`tasklab merge` and `tasklab evaluate` on small vectors: what they write, print and refuse."""

import json
import os
import re
import shutil
from unittest import mock

import huggingface_hub.constants
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from tasklab import checkpoints, machine
from tasklab.__main__ import main
from tasklab.analyses import merging
from tasklab.bench import contest
from tasklab.bench.lab import Lab
from tasklab.exchange import exporting, merged, reading
from tasklab.models import loading
from tasklab.models.zoo import spec
from tasklab.storage import fetching
from tasklab.storage.store import Store
from tasklab.storage.tensors import save_checkpoint
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector
from tests.helpers import mistaken
from tests.vectors import noise

MODEL = "mini_xs"
FEW = ["--steps", "1"]  # a rehearsal: a few images
PAPER = ["--suite", "paper"]  # whose images are not on a machine of tests
AB = ["merge", "a.safetensors", "b.safetensors", "--model", MODEL]


@pytest.fixture(scope="module")
def encoder():
    return loading.load(MODEL).encoder


def vector(encoder, seed):
    return noise(encoder.params, seed)


@pytest.fixture
def files(tmp_path, encoder, monkeypatch):
    """Three vectors in files a, b and c of the working folder; c belongs to another model.

    The store is a test's own: its made-up runs are not what fine-tuning leaves.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    for seed, name in enumerate("ab"):
        vector(encoder, seed).save(f"{name}.safetensors")
    vector(loading.load("mini_s").encoder, 3).save("c.safetensors")
    return tmp_path


def run_of(encoder, task, method, seed=0):
    lab = Lab(model=MODEL, steps=1, progress=False)
    config = lab.identity(task, method, seed)
    tau = vector(encoder, seed + len(task))
    return lab.store.get("finetune", config, lambda _: (dict(tau), {"losses": [1.0]})), tau


def told(words, capsys):
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_what_merge_writes_is_read_like_an_exported_vector(files, encoder, capsys):
    words = [*AB, "--method", "ties", "--out", "m.safetensors"]
    text = told([*words, "--option", "keep=0.3", "--alpha", "0.5"], capsys)
    assert text.startswith("TIES (arXiv:2306.01708) of 2 task vectors of mini_xs\n")
    assert "for the model itself: written to m.safetensors" in text
    expected = merging.ties([vector(encoder, 0), vector(encoder, 1)], keep=0.3, alpha=0.5)
    assert checkpoints.load("m.safetensors", encoder) == expected
    about = json.loads(told([*words, "--json"], capsys))
    assert about["weights"] == encoder.weights_hash and about["method"] == "ties"
    assert [row["task"] for row in about["vectors"]] == ["a", "b"]
    assert about["norm"] == pytest.approx(checkpoints.load("m.safetensors", encoder).norm())
    again = ["merge", *["m.safetensors"] * 2, "--method", "average", "--alpha", "1"]
    again += ["--out", "n.safetensors"]
    said = told(again, capsys)  # a merged vector tells its model
    assert said.count("it is the same vector as m.safetensors") == 1
    assert checkpoints.load("n.safetensors", encoder) == checkpoints.load("m.safetensors", encoder)


def test_evaluate_adds_and_subtracts(files, encoder, capsys):
    words = ["evaluate", MODEL, "--add", "a.safetensors:0.5", "--subtract", "b.safetensors"]
    about = json.loads(told([*words, *FEW, "--json"], capsys))
    assert [edit["coefficient"] for edit in about["edits"]] == [0.5, -1.0]
    lab = Lab(model=MODEL, steps=1, progress=False)
    edited = 0.5 * vector(encoder, 0) - vector(encoder, 1)
    assert [row["task"] for row in about["tasks"]] == [*lab.suite.names, lab.suite.control.name]
    for row in about["tasks"]:
        for value, tau in (("before", TaskVector({})), ("after", edited)):
            expected = lab.evaluator.evaluate(tau, row["task"], "test", linear=False)
            assert row[value] == pytest.approx(expected)
        assert row["images"] == lab.evaluator.count(row["task"], "test")
    assert any(row["before"] != row["after"] for row in about["tasks"])
    own = [row for row in about["tasks"] if not row["control"]]
    assert about["mean"]["after"] == pytest.approx(sum(row["after"] for row in own) / len(own))

    for number in ("0,3", "50%", "1/3", "\N{MINUS SIGN}0.5"):
        told_of = mistaken([*words[:3], f"a.safetensors:{number}"], capsys)
        assert f"such as 0.3, not {number!r}" in told_of
    few = ["--task", "Signs", "--task", "Places", "--task", "Signs"]
    once = json.loads(told([*words, *FEW, *few, "--json"], capsys))
    assert [row["task"] for row in once["tasks"]] == ["Signs", "Places"]

    text = told([*words, *FEW, "--task", "Signs", "--split", "val", "--linear"], capsys)
    assert text.startswith("mini_xs, linearized, val images, accuracy in %\n")
    assert "\n  +0.5 a.safetensors\n" in text
    linear = lab.evaluator.evaluate(edited, "Signs", "val", linear=True)
    (row,) = [line for line in text.splitlines() if line.startswith("Signs")]
    assert float(row.split()[3]) == pytest.approx(linear, abs=0.06)


def test_the_page_and_the_help_tell_every_key_of_the_json(files, capsys, root):
    page = root / "book" / "checkpoints.md"
    if not page.exists():
        pytest.skip("an installed package has no book")
    section = page.read_text("utf-8").partition("## Merge and evaluate\n")[2].partition("\n## ")[0]
    merged = json.loads(told([*AB, "--json"], capsys))
    words = ["evaluate", MODEL, "--add", "merged.safetensors", "--task", "Signs", *FEW, "--json"]
    evaluated = json.loads(told(words, capsys))
    for command, about in (("merge", merged), ("evaluate", evaluated)):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        option = re.search(r"--json\s(.+?)--", capsys.readouterr().out, re.DOTALL)[1]
        table = section.partition(f"| `{command}` | |")[2].partition("\n\n")[0]
        assert keys(about) == set(re.findall(r"`(\w+)`", table)) - {"null"}
        assert keys(about) <= set(re.findall(r"\w+", option))


def keys(about):
    if isinstance(about, list):
        return set().union(*map(keys, about))
    if not isinstance(about, dict):
        return set()
    inner = [keys(value) for key, value in about.items() if key != "options"]
    return set(about).union(*inner)


def test_vectors_come_from_runs_exports_and_imports(files, encoder, capsys, monkeypatch):
    held, merge = [], merging.merge

    def looked_at(method, vectors, **options):
        one = next(iter(vectors.values() if isinstance(vectors, dict) else vectors))
        held.append(one["proj"] is one["proj"])  # not if it is read anew from a file
        return merge(method, vectors, **options)

    monkeypatch.setattr(merging, "merge", looked_at)
    monkeypatch.setattr(merged, "LIGHT", 0)  # as if these were large
    run, one = run_of(encoder, "Signs", "nonlinear")
    exporting.write_run(run, encoder, files / "exported")
    torch.save(one.apply(encoder.params), "finetuned.pt")
    checkpoints.add(Store(), "finetuned.pt", MODEL, "Scenes", name="mine")
    for name in ("Signs@nonlinear", "Signs@nonlinear@0", "exported", "finetuned.pt", "mine"):
        twice = ["merge", name, name, "--method", "average", "--alpha", "1"]  # the vector itself
        told([*twice, "--model", MODEL, *FEW, "--out", "m.safetensors"], capsys)
        found = checkpoints.load("m.safetensors", encoder)
        assert found.keys() == one.keys()
        for parameter, x in one.items():
            torch.testing.assert_close(found[parameter], x, rtol=1e-4, atol=1e-6)
    told(["merge", "mine", "exported", "--out", "two.safetensors"], capsys)  # both tell the model
    assert held == [False] * 6
    assert not list(files.glob(".*"))


def test_a_saved_vector_is_imported_as_it_is(files, encoder, capsys):
    text = told(["import", "a.safetensors", "--model", MODEL, "--task", "Signs"], capsys)
    assert "a.safetensors: task vector of TaskVector.save\n" in text
    assert checkpoints.imported(Store(), MODEL, "Signs_nonlinear") == vector(encoder, 0)
    assert checkpoints.vector_of("a.safetensors", MODEL) == vector(encoder, 0)
    words = ["import", "c.safetensors", "--model", MODEL, "--task", "Signs"]
    assert f"c.safetensors does not fit model '{MODEL}'" in mistaken(words, capsys)


def test_vectors_of_another_start_keep_it(files, capsys):
    random = loading.load(MODEL, init="random").encoder
    vector(random, 5).save("r.safetensors")
    words = ["merge", "r.safetensors", "r.safetensors", "--method", "average", "--alpha", "1"]
    told([*words, "--model", MODEL, "--init", "random", "--out", "m.safetensors"], capsys)
    told(["import", "m.safetensors", "--model", MODEL, "--task", "T"], capsys)
    again = ["merge", "T_nonlinear", "m.safetensors", "--alpha", "1"]
    told([*again, "--out", "again.safetensors"], capsys)
    found = dict(checkpoints.load("again.safetensors", random))
    torch.testing.assert_close(found, dict(2 * vector(random, 5)))
    words = ["evaluate", MODEL, "--add", "again.safetensors", "--task", "Signs", *FEW]
    told([*words, "--init", "random"], capsys)
    words = ["merge", "r.safetensors", "m.safetensors", "--model", MODEL]  # r does not tell
    told_of = mistaken(words, capsys)
    assert "pretrained weights, and m.safetensors from random" in told_of


def test_a_name_is_found_without_reading_the_other_imports(files, encoder, capsys, monkeypatch):
    for name in "ab":
        told(["import", f"{name}.safetensors", "--model", MODEL, "--task", name], capsys)
    opened, find = [], Store.find
    listed = lambda store, kind, one: opened.append(one) or find(store, kind, one)  # noqa: E731
    monkeypatch.setattr(Store, "find", listed)
    told(["merge", "a_nonlinear", "a_nonlinear", "--out", "m.safetensors"], capsys)
    assert {one["name"] for one in opened} == {"a_nonlinear"}
    damaged = Store().find("imported", {"model": MODEL, "name": "a_nonlinear"}).path
    (damaged / "tensors.safetensors").write_bytes(b"")
    assert main(["merge", "a_nonlinear", "a_nonlinear", "--out", "m.safetensors"]) == 2
    told_of = capsys.readouterr().err
    assert "no imported vector" in told_of and "Imported are b_nonlinear." in told_of


def test_methods_that_look_at_images_do(files, encoder, capsys):
    taus = [run_of(encoder, task, "nonlinear")[1] for task in ("Signs", "Places")]
    names = ["Signs@nonlinear", "Places@nonlinear"]
    words = ["merge", *names, "--model", MODEL, *FEW, "--images", "8", "--out", "m.safetensors"]
    told([*words, "--method", "regmean"], capsys)
    lab = Lab(model=MODEL, steps=1, progress=False)
    x = [drawn.images_of(lab.suite).load(t, "train", n=8).x for t in ("Signs", "Places")]
    thetas = [tau.apply(encoder.params) for tau in taus]
    G = [merging.grams(encoder, one, params=theta) for one, theta in zip(x, thetas, strict=True)]
    known = merging.defaults.Known.of(taus, encoder.params, "nonlinear")
    expected = merging.regmean(taus, G, **merging.METHODS["regmean"].recommended(known))
    assert checkpoints.load("m.safetensors", encoder) == expected
    told([*words, "--method", "fisher", "--alpha", "1"], capsys)
    merged = checkpoints.load("m.safetensors", encoder)
    for name, value in merged.items():  # a weighted mean of the two
        low, high = (f(taus[0][name], taus[1][name]) for f in (torch.minimum, torch.maximum))
        assert ((value >= low - 1e-6) & (value <= high + 1e-6)).all()


def test_the_default_is_recommended_and_a_search_is_not_worse(files, encoder, capsys):
    lab = Lab(model=MODEL, steps=25, progress=False, tasks=("Signs", "Textures"))
    names = [f"{task}.st" for task in lab.tasks]
    for task, tau in lab.vectors().items():
        tau.save(f"{task}.st")
    shutil.move("Signs.st", "other.st")
    names[0] = "Signs=other.st"
    usual = json.loads(told(["merge", *names, "--model", MODEL, "--json"], capsys))
    assert [row["task"] for row in usual["vectors"]] == ["Signs", "Textures"]
    known = merging.defaults.Known.of(lab.vectors().values(), lab.clip.encoder.params)
    assert usual["options"] == merging.METHODS["arithmetic"].recommended(known)
    assert re.search(r"recommended for 2 vectors of 0\.\d+ times the model", usual["origin"])
    words = ["merge", *names, "--model", MODEL, "--search", "--out", "s.st", "--json"]
    origin = json.loads(told(words, capsys))["origin"]
    assert "a smooth curve through 8 evaluations on 500 validation images" in origin
    best, first = (
        lab.evaluate(TaskVector.load(name), lab.tasks, "val").mean["after"]
        for name in ("s.st", "merged.safetensors")
    )
    assert best >= first - 2  # it is the highest of normalised accuracies, on a smooth curve
    words = ["evaluate", MODEL, "--subtract", "s.st:3", "--task", "Signs", "--task", "Textures"]
    assert main(words) == 0
    assert "worse than the pre-trained model" in capsys.readouterr().err


@pytest.mark.parametrize("name", merging.METHODS)
def test_search_lab_and_command_make_one_merge_in_any_order(files, encoder, capsys, name):
    rule, places = merging.METHODS[name], {"Signs": "a.safetensors", "Textures": "b.safetensors"}
    lab = Lab(model=MODEL, steps=1, tasks=tuple(places), progress=False)
    vectors = {task: TaskVector.load(place) for task, place in places.items()}
    bench = contest.Bench(contest.Given.of(lab, vectors, "nonlinear"))
    value = rule.values[-1] if rule.values else None
    options = {} if value is None else {rule.searched: value}
    entry = contest.Entry(name=name, title="", answers={}, alpha=0.3, option=value)
    found = {"search": contest.merged(lab, vectors, "nonlinear", entry)}
    turned = dict(reversed(vectors.items()))
    for order, given in (("lab", vectors), ("lab, other order", turned)):
        found[order] = lab.merge(name, given, alpha=0.3, **options)
    images = ["--images", str(bench.read(rule.needs))] if rule.needs else []
    more = [f"--option={x}={value}" for x, value in options.items()]
    for order, given in (("command", vectors), ("command, other order", turned)):
        words = [f"{task}={places[task]}" for task in given]
        words = ["merge", *words, "--model", MODEL, *FEW, "--method", name, "--alpha", "0.3"]
        text = told([*words, *more, *images, "--out", "m.safetensors"], capsys)
        assert ("drawn at random with seed 0" in text) == (name == "dare")
        found[order] = TaskVector.load("m.safetensors")
    whole = merging.merge(name, vectors, **bench.statistics(name), **rule.fixed, **options)
    for where, one in found.items():
        assert (one - 0.3 * whole).norm() < 1e-4 * 0.3 * whole.norm(), where


def test_runs_and_towers_that_are_not_there(files, encoder, capsys):
    run_of(encoder, "Signs", "nonlinear", 2)
    words = ["evaluate", MODEL, "--add", "Signs@nonlinear", "--task", "Signs"]
    assert main(words) == 2
    assert "it has nonlinear of Signs (--steps 1, seeds 2)" in capsys.readouterr().err
    shutil.copy("a.safetensors", "copy.safetensors")
    assert main(["merge", "a.safetensors", "copy.safetensors", "--model", MODEL]) == 0
    assert "copy.safetensors: it is the same vector as a.safetensors" in capsys.readouterr().out


def test_a_model_without_a_text_tower_is_evaluated_by_probes(files, capsys):
    few = loading.load("mini_few").encoder
    vector(few, 1).save("few.st")
    words = ["evaluate", "mini_few", "--add", "few.st", "--task", "Signs", "--json"]
    (row,) = json.loads(told(words, capsys))["tasks"]
    assert row["before"] > 30 and row["after"] < row["before"]


def test_absent_weights_and_misspelt_vectors_are_told_first(files, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(files / "hub"))
    monkeypatch.setattr(fetching, "unreachable", lambda *_: "no network")
    monkeypatch.setattr(merged, "named_source", None)
    words = ["merge", "a.safetensors", "b.safetensors", "--model", "vitb32", "--method", "fisher"]
    assert main(words) == 2
    assert "weights of model 'vitb32' are not on this machine" in capsys.readouterr().err
    monkeypatch.setattr(merged, "named_source", lambda *_, **__: pytest.fail("a vector is read"))
    for second in ("bb.safetensors", "no/bb.safetensors"):
        assert main(["merge", "a.safetensors", second, "--model", MODEL]) == 2
        assert second in capsys.readouterr().err


def test_a_singular_gram_matrix_is_one_line_and_a_ridge_mends_it(files, encoder, capsys):
    for task in ("Signs", "Places"):
        run_of(encoder, task, "nonlinear")
    words = ["merge", "Signs@nonlinear", "Places@nonlinear", "--model", MODEL, *FEW]
    words += ["--method", "regmean", "--images", "1", "--option", "ratio=1", "--option", "ridge=0"]
    told_of = mistaken([*words, "--out", "m.safetensors"], capsys)
    assert "sum up to a singular one: give more images, or a ridge" in told_of
    assert not (files / "m.safetensors").exists()
    told([*words[:-2], "--option", "ridge=1e-3", "--out", "m.safetensors"], capsys)


def test_tangent_vectors_stay_in_the_linearized_model(files, encoder, capsys):
    run_of(encoder, "Signs", "linearized")
    _, tau = run_of(encoder, "Places", "linearized")
    run_of(encoder, "Signs", "nonlinear")
    words = ["--model", MODEL, *FEW, "--out", "m.safetensors"]
    text = told(["merge", "Signs@linearized", "Places@linearized", *words], capsys)
    assert "for the linearized model: written" in text
    evaluate = ["evaluate", MODEL, "--add", "m.safetensors:0.3", "--task", "Signs", *FEW, "--json"]
    assert json.loads(told(evaluate, capsys))["linear"] is True
    told_of = mistaken(["merge", "Signs@linearized", "Signs@nonlinear", *words], capsys)
    assert "Signs@linearized belongs in the linearized model, and Signs@nonlinear" in told_of


SHORT = {"AB": " ".join(AB), "EV": f"evaluate {MODEL}", "ON": f"--model {MODEL}"}
SHORT |= {"FEW": " ".join(FEW), "PAPER": " ".join(PAPER), ".st": ".safetensors"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("AB --method tie", "did you mean 'ties'"),
        ("AB --method adamerging", "from unlabelled test images"),
        ("AB --method ties --option kep=0.3", "did you mean 'keep'"),
        ("AB --method ties --option keep=3", "keep must be a finite number"),
        ("AB --method ties --option keep", "NAME=VALUE"),
        ("AB --option alpha=1 --option alpha=2", "--option alpha is given twice"),
        ("AB --option alpha=1 --alpha 2", "--alpha or --option alpha=..., not both"),
        ("AB --method tau_jp", "is a way of fine-tuning"),
        ("AB --method best_span", "`experiments.merging` does it"),
        ("AB --method regmean --option grams=1", "unknown option of regmean"),
        ("AB --method regmean", "or choose a --method that needs none"),
        ("AB --alpha x", "--alpha must be a finite number"),
        ("merge a.st b.st", "a.safetensors does not tell of which model it is"),
        ("merge a.st c.st ON", "does not fit model"),
        ("merge a.st nothing ON", "'nothing' is no file"),
        ("AB --device gpu", "unknown device 'gpu'"),
        ("AB --seeds x", "seeds must be a whole number, not 'x'"),
        ("AB --base ./none.pt", "there is no checkpoint './none.pt'"),
        ("AB --base text.txt", "is not a file of torch.save"),
        ("merge a.st Cars.st ON --base b.st", "b.safetensors holds a task vector"),
        ("EV --add a.st --base text.txt", "is not a file of torch"),
        ("AB --method regmean --images 0", "--images must be at least 1"),
        ("merge text.txt a.st ON", "is not a file of torch.save"),
        ("merge broken.st a.st ON", "broken.safetensors"),
        ("merge nan.st a.st ON", "values that are not finite"),
        ("merge Signs@nonlinear@7 a.st ON FEW", "is not in"),
        ("merge Sings@nonlinear a.st ON FEW", "did you mean 'Signs'"),
        ("merge Signs@nonlinaer a.st ON", "did you mean 'nonlinear'"),
        ("merge Carz@nonlinear Cars@nonlinear ON PAPER", "'Carz': did you mean 'Cars'"),
        ("merge SVHN@nonlinear Cars@nonlinear ON PAPER", "tasklab: SVHN: not on this machine"),
        ("merge SVHN.st a.st --method fisher ON", "the task 'SVHN', and suite mini has"),
        ("merge SVHN.st Cars.st --method regmean ON PAPER", "images of SVHN, Cars are missing"),
        ("AB --base zeroshot.pt", "--base: 'zeroshot.pt' is not there"),
        ("AB --out text", "holds something else"),
        ("AB --out x.PT", "call it 'x.safetensors'"),
        ("AB --out x.csv.gz", "call it 'x.csv.safetensors'"),
        ("compare a.st b.st ON --merged m.bin", "call it 'm.safetensors'"),
        ("compare a.st b.st ON --out m.st", "call it 'm.html'"),
        ("compare a.st b.st ON --csv m.json", "call it 'm.csv'"),
        ("AB --out folder/m.st", "is no folder"),
        ("AB --out .", "is a folder"),
        ("AB --out b.st", "b.safetensors is one of the vectors"),
        ("AB --out export/task_vector.st", "is of an export"),
        ("AB --out /proc/m.st", "cannot write to /proc"),
        ("AB --out pipe", "is a device or a pipe, and no file"),
        ("compare a.st b.st ON --csv pipe", "is a device or a pipe, and no file"),
        ("compare a.st b.st ON --csv ./report.html", "call it 'report.csv'"),
        ("merge", "merge takes two VECTORs"),
        ("AB Cars.st", "merge takes each VECTOR before its options"),
        ("AB --base b.st", "b.safetensors is the --base: leave it out"),
        ("evaluate mimi", "did you mean 'mini'"),
        ("evaluate resnet18", "minilm, timm/NAME, st/NAME."),
        ("evaluate a.safetensors", "tasklab evaluate MODEL --add 'a.safetensors', or --base"),
        ("compare a.st b.st", "`tasklab merge` and `tasklab inspect` take the weights"),
        ("EV --add a.st:1e9", "at most 1e+06"),
        ("EV --add c.st", "does not fit model"),
        ("EV --task Sings FEW", "did you mean 'Signs'"),
        ("EV PAPER --task Carz", "'Carz': did you mean 'Cars'"),
        ("EV PAPER --task ImageNet", "tasklab: ImageNet: not on this"),
        ("EV PAPER --task SVHN --task ImageNet", "SVHN, ImageNet are missing"),
        ("EV PAPER", "images of Cars, DTD, EuroSAT, GTSRB, MNIST, RESISC45"),
        ("EV --split tset", "did you mean 'test'"),
        ("merge r1.pt r2.pt ON", "nearly in the same direction (cosine 1.00)"),
        ("AB --search --alpha 1", "--search chooses alpha: leave one of the two out"),
        ("EV --data x", "--data is TASK=FOLDER"),
        ("EV --suite own", "unknown suite 'own'"),
        ("EV --suite None", "unknown suite 'None'"),
        ("EV --add int.st", "are no floating-point numbers"),
    ],
)
def test_a_mistake_is_one_line(files, encoder, words, expected, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(files / "hub"))
    for name in ("SVHN", "Cars"):
        shutil.copy("a.safetensors", f"{name}.safetensors")
    for name in ("text", "text.txt"):
        (files / name).write_text("no vector")
    os.mkfifo("pipe")
    torch.save(loading.load(MODEL, init="random").encoder.params, "r1.pt")
    shutil.copy("r1.pt", "r2.pt")  # of another base
    (files / "broken.safetensors").write_bytes((files / "a.safetensors").read_bytes()[:5000])
    broken = {name: x / 0 for name, x in encoder.params.items()}
    save_file(broken, files / "nan.safetensors")
    whole = {name: x.int() for name, x in encoder.params.items()}
    about = {"format": "tasklab task vector", "version": 1}
    save_checkpoint(files / "int.safetensors", whole, about)
    (files / "export").mkdir()
    shutil.copy("a.safetensors", "export/task_vector.safetensors")
    (files / "export" / "config.json").write_text("{}")
    before = {file: file.read_bytes() for file in files.rglob("*") if file.is_file()}
    for short, long in SHORT.items():
        words = words.replace(short, long)
    assert expected in mistaken(words.split(), capsys)
    assert {file: file.read_bytes() for file in files.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Cannot allocate memory (os error 12)"),
        RuntimeError("unable to mmap 4856970 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        SafetensorError("Error while mapping: Cannot allocate memory (os error 12)"),
    ],
)
@pytest.mark.parametrize("reading", [True, False], ids=["a file", "weights"])
def test_too_little_memory_is_one_line(files, capsys, monkeypatch, error, reading):
    place = "tasklab.storage.vectors.load_checkpoint" if reading else "tasklab.models.loading.fit"
    monkeypatch.setattr(place, mock.Mock(side_effect=error))
    words = ["evaluate", MODEL, "--add", "a.safetensors", "--task", "Signs", *FEW]
    for one in ([*AB, "--model-out", "m.pt"], words):
        assert "there is not enough memory" in mistaken(one, capsys)
    assert not {"m.pt", "merged.safetensors"} & {one.name for one in files.iterdir()}
    assert not list(files.glob(".*"))


@pytest.mark.parametrize("command", [AB, ["evaluate", MODEL, "--add", "a.safetensors"]])
def test_a_model_too_large_for_memory_is_told_first(files, capsys, monkeypatch, command):
    size = (files / "a.safetensors").stat().st_size
    needed = size + 8 * spec(MODEL).tower.parameters
    monkeypatch.setattr(merged, "named_source", None)  # nothing is read
    before = sorted(files.iterdir())
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(2**40, needed - 2**20))
    err = mistaken(command, capsys)
    takes, free = machine.too_large(needed, needed - 2**20)
    assert f"takes {takes} of memory" in err and f"{free} are free" in err, err
    assert sorted(files.iterdir()) == before
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(2**40, needed))
    with pytest.raises(TypeError, match="not callable"):  # as much as it takes is enough
        main(command)


def test_every_task_of_a_suite_can_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    about = {"model": "icons_s", "suite": "icons", "steps": 1, "progress": False}
    whole, usual = Lab(**about, tasks="all"), Lab(**about)
    outside = next(name for name in whole.suite.names if name not in suite("icons").usual)
    made = {}
    for lab, task, method in (
        (whole, outside, "nonlinear"), (usual, usual.suite.names[0], "nonlinear"),
        (usual, usual.suite.names[0], "tau_jp"), (whole, outside, "tau_jp"),
    ):  # fmt: skip
        made[task, method] = tau = noise(lab.clip.encoder.params, len(made))
        run = dict(tau), {"losses": [1.0]}
        lab.store.get("finetune", lab.identity(task, method, 0), lambda _, run=run: run)
    options = ["--model", "icons_s", "--suite", "icons", *FEW]
    for method in ("nonlinear", "tau_jp"):
        words = [f"{task}@{method}" for task, of in made if of == method]
        told(["merge", *words, *options, "--alpha", "1"], capsys)
        expected = TaskVector.sum(tau for (_, of), tau in made.items() if of == method)
        found = checkpoints.load("merged.safetensors", whole.clip.encoder)
        assert (found - expected).norm() < 1e-5 * expected.norm()
    assert "2 runs exported" in told(["export", *options, "--task", outside], capsys)
    assert "4 runs exported" in told(["export", *options], capsys)


def test_vectors_in_one_direction_are_told(files, encoder, capsys):
    start = noise(encoder.params, 9, 0.05).apply(encoder.params)
    for seed, name in enumerate(("cars", "dtd")):
        theta = vector(encoder, seed).apply(start)
        torch.save({f"visual.{n}": x for n, x in theta.items()}, f"{name}.pt")
    words = ["merge", "cars.pt", "dtd.pt", "--model", MODEL, "--out", "m.safetensors"]
    assert main(words) == 0
    assert "cars.pt and dtd.pt have nearly the same direction" in capsys.readouterr().err
    assert main(AB) == 0
    assert "direction" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["merge", "compare"])
def test_adapters_are_refused_before_anything_is_read(command, files, capsys, monkeypatch):
    monkeypatch.setattr(reading, "contents", mock.Mock(side_effect=AssertionError("it is read")))
    torch.save({"w": torch.ones(2)}, "first.pt")
    save_file({"base.layer.lora_A.weight": torch.ones(2, 3)}, files / "second.safetensors")
    words = [command, "first.pt", "second.safetensors", "--model", MODEL]
    assert "second.safetensors: it holds adapters" in mistaken(words, capsys)
    (files / "lora").mkdir()
    torch.save({"x": torch.ones(2)}, files / "lora" / "adapter_model.bin")
    assert "it holds adapters" in mistaken([*words[:2], "lora", *words[3:]], capsys)
