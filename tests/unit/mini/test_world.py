"""The drawn world: deterministic, balanced, disjoint, and readable by the small CLIP."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file

from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.mini import sampling
from tasklab.mini.captions import GENERIC, KINDS, draw_pairs
from tasklab.mini.catalog import TASKS
from tasklab.mini.clip import CONTEXT
from tasklab.mini.draw import Rng
from tasklab.mini.first_stream import CLASSES, labelled_shard, pretraining_shard
from tasklab.mini.pretraining import loop, objectives, run
from tasklab.models import zoo

NAMES = [task["name"] for task in TASKS]


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_deterministic_balanced_and_varied(name):
    classes = len(TASKS[NAMES.index(name)]["classes"])
    images, labels = mini.sample(name, "val", 4 * classes)
    again, same = mini.sample(name, "val", 4 * classes)
    assert images.shape == (4 * classes, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    assert torch.bincount(labels, minlength=classes).tolist() == [4] * classes
    assert len(torch.unique(images.flatten(1), dim=0)) == len(images)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_image(name):
    parts = [mini.sample(name, split, 40)[0].flatten(1) for split in sampling.SPLITS]
    together = torch.cat(parts)
    assert len(torch.unique(together, dim=0)) == len(together)


def test_handwritten_splits_share_no_source():
    parts = sampling._written_digits()
    assert sum(len(labels) for _, labels in parts.values()) == 1797
    total = torch.cat([images.flatten(1) for images, _ in parts.values()])
    assert len(torch.unique(total, dim=0)) == 1797


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(TasklabError, match="did you mean 'Textures'"):
        mini.sample("Texture", "val", 8)
    with pytest.raises(TasklabError, match="did you mean 'test'"):
        mini.sample("Textures", "tests", 8)


@pytest.mark.parametrize("kind", KINDS)
def test_captions_are_in_the_vocabulary(kind):
    _, captions = draw_pairs(kind, 100, Rng(5))
    words = {word for caption in captions for word in caption.split()}
    tokens = mini.tokenize(sorted(words))
    assert ((tokens > 0).sum(1) == 3).all()  # begin, one token, end


def test_prompts_fit_the_context():
    for task in TASKS:
        for name in task["classes"]:
            for form in task["templates"]:
                assert len(form.format(name).split()) + 2 <= CONTEXT


def test_shards_are_reproducible_and_differ():
    images, captions = pretraining_shard(0, 3, 256)
    again, same = pretraining_shard(0, 3, 256)
    assert torch.equal(images, again)
    assert captions == same
    assert not torch.equal(images, pretraining_shard(0, 4, 256)[0])
    assert 0 < sum(caption in GENERIC for caption in captions) < 50


def test_pretraining_resumes_bit_for_bit(tmp_path, monkeypatch):
    recipe = run.Recipe(steps=4, batch_size=8, shard=16, warmup=1)
    whole = run.pretrain(recipe, tmp_path / "whole", every=2, images=10)
    save = loop.save

    def interrupted(path, step, *rest):
        save(path, step, *rest)
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.pretrain(recipe, tmp_path / "parts", every=2, images=10)
    monkeypatch.setattr(loop, "save", save)
    resumed = run.pretrain(recipe, tmp_path / "parts", every=2, images=10)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    log = json.loads((tmp_path / "parts" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [2, 4]


def test_contrastive_loss_takes_equal_captions_as_one():
    """Two equal captions with equal images: the best loss is log 2, the entropy of the target."""
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    tokens = torch.tensor([[7, 8], [7, 8]])
    loss = objectives.contrastive_loss(same, same, tokens, torch.tensor(100.0))
    assert loss.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


def test_the_learning_rate_is_flat_then_falls_to_zero():
    recipe = run.Recipe(steps=100, warmup=10, lr=1.0)
    rates = [recipe.lr_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:80] == [1.0] * 70
    assert rates[90] == pytest.approx(0.5)
    assert not recipe.decaying(80)
    assert recipe.decaying(81)


@pytest.mark.parametrize("name", sorted(set(run.RECIPES) & set(zoo.MODELS)))
def test_the_card_describes_the_shipped_weights(name):
    card, path = mini.card(name), mini.weights_path(name)
    assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stat().st_size <= 10_000_000
    assert card["parameters"] == sum(tensor.numel() for tensor in load_file(path).values())
    assert card["curve"][-1]["step"] == card["recipe"]["steps"] == run.RECIPES[name].steps


@pytest.mark.parametrize("name", ["mini_convnext", "mini_sup_few"])
def test_other_models_are_pretrained_by_the_same_loop(tmp_path, name):
    recipe = dataclasses.replace(run.RECIPES[name], steps=2, batch_size=8, shard=16, warmup=1)
    model = run.pretrain(recipe, tmp_path, name=name, every=1, images=10)
    task = run.objective(name, recipe)
    shipped = task.shipped(model).state_dict()
    kept = load_file(tmp_path / "step00002.safetensors")
    assert kept.keys() == shipped.keys() and not any(k.startswith("head.fc") for k in kept)
    first, last = json.loads((tmp_path / "log.json").read_text())
    assert (first["step"], last["step"]) == (1, 2)


@pytest.mark.parametrize("classes", ["few", "many"])
def test_labelled_pictures_are_reproducible_and_have_their_classes(classes):
    images, labels = labelled_shard(0, 2, 600, classes)
    again, same = labelled_shard(0, 2, 600, classes)
    assert torch.equal(images, again) and torch.equal(labels, same)
    assert images.shape == (600, 3, 32, 32) and images.dtype == torch.uint8
    assert labels.min() >= 0 and labels.max() < CLASSES[classes]
    assert not torch.equal(images, labelled_shard(0, 3, 600, classes)[0])
    assert len(labels.unique()) > CLASSES[classes] / 3


def test_the_shipped_model_knows_about_half_of_each_task():
    """Zero-shot accuracy on validation images is what the card says, and what the world aims at."""
    from tasklab.analyses import evaluation
    from tasklab.models import loading
    from tasklab.storage.store import Store
    from tasklab.tasks import drawn
    from tasklab.tasks.suites import suite
    from tasklab.taskvector import TaskVector

    tasks = suite("mini")
    evaluator = evaluation.Evaluator(loading.load("mini"), tasks, Store())
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
