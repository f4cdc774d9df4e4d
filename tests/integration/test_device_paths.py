"""What meets on a pretended CUDA device: merges, experiments, editors and command lines.

Vectors, heads and images come from the device or from the CPU, where they stay when they do not
fit. Experiments that `test_device.py` compares with the CPU's are not here.
"""

import json
import sys

import numpy as np
import pytest
import torch

from tasklab import Lab, checkpoints
from tasklab.__main__ import main
from tasklab.analyses import curvature, layers, merging, projections
from tasklab.analyses.edited import Edited
from tasklab.analyses.merging import METHODS, best, minimum, pooled, spaces
from tasklab.analyses.merging.best import span_of_loss
from tasklab.book import explore
from tasklab.evidence import experiments
from tasklab.models import heads, loading
from tasklab.storage import placement
from tasklab.storage.store import Store
from tasklab.tasks.drawn import DrawnImages, Images
from tasklab.taskvector import TaskVector
from tasklab.tuning import kronecker, penalties, probes, tangent
from tests.vectors import noise

MODEL = "mini_xs"
TASKS = ("Textures", "Signs")
LESS = {"steps": 2}  # of iterative merges
LIVE = {"steps": 2, "precision": "float32", "progress": False, "tasks": TASKS}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("device")


@pytest.fixture
def lab(device, store):
    return Lab(MODEL, device="cuda", store_root=store, **LIVE)


@pytest.fixture
def full(monkeypatch):
    for module in (placement, sys.modules[Edited.__module__]):
        monkeypatch.setattr(module, "fits", lambda size, device: False)
    load = DrawnImages.load

    def loaded(self, *args, **named):
        x, y = load(self, *args, **named)
        return Images(x.cpu(), y)

    monkeypatch.setattr(DrawnImages, "load", loaded)


def vectors(encoder, count=2):
    return [noise(encoder.params, seed) for seed in range(count)]


def where(given, place):
    devices = {"cpu": ["cpu"] * len(given), "cuda": ["cuda"] * len(given)}
    devices["both"] = ["cuda"] + ["cpu"] * (len(given) - 1)
    return [vector.to(device) for vector, device in zip(given, devices[place], strict=True)]


def same(one, two, **limits):
    for name, x in two.items():
        torch.testing.assert_close(one[name].cpu(), x.cpu(), **limits)


# --- Merges --------------------------------------------------------------------------------------
def moments(name, encoder, sides):
    if not (needs := merging.registry.method(name).needs):
        return {}
    lab = Lab(MODEL, device=encoder.device.type, **LIVE)
    images = [lab.evaluator.images(task, "train").x[:2] for task in TASKS]
    of = (
        merging.of_images(needs, encoder, lab.evaluator.head(task), x, tau, linear=False)
        for task, x, tau in zip(TASKS, images, sides, strict=True)
    )
    return {needs: list(of)}


@pytest.mark.parametrize("name", METHODS)
def test_a_merge_is_the_same_wherever_its_vectors_are(name, device):
    there, here = (loading.load(MODEL, device=one).encoder for one in ("cuda", "cpu"))
    given = vectors(here)
    few = {key: x for key, x in LESS.items() if key in METHODS[name].options}
    expected = merging.merge(name, given, **few, **moments(name, here, given))
    for place, home in (("cuda", "cuda"), ("cpu", "cpu"), ("both", "cpu")):
        sides = where(given, place)
        merged = merging.merge(name, sides, **few, **moments(name, there, sides))
        assert merged.device.type == home
        same(merged, expected, rtol=1e-3, atol=1e-5)


@pytest.fixture
def decomposed(device, monkeypatch):
    """Return the devices of decompositions in float64, which the card is slow in."""
    monkeypatch.setattr(placement, "_seconds", lambda A: 1.0 if A.device.type == "cpu" else 2.0)
    placement.decomposes.cache_clear()
    places = []

    def watched(usual):
        def seen(A, *args, **named):
            if A.dtype == torch.float64:
                places.append(A.device.type)
            return usual(A, *args, **named)

        return seen

    for kind in ("eigh", "svd", "qr", "pinv", "solve"):
        monkeypatch.setattr(torch.linalg, kind, watched(getattr(torch.linalg, kind)))
    yield places
    placement.decomposes.cache_clear()


