"""A model with the weights of a checkpoint, where the published ones are not on the machine."""

import pytest
import torch

from tasklab.errors import TasklabError
from tasklab.exchange import bases, publishing
from tasklab.models import loading

MODEL = "mini_xs"


@pytest.fixture
def network(monkeypatch):
    torch.manual_seed(0)
    made = loading.build(loading.spec(MODEL))

    def gone(*_, **__):
        raise TasklabError("the weights are not here.")

    for name in ("load", "shared", "locate", "both_towers"):
        monkeypatch.setattr(loading, name, gone)
    return made


@pytest.mark.parametrize("layout", ["open_clip", "a training run", "transformers"])
def test_both_towers_are_those_of_the_checkpoint(network, layout, tmp_path):
    tensors = network.state_dict()
    if layout == "transformers":
        tensors = publishing.in_transformers(tensors)
    elif layout == "a training run":
        tensors = {"state_dict": {f"module.{name}": x for name, x in tensors.items()}}
    torch.save(tensors, tmp_path / "base.pt")
    clip = bases.clip_of(tmp_path / "base.pt", MODEL)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(clip.encoder({}, x), network.encode_image(x))
        tokens = loading.mini.tokenize(["a sign"])
        torch.testing.assert_close(clip.text(["a sign"]), network.encode_text(tokens))
    assert clip.encoder.weights_hash == loading.Encoder.of(network.visual).weights_hash


def test_what_is_missing_is_one_sentence(network, tmp_path):
    file = tmp_path / "base.pt"
    torch.save(network.visual.state_dict(), file)
    with pytest.raises(TasklabError, match=r"lacks a text tower.+--head probe"):
        bases.clip_of(file, MODEL)
    assert bases.clip_of(file, MODEL, texts=False).text is None
    images = publishing.in_transformers(
        {f"visual.{n}": x for n, x in network.visual.state_dict().items()}
    )
    torch.save({n: x for n, x in images.items() if n != "visual_projection.weight"}, file)
    with pytest.raises(TasklabError, match="lacks a projection"):
        bases.clip_of(file, MODEL, texts=False)
