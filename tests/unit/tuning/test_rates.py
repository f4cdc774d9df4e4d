"""The search for a learning rate: one run at each of the paper's rates, the best by validation."""

import dataclasses

import pytest
import torch

from tasklab.tasks import drawn, suites
from tasklab.tuning import finetune, rates, recipe
from tasklab.tuning.methods import JOINT
from tasklab.tuning.recipe import FineTune
from tests.helpers import refuses
from tests.tinyclip import SIZE, tiny

SUITE = suites.suite()
COUNTS = {"train": 50, "val": 17}
ASKED = FineTune(task="LandCover", steps=10, batch_size=16, warmup=0, lr=None, head="trained")


@pytest.fixture
def clip():
    return tiny()


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    def load(self, task, split="train", **kwargs):
        generator = torch.Generator().manual_seed(len(split))
        y = torch.randint(0, 10, (COUNTS[split],), generator=generator)
        x = torch.randint(0, 60, (len(y), 3, SIZE, SIZE), generator=generator)
        return drawn.Images((x + 20 * y.view(-1, 1, 1, 1)).byte(), y)

    monkeypatch.setattr(drawn.DrawnImages, "load", load)
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda self, task, split: f"{task} {split}")


def train(config, clip, store):
    return finetune.finetune(config, clip, store, progress=False)


def by_hand(config, clip, store):
    run = train(config, clip, store)
    images = drawn.images_of(SUITE).load(config.task, "val")
    encoder, x = clip.encoder, clip.encoder.preprocess(images.x)
    if config.method == "linearized":
        direction = {name: run.vector.get(name, 0 * p) for name, p in encoder.params.items()}
        call, start = lambda params: encoder(params, x), dict(encoder.params)
        features = sum(torch.func.jvp(call, (start,), (direction,)))
    else:
        features = encoder(run.vector.apply(encoder.params), x)
    right = run.head(features).argmax(-1) == images.y
    return 100 * float(right.double().mean())


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_the_rate_is_the_best_on_the_stand_in_for_cars(method, clip, store):
    config = dataclasses.replace(ASKED, method=method)
    run = train(config, clip, store)
    searched = [dataclasses.replace(config, task="Vehicles", lr=lr) for lr in rates.RATES]
    accuracies = {one.lr: by_hand(one, clip, store) for one in searched}
    assert len(set(accuracies.values())) > 1  # the rates differ in what they reach
    best = max(accuracies.values())
    assert run.record["lr"] == min(lr for lr, value in accuracies.items() if value == best)
    given = train(dataclasses.replace(config, lr=run.record["lr"]), clip, store)
    assert all(torch.equal(given.vector[name], tensor) for name, tensor in run.vector.items())


def test_another_task_and_seed_take_the_rate_that_was_found(clip, store, monkeypatch):
    train(ASKED, clip, store)
    monkeypatch.setattr(rates, "search", None)
    again = dataclasses.replace(ASKED, task="Signs", seed=1)
    assert train(again, clip, store).record["lr"] in rates.RATES


def test_what_diverges_is_left_out_and_a_search_without_an_end_says_so():
    run = rates.on(ASKED, SUITE)
    found = rates.search(run, lambda one: None if one.lr > 1e-4 else 50.0)
    assert found["lr"] == 1e-6  # of equals the lowest
    assert found["accuracies"] == [50.0, 50.0, 50.0, None, None, None]
    refuses("every learning rate of 1e-06 to 0.1", rates.search, run, lambda one: None)


def test_keys_trainers_and_penalties_of_a_search(clip, store):
    key = finetune.identity(ASKED, clip)
    assert key["lr"] is None
    assert key["search"]["rates"] == list(rates.RATES)
    assert key["search"]["data"] == ["Vehicles train", "Vehicles val"]
    assert "search" not in finetune.identity(dataclasses.replace(ASKED, lr=1e-3), clip)
    trainer = finetune.Trainer(clip, store, SUITE, progress=False)
    assert trainer.rate(dataclasses.replace(ASKED, lr=0.3)) == 0.3
    assert not [*store.configs("finetune")]
    assert trainer.rate(ASKED) == trainer(ASKED).record["lr"]
    others = ("Vehicles", "Places")
    config = dataclasses.replace(ASKED, task="Signs", method="tau_jp", others=others)
    asked = rates.on(config, SUITE)
    assert asked.task == "Vehicles"
    assert asked.others == tuple(name for name in SUITE.names if name != "Vehicles")


@pytest.mark.parametrize(
    ("head", "method", "preset", "searched"),
    [
        ("probe", "nonlinear", "full", True),
        ("probe", "linearized", "full", True),
        ("trained", JOINT, "full", True),
        ("zero_shot", JOINT, "full", True),
        ("zero_shot", "nonlinear", "full", False),  # tangent, appendix A: 1e-5
        ("trained", "nonlinear", "full", False),  # tangent, appendix D.6: likewise
        ("probe", "nonlinear", "quick", False),
        ("probe", "nonlinear", "rehearsal", False),
    ],
)
def test_published_models_search_in_the_closed_vocabulary(head, method, preset, searched):
    model = "vitb16" if head == "zero_shot" else "vitb16_in1k"
    run = recipe.recipe(model, "Cars", method, suite="paper", head=head, preset=preset)
    assert (run.lr is None) == searched
    given = recipe.recipe(model, "Cars", method, suite="paper", head=head, preset=preset, lr=2e-4)
    assert given.lr == 2e-4
