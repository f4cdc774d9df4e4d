"""A model of timm's in a chapter's experiments."""

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from tasklab import Lab, Parameters, TaskVector
from tasklab.__main__ import main
from tasklab.bench import contest as contests
from tasklab.bench.trial import Given
from tasklab.cli import request
from tasklab.evidence import experiments
from tasklab.models import loading
from tasklab.tuning import probes
from tasklab.tuning.recipe import Probe
from tests.helpers import mistaken
from tests.vectors import noise

NAME = "timm/test_resnet.r160_in1k"  # with batch normalisation


def test_it_is_probed_and_its_vectors_are_added(tmp_path):
    """At a rate that is given; batch statistics stay those of pre-training."""
    parameters = Parameters(
        model=NAME, init="random", head="probe", steps=3, lr="0.01", store_root=tmp_path
    )
    lab = Lab(parameters, progress=False, tasks=("Textures", "Signs"))
    (one,) = experiments.schemes(lab, ["clip_more"])  # it stands alone, whatever the role
    run = one.tune("Signs", "nonlinear", 0)
    assert one.run("Signs", "nonlinear", 0).lr == 0.01
    assert set(run.vector.keys()) <= set(one.clip.encoder.params)
    assert run.vector.norm() > 0
    found = experiments.closed_addition(one)
    assert set(found["model"]) == {NAME}
    assert set(found["experiment"]) == {
        "single", "sweep", "addition", "addition_fine", "closed_cost",
    }  # fmt: skip


