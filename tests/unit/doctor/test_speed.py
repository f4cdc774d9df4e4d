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


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA GeForce RTX 2080 Ti"])
def test_the_doctor_names_cards_that_are_old_or_of_no_use(monkeypatch, tmp_path, pretended, name):
    with pretended.cuda(count=2), monkeypatch.context() as patch:
        _old_cards(patch, tmp_path, name)


def _old_cards(monkeypatch, tmp_path, name):
    able = {0: (7, 5), 1: (7, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number=0: able[int(number)])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda n=0: "Tesla V100" if n else name)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "compute_90"])
    monkeypatch.setattr(machine, "accelerated", lambda: True)
    monkeypatch.setattr(speed, "rate", lambda number, precision: {0: 8.0}[number])  # 1: no kernels
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path))
    monkeypatch.setattr(readiness, "hub_answer", lambda: "no network")
    told = " ".join(" ".join(command.text(readiness.examine(store_root=tmp_path))).split())
    assert f"cuda:0 {name}, " in told and "compute capability 7.5, no bfloat16" in told
    assert "fine-tuning in float32, large products at 8 TFLOP/s" in told
    assert "no kernels for cuda:1, Tesla V100 of compute capability 7.0: install a build" in told
