"""Published vectors, from a hub of our own to a chapter: faults, kills, labels, layouts."""

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from safetensors.torch import save

from tasklab.__main__ import main
from tasklab.bench import published_vectors
from tasklab.bench.parameters import Parameters
from tasklab.cli import paper_steps
from tasklab.errors import LeftOutError
from tasklab.evidence import study
from tasklab.evidence.experiments import Lab
from tasklab.exchange import importing, places, published, publishing
from tasklab.storage import fetching
from tasklab.storage.store import Store
from tasklab.taskvector import TaskVector
from tests import hub as hubs
from tests.helpers import refuses

ROOT = Path(__file__).parents[2]
ORTHOREG = "RL-MIND/OrthoReg_checkpoints"


def tuned(lab, task):
    """Return a vector that raises accuracy: a few steps of Adam on the validation images."""
    encoder, seen = lab.clip.encoder, lab.evaluator.images(task, "val")
    head = lab.evaluator._head(task)
    tau = {name: torch.zeros_like(x, requires_grad=True) for name, x in encoder.params.items()}
    moved = [x for name, x in tau.items() if name != "proj"]  # which transformers' layout lacks
    x, optimiser = encoder.preprocess(seen.x), torch.optim.Adam(moved, lr=2e-3)
    for _ in range(15):
        logits = head(encoder({n: p + tau[n] for n, p in encoder.params.items()}, x))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits, seen.y).backward()
        optimiser.step()
    return TaskVector({name: x.detach() for name, x in tau.items()})


def lists(theta, theta0):
    """Return the two lists that the papers' linearized encoder saves."""
    both = {"model.params": theta, "model.params0": theta0}
    named = {f"{w}.{i}": x for w, some in both.items() for i, x in enumerate(some.values())}
    return {"model_name": "ViT-tiny", **named}


def in_transformers(theta):
    """Return a tower as `CLIPVisionModel` names it, which has no projection."""
    found = publishing.in_transformers({f"visual.{name}": x for name, x in theta.items()})
    return {n: x.contiguous() for n, x in found.items() if "visual_projection" not in n}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A hub with all sources' files of a small CLIP, and the papers' data sets with few images."""
    tmp, patch = tmp_path_factory.mktemp("world"), pytest.MonkeyPatch()
    constants = huggingface_hub.constants
    with hubs.serve() as hub, hubs.papers_data(tmp / "data") as data, patch.context() as here:
        hubs.register()
        here.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        here.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        here.setattr(constants, "HF_HUB_CACHE", str(tmp / "cache"))
        here.setattr(constants, "HF_HUB_OFFLINE", False)
        here.setattr(fetching, "_PAUSE", 0.01)
        here.setenv("TASKLAB_DATA", str(tmp / "decoded"))
        weights = {name: x.contiguous() for name, x in hubs.weights().items()}
        hub.put("tasklab-tests/tiny", "open_clip_model.safetensors", save(weights))
        lab = Lab(
            "tiny", suite="paper", data_root=data, store_root=tmp / "lab", device="cpu",
            progress=False, use="evaluate",
        )  # fmt: skip
        vectors = {task: tuned(lab, task) for task in lab.suite.names}
        publish(hub, lab.clip.encoder.params, vectors, weights)
        yield SimpleNamespace(
            hub=hub, data=data, lab=lab, vectors=vectors, theta0=lab.clip.encoder.params, tmp=tmp
        )
    hubs.forget()


def publish(hub, theta0, vectors, weights):
    """Put the vectors into the hub in every source's layout."""
    beside = {name: x for name, x in weights.items() if name.startswith("positional")}
    for task, tau in vectors.items():
        theta = tau.apply(theta0)
        part = {n: x if ".attn." in n and n.endswith("weight") else theta0[n]
                for n, x in theta.items()}  # fmt: skip
        folder = f"ViT-tiny/{task}Val"
        whole = {f"model.{n}": x for n, x in beside.items()} | {
            f"model.visual.{n}": x for n, x in theta.items()
        }
        attention = {name: part[name.removeprefix("model.visual.")] if "visual" in name else x
                     for name, x in whole.items()}  # fmt: skip
        for end in ("", "_ortho"):
            standard = f"standard{end}_finetuned.pt" if end else "finetuned.pt"
            hub.put(ORTHOREG, f"{folder}/{standard}", whole)
            hub.put(ORTHOREG, f"{folder}/linear{end}_finetuned.pt", lists(theta, theta0))
            hub.put(ORTHOREG, f"{folder}/linear-2{end}_finetuned.pt", attention)
        hub.put("tanganke/task_arithmetic_checkpoints", f"ViT-tiny/{task}/finetuned.pt", whole)
        theirs = published.entry("fusion_bench")["tasks"][task]
        content = save(in_transformers(theta))
        hub.put(f"tanganke/clip-vit-tiny_{theirs}", "model.safetensors", content)


