"""Merges that are trained, through experiments and commands; the rules are tested in the unit."""

import json

import numpy as np
import pytest
import torch

from tasklab.__main__ import main
from tasklab.analyses.merging import distilling
from tasklab.bench import minima
from tasklab.bench.lab import Lab
from tasklab.evidence import experiments
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

TASKS = ("Vehicles", "Textures")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(minima, "DISTILLED", {"distillation": 24, "prodistill": 4, "mats": 100})
    here = tmp_path_factory.mktemp("distilled") / "store"
    patch.setenv("TASKLAB_STORE", str(here))
    lab = Lab(model="mini_xs", steps=20, tasks=TASKS, progress=False)
    yield Lab(lab.parameters, tasks=TASKS, progress=False)
    patch.undo()


def test_trained_merges_are_tested_searched_and_judged_as_others(lab):
    names = ["distillation", "prodistill", "mats"]
    rows = experiments.merging(lab, ["nonlinear"], ["arithmetic", *names])
    test = rows[rows["metric"] == "absolute"]
    assert test.groupby("merge")["task"].nunique().to_dict() == dict.fromkeys(test["merge"], 2)
    losses = experiments.merge_loss(lab, ["nonlinear"], names)
    made = losses[losses["chosen_by"] == "training"]
    assert (made["alpha"] == 1).all() and made["merge"].nunique() == 3
    # the accuracy as trained is that of the vector which `lab.merge` returns, at the coefficient 1
    for name, own in made[made["metric"] == "absolute"].groupby("merge"):
        again = lab.evaluate(lab.merge(name, lab.vectors("nonlinear", 0)), TASKS, "test")
        assert own["value"].mean() == pytest.approx(again.mean["after"], abs=1e-6)


def test_the_command_writes_the_vector_that_lowers_the_loss_on_other_images(lab, tmp_path, capsys):
    files = []
    for task, vector in lab.vectors("nonlinear", 0).items():
        files.append(str(vector.save(tmp_path / f"{task}.safetensors")))
    words = ["merge", *files, "--model", "mini_xs", "--method", "distillation"]
    assert main([*words, "--out", str(tmp_path / "out.st"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {"alpha": 1.0}
    merged, encoder = TaskVector.load(tmp_path / "out.st"), lab.clip.encoder
    vectors = lab.vectors("nonlinear", 0)
    total = sum(vectors.values(), start=0 * merged)

    def loss(tau):
        each = []
        for task, own in vectors.items():
            x = lab.evaluator.images(task, "test").x
            apart = distilling.features(encoder, tau, x) - distilling.features(encoder, own, x)
            each.append(float(apart.square().sum(1).mean()))
        return np.sum(each)

    assert loss(merged) < 0.8 * min(loss(total), loss(0.5 * total))
    assert lab.merge("distillation", vectors, alpha=0.5) == 0.5 * merged


def test_a_linearized_model_is_not_distilled(lab):
    linear = Lab(lab.parameters, tasks=TASKS, progress=False)
    refuses("least_few", experiments.merging, linear, ["linearized"], ["distillation"])
    assert torch.isfinite(next(iter(linear.vectors("linearized", 0)["Textures"].values()))).all()
