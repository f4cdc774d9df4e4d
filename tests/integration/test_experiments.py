"""The experiments end to end, at the smallest setting, on the embedded default."""

import pandas as pd
import pytest
import torch

from tasklab import bench
from tasklab.analyses import evaluation
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments
from tasklab.evidence.chapters import CHAPTERS, Work
from tasklab.evidence.records import images, judgement, schema
from tasklab.evidence.records import table as records
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.study import recording
from tasklab.tuning import finetune
from tests.helpers import refuses

METHODS = ("nonlinear", "posthoc", "linearized", "attention")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    return experiments.Lab(Parameters(model="mini_xs", steps=2, store_root=store), progress=False)


@pytest.fixture(scope="module")
def tables(lab):
    experiments.train(lab, METHODS)
    return {
        "single": experiments.single(lab, METHODS),
        "addition": experiments.addition(lab, METHODS),
        "negation": experiments.negation(lab, METHODS),
    }


@pytest.mark.slow
def test_records_are_complete(tables):
    together = records.combine(*tables.values())
    count = together.groupby(["experiment", "metric"]).size()
    assert count["single", "single"] == (1 + 4) * 8  # pre-trained, four methods
    assert count["addition", "absolute"] == count["addition", "normalised"] == 4 * 8
    # validation for all methods, test for the two linear ones, three coefficients
    assert count["sweep", "absolute"] == (4 + 2) * 8 * 3
    assert count["negation", "target"] == count["negation", "control"] == (1 + 4) * 8
    assert together.loc[together["metric"].isin(schema.ACCURACIES), "n"].notna().all()


def test_records_tell_which_images_were_answered_and_claims_compare_them(tables, monkeypatch):
    together = records.combine(*tables.values())
    tested = together[(together["split"] == "test") & (together["experiment"] != "sweep")]
    for row in tested[tested["metric"].isin(schema.ACCURACIES)].to_dict("records"):
        assert 100 * images.unpacked(row["hits"], row["n"]).mean() == row["value"]
    monkeypatch.setattr(images, "bounded", None)  # the images are known: their variance is exact
    again = together.assign(seed=together["seed"] + 1)  # as if of another seed
    twice = pd.concat([together, again[again["method"] != "pretrained"]])
    for name in ("tangent-1-absolute", "tangent-1-normalised", "tangent-2-target"):
        found = judgement.verdict(BY_ID[name], twice, model="mini_xs")
        assert found.n_seeds == 2 and found.n_tasks == 8
        differ = any(found.by_task.values())  # two steps may change no answer at all
        assert (found.here.low < found.here.high) == differ


def test_alpha_is_chosen_on_validation_images(tables, lab):
    table = tables["addition"]
    for method in METHODS:
        rows = table[(table["method"] == method) & (table["metric"] == "normalised")]
        curve = rows[(rows["experiment"] == "sweep") & (rows["split"] == "validation")]
        curve = curve.groupby("alpha")["value"].mean()
        chosen = rows[rows["experiment"] == "addition"]["alpha"].unique()
        assert len(chosen) == 1
        assert curve[chosen[0]] == curve.max()
    refuses("rehearsal", recording.study, "tangent", lab.parameters)


def test_a_second_lab_reads_the_store(lab, tables, monkeypatch):
    """Nothing is trained or evaluated twice, and the numbers are the same."""
    again = experiments.Lab(lab.parameters, progress=False)
    monkeypatch.setattr(finetune, "train", None)
    monkeypatch.setattr(evaluation.Evaluator, "features", None)
    monkeypatch.setattr(evaluation.Evaluator, "tangent_features", None)
    experiments.train(again, METHODS)
    for name in ("single", "addition", "negation"):
        pd.testing.assert_frame_equal(getattr(experiments, name)(again, METHODS), tables[name])


def test_a_study_writes_records_with_their_origin(lab, tables, tmp_path):
    path = recording.study("tangent", lab.parameters, part="kernels", out=tmp_path / "kernels.csv")
    table, origin = records.read(path)
    assert set(table["experiment"]) == {"localization"}
    assert origin["weights"] == lab.clip.encoder.weights_hash
    assert origin["recipe"] is None and origin["fine_tuning"] == {"runs": 0, "seconds": 0.0}
    measuring = origin["measuring"]
    assert measuring["timed"] == measuring["runs"] > 0 and measuring["seconds"] > 0
    assert origin["machine"]["cores"] >= 1


def test_a_study_tells_recipes_and_seconds(lab, tables, tmp_path, monkeypatch):
    works = (
        Work(("nonlinear", "linearized", "posthoc"), {"single": {}}, seeds=1),
        Work(("nonlinear",), {"rate_search": {"rates": (1e-4, 2e-4), "prolong": False}}),
    )
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", works)
    path = recording.study("tangent", lab.parameters, out=tmp_path / "few.csv")
    _, origin = records.read(path)
    assert (origin["recipe"]["steps"], origin["recipe"]["model"]) == (2, "mini_xs")
    usual = {m: lab.run("Signs", m, 0).lr for m in ("nonlinear", "linearized")}
    assert origin["recipes"] == {
        "nonlinear": {"lr": [1e-4, 2e-4, usual["nonlinear"]]},
        "linearized": {"lr": usual["linearized"]},
    }
    n = len(lab.suite.names)
    assert origin["fine_tuning"]["runs"] == 4 * n
    spent = sum(
        lab.store.find("finetune", lab.identity(t, "linearized", 0)).record["seconds"]
        for t in lab.suite.names
    )
    assert origin["fine_tuning"]["seconds"] > spent > 0


def test_full_size_architecture_runs_the_same_code(tmp_path):
    """One task on ViT-B/32 with random weights: images resized, a step, an edited model."""
    parameters = Parameters(model="vitb32", init="random", steps=1, store_root=tmp_path)
    lab = experiments.Lab(parameters, progress=False)
    lab.scale = bench.Scale(counts={"val": 2, "test": 2}, alphas=(0.0, 1.0))
    lab.evaluator.counts = dict(lab.scale.counts)
    vector = lab.vectors("linearized", 0, ["Scenes"])["Scenes"]
    assert vector.norm() > 0
    curve = lab.evaluator.sweep(vector, ["Scenes"], "test", linear=True, alphas=(0.0, 1.0))
    assert curve.shape == (2, 1)
    assert torch.isfinite(torch.tensor(curve)).all()
