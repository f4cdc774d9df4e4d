"""A model of timm's in a chapter's experiments."""

import dataclasses
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from tasklab import Lab, Parameters
from tasklab.__main__ import main
from tasklab.bench import contest as contests
from tasklab.bench.trial import Given
from tasklab.cli import vectors
from tasklab.evidence import experiments
from tasklab.models import loading
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


@pytest.mark.parametrize("name", [NAME, "timm/test_vit.r160_in1k"])
def test_a_checkpoint_keeps_its_own_head(name, tmp_path, monkeypatch, capsys):
    """Its accuracy alone is that of timm's network with its head; one that does not fit is told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    torch.manual_seed(0)
    colours = {"Reds": ("dark", "pale"), "Blues": ("dark", "pale", "white")}
    for task, classes in colours.items():
        for c, kind in enumerate(classes):
            folder = tmp_path / task / kind
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = torch.randint(80 * c, 80 * c + 60, (24, 24, 3), dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    plain = {"num_classes": 0}
    base = timm.create_model(name.removeprefix("timm/"), **plain)
    torch.save(base.state_dict(), "base.pt")
    nets = {}
    for task, count in (("Reds", 2), ("Blues", 5)):
        nets[task] = timm.create_model(name.removeprefix("timm/"), num_classes=count).eval()
        moved = {n: x + 0.01 * torch.randn_like(x) if x.is_floating_point() else x
                 for n, x in base.state_dict().items()}  # fmt: skip
        moved |= {n: x for n, x in base.state_dict().items() if "running" in n}
        nets[task].load_state_dict(moved, strict=False)
        torch.save(nets[task].state_dict(), f"{task}.pt")
    given = {"model": name}
    found = vectors.sources_of(["Reds=Reds.pt", "Blues=Blues.pt"], given, "base.pt")
    own = vectors.own_tasks(["Reds=Reds", "Blues=Blues"])
    lab = vectors.lab_of(given, ["Reds", "Blues"], own, "base.pt", found)
    capsys.readouterr()
    heads = vectors.heads_of(found, lab)
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
