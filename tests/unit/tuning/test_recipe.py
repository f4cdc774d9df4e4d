"""Configurations: complete, checked, and equal where they mean the same."""

import dataclasses

import pytest
import torch

from tasklab import machine
from tasklab.bench.parameters import Parameters
from tasklab.models import zoo
from tasklab.tasks import suites
from tasklab.tuning import methods
from tasklab.tuning import recipe as config
from tasklab.tuning.recipe import FineTune, recipe
from tests.helpers import refuses


@pytest.fixture(autouse=True)
def slow_in_bfloat16(monkeypatch):
    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: False)


def test_defaults_are_the_papers_and_identities_alike():
    run = FineTune(task="Cars")
    assert (run.steps, run.batch_size, run.lr, run.warmup) == (2000, 128, 1e-5, 200)
    assert (run.weight_decay, run.clip, run.precision) == (0.1, 1.0, "float32")
    assert recipe("vitb32", "Cars", "nonlinear") == dataclasses.replace(run, model="vitb32")
    assert recipe("vitb32", "Cars", "linearized", steps="2").warmup == 0
    assert recipe("vitl14", "Cars", "linearized", steps=500).warmup == 50
    one = FineTune(task="Cars", checkpoint_every=3)
    assert one.identity() == FineTune(task="Cars").identity()
    assert one.identity() != FineTune(task="Cars", seed=1).identity()
    one = FineTune(task="Cars", steps=10, lr=1)
    assert repr(one.identity()) == repr(FineTune(task="Cars", steps="10", lr=1.0).identity())


@pytest.mark.parametrize("method", methods.METHODS)
def test_the_mini_recipe(method):
    run = recipe("mini", "Vehicles", method)
    warmup = 60 if methods.TABLE[method].published else 24  # 500 of 2,000 steps, or a tenth
    assert (run.steps, run.batch_size, run.warmup) == (240, 64, warmup)
    assert run.lr == zoo.MINI_LR[methods.TABLE[method].rates or method]


def test_identity_is_what_it_was():
    """Results in stores are found by it."""
    assert recipe("mini", "Textures", "nonlinear").identity() == {
        "task": "Textures", "method": "nonlinear", "model": "mini", "init": "pretrained",
        "suite": "mini", "seed": 0, "steps": 240, "batch_size": 64, "lr": 8e-4, "weight_decay": 0.1,
        "warmup": 24, "clip": 1.0, "beta1": 0.9, "beta2": 0.98, "precision": "float32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "device", "capability", "expected"),
    [
        ("vitb32", "cuda:1", (8, 0), "bfloat16"),
        ("timm/resnet50.a1_in1k", "cuda:1", (9, 0), "bfloat16"),
        ("vitb32", "cuda:1", (7, 5), "float32"),  # has it, but emulated
        ("vitb32", "cpu", (9, 0), "float32"),
        ("mini", "cuda:1", (9, 0), "bfloat16"),
        ("mini_t5", "cuda:1", (7, 5), "float32"),
        ("mini", "cpu", None, "bfloat16"),  # fast there
        ("vitb32", "cpu", None, "bfloat16"),
    ],
)
def test_precision_by_device(monkeypatch, model, device, capability, expected):
    def of(asked):
        assert asked in ("cuda:1", 1)
        return capability

    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: capability is None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", of)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
    chosen = Parameters(model=model, device=device)
    assert chosen.recipe("Cars", "nonlinear", 0).precision == expected
    for precision in config.PRECISIONS:  # what is asked for is what one gets
        asked = dataclasses.replace(chosen, precision=precision)
        assert asked.recipe("Cars", "linearized", 0).precision == precision


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "vitb23"}, "did you mean 'vitb32'"),
        ({"method": "attentoin"}, "did you mean 'attention'"),
        ({"method": "posthoc"}, "method 'nonlinear'"), ({"suite": "minni"}, "did you mean 'mini'"),
        ({"init": "pretraind"}, "did you mean 'pretrained'"),
        ({"precision": "float16"}, "bfloat16"), ({"steps": -1}, "steps must be at least 1, not -1"),
        ({"steps": 2.5}, "whole number"), ({"steps": True}, "whole number"),
        ({"lr": float("nan")}, "lr must be a finite number"), ({"lr": -1.0}, "at least 0"),
        ({"lr": 0}, "lr must be above 0"), ({"beta2": 1.0}, "below 1"), ({"clip": 0}, "clip"),
        ({"task": ""}, "task"),
    ],
)  # fmt: skip
def test_impossible_runs(change, message):
    refuses(message, FineTune, **{"task": "Cars", **change})