@pytest.mark.parametrize("name", [NAME, "timm/test_vit.r160_in1k"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_timm_loads_the_merged_model(name, suffix, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    encoder = loading.load(name, init="random").encoder
    for buffer in encoder.module.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2)  # statistics that are not the initial ones
    encoder = dataclasses.replace(encoder, origin=None)  # of the network as it is now
    state = encoder.module.state_dict()
    torch.save(state, "base.pt")
    taus = [noise(encoder.params, seed, 0.01) for seed in range(2)]
    for tau, file in zip(taus, ("a.pt", "b.pt"), strict=True):
        torch.save(state | tau.apply(encoder.params), file)
    words = ["merge", "a.pt", "b.pt", "--model", name, "--base", "base.pt", "--alpha", "0.5"]
    assert main([*words, "--model-out", f"m{suffix}"]) == 0
    assert f"the merged model, for timm: m{suffix}" in capsys.readouterr().out
    card = Path("m.md").read_text()
    assert "library_name: timm" in card and "has no head" in card and "ext tower" not in card
    made = (
        card.partition("```python\n")[2]
        .partition("```")[0]
        .replace("timm.create", "net = timm.create")
    )
    found: dict = {}
    exec(made, found)
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        theta = (0.5 * (taus[0] + taus[1])).apply(encoder.params)
        torch.testing.assert_close(found["net"].eval()(x), encoder(theta, x), atol=1e-4, rtol=1e-4)
    assert isinstance(found["net"], type(timm.create_model(name.removeprefix("timm/"))))
    assert "timm loads" in mistaken([*words, "--out", "n.safetensors", "--model-out", "n"], capsys)


COLOURS = {"Reds": ("dark", "pale"), "Blues": ("dark", "pale", "white"), "Greys": ("ash", "tin")}
VIT = "timm/test_vit.r160_in1k"


@pytest.fixture
def networks(request, tmp_path, monkeypatch):
    """Networks of timm by task, saved as TASK.pt, each with its head; that of Blues does not fit.

    Folders of images have the tasks' names; base.pt is what all start from.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    torch.manual_seed(0)
    for task, classes in COLOURS.items():
        for c, kind in enumerate(classes):
            folder = tmp_path / task / kind
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = torch.randint(80 * c, 80 * c + 60, (24, 24, 3), dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    arch = request.param.removeprefix("timm/")
    base = timm.create_model(arch, num_classes=0)
    torch.save(base.state_dict(), "base.pt")
    nets = {}
    for task, count in (("Reds", 2), ("Blues", 5), ("Greys", 2)):
        nets[task] = timm.create_model(arch, num_classes=count).eval()
        moved = {n: x + 0.01 * torch.randn_like(x) if x.is_floating_point() else x
                 for n, x in base.state_dict().items()}  # fmt: skip
        moved |= {n: x for n, x in base.state_dict().items() if "running" in n}
        nets[task].load_state_dict(moved, strict=False)
        torch.save(nets[task].state_dict(), f"{task}.pt")
    return request.param, nets


@pytest.mark.parametrize("networks", [VIT], indirect=True)
def test_imported_vectors_keep_their_heads(networks, tmp_path, capsys):
    """Their accuracies are those of timm's networks; where no head fits, a probe of the edited."""
    name, nets = networks
    for task in COLOURS:
        words = ["import", f"{task}.pt", "--model", name, "--task", task, "--base", "base.pt"]
        assert main(words) == 0
        told = capsys.readouterr().out
        classes = len(nets[task].head.weight)
        assert f"its own head, of {classes} classes" in told
    images = [word for task in COLOURS for word in ("--data", f"{task}={task}")]
    about = ["--base", "base.pt", *images, "--json"]
    asked = request.read_words("evaluate", [], {"model": name}, base="base.pt", data=images[1::2])
    with asked.vectors() as none:
        lab = none.lab([*COLOURS])
    right = {}
    for task in ("Reds", "Greys"):
        x, y = lab.evaluator.images(task, "test")
        with torch.no_grad():
            answers = nets[task](lab.clip.encoder.preprocess(x)).argmax(1) == y
        right[task] = 100 * answers.double().mean().item()
    every = [f"{task}_nonlinear" for task in COLOURS]
    for task in ("Reds", "Greys"):
        assert main(["evaluate", name, "--add", f"{task}_nonlinear", "--task", task, *about]) == 0
        (row,) = json.loads(capsys.readouterr().out)["tasks"]
        assert row["after"] == pytest.approx(right[task])
    words = ["compare", *every, "--model", name, "--methods", "arithmetic", "--csv", "rows.csv"]
    assert main([*words, *about]) == 0
    told = capsys.readouterr().err
    assert (
        "Reds_nonlinear has a head of its own" in told and "Blues_nonlinear has a head of 5" in told
    )
    rows = pd.read_csv("rows.csv").set_index(["model", "task"])["accuracy"]
    assert rows["alone", "Reds"] == pytest.approx(right["Reds"], abs=0.05)
    assert rows["alone", "Greys"] == pytest.approx(right["Greys"], abs=0.05)
    word = "other=Reds_nonlinear"
    assert main(["evaluate", name, "--add", word, "--task", "Greys", *about]) == 0
    assert "other is none of the tasks here" in capsys.readouterr().err


def accuracy(network, head, task, name):
    """Return the accuracy on test images of a network's features with another network's head."""
    asked = request.read_words(
        "evaluate", [], {"model": name}, base="base.pt", data=[f"{task}={task}"]
    )
    with asked.vectors() as none:
        lab = none.lab([task])
    x, y = lab.evaluator.images(task, "test")
    with torch.no_grad():
        features = network.forward_head(
            network.forward_features(lab.clip.encoder.preprocess(x)), pre_logits=True
        )
        return 100 * (head(features).argmax(1) == y).double().mean().item()


@pytest.mark.parametrize("networks", [VIT], indirect=True)
def test_a_merged_vector_has_the_heads_of_its_tasks(networks, tmp_path, capsys):
    """`evaluate` of the file, and of what is imported or merged from it, takes them."""
    name, nets = networks
    with torch.no_grad():  # heads of features that are told apart, or all accuracies are chance
        for task in ("Reds", "Greys"):
            asked = request.read_words("evaluate", [], {"model": name}, base="base.pt",
                                 data=[f"{task}={task}"])  # fmt: skip
            with asked.vectors() as none:
                lab = none.lab([task])
            x, y = lab.evaluator.images(task, "train")
            features = lab.evaluator.features(lab.clip.encoder.params, task, "train")
            mean = torch.stack([features[y == c].mean(0) for c in range(2)])
            nets[task].head.weight.copy_(mean)
            nets[task].head.bias.copy_(-mean.square().sum(1) / 2)
            torch.save(nets[task].state_dict(), f"{task}.pt")
    about = ["--model", name, "--base", "base.pt"]
    words = ["merge", "Reds.pt", "Greys.pt", *about, "--alpha", "0.7", "--out", "one.safetensors"]
    assert main([*words, "--model-out", "net.safetensors"]) == 0
    assert "with the heads of Reds, Greys" in capsys.readouterr().out
    assert "heads of Reds, Greys are in `one.safetensors`" in Path("net.md").read_text()
    network = timm.create_model(
        name.removeprefix("timm/"), num_classes=0, checkpoint_path="net.safetensors"
    ).eval()
    right = {task: accuracy(network, nets[task].head, task, name) for task in ("Reds", "Greys")}
    assert right["Reds"] != 50, "a test that chance passes"
    tensors = load_file("one.safetensors")
    assert torch.equal(tensors["classifier/Reds.weight"], nets["Reds"].head.weight)
    assert not any("classifier" in n for n in TaskVector.load("one.safetensors"))
    assert main(["inspect", "one.safetensors", "--base", "base.pt"]) == 0
    told = capsys.readouterr().out
    assert "the heads of Greys, Reds are beside it" in told
    assert f"{TaskVector.load('one.safetensors').norm():.4g}" in told
    assert main(["import", "one.safetensors", *about, "--task", "both"]) == 0
    assert "heads of Greys, Reds" in capsys.readouterr().out
    assert main(["merge", "one.safetensors", "Blues.pt", *about, "--alpha", "1",
                 "--out", "two.safetensors"]) == 0  # fmt: skip
    told = capsys.readouterr().out
    assert "with the heads of Greys, Reds, Blues" in told
    images = [word for task in right for word in ("--data", f"{task}={task}")]
    for vector in ("one.safetensors", "both_nonlinear"):
        words = ["evaluate", name, "--add", vector, "--base", "base.pt", *images, "--json"]
        assert main(words) == 0
        out, err = capsys.readouterr()
        for row in json.loads(out)["tasks"]:
            assert row["after"] == pytest.approx(right[row["task"]])
        told = "head of its own, for the 2 classes of Greys, the 2 classes of Reds in order"
        assert told in err
    words = ["evaluate", name, "--add", "one.safetensors", "--base", "base.pt"]
    assert main([*words, "--data", "Pinks=Reds"]) == 0
    assert "heads of Greys, Reds, none of the tasks here (Pinks)" in capsys.readouterr().err


@pytest.mark.parametrize("networks", [VIT], indirect=True)
def test_a_task_of_two_heads_keeps_none(networks, capsys):
    name, _ = networks
    about = ["--model", name, "--base", "base.pt", "--alpha", "0.5", "--out", "a.safetensors"]
    assert main(["merge", "Reds=Reds.pt", "Reds=Greys.pt", "Blues.pt", *about, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["heads"] == ["Blues"] and "Several vectors have a head of Reds" in err


@pytest.mark.parametrize("networks", [VIT], indirect=True)
@pytest.mark.parametrize("linear", [False, True])
def test_a_probe_is_fitted_to_the_edited_features(networks, linear):
    name, nets = networks
    words, data = ["Reds=Reds.pt", "Blues=Blues.pt"], ["Reds=Reds", "Blues=Blues"]
    asked = request.read_words("compare", words, {"model": name}, base="base.pt", data=data)
    with asked.vectors() as vectors:
        found, lab = vectors.sources, vectors.lab()
        heads = vectors.heads(lab)
    trial = Given.of(lab, vectors.of_task(), "nonlinear", heads)
    assert trial.probed == ("Blues",)
    vector = 10 * found[0].vector
    edited = trial.edited(vector, 0.7, linear=linear)
    assert torch.equal(edited.head("Reds").weight, trial.evaluator.head("Reds").weight)
    features = edited.edited(vector, "Blues", "train", linear=linear)
    labels = edited.images("Blues", "train").y
    lr = probes.fit(Probe(), lab.clip, lab.suite, "Blues", lab.store).lr
    wanted = probes.adamw(features(0.7), labels, classes=3, lr=lr)
    torch.testing.assert_close(edited.head("Blues").weight, wanted.weight, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(trial.evaluator.head("Blues").weight, wanted.weight, atol=1e-2)
    if not linear:
        theta = (0.7 * vector).apply(lab.clip.encoder.params)
        torch.testing.assert_close(features(0.7), edited.features(theta, "Blues", "train"))
    told = lab.evaluate(0.7 * vector, ["Blues"], linear=linear, heads=heads)
    answers = edited.answers(vector, "Blues", "test", 0.7, linear=linear)
    assert told.after["Blues"].tolist() == answers.tolist()


@pytest.mark.parametrize("networks", [NAME, VIT], indirect=True)
def test_a_checkpoint_keeps_its_own_head(networks, capsys):
    """Its accuracy alone is that of timm's network with its head; one that does not fit is told."""
    name, nets = networks
    given = {"model": name}
    words, data = ["Reds=Reds.pt", "Blues=Blues.pt"], ["Reds=Reds", "Blues=Blues"]
    asked = request.read_words("compare", words, given, base="base.pt", data=data)
    with asked.vectors() as vectors:
        found, lab = vectors.sources, vectors.lab()
        capsys.readouterr()
        heads = vectors.heads(lab)
    assert [*heads] == ["Reds"]
    assert "Blues.pt has a head of 5 classes, and Blues has 3" in capsys.readouterr().err
    trial = Given.of(lab, {one.task: one.vector for one in found}, "nonlinear", heads)
    evaluator, tau = trial.evaluator, found[0].vector
    assert evaluator.head("Blues").weight.shape[0] == 3  # a probe
    images = evaluator.images("Reds", "test")
    with torch.no_grad():
        pixels = lab.clip.encoder.preprocess(images.x)
        right = nets["Reds"](pixels).argmax(1) == images.y
    answers = evaluator.answers(tau, "Reds", "test", linear=False)
    assert answers.tolist() == right.tolist()
    one, other = (contests._Keeper(Given.of(lab, {"Reds": tau}, "nonlinear", of))._common
                  for of in (heads, {}))  # fmt: skip
    assert one != other, "a result with another head would be taken from the store"