def test_a_card_that_is_slow_in_float64_decomposes_no_matrix(decomposed, store):
    encoder = loading.load(MODEL, device="cuda").encoder
    given = [tau.to("cuda") for tau in vectors(encoder)]
    of_matrices = ("tsv_m", "iso_c", "iso_cts", "boosting", "ace", "actmat", "dc_merge")
    for name in (*of_matrices, "essential"):
        decomposed.clear()
        merged = merging.merge(name, given, **moments(name, encoder, given))
        assert {*decomposed} == {"cpu"} and merged.device.type == "cuda", name
    decomposed.clear()
    none = [lambda name: None] * 2
    merged = spaces.merge("knots", merging.METHODS["arithmetic"].function, given, none)
    same(merged, merging.merge("arithmetic", given), rtol=1e-3, atol=1e-5)
    assert {*decomposed} == {"cpu"} and merged.device.type == "cuda"
    decomposed.clear()
    lab = Lab(MODEL, device="cuda", store_root=store, **LIVE)
    images = [lab.evaluator.images(task, "train").x[:4] for task in TASKS]
    found = kronecker.corrected(encoder, encoder.preprocess(images[0]))
    assert {*decomposed} == {"cpu"}
    assert {x.device.type for x in found.inputs.values()} == {"cuda"}
    decomposed.clear()
    own = [
        tangent.features(encoder, encoder.params, tau, x)
        for tau, x in zip(given, images, strict=True)
    ]
    by = best.metrics("logits", own, [lab.evaluator.head(task) for task in TASKS])
    parts = [minimum.Part(x, f.jtau, of) for x, f, of in zip(images, own, by, strict=True)]
    minimum.minimum(encoder, parts, merging.average(given), epochs=1, rounds=[(2, 1)])
    assert {*decomposed} == {"cpu"}


@pytest.mark.parametrize("needs", ["grams", "diagonals"])
def test_sums_over_tasks_serve_vectors_of_another_device(needs, lab):
    encoder, pool = lab.clip.encoder, getattr(pooled, f"pooled_{needs}")
    name = {"grams": "regmean", "diagonals": "fisher"}[needs]
    given = vectors(encoder)
    x = lab.evaluator.images(TASKS[0], "train").x[:2].cpu()
    head = lab.evaluator.head(TASKS[0]).to("cpu")
    take = {"grams": merging.grams, "diagonals": merging.fisher_diagonals}[needs]
    first = (encoder, x) if needs == "grams" else (encoder, head, x)
    each = [take(*first, params=dict(tau)) for tau in given]  # params from the CPU
    sums = pool(where(given, "cuda"), each)
    merged = merging.merge(name, given, **{needs: sums})
    assert merged.device.type == "cpu"
    same(merged, merging.merge(name, where(given, "cuda"), **{needs: sums}))


def test_the_best_merge_is_solved_for_vectors_from_anywhere(lab):
    encoder, given = lab.clip.encoder, vectors(lab.clip.encoder)
    images = {task: lab.evaluator.images(task, "train").x[:2].cpu() for task in TASKS}
    found = []
    for place in ("cpu", "cuda", "both"):
        each = where(given, place)
        own = [
            tangent.features(encoder, encoder.params, tau, x)
            for tau, x in zip(each, images.values(), strict=True)
        ]
        by = best.metrics("logits", own, [lab.evaluator.head(task) for task in TASKS])
        parts = [
            minimum.Part(x, one.jtau, metric)
            for x, one, metric in zip(images.values(), own, by, strict=True)
        ]
        solution = minimum.minimum(encoder, parts, merging.average(each), epochs=1, rounds=[(2, 1)])
        assert solution.vector.device.type == "cuda"
        found.append(solution.objective)
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-4)
    assert found[0][1] < found[0][0]
    basis = [best.tangents(lab.evaluator, tau, TASKS) for tau in given]
    f0 = [lab.evaluator.tangent_features(given[0], task, "val").f0 for task in TASKS]
    labels = [lab.evaluator.images(task, "val").y for task in TASKS]
    own = [lab.evaluator.head(task).to("cpu") for task in TASKS]
    c = span_of_loss(f0, basis, own, labels, start=best.span(basis, basis[0]), iterations=1)
    assert c.shape == (2,) and c.device.type == "cpu"


