"""The analyses of the chapters end to end, at the smallest setting, on the shipped models."""

import numpy as np
import pandas as pd
import pytest
import torch

from tasklab import machine
from tasklab.analyses import disentanglement, kernels, tangent_gap
from tasklab.bench import preflight
from tasklab.bench.parameters import Parameters
from tasklab.bench.runs import tasks_of
from tasklab.evidence import experiments
from tasklab.evidence.chapters import Work
from tasklab.evidence.experiments import kernels as measured
from tasklab.evidence.records import claims, images, judgement
from tasklab.evidence.records import table as records
from tasklab.evidence.study import recording, results
from tasklab.models import loading
from tasklab.models.zoo import FAMILIES
from tasklab.tuning import finetune
from tests.helpers import refuses

PAIR = ("Textures", "Scenes")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    return experiments.Lab("mini_xs", steps=2, store_root=store, progress=False, tasks=PAIR)


def test_a_map_is_made_of_the_labs_vectors_and_kept(lab, monkeypatch):
    table = experiments.disentanglement(lab, ["nonlinear", "linearized"])
    alphas = disentanglement.grid(3.0, lab.scale.points)
    assert len(table) == 2 * 2 * len(alphas) ** 2  # methods, metrics
    found = disentanglement.error_map(
        lab.evaluator, lab.vectors("linearized", 0), linear=True, alphas=alphas,
        images=lab.scale.images,
    )  # fmt: skip
    rows = table[(table["method"] == "linearized") & (table["metric"] == "xi_classifier")]
    cells = rows.pivot(index="alpha1", columns="alpha2", values="value").to_numpy()
    np.testing.assert_allclose(cells, found.classifier)
    assert set(images.box_means(table)["metric"]) == {
        "xi_classifier_box", "xi_representation_box",
    }  # fmt: skip
    monkeypatch.setattr(disentanglement, "error_map", None)
    again = experiments.disentanglement(lab, ["nonlinear", "linearized"])
    pd.testing.assert_frame_equal(again, table)


def test_choices_and_negations_are_exact(lab):
    table = experiments.exact_alpha(lab, ["posthoc", "linearized"])
    chosen = table[table["split"] == "validation"].groupby(["method", "metric"])["value"].mean()
    for method in ("posthoc", "linearized"):
        assert chosen[method, "chosen_exact"] >= chosen[method, "chosen_grid"] - 1e-9
    table = experiments.own_coefficients(lab, ["nonlinear", "linearized"])
    mean = table[table["split"] == "validation"].groupby(["method", "metric"])["value"].mean()
    for method in ("nonlinear", "linearized"):
        assert mean[method, "normalised_own"] >= mean[method, "normalised_shared"] - 1e-9
    table = experiments.exact_negation(lab, ["posthoc", "linearized"])
    assert set(table["metric"]) == {"target", "control"} and table["hits"].notna().all()
    assert len(table) == 2 * 2 * len(lab.suite.names) and table["alpha"].between(0, 1).all()


def test_localization_compares_initialisations_and_seeds(lab):
    table = experiments.localization(lab)
    shares = table[table["metric"] == "unseen_share"]
    assert set(shares["init"]) == {"pretrained", "random"}
    assert shares["value"].between(0, 1).all()
    count = table[table["metric"] == "energy"].groupby(["init", "subset", "side"]).size()
    assert (count == lab.scale.kernel_images).all()
    assert len(count) == 2 * lab.scale.kernel_classes * 3
    both = experiments.localization(lab.sibling(seeds="0,1"))
    shares = both[both["metric"] == "unseen_share"]
    wide = shares.pivot(index=["init", "subset"], columns="seed", values="value")
    assert (wide[0] != wide[1]).all()
    first = experiments.localization(lab)
    expected = first[first["metric"] == "unseen_share"]["value"].tolist()
    assert shares[shares["seed"] == 0]["value"].tolist() == expected
    assert set(both.loc[both["metric"] == "energy", "seed"]) == {0}
    x = torch.arange(5.0)
    drawn = [measured._drawn(x, 2, seed, "A").tolist() for seed in (0, 1, 2, 3)]
    assert drawn[:2] == [[0, 1], [2, 3]] and drawn[2] != drawn[3]
    assert all(len({*one}) == 2 and {*one} <= {*x.tolist()} for one in drawn[2:])
    assert measured._drawn(x, 2, 2, "A").tolist() == drawn[2]
    refuses("5 images of A are too few for kernels of 6", measured._drawn, x, 6, 0, "A")
    assert len(experiments.localization(lab.sibling(seeds=[5000]), ["pretrained"]))


