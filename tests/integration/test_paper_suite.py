"""The papers' suite and your own tasks, from files of the hub to a fine-tuned, evaluated model."""

import dataclasses
import json
import shutil
import time
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch
from PIL import Image

from tasklab import machine
from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.evidence.experiments.runner import Trial, kept
from tasklab.tasks import own, suites
from tasklab.tasks.images import pixels
from tasklab.tasks.images.loader import DecodedImages
from tests import hub as hubs
from tests.helpers import refuses
from tests.hub import TEST, TRAIN, papers_data, write_images


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "cache"))
    with papers_data(tmp_path / "data") as root:
        yield root


def parameters(root, store, **more):
    settings = {"model": "mini", "suite": "paper", "steps": 2, "device": "cpu"}
    return Parameters(data_root=root, store_root=store, **{**settings, **more})


def test_data_sets_are_fetched_from_a_hub(data, tmp_path, monkeypatch):
    """All of them, by the command, with a transfer that breaks; what is decoded is not fetched."""
    constants = huggingface_hub.constants
    with hubs.serve() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        hubs.offer(hub, data)
        path = "data/train-00000-of-00001.parquet"
        hub.faults[path] = ["break"]
        words = ["decode", "paper", "--model", "mini", "--data-root", str(tmp_path / "none")]
        (tmp_path / "none").mkdir()
        assert main([*words, "--fetch"]) == 0 and not hub.faults[path]
        fetched = {file.parent.name for file in (tmp_path / "cache").glob("pictures/*/*")}
        assert fetched == {*suites.paper_data_sets()}
        hub.sent.clear()
        assert main([*words, "--fetch"]) == 0 and not hub.sent


def test_from_files_to_an_edited_model(data, tmp_path):
    lab = Lab(parameters(data, tmp_path / "store"), progress=False, tasks=["DTD", "MNIST"])
    vectors = lab.vectors("nonlinear", 0)
    assert all(vector.norm() > 0 for vector in vectors.values())
    images = lab.evaluator.images("DTD", "test")
    assert images.x.shape == (TEST, 3, 32, 32) and images.x.dtype == torch.uint8
    assert lab.evaluator.images("MNIST", "test").x.shape == (TEST, 3, 28, 28)  # at its own size
    assert lab.evaluator.images("ImageNet", "val").x.shape[0] == 1
    found = {"DTD": 0, "MNIST": 0}
    for task, vector in vectors.items():
        found[task] = lab.evaluator.evaluate(vector, task, "test", 0.5, linear=True)
    assert all(0 <= value <= 100 for value in found.values())
    trial = Trial(lab=lab, experiment="x", method="nonlinear", seed=0)
    values = [1, 2]
    measure = lambda _: [{"value": values.pop(0)}]  # noqa: E731 - its code is in the key
    rows = kept(trial, measure)
    shutil.rmtree(data)  # decoded images are enough
    again = Lab(parameters(None, tmp_path / "store"), progress=False, tasks=["DTD", "MNIST"])
    assert kept(dataclasses.replace(trial, lab=again), measure) == rows == [{"value": 1}]
    assert torch.equal(again.evaluator.images("DTD", "test").x, images.x)
    assert lab.provenance()["data"].startswith("DTD/test/")


