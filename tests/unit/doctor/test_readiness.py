"""What a machine has, told from made-up files, and which chapters that is enough for."""

import csv
import dataclasses
import importlib.metadata
import json
import lzma
import os
import struct
import threading
import time
import types
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from huggingface_hub import constants as hub

import tasklab
from tasklab import machine
from tasklab.bench import inventory
from tasklab.bench.inventory import Weights, find_weights
from tasklab.bench.parameters import Parameters
from tasklab.bench.provenance import provenance
from tasklab.cli.doctor import readiness, speed
from tasklab.cli.doctor.readiness import runnable
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS
from tasklab.machine import GIB, Disk, Memory, cards
from tasklab.models import loading, weights, zoo
from tasklab.models.zoo import REGISTRY, spec
from tasklab.storage import fetching
from tasklab.tasks.images.loader import Data, DecodedImages
from tasklab.tasks.suites import Suite, paper_data_sets, paper_task, suite
from tasklab.tuning import footprint
from tests.decoded import keep
from tests.helpers import refuses

ROOT = Path(readiness.__file__).parents[3]
FULL_SIZE = [name for name, entry in REGISTRY.items() if not entry.shipped]


@pytest.fixture(autouse=True)
def without_a_device(bare, monkeypatch):
    monkeypatch.setattr(machine, "accelerated", lambda: False)


def write(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def safetensors(values=4, cut=0):
    head = {"__metadata__": {"a": "b"}}
    head["x"] = {"dtype": "U8", "shape": [values], "data_offsets": [0, values]}
    head = json.dumps(head).encode()
    return (struct.pack("<Q", len(head)) + head + bytes(values))[: -cut or None]


# The machine
def test_packages_and_repositories_are_known():
    def installed(package):
        if package == "timm":
            raise importlib.metadata.PackageNotFoundError(package)
        return f"1 of {package}"

    found = machine.versions(installed)
    assert found["timm"] is None and found["open_clip"] == "1 of open_clip_torch"
    assert list(found)[:2] == ["python", "tasklab"] and found["tasklab"] == tasklab.__version__
    import open_clip

    for entry in REGISTRY.values():
        assert bool(entry.repository) == (not entry.shipped)
        if entry.kind == "clip" and not entry.shipped and not entry.file:
            known = open_clip.get_pretrained_cfg(entry.arch, entry.pretrained)
            assert known["hf_hub"].rstrip("/") == entry.repository


@pytest.mark.parametrize(
    ("torch", "vision", "wanted", "expected"),
    [
        ("2.5.1+cpu", "0.20.1+cpu", ["numpy", "torch==2.5.1"], None),
        ("2.5.0", "0.20.1", ["torch==2.5.1"], "asks for torch ==2.5.1, not 2.5.0"),
        ("2.5.1+cpu", "0.20.1+cu124", ["torch==2.5.1"], "different builds"),
        ("2.6.0.dev1", "0.20.1", ["torch>=2.5"], None),
        ("2.4.0", "0.20.1", ['torch>=2.5; python_version < "3"'], None),
        (None, "0.20.1", ["torch==2.5.1"], None),
        ("odd", "0.20.1", ["torch==2.5.1"], None),
        ("2.5.1", "0.20.1", None, None),
    ],
)
def test_torch_and_torchvision_are_a_pair(torch, vision, wanted, expected):
    told = machine.unpaired({"torch": torch, "torchvision": vision}, wanted)
    assert told is None if expected is None else expected in told


def test_capabilities_are_the_drivers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.capabilities() == []
    command = tmp_path / "nvidia-smi"
    for told, expected in (
        ("9.0\n10.0", [(9, 0), (10, 0)]),
        ("7.5", [(7, 5)]),
        ("No devices were found", []),
        ("[N/A]", []),
    ):
        command.write_text(f"#!/bin/sh\n[ $1 = --query-gpu=compute_cap ] && echo '{told}'\n")
        command.chmod(0o755)
        assert machine.capabilities() == expected


def test_the_drivers_version_stands_beside_a_card_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.driver() is None
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 580.65.06; echo 580.65.06\n")
    command.chmod(0o755)
    assert machine.driver() == "580.65.06"
    assert provenance(gpu="a card")["machine"]["driver"] == "580.65.06"
    assert "driver" not in provenance()["machine"]


def machine_of(root, **files):
    meminfo = f"MemTotal: {8 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {6 * 2**20} kB\n"
    for name, content in {"proc/meminfo": meminfo, **files}.items():
        write(root / name, content)
    return root


V2 = {"proc/self/cgroup": "0::/outer/inner\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box\n1:name=systemd:/\n"}
STAT = "anon 1\n" + "".join(  # half a file is in use, and can be read again as well
    f"{prefix}{kind}_file {GIB // 2}\n"
    for prefix in ("", "total_")
    for kind in ("active", "inactive")
)


SYS = "sys/fs/cgroup"
BOUND = {
    f"{SYS}/outer/memory.max": f"{4 * GIB}\n",
    f"{SYS}/outer/memory.current": f"{3 * GIB}\n",
    f"{SYS}/outer/memory.stat": STAT,
    f"{SYS}/outer/inner/memory.max": f"{5 * GIB}\n",
}
BOX = {  # as in a container
    f"{SYS}/memory/memory.limit_in_bytes": str(2 * GIB),
    f"{SYS}/memory/memory.usage_in_bytes": str(2 * GIB),
    f"{SYS}/memory/memory.stat": STAT,
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (8, 6, False)),
        (V2 | {f"{SYS}/outer/inner/memory.max": "max\n"}, (8, 6, False)),
        (V2 | BOUND, (4, 2, True)),
        (V1 | BOX, (2, 1, True)),
        (V1 | {f"{SYS}/memory/box/memory.limit_in_bytes": str(2**63 - 4096)}, (8, 6, False)),
        (V1 | {f"{SYS}/memory/box/memory.limit_in_bytes": str(16 * GIB)}, (8, 6, False)),
        (V2 | {f"{SYS}/memory.max": "nonsense"}, (8, 6, False)),
    ],
)
def test_the_tightest_cgroup_limits_memory(files, expected, tmp_path):
    total, available, limited = expected
    found = machine.memory(machine_of(tmp_path, **files))
    assert found == Memory(total * GIB, available * GIB, limited)