@pytest.fixture
def fresh(world, tmp_path, monkeypatch):
    """Start with an empty cache of the hub, but for the model's own weights."""
    world.hub.faults.clear()
    world.hub.sent.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    fetching.fetch("tasklab-tests/tiny", "open_clip_model.safetensors", progress=False)
    return tmp_path


def words(world, where, source, *more):
    places = ["--data-root", str(world.data), "--store-root", str(where / "store")]
    return ["import", "--from", source, "--model", "tiny", *places, "--device", "cpu", *more]


@pytest.mark.parametrize("source", published.declared())
def test_a_source_is_imported_and_checked(world, fresh, capsys, source):
    kept, pair = Store(fresh / "store"), ["EuroSAT", "GTSRB"]
    given = words(world, fresh, source, "--tasks", "EuroSAT,GTSRB")
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "0 are imported" in told and "% on 8 images of EuroSAT" in told
    wanted = published.vectors(source, "tiny", pair)
    for one in wanted:
        found, tau = importing.imported(kept, "tiny", one.name), world.vectors[one.task]
        assert found.method == one.method
        for name, x in found.items():
            torch.testing.assert_close(x, tau[name], atol=1e-6, rtol=1e-3)
        assert (found.method == "attention") == (len(found) < len(tau) - 1)
    world.hub.sent.clear()
    assert main(given) == 0
    assert not world.hub.sent and f"{len(wanted)} are imported, 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        (["break", "break"], ""),
        (["stall"], ""),
        (["ignore", "break", "ignore"], ""),
        (["500", "429"], ""),
        (["cdn-403"], ""),  # its signed address is too old
        (["page", "break"], ""),
        (["long"], ""),
        (["wrong"], "does not have the checksum"),
        (["404"], "answers 404 Not Found.*another name"),
        (["401"], "answers 401 Unauthorized.*hf auth login"),
        (["403"], "answers 403 Forbidden.*terms"),
        (["429"] * 3, "answers 429 Too Many Requests.*later"),
        (["portal"] * 2, "does not answer as a hub"),
        (["page"] * 3, r"answers with \d+ bytes in place of"),
    ],
)
def test_a_faulty_transfer_ends_whole_or_in_one_sentence(world, fresh, monkeypatch, faults, told):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    path = "ViT-tiny/DTDVal/linear_finetuned.pt"
    content, own = world.hub.files[ORTHOREG][path], [*fresh.rglob("*")]
    # the first answer is to the question whether there is a hub
    world.hub.faults[path] = [*faults[:1], *faults] if faults[0].isdigit() else [*faults]
    if told:
        refuses(told, fetching.fetch, ORTHOREG, path, progress=False)
        new = [one for one in fresh.rglob("*") if one.is_file() and one not in own]
        assert {one.suffix for one in new} <= {".lock"}  # and no part of a page
        world.hub.faults.clear()
    assert fetching.fetch(ORTHOREG, path, progress=False).read_bytes() == content
    if faults == ["break", "break"]:  # each goes on where the last one ended
        assert world.hub.sent[path] == sorted(set(world.hub.sent[path]))
        assert len(world.hub.sent[path]) == 3


def test_what_was_left_of_another_file_is_fetched_anew(world, fresh):
    path = "ViT-tiny/DTDVal/linear_finetuned.pt"
    content = world.hub.files[ORTHOREG][path]
    blobs = fresh / "cache" / f"models--{ORTHOREG.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    sha256 = hashlib.sha256(content).hexdigest()
    (blobs / f"{sha256}.tasklab.incomplete").write_bytes(b"<html>")
    assert fetching.fetch(ORTHOREG, path, progress=False).read_bytes() == content
    assert world.hub.sent[path] == [6, 0]


def test_a_hostile_mirror_writes_nothing_outside(world, fresh):
    path = "ViT-tiny/DTDVal/finetuned.pt"
    world.hub.faults[path] = ["escape"] * 9
    before = {one for one in fresh.rglob("*")}
    refuses("names no file", fetching.fetch, ORTHOREG, path, progress=False)
    assert not [one for one in {*fresh.rglob("*")} - before if one.is_file()]


def test_a_file_deeper_in_its_repository_is_found(world, fresh):
    """As the publisher's own code lays it out: a folder a mode, learning rate and model."""
    content = world.hub.files[ORTHOREG]["ViT-tiny/DTDVal/finetuned.pt"]
    place = "checkpoints/standard_1e-05_ViT-tiny/DTDVal/finetuned.pt"
    other = "checkpoints/standard_1e-05_ViT-B-32/DTDVal/finetuned.pt"
    moved, world.hub.files[ORTHOREG] = world.hub.files[ORTHOREG], {place: content, other: b"?"}
    wanted, store = published.vectors("orthoreg", "tiny", ["DTD"]), Store(fresh / "store")
    try:
        told = published.status(wanted, store)
        assert [one.state for one in told] == ["missing", *["unpublished"] * 3]
        assert told[0].bytes == len(content) and told[0].exact
        records = list(published.fetch(wanted, store, progress=False))
    finally:
        world.hub.files[ORTHOREG] = moved
    assert ["problem" in one for one in records] == [False, True, True, True]


