"""What a lab takes, and what it says of itself."""

import dataclasses
import inspect
import time

import pytest
import torch
from papermill.translators import translate_parameters

from tasklab import Lab, Parameters, TasklabError, TaskVector, machine
from tasklab.bench.scale import LIGHT, REHEARSAL, less_of, notice
from tasklab.models import loading
from tasklab.models.zoo import FAMILIES
from tasklab.tasks.suites import pairs_of, suite
from tests.helpers import refuses
from tests.vectors import noise


def test_its_parameters_and_refusals(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(total=2**40, available=2**20))
    refuses("mini takes .+ on cpu", Lab, "mini", device="cpu", use="evaluate", progress=False)
    taken = inspect.signature(Lab).parameters
    for field in dataclasses.fields(Parameters):
        assert taken[field.name].default == field.default
    assert "given" not in taken
    cell = {field.name: field.default for field in dataclasses.fields(Parameters)}
    cell["device"] = "cpu"
    assert Parameters.of({**cell, "In": [], "lab": None, "models": {}}) == Parameters(device="cpu")
    refuses("'modle': .*'model'", Parameters.of, {**cell, "modle": "vitb32"})
    lacks = {name: value for name, value in cell.items() if name != "steps"}
    refuses("lacks steps", Parameters.of, {**lacks, "stpes": 3})


def test_it_takes_parameters_a_name_or_single_ones(tmp_path):
    shared = {"device": "cpu", "store_root": tmp_path}
    labs = [
        Lab(Parameters(model="mini_xs", **shared), progress=False),
        Lab("mini_xs", progress=False, **shared),
        Lab(model="mini_xs", progress=False, **shared),
    ]
    assert labs[0].parameters == labs[1].parameters == labs[2].parameters


def test_its_provenance_names_the_precision_of_evaluation_whatever_trains(tmp_path):
    given = {"device": "cpu", "precision": "bfloat16", "store_root": tmp_path, "progress": False}
    lab = Lab("mini_xs", steps=1, **given)
    origin, task = lab.provenance(), lab.suite.names[0]
    assert (origin["recipe"]["precision"], origin["evaluation"]) == ("bfloat16", "float32")
    evaluator, params = lab.evaluator.with_counts(val=4), lab.clip.encoder.params
    expected = evaluator.features(params, task, "val")
    with torch.autocast("cpu", torch.bfloat16):
        found = evaluator.features(params, task, "val")
    assert found.dtype == torch.float32 and torch.equal(found, expected)


@pytest.mark.parametrize(
    ("args", "given", "expected"),
    [
        ((), {"modle": "mini"}, "unknown parameter 'modle': did you mean 'model'"),
        ((5,), {}, "Parameters or the name of a model, not 5"),
        (("mini",), {"model": "mini_s"}, "two models, 'mini' and 'mini_s'"),
        ((Parameters(device="cpu"),), {"steps": 3}, "steps beside Parameters"),
        (("mini",), {"chapter": "ctl"}, "unknown parameter 'chapter'"),
        (("mini",), {"own": "folder"}, "own must be tasks"),
        (("mini",), {"tasks": 3}, "tasks must be a list of names, not 3"),
        (("mini",), {"tasks": "Textuers"}, "did you mean 'Textures'"),
        (("mini",), {"tasks": ["Objects"]}, "unknown task 'Objects'"),  # the control
        (("mini",), {"lr": 0}, "lr must be above 0"),
    ],
)
def test_what_it_cannot_take_is_one_sentence(args, given, expected):
    refused = refuses(expected, Lab, *args, **given)
    assert "\n" not in refused


def test_it_tells_the_images_that_its_tasks_have(tmp_path):
    lab = Lab("mini_xs", tasks="Textures", device="cpu", store_root=tmp_path, progress=False)
    assert lab.suite.names == ("Textures",)
    assert lab.image_counts() == {"val": "80", "test": "250", "control": "250"}
    lab.scale = dataclasses.replace(lab.scale, counts={"val": 10**6, "test": 7, "control": 10**6})
    n = lab.suite.control.name
    sizes = {"val": 500, "control": 2000}
    assert lab.image_counts() == {
        "val": str(sizes["val"]),
        "test": "7",
        "control": str(sizes["control"]),
    }
    assert f"val {sizes['val']}, test 7, control" in repr(lab) and n not in repr(lab)


@pytest.mark.parametrize("name, told", [("step", "did you mean 'steps'"), ("epochs", "Choices: ")])
def test_whatever_papermill_passes_is_a_parameter(name, told):
    cell = {field.name: field.default for field in dataclasses.fields(Parameters)}
    passed, known = (
        translate_parameters("python3", "python", given, "Parameters")
        for given in ({name: 2, "seeds": [0, 1]}, {"steps": 2})
    )
    with pytest.raises(TasklabError, match=f"unknown parameter '{name}'.*{told}"):
        Parameters.of({**cell, name: 2, "In": ["", "model = 'mini'", passed, "1 +"]})
    assert Parameters.of({**cell, "epochs": 2, "In": ["epochs = 2", known]}).seeds == (0,)
    magic = "# Parameters\n%matplotlib inline\n!ls\nmodel = 'mini'\nLab?\n"
    assert Parameters.of({**cell, "In": [magic, "# Parameters\n%%time\n1 +"]}).seeds == (0,)
    refuses("'modle'", Parameters.of, {**cell, "In": [magic.replace("model", "modle")]})