def shares(folder, quota):
    return V1 | {
        f"{SYS}/{folder}/cpu.cfs_quota_us": quota, f"{SYS}/{folder}/cpu.cfs_period_us": "100000",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        (V2 | {f"{SYS}/outer/cpu.max": "150000 100000\n"}, 1.5),
        (V2 | {f"{SYS}/outer/cpu.max": "max 100000\n"}, 8),
        (shares("cpu,cpuacct/box", "200000"), 2),
        (shares("cpu", "-1"), 8),
    ],
)
def test_a_share_of_time_is_a_number_of_cores(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert machine.cores(machine_of(tmp_path, **files)) == expected


def test_a_folder_that_is_not_there_has_the_disk_of_the_one_above(tmp_path):
    write(tmp_path / "a" / "b", bytes(1000))
    write(tmp_path / "a" / "c" / "d", bytes(24))
    assert machine.size(tmp_path / "a", 60) == (1024, True)
    assert machine.size(tmp_path / "a", -1) == (0, False)
    found = machine.disk(tmp_path / "a", 60)
    assert (found.used, found.whole, found.writable) == (1024, True, True)
    beyond = machine.disk(tmp_path / "x" / "y")
    assert beyond.total == found.total and beyond.used is None and beyond.writable
    assert not machine.disk(tmp_path / "a" / "b").writable  # a file


def test_devices_are_what_torch_tells(monkeypatch):
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        mem_get_info=lambda n: (n * GIB, 4 * GIB),
        get_device_capability=lambda n: (7, 5) if n else (8, 0),
        get_device_name=lambda n: f"card {n}",
        get_arch_list=lambda: ["sm_75", "sm_80"],
    )
    monkeypatch.setattr(cards, "torch", types.SimpleNamespace(cuda=cuda))
    first, second = machine.devices()
    assert first == machine.Device("card 0", 4 * GIB, 0, "8.0", True)
    assert second == machine.Device("card 1", 4 * GIB, GIB, "7.5", False)


