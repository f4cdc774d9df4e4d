"""Checkpoints of sentence encoders, as transformers and sentence-transformers save them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tasklab.exchange import importing, reading
from tests import sentences as tiny
from tests.helpers import refuses


@pytest.fixture
def clip(tmp_path, monkeypatch):
    return tiny.tiny(tmp_path, monkeypatch)


def saved(folder, prefix="", changes=None):
    folder.mkdir()
    state = {name: x.clone() for name, x in tiny.network().state_dict().items()}
    for name, change in (changes or {}).items():
        state[name] += change
    save_file({f"{prefix}{name}": x for name, x in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(tiny.CONFIG))
    return folder


@pytest.mark.parametrize("prefix", ["", "bert.", "0.auto_model."])
def test_a_fine_tuned_checkpoint_gives_its_change(clip, tmp_path, prefix):
    change = {"encoder.layer.1.attention.self.key.weight": 0.5}
    folder = saved(tmp_path / "tuned", prefix, change)
    vector = importing.vector_of(folder, "minilm")
    moved = {name: x for name, x in vector.items() if x.count_nonzero()}
    assert list(moved) == ["blocks.1.attn.qkv.weight"]
    query, key, value = moved["blocks.1.attn.qkv.weight"].chunk(3)
    assert not query.any() and not value.any()
    torch.testing.assert_close(key, torch.full_like(key, 0.5))


def test_trained_embeddings_are_told_of(clip, tmp_path, caplog):
    folder = saved(tmp_path / "tuned", changes={"embeddings.word_embeddings.weight": 0.5})
    importing.read(folder, "minilm")
    assert "tokens" in caplog.text


def test_another_number_of_heads_is_refused(clip, tmp_path):
    folder = saved(tmp_path / "tuned")
    (folder / "config.json").write_text(json.dumps({**tiny.CONFIG, "num_attention_heads": 4}))
    refuses("heads 4", reading.inspect, folder, "minilm")


def test_a_smaller_network_is_refused(clip, tmp_path):
    folder = saved(tmp_path / "tuned")
    state = {n: x for n, x in tiny.network().state_dict().items() if "layer.2." not in n}
    save_file(state, folder / "model.safetensors")
    refuses("does not fit the model", reading.inspect, folder, "minilm")
