"""The rate of a device's matrix products, and whether there is a compiler for it."""

import shutil
import types

import pytest
import torch

from tasklab import machine
from tasklab.cli import doctoring as command
from tasklab.cli.doctor import readiness, speed

RATE = 790.0  # TFLOP/s in bfloat16, of an H100


def test_a_rate_counts_two_operations_for_a_multiplication(monkeypatch):
    clock = iter(range(100))
    made = []
    products = types.SimpleNamespace(
        cuda=types.SimpleNamespace(synchronize=lambda number: None),
        bfloat16=torch.bfloat16,
        ones=lambda *size, device, dtype: made.append((device, dtype)) or torch.ones(2, 1, 1),
        mm=torch.mm,
    )
    monkeypatch.setitem(__import__("sys").modules, "torch", products)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: 1e-3 * next(clock))
    found = speed.rate(1, "bfloat16", side=1000)  # 50 products in a millisecond
    assert found == pytest.approx(50 * 2e9 / 1e-3 / 1e12)
    assert made == [("cuda:1", torch.bfloat16)]


def test_a_compiler_needs_triton_and_a_c_compiler(monkeypatch):
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/cc" if name == "gcc" else None)
    assert speed.no_compiler() == ""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C compiler" in speed.no_compiler()
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: None)
    assert "triton" in speed.no_compiler()


def test_the_doctor_shows_precision_and_compiler(monkeypatch, tmp_path):
    cards = [machine.Device("a card", 80 * 2**30, 70 * 2**30, "9.0", True)]
    monkeypatch.setattr(machine, "accelerated", lambda: True)
    monkeypatch.setattr(machine, "devices", lambda: cards)
    monkeypatch.setattr(speed, "rate", lambda number, precision: RATE)
    monkeypatch.setattr(speed, "no_compiler", lambda: "")
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path))
    monkeypatch.setattr(readiness, "hub_answer", lambda: "no network")
    report = readiness.examine(store_root=tmp_path)
    lines = list(command.text(report))
    assert any(
        "bfloat16, large products at 790 TFLOP/s; evaluation in float32" in line for line in lines
    )
    assert any(line.split()[:2] == ["compiler", "torch.compile,"] for line in lines)