@pytest.mark.parametrize(
    ("able", "kernels", "useful"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_90"], False),  # a V100, CUDA 13
        ((7, 0), ["sm_50", "sm_70", "sm_80"], True),
        ((7, 5), ["sm_75"], True), ((8, 6), ["sm_80"], True), ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90"], False), ((12, 0), ["sm_90", "compute_90"], True),
        ((12, 0), ["sm_120"], True), ((9, 4), ["gfx90a", "gfx942"], True),  # AMD's
    ],
)  # fmt: skip
def test_a_card_needs_kernels_of_its_generation(monkeypatch, device, able, kernels, useful):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *args: able)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: kernels)
    (card,) = machine.devices()
    if useful:
        assert card.useless == "" and Parameters(device="cuda").device == "cuda"
        return
    told = "no kernels for cuda:0, a pretended device of compute capability"
    assert told in card.useless and speed.measure() is None
    for asked in ("cuda", None):  # a silent choice of the CPU would cost days
        refuses(told, Parameters, device=asked)
    refuses(told, loading.load, "mini_xs", device="cuda")
    refuses("'cuda:1' is not there", loading.load, "mini_xs", device="cuda:1")
    assert Parameters(device="cpu").device == "cpu"


# Weights
def test_weights_are_missing_then_found_then_damaged(tmp_path, monkeypatch):
    entry = spec("mae_b16")
    assert find_weights(entry, reachable=False).state == "missing"
    fetchable = find_weights(entry, reachable=True)
    assert fetchable.state == "fetchable" and "facebook/vit-mae-base" in fetchable.where
    cache = tmp_path / "hub" / "models--facebook--vit-mae-base"
    write(cache / "blobs" / "x.incomplete", bytes(3 * 2**20))
    assert find_weights(entry, reachable=False).note == "a download stopped after 3 MiB"
    write(cache / "refs" / "main", "abc")
    cached = write(cache / "snapshots" / "abc" / "model.safetensors", safetensors())
    found = find_weights(entry, reachable=False)
    assert (found.state, found.where, found.note) == ("found", str(cached), "")
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "own"))
    own = write(tmp_path / "own" / "mae_b16.safetensors", safetensors(cut=1))
    damaged = find_weights(entry, reachable=True)
    assert (damaged.state, damaged.where) == ("damaged", str(own))
    assert damaged.note.startswith("cannot be read")


@pytest.mark.parametrize(("name", "suffix"), [("vitb32", "safetensors"), ("dino_b16", "bin")])
def test_weights_are_looked_for_where_they_are_loaded_from(name, suffix, tmp_path, monkeypatch):
    entry = spec(name)
    repository, file = entry.repository, entry.published
    monkeypatch.setenv(weights.FOLDER, str(tmp_path))
    for placed in (f"{name}.{suffix}", f"{name}.safetensors"):  # the second goes before the first
        path = write(tmp_path / placed, safetensors() if "safe" in placed else b"\x80\x02")
        assert weights.find(name, repository, file=file, fetch=False) == path
        found = find_weights(entry, reachable=False)
        assert (found.state, found.where) == ("found", str(path))


def test_t5_needs_its_tokenizer(tmp_path, monkeypatch):
    entry = spec("t5_base")
    monkeypatch.setenv(weights.FOLDER, str(tmp_path))
    write(tmp_path / "t5_base.safetensors", safetensors())
    without = find_weights(entry, reachable=False)
    assert without.state == "missing" and "tokenizer.json" in without.note
    assert find_weights(entry, reachable=True).state == "found"
    cache = tmp_path / "hub" / "models--google-t5--t5-base"
    write(cache / "refs" / "main", "abc")
    write(cache / "snapshots" / "abc" / "tokenizer.json", "{}")
    assert find_weights(entry, reachable=False).state == "found"


def test_shipped_weights_are_there_and_whole(tmp_path, monkeypatch):
    shipped = [entry for entry in REGISTRY.values() if entry.shipped and not entry.extra]
    assert {find_weights(entry, reachable=False).state for entry in shipped} == {"shipped"}
    monkeypatch.setattr(inventory.shipped, "FOLDER", tmp_path)
    assert find_weights(spec("mini"), reachable=True).state == "missing"


def test_damage_is_seen_at_the_ends_of_a_file(tmp_path):
    archive = tmp_path / "a.pt"
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("data.pkl", bytes(5000))
    assert inventory.damage(archive) == ""
    assert inventory.damage(write(tmp_path / "b.pt", archive.read_bytes()[:-200])) != ""
    assert inventory.damage(write(tmp_path / "c.bin", b"\x80\x02abc")) == ""
    assert inventory.damage(write(tmp_path / "d.bin", b"<html>")) != ""
    odd = [struct.pack("<Q", len(head)) + head for head in (b"[]", b'{"x": 1}')]
    odd += [safetensors(cut=2), safetensors() + b"x", b"", b"version https://git-lfs"]
    for number, content in enumerate(odd):
        assert inventory.damage(write(tmp_path / f"{number}.safetensors", content)) != ""
    assert inventory.damage(write(tmp_path / "w.safetensors", safetensors())) == ""
    assert "cannot be read" in inventory.damage(tmp_path / "none.safetensors")