def test_parameters_fill_in_and_take_strings():
    chosen = Parameters(device="cpu")
    assert (chosen.suite, chosen.seeds, chosen.steps) == ("mini", (0,), None)
    assert Parameters(preset="full", device="cpu").seeds == (0, 1, 2)
    assert Parameters().device in {"cpu", "cuda"}
    chosen = Parameters(seeds="2", steps="7", device="cpu", store_root="~/x")
    assert (chosen.seeds, chosen.steps) == ((0, 1), 7)
    assert "~" not in str(chosen.store_root)
    assert Parameters(seeds=[3, "4"], device="cpu").seeds == (3, 4)
    run = chosen.recipe("Vehicles", "linearized", 1)
    assert (run.seed, run.steps, run.batch_size) == (1, 7, config.REHEARSAL_BATCH)
    for model in ("mini", "vitb32"):
        chosen = Parameters(model=model, steps=2, lr=0.5, head="probe", device="cpu")
        run = chosen.recipe("Signs", "nonlinear", 0)
        assert chosen.rehearsal and not dataclasses.replace(chosen, steps=10).rehearsal
        size = config.REHEARSAL_BATCH if model == "mini" else 1
        assert (run.steps, run.batch_size, run.lr) == (2, size, 0.5)
        assert run.probe == config.Probe(steps=2, batch_size=config.REHEARSAL_BATCH, images=8)


@pytest.mark.parametrize(
    ("model", "preset", "expected"),
    [
        ("mini", "quick", (45, 32, 4, 0.1, 500, 1500)),
        ("mini_t5", "quick", (90, 32, 9, 0.1, 500, 1500)),
        ("minilm", "quick", (16, 32, 1, 0.1, 500, 1500)),
        ("mini_t5", "full", (480, 64, 48, 0.1, 2000, None)),
        ("vitb32", "quick", (500, 128, 50, None, 2000, None)),
        ("timm/resnet50.a1_in1k", "full", (2000, 128, 200, None, 2000, None)),
    ],
)
def test_a_recipe_is_complete(model, preset, expected):
    run = Parameters(model=model, preset=preset, device="cpu").recipe("Signs", "linearized", 0)
    probe = run.probe
    found = run.steps, run.batch_size, run.warmup, probe.lr, probe.steps, probe.images
    assert found == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "vitb23"}, r"did you mean 'vitb32'\? Choices: mini, vitb32"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": []}, "empty"),
        ({"seeds": [1, 1]}, "repeat"),
        ({"preset": "fast"}, "Choices: quick, full"),
        ({"suite": "papers"}, "suite"),
        ({"device": "gpu"}, "cuda"),
        ({"device": "cuda:99"}, "not there"),
        ({"store_root": ""}, "store_root"),
        ({"data_root": __file__}, "not a folder"),
    ],
)
def test_impossible_parameters(change, message):
    refuses(message, Parameters, **{"device": "cpu", **change})


def test_the_mini_suite_and_nearest_names():
    mini = suites.suite("mini")
    assert len(mini.tasks) == 8 and mini.control.control
    assert mini.names[0] == "Vehicles" and mini.control.name not in mini.names
    refuses("did you mean 'Handwritten'", lambda: mini["Handwriten"])
    refuses("did you mean 'linearized'", recipe, "mini", "Vehicles", "linearised")
    refuses("not a way to train", recipe, "mini", "Vehicles", "posthoc")


@pytest.mark.parametrize(
    "change", [{"classes": ("a", "a")}, {"templates": ()}, {"templates": ("a photo",)}]
)
def test_tasks_that_cannot_be(change):
    fields = {"name": "x", "classes": ("a", "b"), "templates": ("a {}",), "stand_in_for": "y"}
    refuses("", suites.Task, **{**fields, **change})
