"""A model of timm's in a chapter's experiments."""

import dataclasses
from pathlib import Path

import pytest
import timm
import torch

from tasklab import Lab, Parameters
from tasklab.__main__ import main
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
    vectors = [noise(encoder.params, seed, 0.01) for seed in range(2)]
    for tau, file in zip(vectors, ("a.pt", "b.pt"), strict=True):
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
        theta = (0.5 * (vectors[0] + vectors[1])).apply(encoder.params)
        torch.testing.assert_close(found["net"].eval()(x), encoder(theta, x), atol=1e-4, rtol=1e-4)
    assert isinstance(found["net"], type(timm.create_model(name.removeprefix("timm/"))))
    assert "timm loads" in mistaken([*words, "--out", "n.safetensors", "--model-out", "n"], capsys)
