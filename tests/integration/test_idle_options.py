"""Options that a command takes and that have no effect for a kind of model: told, never silence."""

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tasklab import TasklabError, own
from tasklab.__main__ import main
from tasklab.bench.lab import Lab
from tasklab.models import loading
from tests.helpers import mistaken
from tests.vectors import noise

MODEL = ["--model", "mini_xs"]
AB = ["a.safetensors", "b.safetensors"]
DATA = ["--data", "a=images", "--data", "b=images"]
RUNS = ["Signs@nonlinear", "Places@nonlinear"]


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """Vectors a and b of mini_xs, networks of another kind, a folder of images and a base."""
    place = tmp_path_factory.mktemp("idle")
    encoder = loading.load("mini_xs").encoder
    for seed, name in enumerate("ab"):
        noise(encoder.params, seed).save(place / f"{name}.safetensors")
    save_file(noise(encoder.params, 5).apply(encoder.params), place / "other.safetensors")
    torch.manual_seed(0)
    base = {"layer.weight": torch.randn(8, 8), "layer.bias": torch.randn(8)}
    save_file(base, place / "base.safetensors")
    for name in ("one", "two"):
        tuned = {n: x + 0.01 * torch.randn_like(x) for n, x in base.items()}
        save_file(tuned, place / f"{name}.safetensors")
    for number, kind in enumerate(("cat", "dog")):
        (place / "images" / kind).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), (20 * i, 90 * number, 0)).save(
                place / "images" / kind / f"{i}.png"
            )
    return place


@pytest.fixture
def at(room, monkeypatch, tmp_path):
    monkeypatch.chdir(room)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    return room


NETWORKS = ["merge", "one.safetensors", "two.safetensors", "--base", "base.safetensors"]
NETWORKS += ["--alpha", "0.5", "--out", "n.safetensors"]
MERGE = ["merge", *AB, *MODEL, "--out", "m.safetensors"]
REFUSED = [
    ([*MERGE, "--data", "a=images"], "--data would have no effect: arithmetic looks at no images"),
    ([*MERGE, "--images", "9"], "--images would have no effect: arithmetic looks at no images"),
    ([*MERGE, "--search", "--images", "9"], "--search has its own numbers of images"),
    ([*MERGE, "--method", "least_few", "--images", "9"], "least_few has its own numbers"),
    ([*MERGE, "--method", "fisher", *DATA, "--suite", "mini"], "leave --suite out"),
    ([*MERGE, "--base", "other.safetensors", "--init", "random"], "leave --init out"),
    (["merge", *RUNS, *MODEL, "--base", "other.safetensors"], "--base would have no effect: runs"),
    ([*MERGE, "--seeds", "0,1"], "--seeds stands for several runs"),
    ([*NETWORKS, "--images", "9"], "--images would have no effect: networks are merged without"),
    ([*NETWORKS, "--data", "a=images"], "--data and --model-out are for models of"),
    (["evaluate", "mini_xs", *DATA, "--suite", "mini"], "leave --suite out"),
    (["evaluate", "mini_xs", "--seeds", "3"], "--seeds stands for several runs"),
    (["evaluate", "minilm", *DATA], "--data: minilm reads texts, and folders of --data hold"),
    (["evaluate", "mini_t5", *DATA], "--data: mini_t5 reads texts, and folders of --data hold"),
    (["compare", *AB, "--model", "minilm", *DATA], "--data: minilm reads texts"),
    (["compare", *AB, *MODEL, *DATA, "--suite", "icons"], "leave --suite out"),
    (["compare", *AB, *MODEL, "--fast", "--methods", "ties,dare"], "--methods names 2"),
    (["import", "--list", "--task", "Cars"], "--task would have no effect: --list only shows"),
    (["import", "--list", "one.safetensors"], "FILE would have no effect: --list only shows"),
    (["import", "one.safetensors", *MODEL, "--task", "Cars", "--dry-run"], "--dry-run would"),
    (
        ["import", "one.safetensors", *MODEL, "--task", "Cars", "--tasks", "A", "--data-root", "x"],
        "--tasks, --data-root would have no effect: it is for published vectors",
    ),
    (["import", "--from", "orthoreg", "--model", "vitb32", "--base", "x"], "--base would have no"),
    (["import", "--from", "orthoreg", "--task", "Cars", "--tasks", "DTD"], "give one of them"),
    (["export", "--method", "linearized", "--chapter", "tangent"], "give one of them"),
    (["judge", "rule.py", "--world", "mini", "--sets", "2"], "only icons_s has sets of tasks"),
    (["train", "--cpus", "4"], "--cpus would have no effect: runs on this machine"),
    (["train", "--slurm", "--retries", "2"], "--retries would have no effect: only runs on Ray"),
    (["train", "--only", "1", "--dry-run"], "--only would have no effect: --dry-run lists"),
    (["train", "--slurm", "--summary", "--dry-run"], "leave --dry-run, --sbatch and --at-once out"),
    (["train", "--model", "vitb32", "--vectors", "published:orthoreg"], "`tasklab import --from`"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), REFUSED)
def test_an_option_without_effect_is_refused(at, words, expected, capsys):
    before = sorted(one.name for one in at.iterdir())
    assert expected in mistaken(words, capsys)
    assert sorted(one.name for one in at.iterdir()) == before  # nothing is written


POINTED_OUT = [
    ([*MERGE, "--lr", "1e-3", "--preset", "full"], "--lr, --preset have no effect: no vector is a"),
    ([*MERGE, "--head", "probe"], "--head has no effect: no vector is a run of the store"),
    ([*NETWORKS, "--steps", "9"], "--steps has no effect: networks are merged without --model"),
    (["evaluate", "mini_xs", "--steps", "1", "--task", "Signs", "--lr", "1"], "--lr has no effect"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), POINTED_OUT)
def test_a_parameter_of_runs_without_a_run_is_pointed_out(at, words, expected, capsys):
    assert main(words) == 0
    assert expected in capsys.readouterr().err
    assert main([*words[:-2], "--device", "cpu"]) == 0  # is where it is computed
    assert "--device" not in capsys.readouterr().err


def test_tasks_of_images_are_refused_by_a_model_of_texts(at):
    with pytest.raises(TasklabError, match=r"reads texts, and tasks of your own have images"):
        Lab("minilm", own=own.from_folder("images"))
