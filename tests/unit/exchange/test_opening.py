"""Weights of any architecture, opened from any file."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tasklab import TaskVector
from tasklab.exchange import opening
from tasklab.storage.files import Files
from tests.helpers import refuses

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.ones(2)}
WRAPPED = {f"module.{name}": x for name, x in STATE.items()}


def same(found, is_vector=False):
    assert found.is_vector == is_vector and {*found.tensors} == {*STATE}
    assert all(torch.equal(found.tensors[name], x) for name, x in STATE.items())


def split(folder):
    folder.mkdir()
    files = {name: f"part-{i}.safetensors" for i, name in enumerate(STATE)}
    for name, file in files.items():
        save_file({name: STATE[name]}, folder / file)
    return files


def test_every_format_gives_the_same_tensors(tmp_path):
    save_file(WRAPPED, tmp_path / "a.safetensors")
    torch.save({"state_dict": WRAPPED, "epoch": 3}, tmp_path / "b.pt")
    for name in ("a.safetensors", "b.pt"):
        found = opening.opened(tmp_path / name, Files)
        same(found)
        assert "2 names have words of wrappers" in found.notes[0]
    torch.save({"vector": STATE}, tmp_path / "c.pt")
    same(opening.opened(tmp_path / "c.pt", Files), is_vector=True)
    saved = TaskVector(STATE).save(tmp_path / "d.safetensors")
    same(opening.opened(saved, Files), is_vector=True)
    split(tmp_path / "plain")
    same(opening.opened(tmp_path / "plain", Files))
    index = tmp_path / "indexed" / "model.safetensors.index.json"
    files = split(index.parent)
    index.write_text(json.dumps({"weight_map": files}))
    save_file(STATE, index.parent / "consolidated.safetensors")
    same(opening.opened(index.parent, Files))


def test_files_are_read_a_tensor_at_a_time(tmp_path, monkeypatch):
    save_file(STATE, tmp_path / "a.safetensors")
    read, asked = Files.__getitem__, []

    def watched(self, name):
        asked.append(name)
        return read(self, name)

    monkeypatch.setattr(Files, "__getitem__", watched)
    found = opening.opened(tmp_path / "a.safetensors", Files)
    assert found.tensors.like("fc.weight").shape == (2, 3) and not asked
    assert found.tensors["fc.bias"].sum() == 2 and asked == ["fc.bias"]


@pytest.mark.parametrize(
    ("name", "match"), [("fc.weight_g", "parametrizations"), ("fc.qweight", "quantised")]
)
def test_what_stands_for_weights_is_refused(name, match, tmp_path):
    save_file({name: torch.ones(2)}, tmp_path / "a.safetensors")
    torch.save({name: torch.ones(2)}, tmp_path / "b.pt")
    for file in ("a.safetensors", "b.pt"):
        told = refuses(match, opening.opened, tmp_path / file, Files)
        assert file in told


def test_damaged_files_and_names_twice_are_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    refuses("not a whole safetensors", opening.opened, tmp_path / "a.safetensors", Files)
    (tmp_path / "b.pt").write_bytes(b"nothing")
    refuses("b.pt", opening.opened, tmp_path / "b.pt", Files)
    save_file({}, tmp_path / "empty.safetensors")
    refuses("no tensors", opening.opened, tmp_path / "empty.safetensors", Files)
    split(tmp_path / "twice")
    save_file(STATE, tmp_path / "twice" / "other.safetensors")
    refuses("in two of its files", opening.opened, tmp_path / "twice", Files)