def test_what_is_not_looked_at_need_not_be_there(data, tmp_path, capsys):
    for entry in suites.paper_data_sets().values():
        if entry["name"] not in ("DTD", "MNIST"):
            shutil.rmtree(data / entry["folders"][0])
    given = parameters(data, tmp_path / "store")
    refuses("SVHN: not on this machine", Lab, given, progress=False)
    Lab(given, progress=False, tasks=["DTD", "MNIST"], images_of=["DTD"]).vectors("nonlinear", 0)
    common = ["--suite", "paper", "--steps", "2", "--device", "cpu"]
    common += ["--data-root", str(data), "--store-root", str(tmp_path / "store")]
    pair = ["DTD@nonlinear", "MNIST@nonlinear", "--model", "mini"]
    words = ["--method", "regmean", "--images", "4", "--out", str(tmp_path / "m.safetensors")]
    assert main(["merge", *pair, *words, *common]) == 0
    added = ["--add", str(tmp_path / "m.safetensors"), "--task", "MNIST"]
    assert main(["evaluate", "mini", *added, *common]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MNIST")]
    assert row.split()[1] == str(TEST)


def test_training_is_resumed_to_the_same_bits_and_seeds_differ(data, tmp_path):
    lab = Lab(parameters(data, tmp_path / "store"), progress=False, tasks=["DTD"])
    pictures = lab.suite.data

    def order(step, count):
        return torch.arange(4) + step

    def batches(steps, seed=0):
        drawn = pictures.batches("DTD", order, steps, seed=seed, device="cpu")
        return [images.x for images in drawn]

    whole, late = batches(range(5)), batches(range(3, 5))
    assert all(torch.equal(a, b) for a, b in zip(whole[3:], late, strict=True))
    assert whole[0].shape == (4, 3, 32, 32)
    assert not torch.equal(whole[0], batches(range(1), seed=1)[0])


def test_splits_share_no_image_and_validation_is_a_tenth(data):
    pictures = DecodedImages(suite=suites.suite("paper"), side=32, root=data, progress=False)
    sizes = {k: pictures.size("DTD", k) for k in ("train", "val", "test")}
    assert sizes == {"train": 36, "val": 4, "test": TEST}
    assert not (data.parent / "cache").exists()  # nothing was decoded for that
    assert pictures.size("EuroSAT", "val") == TEST
    refuses("unknown split of ImageNet 'train'", pictures.load, "ImageNet", "train")
    refuses(f"n must be from 1 to {TEST}", lambda: pictures.load("DTD", "test", n=TEST + 1))


def test_versions_follow_the_pixels_and_resolutions_have_their_own(data):
    small = DecodedImages(suite=suites.suite("paper"), side=24, root=data, progress=False)
    large = small.at(32)
    assert small.version("DTD", "test") != large.version("DTD", "test")
    assert large.load("SVHN", "test").x.shape[-1] == 32
    assert small.load("SVHN", "test").x.shape[-1] == 24
    before = large.version("DTD", "test")
    write_images(
        data / "dtd" / "test.parquet", TEST, list(suites.suite("paper")["DTD"].classes), 77
    )
    again = DecodedImages(suite=suites.suite("paper"), side=32, root=data, progress=False)
    assert again.version("DTD", "test") != before


def test_everything_missing_is_in_one_report_within_seconds(data, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    ample = machine.Memory(64 * machine.GIB, 64 * machine.GIB)  # which is not what is missing
    monkeypatch.setattr(machine, "memory", lambda: ample)
    space = machine.Disk(str(tmp_path), 64 * machine.GIB, 64 * machine.GIB, True)
    monkeypatch.setattr(machine, "disk", lambda path: space)
    (data / "svhn" / "test.parquet").unlink()
    shutil.rmtree(data / "gtsrb")
    began = time.perf_counter()
    with pytest.raises(TasklabError) as error:
        Lab(parameters(data, tmp_path / "store", model="vitl14", steps=20), progress=False)
    assert time.perf_counter() - began < 5
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert "weights of model 'vitl14'" in lines[0]
    assert lines[1].startswith("GTSRB: not on this machine")
    assert lines[2].startswith(
        "SVHN: this copy has train 40 images; the papers' has train 40, test"
    )


def test_a_folder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "cache"))
    for i in range(60):
        file = tmp_path / "shades" / ["dark", "light"][i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40), (20 + 190 * (i % 2),) * 3).save(file)
    shades = own.from_folder(tmp_path / "shades")
    lab = Lab(
        parameters(None, tmp_path / "store", suite=None, steps=12), progress=False, own=[shades]
    )
    assert lab.suite.names == ("shades",) and lab.suite.control.name == "Objects"
    vector = lab.vectors("nonlinear", 0)["shades"]
    assert lab.evaluator.evaluate(vector, "shades", "test", linear=False) == 100
    assert 0 <= lab.evaluator.evaluate(vector, "Objects", "val", linear=False) <= 100
    assert "suite own" in repr(lab) and lab.sibling(model="mini_s").suite.names == ("shades",)


def folder_of(root, count):
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("RGB", (40, 36), (7 * i % 256, count, 0)).save(root / name / f"{i}.png")
    return root


def own_pictures(cache, *roots):
    suite = suites.Suite.from_tasks(*(own.from_folder(root) for root in roots))
    return DecodedImages(suite=suite, side=32, cache=cache, progress=False, jobs=1)


def test_sizes_are_those_of_the_images_that_are_there(tmp_path):
    def sizes():
        pictures = own_pictures(tmp_path / "cache", root)
        return pictures.size("mine", "test"), len(pictures.load("mine", "test").y)

    root = folder_of(tmp_path / "mine", 10)
    assert sizes() == (4, 4)
    folder_of(root, 50)
    assert sizes() == (20, 20)
    pictures = own_pictures(tmp_path / "cache", root)
    for file in root.rglob("*.png"):
        file.unlink()
    refuses("has no images in folders", pictures.load, "mine", "train")  # it was never decoded
    assert pictures.missing() and pictures.size("mine", "test") == 20  # the newest, decoded last


