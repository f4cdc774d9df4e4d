"""The drawn worlds at full size, and what their shipped models know."""

import hashlib
import json
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tasklab
from pretraining import classes, evaluate, stream
from pretraining import t5 as pretrain_t5
from pretraining.install import SHIPPED
from pretraining.recipes import JOBS
from tasklab import mini
from tasklab.analyses.evaluation import Evaluator
from tasklab.mini import shipped, t5
from tasklab.mini import text as world
from tasklab.models import loading
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.drawn import DrawnImages, Images
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector


def test_the_stream_and_its_labels_are_reproducible():
    one, again, other = stream.draw(0, 5, 400), stream.draw(0, 5, 400), stream.draw(1, 5, 400)
    assert torch.equal(one.images, again.images) and one.captions == again.captions
    assert not torch.equal(one.images, other.images)
    tokens = mini.tokenize(one.captions)
    assert (tokens[:, -1] == 0).float().mean() > 0.9
    assert (tokens == tokens.amax(1, keepdim=True)).sum(1).eq(1).all()  # each has its end
    assert 0 < sum(caption in stream.GENERIC for caption in one.captions) < 80
    part = stream.draw(0, 9, 4000)
    shown = part.kind, part.noun, part.form
    few, many = classes.few(*shown), classes.many(*shown, part.tone)
    assert len(few.unique()) == len(classes.FEW)
    for i in range(len(few)):
        assert classes.MANY[many[i]].endswith(classes.FEW[few[i]])
    named = [
        (classes.FEW[f], caption)
        for f, caption in zip(few.tolist(), part.captions, strict=True)
        if classes.FEW[f].startswith("letter") and "letter" in caption
    ]
    right = sum(caption.split("letter ")[-1].startswith(name[7:]) for name, caption in named)
    assert right > 0.5 * len(named)  # the others have a form without the name, or a wrong caption
    package = Path(tasklab.__file__).parent
    files = [f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    # a wheel, which compresses at this level, has 70 MB at most
    assert sum(len(zlib.compress(file.read_bytes(), 6)) for file in files) <= 69_700_000


@pytest.mark.parametrize("name", SHIPPED)
def test_the_card_describes_the_shipped_weights(name):
    card, path = mini.card(name), mini.weights_path(name)
    assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stat().st_size <= 10_000_000
    assert card["parameters"] == sum(tensor.numel() for tensor in load_file(path).values())
    assert card["curve"][-1]["step"] == card["recipe"]["steps"] == JOBS[name].recipe.steps


def test_the_shipped_model_reaches_its_levels():
    # Zero-shot accuracy on validation images is what the card says, and what the world aims at.
    tasks = suite("mini")
    evaluator = Evaluator(loading.load("mini"), tasks, Store())
    accuracy = {
        t.name: evaluator.evaluate(TaskVector({}), t.name, "val", 0.0, linear=False)
        for t in tasks.tasks
    }
    told = mini.card()["zero-shot accuracy, 500 validation images a task (%)"]
    assert drawn.images_of(tasks).size("Signs", "val") == 500
    for task in tasks.tasks:
        assert 100 * task.chance < accuracy[task.name] < 80, task.name
        assert accuracy[task.name] == pytest.approx(told[task.name], abs=0.5)
    assert 35 <= sum(accuracy.values()) / 8 <= 60


@pytest.mark.parametrize("model", ["icons_s", "icons"])
def test_the_models_of_drawings_reach_their_levels(model):
    # Zero-shot accuracy is what the card says, and between 45 and 60 %, on validation drawings.
    world, card = suite("icons"), mini.card(model)
    told = card["zero-shot accuracy, validation drawings of a task (%)"]
    evaluator = Evaluator(loading.load(model), world, Store())
    accuracy = {
        name: evaluator.evaluate(TaskVector({}), name, "val", 0.0, linear=False)
        for name in world.usual
    }
    assert accuracy == pytest.approx({name: told[name] for name in world.usual}, abs=1.0)
    assert 45 < sum(accuracy.values()) / 8 < 60 and 45 < told["mean of all"] < 60


def test_the_worlds_draw_what_is_listed():
    """If this fails, the drawing has changed: raise the version and call `write_checksums`."""
    table, same = json.loads(drawn.CHECKSUMS.read_text()), {}
    for name, sample in (("mini", mini.sample), ("mini_text", mini.sample_text)):
        world = DrawnImages(suite(name))
        for task in (*world.suite.tasks, world.suite.control):
            for split in ("val", "test") if task.control else ("train", "val", "test"):
                assert world._name(task.name, split) in table
            same[task.name] = (
                Images(*sample(task.name, "val", world.size(task.name, "val"))).sha256()
                == table[world._name(task.name, "val")]
            )
    assert all(same.values())  # on any processor


def test_a_probe_of_the_pixels_changes_neither_the_tower_nor_the_random_numbers():
    tower = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Dropout(0.5))
    state = torch.get_rng_state()
    first = evaluate.probe_accuracy(tower, n=40, fitted_to=80)
    assert torch.equal(torch.get_rng_state(), state) and tower.training
    assert first == evaluate.probe_accuracy(tower, n=40, fitted_to=80)
    assert first["LandCover"] > 20  # colours tell
    tasks = [v for k, v in first.items() if k not in ("Objects", "mean of 8")]
    assert first["mean of 8"] == pytest.approx(sum(tasks) / 8, abs=0.01)


def test_the_text_model_reaches_its_levels():
    card, model = shipped.card(t5.NAME), t5.build_t5()
    model.load_state_dict(load_file(shipped.weights_path(t5.NAME)))
    assert world.TEXT_VERSION in card["data"]
    told = card["zero-shot accuracy, 500 validation texts a task (%)"]
    mean = pretrain_t5.zero_shot_accuracy(model.eval(), n=200)["mean of 6"]
    assert abs(mean - told["mean of 6"]) < 4
    chance = sum(100 / len(task["classes"]) for task in world.TEXT_TASKS[:-1]) / 6
    assert told["mean of 6"] > chance + 5
