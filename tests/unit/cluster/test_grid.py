"""Grids in order on one machine: which runs they are, what is checked, and what fails alone."""

import contextlib
import dataclasses
import types

import pytest

from tasklab import machine
from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.cli.cluster import grid, ray_cluster
from tasklab.cli.cluster.grid import Grid
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.models import loading
from tasklab.tuning import finetune
from tests.helpers import refuses


@pytest.fixture
def small(tmp_path):
    return Grid(tasks=["Textures", "Scenes"], steps=2, store_root=tmp_path / "store", device="cpu")


def test_runs_are_named_and_counted_once(small):
    one = Grid(models="mini", methods="nonlinear", tasks=["Scenes", "Scenes"])
    assert (one.models, one.methods, one.tasks) == (("mini",), ("nonlinear",), ("Scenes",))
    refuses("methods is empty", Grid, methods=[])
    both = small.changed(methods=["nonlinear", "full"], head="trained")
    expected = [("nonlinear", "Textures"), ("nonlinear", "Scenes")]
    assert [(j.method, j.task) for j in grid.plan(both)] == expected
    (job, _) = grid.plan(small)
    seconds, error = grid._work(dataclasses.replace(job, key="0" * 20), None)
    assert "another version" in error and not job.settings["store_root"].exists()


def test_a_grid_is_all_combinations_in_order_under_the_keys_of_a_lab(small):
    methods = ["nonlinear", "posthoc", "linearized"]  # post-hoc vectors are non-linear ones
    jobs = grid.plan(small.changed(methods=methods, seeds=[3, 5]))
    assert [(j.method, j.task, j.seed) for j in jobs] == [
        (method, task, seed)
        for method in ("nonlinear", "linearized")
        for task in ("Textures", "Scenes")
        for seed in (3, 5)
    ]
    assert len({j.key for j in jobs}) == 8 and not any(j.kept for j in jobs)
    lab = Lab(Parameters(steps=2, device="cpu"), progress=False)
    for job in jobs[::3]:
        run = lab.run(job.task, job.method, job.seed)
        assert job.key == lab.store.key(finetune.identity(run, lab.clip, lab.suite))


def test_all_that_is_wrong_is_told_before_any_work(small, monkeypatch, tmp_path):
    locate = loading.locate

    def without_one(name, *args, **more):
        if name == "mini_s":
            raise TasklabError("the weights of mini_s are missing")
        return locate(name, *args, **more)

    monkeypatch.setattr(loading, "locate", without_one)
    monkeypatch.setattr(finetune.Trainer, "__call__", None)
    wrong = small.changed(
        models=["mini", "mini_s", "mini_convnext", "mine"],
        methods=["linearizd", "attention"],
        tasks=["Textures", "Scnes"],
    )
    error = refuses("", grid.run, wrong, progress=False)
    lines = error.splitlines()
    for expected in (
        "did you mean 'linearized'",
        "did you mean 'Scenes'",
        "the weights of mini_s are missing",
        "unknown model 'mine'",
    ):
        assert sum(expected in line for line in lines) == 1
    assert sum("mini_convnext has no parameter" in line for line in lines) == 1
    assert not (tmp_path / "store").exists()


def test_missing_images_are_told_before_any_work(small, tmp_path):
    (tmp_path / "empty").mkdir()
    data_root = tmp_path / "empty"
    wrong = small.changed(suite="paper", tasks="Cars", data_root=data_root, methods=["atention"])
    refuses("(?s)did you mean 'attention'.*Cars", grid.plan, wrong)


def test_the_command_lists_runs_and_fails_if_one_does(small, monkeypatch, capsys):
    words = ["train", "--task", "Textures", "--steps", "2", "--seeds", "0,4", "--device", "cpu"]
    words += ["--store-root", str(small.given["store_root"])]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "to do  mini, nonlinear, Textures, seed 0",
        "to do  mini, nonlinear, Textures, seed 4",
        "2 runs, 0 kept",
    ]
    real = finetune.Trainer.__call__

    def one_fails(self, config, *args):
        if config.seed == 4:
            raise TasklabError("no")
        return real(self, config, *args)

    monkeypatch.setattr(finetune.Trainer, "__call__", one_fails)
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "mini, nonlinear, Textures, seed 4" in shown and shown.rstrip().endswith("1 failed")
    assert main(["1" if word == "0,4" else word for word in words]) == 0
    assert capsys.readouterr().out == "1 run: 1 kept\n"
    assert main([*words, "--cpus", "0"]) == 2
    assert main([*words, "--seeds", "1,x"]) == 2


@pytest.mark.parametrize(("fast", "asked"), [(True, None), (False, None), (True, "float32")])
def test_a_cluster_has_one_precision_and_not_the_planning_machine(small, monkeypatch, fast, asked):
    """Workers with GPUs must come to the same keys as the machine that lays out the grid."""
    expected = asked or ("bfloat16" if fast else "float32")
    cluster = types.SimpleNamespace(bfloat16=lambda: fast)
    join = contextlib.nullcontext(cluster)
    monkeypatch.setattr(ray_cluster, "join", lambda address, gpus: join)
    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: True)
    models = "timm/test_vit.r160_in1k"
    timm = small.changed(models=models, init="random", device=None, precision=asked)
    for job in grid.plan(timm, "auto"):
        parameters = Parameters(**job.settings)
        run = parameters.recipe(job.task, job.method, job.seed)
        assert run.precision == expected
        assert grid._work(job, None)[1] == ""  # whatever device there is
    shipped = small.changed(device=None, precision=asked)
    for job in grid.plan(shipped, "auto"):
        assert Parameters(**job.settings).recipe(job.task, job.method, 0).precision == expected


def test_memory_is_that_of_the_machines_which_fine_tune(small, monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(1, 1))
    refuses("fine-tuning mini takes", grid.plan, small)
    join = contextlib.nullcontext(types.SimpleNamespace(bfloat16=lambda: True))
    monkeypatch.setattr(ray_cluster, "join", lambda address, gpus: join)
    (job, _) = grid.plan(small, "auto")
    assert "fine-tuning mini takes" in grid._work(job, None)[1]
