"""The command `doctor`: the same content in both forms, one line for what blocks, nothing heavy."""

import json

import pytest

from tasklab.__main__ import main
from tasklab.bench import inventory
from tasklab.cli.doctor import readiness
from tasklab.evidence.chapters import CHAPTERS
from tasklab.models import weights


@pytest.fixture(autouse=True)
def usual(bare, monkeypatch):
    monkeypatch.setattr(readiness, "LITTLE", 0)  # this machine's disk may be full
    monkeypatch.setattr(readiness.machine, "accelerated", lambda: False)


def told(tmp_path, capsys, *words):
    status = main(["doctor", "--store-root", str(tmp_path / "store"), *words])
    return status, *capsys.readouterr()


def test_the_table_and_its_json_have_the_same_content(tmp_path, capsys):
    status, out, err = told(tmp_path, capsys, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert list(report) == [
        "versions", "cores", "memory", "devices", "speed", "disks", "network", "weights",
        "data", "chapters", "notes", "blocking",
    ]  # fmt: skip
    status, out, err = told(tmp_path, capsys, "--data-root", str(tmp_path))
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert out.isascii() or str(tmp_path) in out
    for name, cells in report["chapters"].items():
        row = next(line for line in lines if line.split()[:1] == [name])
        words = [report["weights"][name]["state"], *(cell["why"] for cell in cells.values())]
        assert all(word in row for word in words) and len(row) <= 100
    for name, version in report["versions"].items():
        assert f"{name} {version}" in out
    for one in report["data"].values():
        assert any(line.split()[:2] == [one["task"], one["state"]] for line in lines)
        assert one["where"] in out
    for one in report["weights"].values():
        assert one["state"] == "shipped" or one["where"] in out
    assert "HF_HUB_OFFLINE is set" in out and report["network"] == "HF_HUB_OFFLINE is set"
    assert str(tmp_path / "store") in out
    assert any(line.split()[:2] == ["data", "root"] for line in lines)


def test_what_blocks_the_default_is_one_line_and_status_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(inventory.shipped, "FOLDER", tmp_path)
    status, out, err = told(tmp_path, capsys)
    assert status == 1
    assert err.startswith("tasklab: model 'mini' cannot run everything: ")
    assert err.count("\n") == 1 and "mini.safetensors is missing" in err
    row = next(line for line in out.splitlines() if line.split()[:1] == ["mini"])
    assert row.split().count("missing") == 1 + len(CHAPTERS)


def test_a_found_file_changes_its_row(tmp_path, capsys, monkeypatch):
    (tmp_path / "vitb32.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    monkeypatch.setenv(weights.FOLDER, str(tmp_path))
    out = told(tmp_path, capsys)[1]
    row = next(line for line in out.splitlines() if line.split()[:1] == ["vitb32"])
    assert "found" in row and "lacks 5" in row
