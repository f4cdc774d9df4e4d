"""The command `tasklab inspect`."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from tasklab import TaskVector
from tasklab.__main__ import main
from tests.helpers import mistaken


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write a base, another base, a change of rank 1 and a rounded checkpoint."""
    draw = torch.Generator().manual_seed(0)
    base = {"fc.weight": torch.randn(40, 30, generator=draw), "ln.weight": torch.ones(80)}
    low = torch.outer(torch.randn(40, generator=draw), torch.randn(30, generator=draw))
    rounded = base["fc.weight"] + 0.1 * torch.randn(40, 30, generator=draw)
    monkeypatch.chdir(tmp_path)
    save_file(base, "base.safetensors")
    save_file({n: x + 1 for n, x in base.items()}, "other.safetensors")
    save_file(base | {"fc.weight": base["fc.weight"] + 0.01 * low}, "low.safetensors")
    torch.save({"module.fc.weight": rounded.bfloat16(), "module.ln.weight": torch.ones(80)}, "c.pt")
    return tmp_path


def test_the_table_and_the_json_agree(folder, capsys):
    words = ["inspect", "low.safetensors", "c.pt", "--base", "other.safetensors"]
    words += ["--base", "base.safetensors"]
    assert main(words) == 0
    out = capsys.readouterr().out
    head, *rows = [line.split("  ") for line in out.splitlines()[:3]]
    assert [row[0] for row in rows] == ["low.safetensors", "c.pt"]
    assert "1.0 (1.0 to 1.0)" in out and "bfloat16 100 %" in out and "1/1" in out
    assert "c.pt: 2 names have words of wrappers" in out and "expected error" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, c = found["changes"]
    assert low["base"] == c["base"] == "base.safetensors"
    assert low["ranks"]["fc.weight"] == pytest.approx(1, rel=1e-4)
    assert f"{low['norm']:.4g}" in out and f"{c['distances']['other.safetensors']:.4g}" in out
    assert f"{found['cosines'][0][1]:.3f}" in out
    assert any("wrappers" in note for note in found["notes"]["c.pt"])


def test_two_files_alone_are_compared(folder, capsys):
    assert main(["inspect", "base.safetensors", "low.safetensors", "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["network"], change["base"]) == ("low.safetensors", "base.safetensors")


def test_changes_of_one_direction_are_told(folder, capsys):
    words = ["inspect", "base.safetensors", "low.safetensors", "--base", "other.safetensors"]
    assert main(words) == 0
    assert "another base" in capsys.readouterr().out


def test_the_command_reads_files_in_a_process_of_its_own(folder):
    words = [sys.executable, "-m", "tasklab", "inspect", "base.safetensors", "low.safetensors"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 0 and "low.safetensors" in told.stdout, told.stderr


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "name a network"),
        (["low.safetensors"], "give the base"),
        (["none.pt", "--base", "base.safetensors"], "none.pt"),
        (["c.pt", "c.pt", "--base", "base.safetensors"], "given twice"),
        (["c.pt", "--base", "tau.safetensors"], "holds a change"),
        (["unlike.pt", "--base", "base.safetensors"], "share no parameter"),
    ],
)
def test_a_mistake_is_one_sentence(words, match, folder, capsys):
    TaskVector({"fc.weight": torch.ones(40, 30)}).save("tau.safetensors")
    torch.save({"w": torch.ones(2)}, "unlike.pt")
    told = mistaken(["inspect", *words], capsys)
    assert match in told