# Data
def of_papers(root, cache):
    tasks = Suite("paper", (*map(paper_task, paper_data_sets().values()),), suite("paper").control)
    return DecodedImages(suite=tasks, root=root, cache=cache, progress=False)


def state(name, *folders):
    return of_papers(*folders).state(name)


def test_a_data_set_is_missing_then_found(tmp_path, monkeypatch):
    entry = paper_data_sets()["EuroSAT"]
    monkeypatch.setitem(entry, "classes", entry["classes"][:2])
    monkeypatch.setitem(entry, "aliases", entry.get("aliases", [[]] * 10)[:2])
    monkeypatch.setitem(entry, "sizes", {"train": 2, "test": 2})
    root = tmp_path / "data"
    assert state("EuroSAT", root, tmp_path).state == "missing"
    folder = root / entry["folders"][0]
    for split in ("train", "test"):
        for label in entry["classes"]:
            write(folder / split / label / "1.png", b"\x89PNG")
    found = state("EuroSAT", root, tmp_path)
    assert (found.state, found.where, found.sides) == ("found", str(folder), ())
    write(folder / "test" / label / "2.png", b"\x89PNG")
    damaged = state("EuroSAT", root, tmp_path)
    assert damaged.state == "damaged" and "test 3" in damaged.note


def test_decoded_images_need_no_others(tmp_path):
    keep(tmp_path, "Cars", test=224, val=224)
    assert state("Cars", None, tmp_path).state == "missing"
    keep(tmp_path, "Cars", train=256)
    manifest = tmp_path / "pictures" / "Cars" / "train-centre256-0" / "manifest.json"
    found = state("Cars", None, tmp_path)
    assert (found.state, found.sides, found.note) == ("decoded", (224,), "")
    keep(tmp_path, "Cars", test=336)
    assert state("Cars", None, tmp_path).sides == (224,)
    write(manifest, "{")  # it would be decoded again
    found = state("Cars", None, tmp_path)
    assert (found.state, found.sides) == ("missing", ())


def test_decoded_images_hide_no_wrong_originals(tmp_path):
    keep(tmp_path, "Cars", train=256, val=224, test=224)
    folder = tmp_path / "data" / paper_data_sets()["Cars"]["folders"][0]
    for split in ("train", "test"):
        write(folder / split / "one" / "1.png", b"\x89PNG")
    pictures = of_papers(tmp_path / "data", tmp_path)
    (line,) = pictures.missing("Cars")
    assert pictures.state("Cars") == Data("Cars", "damaged", "tanganke/stanford_cars", (224,), line)


# Memory
def test_a_step_takes_what_was_measured():
    tower = spec("vitb32").tower
    assert tower.parameters == 87_849_216 and tower.text == 63_428_097
    kept = 128 * 12 * 50 * (20 * 768 + 2 * 12 * 50)
    assert footprint.needed(tower) == 4 * (5 * 87_849_216 + 63_428_097 + kept)
    least, whole = footprint.span(spec("vitb32"))
    assert whole == footprint.needed(tower)
    one = 12 * 50 * (20 * 768 + 2 * 12 * 50)
    assert least == 4 * (5 * 87_849_216 + 63_428_097 + one // 20 + one // 12)
    assert spec("mae_b16").tower.parameters == 85_798_656
    assert spec("t5_base").tower.parameters == 222_903_552
    discarded = footprint.span(spec("vitl14"))[1] - footprint.span(spec("clip_l14_laion2b"))[1]
    assert discarded == 4 * spec("clip_l14_laion2b").tower.text
    file = ROOT / "tasklab" / "evidence" / "study" / "recorded" / "linear_layers_cost.csv.xz"
    if not file.exists():
        pytest.skip("costs are not recorded yet")
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] == "peak_memory"]
    rows = [row for row in rows if row["variant"] != "listing"]  # the paper's, which nobody runs
    most = max(float(row["value"]) for row in rows) * 2**20
    assert rows and most < footprint.span(spec("mini"))[1] < 1.3 * most