def test_a_damaged_file_in_the_cache_is_fetched_again(world, fresh):
    path = "ViT-tiny/DTDVal/finetuned.pt"
    blob = fetching.fetch(ORTHOREG, path, progress=False).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + b"?")
    assert fetching.fetch(ORTHOREG, path, progress=False).read_bytes() == content
    refuses("checksum", lambda: fetching.fetch(ORTHOREG, path, sha256="0" * 64, progress=False))


def test_kills_at_random_cost_no_more_than_a_part(world, fresh):
    """A process that fetches is killed at random moments; the command then ends whole."""
    hub, store, path = world.hub, Store(fresh / "store"), "ViT-tiny/DTDVal/linear_finetuned.pt"
    hub.slow, hub.faults[path] = 0.02, ["slow"] * 9
    env = os.environ | {
        "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(fresh / "cache"), "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    code = f"from tasklab.storage import fetching; fetching.fetch({ORTHOREG!r}, {path!r})"
    drawn = random.Random(0)
    for count in (1, 2, 3):
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while len(hub.sent.get(path, ())) < count and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(drawn.uniform(0.05, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = [one.name for one in (fresh / "cache").rglob("*") if one.name.startswith("linear_")]
        assert not kept  # nothing half-written has the file's name
    hub.faults.clear()
    assert main(words(world, fresh, "orthoreg", "--tasks", "DTD", "--method", "linearized")) == 0
    assert len(hub.sent[path]) == 4 and hub.sent[path] == sorted(hub.sent[path])
    assert hub.sent[path][-1] > 0
    vector = importing.imported(store, "tiny", "orthoreg_DTD_linear")
    for name, x in vector.items():
        torch.testing.assert_close(x, world.vectors["DTD"][name], atol=1e-6, rtol=1e-3)
    assert not [*(fresh / "cache").rglob("*.incomplete")]


def test_mislabelled_files_are_named(world, fresh, capsys):
    """RESISC45 points at DTD, SVHN is noise, Cars' attention file moved everything."""
    hub = world.hub
    before = dict(hub.files[ORTHOREG])
    noise = torch.load(io.BytesIO(before["ViT-tiny/SVHNVal/finetuned.pt"]))
    for name, x in world.theta0.items():
        noise[f"model.visual.{name}"] = x - world.vectors["SVHN"][name] * 3
    try:
        hub.put(ORTHOREG, "ViT-tiny/SVHNVal/finetuned.pt", noise)
        dtd, cars = (before[f"ViT-tiny/{task}Val/finetuned.pt"] for task in ("DTD", "Cars"))
        hub.files[ORTHOREG]["ViT-tiny/RESISC45Val/finetuned.pt"] = dtd
        hub.files[ORTHOREG]["ViT-tiny/CarsVal/linear-2_finetuned.pt"] = cars
        hub.files[ORTHOREG]["ViT-tiny/DTDVal/linear-2_finetuned.pt"] = b"not a file of torch" * 999
        chosen = ["--tasks", "Cars,DTD,RESISC45,SVHN", "--method", "nonlinear,attention"]
        given = words(world, fresh, "orthoreg", *chosen)
        assert main(given) == 2
    finally:
        hub.files[ORTHOREG] = before
    told, error = capsys.readouterr()
    assert "orthoreg_RESISC45_standard" in told
    assert "is the same file as orthoreg_DTD_standard" in told
    assert "it does not raise accuracy on SVHN" in told
    assert "is called attention; by what moved in it, it is nonlinear" in told
    assert "4 of 8 vectors have a problem" in error
    kept = {one["name"] for one in places.listed(Store(fresh / "store"))}
    wrong = {"RESISC45_standard", "SVHN_standard", "Cars_linear-2", "DTD_linear-2"}
    assert not {f"orthoreg_{one}" for one in wrong} & kept and len(kept) == 4


def test_a_folder_stands_in_for_the_hub(world, fresh, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    mirror = fresh / "mirror"
    for path, content in world.hub.files[ORTHOREG].items():
        if "DTD" in path:
            (mirror / path).parent.mkdir(parents=True, exist_ok=True)
            (mirror / path).write_bytes(content)
    given = words(world, fresh, "orthoreg", "--tasks", "DTD", "--source", str(mirror))
    assert main([*given, "--dry-run"]) == 0 and "here" in capsys.readouterr().out
    assert main(given) == 0
    assert main([*given[:-4], "--tasks", "SVHN", "--source", str(mirror)]) == 2
    assert "has neither" in capsys.readouterr().out


def test_the_papers_are_run_from_published_vectors(world, fresh, monkeypatch, capsys):
    """Without chapters: bytes first, a broken transfer, and nothing twice."""
    monkeypatch.setattr(paper_steps.Work, "notebooks", {})
    places = ["--data-root", str(world.data), "--store-root", str(fresh / "store")]
    given = ["paper", "tiny", *places, "--device", "cpu", "--chapter", "tangent"]
    assert main([*given, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "attention, 8 published" in listed and not (fresh / "store").exists()
    world.hub.faults["ViT-tiny/DTDVal/finetuned.pt"] = ["break"]
    assert main(given) == 0
    told = capsys.readouterr().out
    world.hub.sent.clear()
    assert main(given) == 0 and not world.hub.sent
    assert "vectors:" in told and "vectors:" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tangent"])
def test_a_chapter_runs_without_training(world, fresh, monkeypatch, name):
    """Its own cells, but for sentences about recorded runs; what trains is left out by name."""
    hub_to(fresh, world, "fusion_bench")
    monkeypatch.setattr(study, "judged", lambda *_, **__: [])  # verdicts are about recorded runs
    shell, shown = InteractiveShell(), []
    monkeypatch.setattr(published_vectors, "_told", set())
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(published_vectors, "tell", shown.append)
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    given = {
        "model": "tiny", "vectors": "published:fusion_bench", "steps": 2, "device": "cpu",
        "data_root": str(world.data), "store_root": str(fresh / "store"),
    }  # fmt: skip
    ran = 0
    for cell in cells:
        tags = {*cell["metadata"].get("tags", [])}
        code = "".join(cell["source"])
        about_records = "remove-input" in tags and ("judged" in code or "page.glance" in code)
        if cell["cell_type"] == "code" and "hide-cell" not in tags and not about_records:
            if "parameters" in tags:
                code += "".join(f"\n{key} = {value!r}" for key, value in given.items())
            result = shell.run_cell(code, store_history=True)
            assert result.success, code
            ran += 1
    assert ran > 8
    told = "\n".join(shown)
    assert "linearized (not published)" in told and "no vectors of random weights" in told


def hub_to(where, world, source):
    """Import all vectors of a source, without the check of labels."""
    list(published.fetch(published.vectors(source, "tiny"), Store(where / "store"), progress=False))


def test_published_vectors_are_parameters_like_others(world, fresh, capsys):
    """Of `Lab` and of commands; what cannot be is one sentence before anything is loaded."""
    given = {"vectors": "published:orthoreg", "device": "cpu", "data_root": world.data,
             "store_root": fresh / "store"}  # fmt: skip
    full = Parameters(model="tiny", preset="full", **given)
    assert (full.suite, full.seeds) == ("paper", (0,))
    for wrong, told in (
        ({"vectors": "published:orthorg"}, "did you mean 'published:orthoreg'"),
        ({"model": "mini"}, "no vectors of mini"), ({"head": "probe"}, "do not fit head"),
        ({"seeds": 2}, "one seed"), ({"lr": 1e-5}, "leave out lr"), ({"suite": "mini"}, "suite"),
    ):  # fmt: skip
        refuses(told, Parameters, **{"model": "tiny", **given, **wrong})
    refuses("import --from orthoreg --model tiny. fetches them", Lab, full, progress=False)
    pair = ["EuroSAT", "GTSRB"]
    wanted = published.vectors("orthoreg", "tiny", pair, ["nonlinear", "linearized"])
    list(published.fetch(wanted, Store(fresh / "store"), progress=False))
    lab = Lab(full, progress=False, tasks=pair)
    assert lab.scale.counts == {}
    assert lab.able(["posthoc", "linearized"]) == ["posthoc", "linearized"]
    assert lab.vectors("posthoc")["GTSRB"].method == "posthoc"
    assert lab.able(["nonlinear", "attention"]) == ["nonlinear"]
    assert "attention (not imported)" in capsys.readouterr().err
    for left in (
        lambda: lab.tune("GTSRB"), lambda: lab.vectors("attention"),
        lambda: lab.relative("random").vectors(), lambda: lab.sibling(model="mini"),
    ):  # fmt: skip
        with pytest.raises(LeftOutError):
            left()
    places = ["--model", "tiny", "--store-root", str(fresh / "store"), "--device", "cpu",
              "--data-root", str(world.data), "--vectors", "published:orthoreg"]  # fmt: skip
    out = fresh / "merged.safetensors"
    assert main(["merge", *(f"{task}@nonlinear" for task in pair), "--out", str(out), *places]) == 0
    assert out.is_file()