def test_kernels_of_one_seed_serve_among_others(lab, monkeypatch):
    """So that `study --jobs` shares the seeds out, and each is measured once."""
    own = lab.sibling(store_root=lab.store.root.with_name("kernels"))
    for seed in (0, 1):
        experiments.localization(own.sibling(seeds=[seed]), ["pretrained"])
    monkeypatch.setattr(kernels, "gram", None)
    both = experiments.localization(own.sibling(seeds=[0, 1]), ["pretrained"])
    assert set(both.loc[both["metric"] == "share", "seed"]) == {0, 1}


def test_layers_and_costs_become_records(lab):
    cosines = experiments.cosines(lab, ["nonlinear", "attention"])
    whole = cosines[cosines["metric"] == "cosine"].set_index("method")["value"]
    for method in ("nonlinear", "attention"):
        one, two = lab.vectors(method, 0).values()
        assert whole[method] == pytest.approx(one.cosine(two), abs=1e-6)
    aligned = experiments.alignment(lab, ["nonlinear", "posthoc"])
    assert set(aligned["experiment"]) == {"alignment", "interference"}
    table = experiments.step_cost(lab, ("standard", "ours", "listing", "attention"), rounds=2)
    assert set(table["metric"]) == {"seconds_per_step", "time_ratio", "peak_memory", "trainable"}
    assert set(table["method"]) == {"nonlinear", "linearized", "attention"}
    claim = claims.BY_ID["linear-3-cost-memory"]
    assert judgement.verdict(claim, table).outcome != "not tested"
    for roles in FAMILIES:
        assert set(roles.values()) <= set(loading.REGISTRY)


def test_trained_heads_learn_and_belong_to_their_vectors(lab):
    closed = lab.sibling(model="mini_sup_few", tasks=PAIR)
    assert closed.clip.text is None
    evaluator = closed.evaluator_of("nonlinear", 0)
    for task in PAIR:
        head = closed.tune(task, "nonlinear", 0).head
        assert np.array_equal(evaluator.head(task).weight, head.weight) and not head.normalise
    vector = closed.vectors("nonlinear", 0)["Scenes"]
    assert not any(name.startswith("classifier") for name in vector)
    table = experiments.addition(closed, ["nonlinear", "linearized"])
    assert set(table["n_tasks"].dropna()) == {2}


@pytest.mark.parametrize("role", ["small", "convnext", "text", "random"])
def test_relatives_run_the_same_code(lab, role):
    other = lab.relative(role)
    assert len(other.suite.names) == 2
    methods = ["nonlinear", "linearized"]
    table = records.combine(
        experiments.single(other, methods), experiments.disentanglement(other, methods)
    )
    assert set(table["method"]) == {"pretrained", *methods}
    assert (table["init"] == ("random" if role == "random" else "pretrained")).all()


def lacking(parameters, *roles):
    images = preflight.images_of(parameters, tasks_of(parameters))
    return refuses("", preflight.complete, parameters, images, roles)


