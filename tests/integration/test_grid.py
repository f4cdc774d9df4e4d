"""Grids that train, in order on one machine."""

import pytest

from tasklab.bench.parameters import Parameters
from tasklab.cli.cluster import grid
from tasklab.cli.cluster.grid import Grid
from tasklab.evidence.experiments import Lab
from tasklab.tuning import finetune


@pytest.fixture
def small(tmp_path):
    return Grid(tasks=["Textures", "Scenes"], steps=2, store_root=tmp_path / "store", device="cpu")


def test_a_method_that_looks_at_other_tasks_has_those_of_the_suite(small):
    small = small.changed(models="mini_xs", tasks="Scenes")
    (job,) = grid.plan(small.changed(methods="tau_jp"))
    lab = Lab("mini_xs", steps=2, device="cpu", progress=False)
    assert job.key == lab.store.key(lab.identity("Scenes", "tau_jp", 0))
    assert len(lab.run("Scenes", "tau_jp", 0).others) == len(lab.suite.names) - 1
    table = grid.run(small.changed(methods=["tau_jp", "ortho_reg"]), progress=False)
    assert table["state"].tolist() == ["done", "done"]


def test_in_order_one_that_fails_does_not_stop_the_others(small, monkeypatch, tmp_path):
    real = finetune.Trainer.__call__
    problems = {
        "Scenes": finetune.DivergedError("fine-tuning on Scenes diverges at step 1", 1),
        "Signs": RuntimeError("CUDA out of memory"),
    }

    def some_fail(self, config, *args):
        if config.task in problems:
            raise problems[config.task]
        return real(self, config, *args)

    monkeypatch.setattr(finetune.Trainer, "__call__", some_fail)
    three = small.changed(tasks=["Scenes", "Signs", "Textures"])
    table = grid.run(three, progress=False)
    assert tuple(table.columns) == grid.COLUMNS
    assert list(table["state"]) == ["failed", "failed", "done"]
    assert list(table["error"]) == [str(problems["Scenes"]), "RuntimeError: CUDA out of memory", ""]
    assert list(table["attempts"]) == [1, 1, 1] and (table["node"] != "").all()

    monkeypatch.setattr(finetune.Trainer, "__call__", real)
    table = grid.run(three, progress=False)
    assert list(table["state"]) == ["done", "done", "kept"]
    kept = table.iloc[2]
    assert (kept["seconds"], kept["attempts"], kept["node"]) == (0.0, 0, "")
    lab = Lab(Parameters(steps=2, store_root=tmp_path / "store", device="cpu"), progress=False)
    monkeypatch.setattr(finetune, "train", None)  # what the grid left is what a chapter reads
    assert set(lab.vectors("posthoc", 0, three.tasks)) == set(three.tasks)