def test_data_that_went_wrong_after_they_were_decoded_are_reported(data):
    def pictures():
        return DecodedImages(suite=suites.suite("paper"), side=32, root=data, progress=False)

    pictures().prepare("DTD")
    names = list(suites.suite("paper")["DTD"].classes)
    write_images(data / "dtd" / "train.parquet", TRAIN - 7, names, None)
    (line,) = pictures().missing("DTD")
    assert "this copy has train 33" in line
    refuses("this copy has train 33", lambda: pictures().load("DTD", "train"))
    shutil.rmtree(data / "dtd")
    assert pictures().missing("DTD") == []
    assert len(pictures().load("DTD", "train").y) == 36


@pytest.mark.parametrize("content", [b"", b"{}", b'{"source": "DTD", "classes": '])
def test_a_damaged_manifest_is_no_decoded_image(content, data):
    pictures = DecodedImages(suite=suites.suite("paper"), side=32, root=data, progress=False)
    pictures.prepare("DTD")
    assert pictures.damaged("DTD") == []
    manifest = next((data.parent / "cache" / "pictures" / "DTD").glob("test-*/manifest.json"))
    manifest.write_bytes(content)
    expected = [f"{manifest.parent} is damaged: remove it, to have it decoded again."]
    assert pictures.damaged("DTD") == expected
    again = DecodedImages(suite=suites.suite("paper"), side=32, root=data, progress=False)
    assert again.size("DTD", "test") == len(again.load("DTD", "test").y) == TEST
    assert again.damaged() == []


def test_bad_images_of_all_tasks_are_found_before_anything_is_trained(tmp_path):
    roots = [folder_of(tmp_path / name, 10) for name in ("a", "b")]
    for root in roots:
        for name in ("3.png", "8.png"):
            (root / "dog" / name).write_bytes(b"<html>404</html>")
    pictures = own_pictures(tmp_path / "cache", *roots)
    error = refuses("", pictures.prepare)
    told = error.splitlines()
    bad = {f"{root}/dog/{name} is not an image" for root in roots for name in ("3.png", "8.png")}
    assert len(told) == 4 and all(any(b in line for line in told) for b in bad)
    own_tasks = [own.from_folder(root) for root in roots]
    lab = Lab(parameters(None, tmp_path / "store", suite=None), progress=False, own=own_tasks)
    refuses("(?s)a/dog/3.png.*b/dog/8.png", lab.tune, "a", "nonlinear", 0)
    assert not (tmp_path / "store" / "finetune").exists()
    for root in roots:
        folder_of(root, 10)
    pictures.at(32).prepare()


def test_the_disk_is_looked_at_once_for_everything(tmp_path, monkeypatch):
    pictures = own_pictures(tmp_path / "cache", folder_of(tmp_path / "a", 10))
    whole = 15 * 3 * 37**2 + 5 * 3 * 32**2
    free = SimpleNamespace(free=whole - 1)
    monkeypatch.setattr(pixels.shutil, "disk_usage", lambda _: free)
    refuses("GB are needed in .* are free", lambda: next(pictures.decode()))
    made = [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert made == ["contents.json"]  # what is in the files, and nothing decoded
    free.free += 1
    pictures.prepare()
    free.free = 0
    again = pictures.at(32)
    again.prepare()  # all is there
    monkeypatch.setattr(DecodedImages, "decode", None)
    again.prepare("a")  # and was looked at


@pytest.mark.parametrize("jobs", [0, -1])
def test_at_least_one_process_decodes(jobs):
    refuses(f"at least 1, not {jobs}", DecodedImages, suite=suites.suite("mini"), jobs=jobs)


def test_the_command_decodes_and_goes_on(data, capsys):
    command = ["decode", "paper", "--model", "mini", "--task", "DTD", "--data-root", str(data)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "DTD" in shown and "train" in shown and "36 images" in shown
    kept = sorted((data.parent / "cache" / "pictures" / "DTD").glob("*/manifest.json"))
    assert len(kept) == 3 and pixels.arrays_in(kept[0].parent).damaged() == []
    assert json.loads(kept[0].read_text())["origin"]["format"] == "parquet"
    assert main(command) == 0
    check = [*command, "--check"]
    assert main(check) == 0
    file = kept[0].with_name("x.npy")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100] + bytes(100))
    capsys.readouterr()
    assert main(check) == 2
    assert f"{kept[0].parent} is damaged: remove it" in capsys.readouterr().err
    file.write_bytes(whole)
    shutil.rmtree(data)
    assert main([*command, "--task", "Cars"]) == 2
    assert "Cars: not on this machine" in capsys.readouterr().err