def test_missing_weights_of_relatives_are_all_named_at_once(tmp_path, monkeypatch):
    """Nothing is loaded or trained before."""
    ample = machine.Memory(64 * machine.GIB, 64 * machine.GIB)
    monkeypatch.setattr(machine, "memory", lambda: ample)
    space = machine.Disk(str(tmp_path), 64 * machine.GIB, 64 * machine.GIB, True)
    monkeypatch.setattr(machine, "disk", lambda path: space)
    shared = {"model": "vitb32", "steps": 2, "store_root": tmp_path}
    random = Parameters(init="random", **shared)  # random weights are always there
    lab = experiments.Lab(random, progress=False, tasks=PAIR)
    caught = lacking(Parameters(**shared), "medium", "closed")
    for name in ("vitb32", "vitb16", "vitb16_in1k"):
        assert f"model {name!r} are not on this machine" in caught
    refuses("role", lab.relative, "mediun")


def test_too_little_memory_or_disk_is_said_with_all_else(tmp_path, monkeypatch):
    free = 5 * machine.GIB
    memory, disk = machine.Memory(free, free), machine.Disk(str(tmp_path), free // 10, free, True)
    monkeypatch.setattr(machine, "memory", lambda: memory)
    monkeypatch.setattr(machine, "disk", lambda path: disk)
    large = Parameters(model="vitl14", store_root=tmp_path, device="cpu")
    lines = lacking(large, "small", "text").splitlines()
    assert sum("not on this machine" in line for line in lines) == 3
    (one,) = [line for line in lines if "of memory even one image" in line]  # vitb32 and T5 fit
    assert one.startswith("fine-tuning vitl14 takes 6.2 GiB") and "5.0 GiB are free on cpu" in one
    told = [line.split(" takes ")[0] for line in lines if "of disk" in line]
    assert told == ["a run of vitl14", "a run of vitb32", "a run of t5_base"]
    shipped = Parameters(store_root=tmp_path, device="cpu")
    experiments.Lab(shipped, progress=False, tasks=PAIR)


def test_a_part_of_a_study_spans_models(tmp_path, lab):
    work = Work(("nonlinear",), {"disentanglement": {"n_pairs": 1}}, {"model": "mini_xs"}, 1)
    (table,) = recording._records(lab.parameters, work, lab.parameters.seeds[:1], progress=False)
    assert set(table["model"]) == {"mini_xs"}
    refuses("did you mean 'maps'", results.recorded, "tangent", "map")


def test_gaps_of_linearized_attention_vectors(lab):
    table = experiments.linear_gaps(lab, ["nonlinear", "attention"], scales=(0.5, 1.0))
    blocks = len(lab.clip.encoder.blocks)
    assert table.groupby("metric").size().to_dict() == {
        "gap": 2 * 2, "gap_along": 2 * 2 * 2, "gap_block": 2 * 2 * 2 * blocks,
    }  # fmt: skip
    along = table[table["metric"] == "gap_along"]
    ends = along[along["alpha"] == 1].set_index(["method", "task"])["value"]
    gap = table[table["metric"] == "gap"].set_index(["method", "task"])["value"]
    pd.testing.assert_series_equal(gap, ends)
    vector = lab.vectors("attention", 0)[PAIR[0]]
    images = lab.evaluator.images(PAIR[0], "test").x[: lab.scale.images]
    found = tangent_gap.gaps(lab.clip.encoder, vector, images, (1.0,))
    assert gap["attention", PAIR[0]] == pytest.approx(found[found["block"].isna()]["value"].item())
    table = experiments.single(lab, ["attention", "attention_posthoc"])
    vector = lab.vectors("attention_posthoc", 0)[PAIR[0]]
    assert vector == lab.vectors("attention", 0)[PAIR[0]]
    features = lab.evaluator.tangent_features(vector, PAIR[0], "test").at(1.0)
    chosen = (table["method"] == "attention_posthoc") & (table["task"] == PAIR[0])
    expected = lab.evaluator.accuracy(features, PAIR[0], "test")
    assert table[chosen]["value"].item() == pytest.approx(expected)
    refuses("'attention'", finetune.FineTune, task=PAIR[0], method="attention_posthoc")
