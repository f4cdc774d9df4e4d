"""How long fine-tuning takes on a GPU: the measured steps, and the sums over runs."""

import shutil
import types

import pytest
import torch

from tasklab import machine
from tasklab.cli import doctor as command
from tasklab.doctor import readiness, speed
from tasklab.models.zoo import spec
from tasklab.progress import duration

RATE = 790.0  # TFLOP/s in bfloat16, of the H100 on which steps were measured


@pytest.mark.parametrize(
    ("model", "compiled", "measured"),
    [("vitb32", True, 20.8), ("vitl14", True, 158.4), ("vitl14", False, 262.6)],
)
def test_an_estimated_step_is_near_the_measured_one(model, compiled, measured):
    expected = pytest.approx(measured, rel=0.15)
    assert 1e3 * speed.step(spec(model), RATE, compiled=compiled) == expected


def test_a_chapter_takes_the_steps_of_its_runs():
    times = speed.fine_tuning(RATE, compiled=True)
    steps = 8 * 500  # tasks, of the preset quick
    plain = speed.step(spec("vitb32"), RATE, compiled=True)
    attention = speed.step(spec("vitb32"), RATE, compiled=True, products=7 / 9)
    linear = speed.step(spec("vitb32"), RATE, compiled=True, products=5 / 3)
    assert times["vitb32"]["merging"] == pytest.approx(steps * plain)
    assert times["vitb32"]["tangent"] == pytest.approx(steps * (plain + linear))  # posthoc: none
    assert times["vitb32"]["linear_layers"] == pytest.approx(steps * (plain + linear + attention))
    assert "linear_layers" not in times["convnext"] and "mini" not in times
    slow = speed.fine_tuning(RATE, compiled=False)
    assert all(slow[m][c] > seconds for m, row in times.items() for c, seconds in row.items())


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
    ticks = iter([0, 9, *(x for i in range(20) for x in (0, 5 if i else 1))])  # loaded but once
    monkeypatch.setattr(speed.time, "perf_counter", lambda: 1e-3 * next(ticks))
    assert speed.rate(None, "bfloat16", side=1000) == pytest.approx(2e9 / 1e-3 / 1e12)


def test_a_compiler_needs_triton_and_a_c_compiler(monkeypatch):
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/cc" if name == "gcc" else None)
    assert speed.no_compiler() == ""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C compiler" in speed.no_compiler()
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: None)
    assert "triton" in speed.no_compiler()


def test_the_doctor_shows_precision_compiler_and_times(monkeypatch, tmp_path):
    cards = [machine.Device("a card", 80 * 2**30, 70 * 2**30, "9.0", True)]
    monkeypatch.setattr(machine, "accelerated", lambda: True)
    monkeypatch.setattr(machine, "devices", lambda: cards)
    monkeypatch.setattr(speed, "rate", lambda number, precision: RATE)
    monkeypatch.setattr(speed, "no_compiler", lambda: "")
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path))
    monkeypatch.setattr(readiness, "hub_answer", lambda: "no network")
    report = readiness.examine(store_root=tmp_path)
    lines = list(command.text(report))
    assert any("bfloat16, large products at 790 TFLOP/s" in line for line in lines)
    assert any(line.split()[:2] == ["compiler", "torch.compile,"] for line in lines)
    hours = duration(report.speed.fine_tuning["vitl14"]["ctl"])
    row = next(line for line in lines if line.split()[:1] == ["vitl14"] and hours in line)
    assert len(row) <= 100