# --- By hand -------------------------------------------------------------------------------------
def test_vectors_from_anywhere_are_compared_and_measured(lab):
    encoder = lab.clip.encoder
    here, other = vectors(encoder)
    there = here.to("cuda")
    assert there == here and here == there and there != other
    assert there.dot(other) == pytest.approx(here.dot(other))
    theta = here.apply(encoder.params)
    for end in (theta, {name: x.cpu() for name, x in theta.items()}):
        taken = TaskVector.between(encoder.params, end)
        assert taken.device.type == "cuda"
        same(taken, here, rtol=1e-4, atol=1e-5)
    encoder, given = lab.clip.encoder, vectors(lab.clip.encoder)
    images = lab.evaluator.images(TASKS[0], "test").x[:2].cpu()
    params = {name: x.cpu() for name, x in encoder.params.items()}
    moments = dict.fromkeys(TASKS, projections.second_moments(encoder, images, params=params))
    tables = []
    for place in ("cuda", "cpu", "both"):
        each = dict(zip(TASKS, where(given, place), strict=True))
        table = [layers.cosines(each), layers.norms(each, encoder.params)]
        tables.append([*table, layers.alignment(each, moments, encoder.params)])
    for one, two, three in zip(*tables, strict=True):
        for other in (two, three):
            np.testing.assert_allclose(other["value"], one["value"], rtol=1e-5, atol=1e-7)
    encoder = lab.clip.encoder
    names = [name for name in encoder.params if "ln" in name][:2]
    given = [TaskVector({name: tau[name] for name in names}) for tau in vectors(encoder)]
    images = lab.evaluator.images(TASKS[0], "test")
    x, head = encoder.preprocess(images.x[:2].cpu()), lab.evaluator.head(TASKS[0]).to("cpu")
    f = curvature.loss(encoder, head, x, images.y[:2])
    top = curvature.largest_curvature(f, encoder.params, names=names, tol=0.5, max_iter=5)
    values = []
    for place in ("cuda", "cpu", "both"):
        each = dict(zip(TASKS, where(given, place), strict=True))
        table = curvature.pairs(f, encoder.params, each, curvature=top, names=names)
        values.append(table[["value", "distance", "second_order"]].to_numpy())
    np.testing.assert_allclose(values[1:], [values[0]] * 2, rtol=1e-3, atol=1e-7)
    sums = experiments.addition(lab, ["nonlinear", "linearized"])
    shown = explore.editor(lab, beside=sums, images=4, pictures=1)
    assert set(shown.payload.accuracies({TASKS[0]: 1.0})) > set(TASKS)
    for method in ("nonlinear", "linearized"):
        at = explore.sliders.accuracies(lab, method)
        assert at(**{TASKS[0]: 0.5, TASKS[1]: 0.5}).between(0, 100).all()


def test_what_is_small_is_computed_where_its_tensors_are(device):
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    for fit, limits in ((heads.linear_probe, {}), (probes.adamw, {"lr": 0.1, "steps": 5})):
        here, there = (fit(one, y, classes=2, **limits) for one in (x, x.to("cuda")))
        assert there.weight.device.type == there.bias.device.type == "cuda"
        torch.testing.assert_close(there.weight.cpu(), here.weight)
        assert heads.accuracy(there(x.to("cuda")), y) == heads.accuracy(here(x), y)
    name, least = "blocks.0.mlp.fc1.weight", torch.eye(3, device="cuda")
    for penalty in (penalties.orthonormal, penalties.off_diagonal):
        value, gradients = penalty({name: least})  # at its minimum
        assert float(value) == 0 and gradients[name].device.type == "cuda"


def test_a_vector_that_does_not_fit_edits_a_model_tensor_by_tensor(device, full):
    encoder = loading.load(MODEL, device="cuda").encoder
    (tau,) = vectors(encoder, 1)
    edited = Edited(encoder.params, tau, 0.5)
    assert edited._vector is tau
    same(edited, tau.apply(encoder.params, 0.5))


# --- Experiments ---------------------------------------------------------------------------------

ALL = {  # which no chapter runs (`test_device_chapters.py`)
    "rate_search": {"methods": ["nonlinear"], "rates": (1e-4,), "prolong": False},
    "exact_negation": {"methods": ["linearized"]},
    "search_box": {"methods": ["nonlinear"]},
}


def rows_of(name, options, *lab):
    table = getattr(experiments, name)(*lab, **options)
    assert len(table) and np.isfinite(table["value"].astype(float)).all()
    return table