def products(network, x):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tasklab.models.encoder import math_attention

    with FlopCounterMode(display=False) as counted, math_attention(), torch.no_grad():
        network.eval()(x)
    return counted.get_total_flops() // 2


SHIPPED = ("mini", "mini_s", "mini_xs", "mini_convnext", "mini_few", "mini_t5")


@pytest.mark.parametrize("name", SHIPPED)
def test_products_are_those_of_shipped_models(name):
    import torch

    from tasklab.models import loading

    encoder = loading.load(name, init="random").encoder
    text = name == "mini_t5"
    x = torch.ones(1, 48, dtype=torch.long) if text else torch.zeros(1, 3, 32, 32)
    found = products(encoder.module, x)
    assert spec(name).tower.products == pytest.approx(found, rel=0.01 if text else 0.06)


# Chapters
def everything(**states):
    return {
        name: Weights(name, states.get(name, "found"), name, footprint.span(entry))
        for name, entry in REGISTRY.items()
    }


def test_cells_tell_the_first_reason():
    cells = runnable(everything(), None)
    assert set(cells) == set(REGISTRY) and set(cells["mini"]) == set(CHAPTERS)
    for name, row in cells.items():
        for chapter, cell in row.items():
            if zoo.text_suite(name) == "mini_text":
                expected = "text"
            elif chapter == "linear_layers" and "convnext" in name:
                expected = "no attention"
            else:
                expected = "yes"
            assert (cell.why, cell.runs) == (expected, expected == "yes"), (name, chapter)
    before, after = runnable(everything(), None), runnable(everything(t5_base="missing"), None)
    pairs = ((name, chapter) for name in before for chapter in CHAPTERS)
    changed = {(n, chapter) for n, chapter in pairs if before[n][chapter] != after[n][chapter]}
    family = set(zoo.FAMILIES[1].values()) - {"t5_base"}
    assert changed == {(name, chapter) for name in family for chapter in ("tangent", "ctl")}
    cell = after["vitb32"]["ctl"]
    assert (cell.why, cell.lacks, cell.runs) == ("lacks 1", ("t5_base",), False)
    cells = runnable(everything(vitb32="missing", vitb16="damaged", vitl16_in21k="missing"), None)
    assert {cell.why for cell in cells["vitb32"].values()} == {"missing"}
    assert {cell.why for cell in cells["vitb16"].values()} == {"damaged"}
    assert cells["vitl14"]["tangent"].why == "lacks 2"
    quick = cells["vitl14"]["closed_vocab"]
    assert (quick.runs, quick.why, quick.lacks) == (True, "quick only", ("vitl16_in21k",))
    cells = runnable(everything(mae_b16="missing"), None)
    assert cells["vitl14"]["closed_vocab"].why == "lacks 1"
    cells = runnable(everything(t5_base="fetchable", vitb16_in1k="fetchable"), None)
    assert cells["vitl14"]["ctl"] == readiness.Cell(True, "fetches 2", ("vitb16_in1k", "t5_base"))
    assert cells["vitl14"]["linear_layers"].why == "yes"
    one, largest = (footprint.span(spec(name))[0] for name in ("vitb32", "vitl14"))
    cells = runnable(everything(), one)
    assert cells["vitb32"]["linear_layers"].why == "yes"
    assert cells["vitb32"]["tangent"].why == f"needs {machine.gib(largest)}"  # of its relative
    assert cells["mini"]["tangent"].why == "yes"
    cells = runnable(everything(), one - 1)
    assert cells["vitb32"]["linear_layers"] == readiness.Cell(False, f"needs {machine.gib(one)}")
    assert {c.why for c in runnable(everything(), 0)["mini"].values()} == {"needs 0.1 GiB"}
    middle = footprint.span(spec("clip_b16_laion2b"))[0]
    cells = runnable(everything(), middle)
    assert cells["mae_b16"]["closed_vocab"].why == "quick only"  # full takes a ViT-L


# All of it
def test_jobs_run_at_once_and_none_is_waited_for_too_long():
    never, both = threading.Event(), threading.Barrier(2)

    broken = mock.Mock(side_effect=PermissionError("not yours\nsecond line"))
    wrong = mock.Mock(side_effect=TasklabError("told well."))
    jobs = {"a": both.wait, "b": both.wait, "late": never.wait, "broken": broken, "wrong": wrong}
    began = time.monotonic()
    found, failed = readiness.run_at_once(jobs, 0.5)
    assert time.monotonic() - began < 30
    assert set(found) == {"a", "b"}
    assert failed == {
        "late": "no answer within 0.5 seconds",
        "broken": "PermissionError: not yours",
        "wrong": "told well",
    }
    never.set()


