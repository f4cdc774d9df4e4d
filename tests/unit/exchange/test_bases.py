"""A model with the weights of a checkpoint, where the published ones are not on the machine."""

import pytest
import torch

from tasklab.errors import TasklabError
from tasklab.exchange import bases, publishing
from tasklab.models import heads, loading
from tasklab.tasks.suites import suite
from tests.helpers import refuses

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


@pytest.mark.parametrize("layout", ["open_clip", "custom text", "a training run", "transformers"])
def test_both_towers_are_those_of_the_checkpoint(network, layout, tmp_path):
    tensors = network.state_dict()
    if layout == "transformers":
        tensors = publishing.in_transformers(tensors)
    elif layout == "custom text":
        images = ("visual.", "logit_scale")
        tensors = {n if n.startswith(images) else f"text.{n}": x for n, x in tensors.items()}
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


def test_a_text_tower_is_the_checkpoints_as_far_as_it_goes(tmp_path, caplog):
    published = loading.both_towers(MODEL).state_dict()
    tuned = published | {"token_embedding.weight": published["token_embedding.weight"] + 1}
    file = tmp_path / "base.pt"
    torch.save({name: x for name, x in tuned.items() if name != "logit_scale"}, file)
    text = bases.completed(file, MODEL).text
    assert torch.equal(text["token_embedding.weight"], tuned["token_embedding.weight"])
    assert text["logit_scale"] == published["logit_scale"]
    assert "logit_scale of its text tower are those of the published weights" in caplog.text
    words, positions = tuned["token_embedding.weight"], tuned["positional_embedding"]
    for n, (part, told) in enumerate([
        ({"token_embedding.weight": words[1:]}, r"text tower does not fit .* 128\) for \("),
        ({"positional_embedding": positions[1:]}, "text tower does not fit"),
        ({"token_embedding.weight": words.int()}, "int32 numbers in token_embedding"),
        ({"token_embedding.weight": words * torch.inf}, "not finite, in token_embedding"),
    ]):  # fmt: skip
        torch.save(tuned | part, tmp_path / f"{n}.pt")
        refuses(told, bases.clip_of, tmp_path / f"{n}.pt", MODEL)
    torch.save(tuned | {"text_projection": 0 * tuned["text_projection"]}, tmp_path / "zero.pt")
    with pytest.raises(TasklabError, match="makes zeros of Signs"):
        heads.zero_shot(bases.clip_of(tmp_path / "zero.pt", MODEL), suite("mini")["Signs"])


def test_what_is_missing_is_one_sentence(network, tmp_path):
    file = tmp_path / "base.pt"
    torch.save(network.visual.state_dict(), file)
    refuses(r"lacks a text tower.+--head probe", bases.clip_of, file, MODEL)
    assert bases.clip_of(file, MODEL, texts=False).text is None
    images = publishing.in_transformers(
        {f"visual.{n}": x for n, x in network.visual.state_dict().items()}
    )
    torch.save({n: x for n, x in images.items() if n != "visual_projection.weight"}, file)
    refuses("lacks a projection", bases.clip_of, file, MODEL, texts=False)