@pytest.mark.parametrize("name", ALL)
def test_an_experiment_runs_on_a_device(name, lab):
    rows_of(name, ALL[name], lab)


def test_probes_are_fitted_on_the_device(device, store, monkeypatch):
    solve = probes._solve

    def solved(probe, features, labels, *more):
        assert {features.device.type, labels.device.type} == {"cuda"}  # not in silence on the CPU
        return solve(probe, features, labels, *more)

    monkeypatch.setattr(probes, "_solve", solved)
    rows_of("probing", {}, Lab(MODEL, head="probe", device="cuda", store_root=store, **LIVE))


@pytest.mark.parametrize("method", ["attention", "tau_jp", "ortho_reg", "off_diagonal", "delta"])
def test_a_method_trains_on_a_device(method, lab):
    assert np.isfinite(experiments.train(lab, [method])["loss"]).all()


ONE = {"methods": ["nonlinear"]}
FULL = {"addition": {**ONE, "n_tasks": (2,)}, "merged": {"merges": ["regmean"]}, "linear_gaps": ONE}


@pytest.mark.parametrize("name", FULL)
def test_an_experiment_runs_beside_a_full_device(name, device, full, store):
    lab = Lab(MODEL, device="cuda", store_root=store / "full", **LIVE)
    rows_of(name, FULL[name], lab)
    assert lab.evaluator.images(TASKS[0], "test").x.device.type == "cpu"
    assert {v.device.type for v in lab.vectors("nonlinear", 0).values()} == {"cpu"}


# --- Editors -------------------------------------------------------------------------------------


# --- Command lines -------------------------------------------------------------------------------
@pytest.fixture
def told(device, store, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(store))

    def run(*words):
        status, said = main(list(words)), capsys.readouterr()
        assert status == 0, said
        return said.out

    for name, vector in zip("ab", vectors(loading.load(MODEL).encoder), strict=True):
        vector.save(f"{name}.safetensors")
    return run


CUDA = ["--steps", "1", "--seeds", "1", "--precision", "float32", "--device", "cuda"]
AB = ["a.safetensors", "b.safetensors"]


def test_vectors_are_merged_and_evaluated_by_commands(told):
    told("merge", *AB, "--model", MODEL, "--method", "ties", "--out", "m.safetensors")
    words = ["evaluate", MODEL, "--add", "m.safetensors:0.5", "--subtract", AB[0]]
    for more in ([], ["--linear", "--split", "val"]):
        found = json.loads(told(*words, *more, *CUDA, "--task", TASKS[0], "--json"))
        lab = Lab(MODEL, device="cpu", **{**LIVE, "steps": 1})
        first, other = checkpoints.load("m.safetensors", lab.clip.encoder), TaskVector.load(AB[0])
        at = {"linear": bool(more)}
        value = lab.evaluator.evaluate(
            0.5 * first - other, TASKS[0], "val" if more else "test", **at
        )
        assert found["tasks"][0]["after"] == pytest.approx(value)


def test_runs_are_made_exported_imported_merged_and_compared_by_commands(told, tmp_path):
    chosen = [word for task in TASKS for word in ("--task", task)]
    assert "2 done" in told("train", "--model", MODEL, *chosen, *CUDA)
    exported = told("export", "--model", MODEL, "--task", TASKS[0], "--with-base", *CUDA)
    folder = exported.splitlines()[0]
    told("import", folder, "--model", MODEL, "--task", TASKS[0])
    kept = checkpoints.imported(Store(), MODEL, f"{TASKS[0]}_nonlinear")
    runs = [f"{task}@nonlinear" for task in TASKS]
    for name in ("arithmetic", "regmean", "fisher"):
        few = ["--images", "2"] if name != "arithmetic" else []
        words = ["merge", *runs, "--model", MODEL, "--method", name, "--out", f"{name}.safetensors"]
        told(*words, *few, *CUDA)
    words = ["compare", *runs, "--model", MODEL, "--methods", "arithmetic,ties", "--json"]
    found = json.loads(told(*words, "--merged", "best.safetensors", *CUDA))
    assert found["tasks"] == list(TASKS) and len(kept)
    best_one = checkpoints.load("best.safetensors", loading.load(MODEL).encoder)
    assert best_one.norm() > 0