def test_a_hub_that_answers_makes_weights_fetchable_within_the_patience(tmp_path, monkeypatch):
    assert readiness.hub_answer() == "HF_HUB_OFFLINE is set"
    never = threading.Event()
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetching, "PATIENCE", 0.2)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda *_, **__: never.wait(60))
    report = readiness.examine(None, tmp_path / "store")
    never.set()
    assert report.network == "no answer from the hub within 0.2 seconds"
    assert report.weights["vitb32"].state == "missing"
    asked = []
    monkeypatch.setattr(fetching, "unreachable", lambda *names: asked.append(names))
    report = readiness.examine(None, tmp_path / "store")
    assert report.network == "" and len(asked) == 1
    assert {report.weights[name].state for name in FULL_SIZE} == {"fetchable"}


def test_a_bare_machine_is_enough_for_the_default(tmp_path):
    report = readiness.examine(tmp_path / "data", tmp_path / "store")
    assert {cell.why for cell in report.chapters["mini"].values()} == {"yes"}
    assert not [line for line in report.blocking if "free" not in line]  # the disk is not ours
    assert {one.state for one in report.data.values()} == {"missing"}
    assert set(report.disks) == {"store", "decoded", "hub cache", "data root"}
    assert report.notes == ()


def test_broken_facts_are_notes(tmp_path, monkeypatch):
    broken = mock.Mock(side_effect=RuntimeError("no driver"))
    monkeypatch.setattr(machine, "accelerated", lambda: True)
    monkeypatch.setattr(machine, "devices", broken)
    monkeypatch.setattr(machine, "disk", broken)
    folder = mock.Mock(side_effect=PermissionError("not yours"))
    monkeypatch.setattr(inventory.weights, "local", folder)
    monkeypatch.setattr(DecodedImages, "state", folder)
    report = readiness.examine(None, tmp_path)
    assert "devices: RuntimeError: no driver." in report.notes
    assert "disk store: RuntimeError: no driver." in report.notes
    assert {report.weights[name].state for name in FULL_SIZE} == {"missing"}
    assert report.disks == {} and {one.state for one in report.data.values()} == {"unknown"}


def test_a_driver_that_torch_does_not_see_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "accelerated", lambda: True)
    monkeypatch.setattr(machine, "devices", lambda: [])
    assert "does not see it" in readiness.examine(None, tmp_path).notes[0]
    card = machine.Device("card", 2, 1, "9.0", True)
    monkeypatch.setattr(machine, "devices", lambda: [card])
    monkeypatch.setattr(readiness.speed, "measure", lambda: None)
    report = readiness.examine(None, tmp_path)
    assert report.notes == () and report.devices == (card,)
    assert {c.why for c in report.chapters["mini"].values()} == {"needs 0.1 GiB"}  # the device's
    assert "of free memory" in report.blocking[0] and len(report.blocking) == len(CHAPTERS)


def test_what_blocks_the_default_is_listed():
    versions = dict.fromkeys(("python", *machine.PACKAGES), "1")
    disk = Disk("/place", 2 * GIB, 4 * GIB, True)
    shipped = {n: dataclasses.replace(w, state="shipped") for n, w in everything().items()}

    def lines(**changes):
        files = changes.get("files", shipped)
        return readiness.blocking(
            changes.get("versions", versions), changes.get("pair"),
            changes.get("disks", {"store": disk, "decoded": disk}), files, runnable(files, None),
        )  # fmt: skip

    assert lines() == []
    assert lines(versions=versions | {"timm": None}) == ["timm is not installed."]
    assert lines(pair="not a pair.") == ["not a pair."]
    full = dataclasses.replace(disk, free=GIB - 1)
    assert "full" in lines(disks={"store": full})[0] and lines(disks={"hub cache": full}) == []
    fixed = dataclasses.replace(disk, writable=False)
    assert "TASKLAB_DATA" in lines(disks={"decoded": fixed})[0]
    gone = shipped | {"mini_t5": dataclasses.replace(shipped["mini_t5"], state="missing")}
    assert lines(files=gone) == ["mini_t5 is missing: reinstall tasklab."]
    other = shipped | {"vitb32": dataclasses.replace(shipped["vitb32"], state="missing")}
    assert lines(files=other) == []