@pytest.mark.parametrize("text", ["[0,1]", "0, 1", "(0, 1,)", " [0, 1] "])
def test_a_list_of_seeds_as_a_command_line_passes_it(text):
    assert Parameters(seeds=text, device="cpu").seeds == (0, 1)
    assert Parameters(seeds="[3]", device="cpu").seeds == (3,)
    refuses("seeds is empty", Parameters, seeds="[]", device="cpu")


def test_the_paper_suite_in_full_takes_the_papers_sizes(monkeypatch, tmp_path):
    monkeypatch.setattr("tasklab.bench.preflight.complete", lambda *_, **__: None)
    shared = {"device": "cpu", "store_root": tmp_path, "model": "mini_xs", "suite": "paper"}
    scale = Lab(preset="full", progress=False, **shared).scale
    # tangent, appendix A: 2,048 points a data set in maps, 200 in kernels; whole splits
    assert (scale.map_images, scale.kernel_images, scale.kernel_classes) == (2048, 200, None)
    assert (scale.points, dict(scale.counts)) == (20, {})
    # CTL, appendix C.1: 10,000 samples of a union of two tasks, or of one; 2,000 in stitching
    assert [2 * scale.feature_images[0], scale.feature_images[1]] == [10_000, 10_000]
    assert [2 * scale.stitched_images[0], scale.stitched_images[1]] == [2_000, 2_000]
    assert Lab(preset="quick", progress=False, **shared).scale.map_images < 100


def test_a_full_size_model_is_rehearsed_on_few_tasks_beside_shipped_models(tmp_path, monkeypatch):
    small = loading.load("mini_xs", init="random")
    monkeypatch.setattr(loading, "load", lambda *args, **kwargs: small)
    lab = Lab("vitb32", init="random", steps=2, store_root=tmp_path, progress=False)
    assert set(pairs_of(suite("mini"))[0]) < set(lab.suite.names)
    assert len(lab.suite.names) == 4
    assert {len(task.templates) for task in (*lab.suite.tasks, lab.suite.control)} == {1}
    told = notice(lab.parameters)
    assert "on a few small images, few tasks and two blocks" in told and less_of(lab.parameters)
    real = dataclasses.replace(lab.parameters, suite="paper")
    assert "a few images, few tasks" in notice(real) and less_of(real)["patches"] is None
    assert "tasks" not in notice(dataclasses.replace(lab.parameters, model="mini"))
    assert "on a few texts, and" in notice(Parameters(model="minilm", steps=2))
    assert lab.scale == LIGHT and lab.relative("large").scale == REHEARSAL
    assert (lab.family["small"], lab.family["large"]) == ("vitb32", "mini")
    assert lab.relative("large").parameters.model == "mini"
    assert lab.relative("small").parameters.model == FAMILIES[0]["small"]
    whole = lab.sibling(steps=20)  # no rehearsal
    assert len(whole.suite.names) == 8 and whole.family["large"] == "vitl14"
    assert len(lab.sibling(model="mini").suite.names) == 8


@pytest.mark.parametrize("slow", [torch.bfloat16, torch.float32])
def test_what_is_fast_in_bfloat16_is_measured(monkeypatch, slow):
    def product(inputs, weights):
        assert inputs.dtype == weights.dtype
        assert torch.get_num_threads() == 1  # two wait for each other where a core is busy
        time.sleep(0.003 if inputs.dtype == slow else 0.0)

    monkeypatch.setattr(torch.nn.functional, "linear", product)
    machine.fast_in_bfloat16.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert machine.fast_in_bfloat16() is (slow == torch.float32)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    machine.fast_in_bfloat16.cache_clear()  # the next one asks this processor


def test_a_processor_that_is_slower_in_bfloat16_is_not_given_it(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: False)
    slow = Parameters(model="mini_xs", precision="bfloat16", device="cpu", store_root=tmp_path)
    refuses("not clearly faster in bfloat16", Lab, slow, progress=False)
    assert Lab(slow, progress=False, use="evaluate").parameters.precision == "bfloat16"
    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: True)
    assert Lab(slow, progress=False)


def test_a_vector_that_is_too_long_and_harms_is_told(tmp_path, capsys):
    lab = Lab("mini_xs", tasks="Places", device="cpu", store_root=tmp_path, progress=False)
    tau = noise(lab.clip.encoder.params, 0, 1.0)
    v = (0.05 * TaskVector(lab.clip.encoder.params).norm() / tau.norm()) * tau  # 8 v has 0.4
    told = "worse than the pre-trained model: -"
    lab.evaluate(v, "Places")
    assert told not in capsys.readouterr().err
    for vector, alpha in ((8 * v, 1.0), (v, 8)):
        found = lab.evaluate(vector, "Places", alpha=alpha)
        assert found.harmful and found.gain < -5
        assert f"{told[:-1]}{found.gain:+.1f} points" in capsys.readouterr().err
    refuses("made of prompts", lab.evaluate, v, "Places", heads={"Places": None})
