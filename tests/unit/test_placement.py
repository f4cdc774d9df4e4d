"""What is kept on devices: loaded once, the least used gives way, released as a whole."""

import pytest
import torch

from tasklab import TaskVector
from tasklab.analyses import merging
from tasklab.analyses.merging import singular
from tasklab.storage import placement

OTHER = torch.device("meta")  # a device without numbers


@pytest.fixture
def load(monkeypatch):
    monkeypatch.setattr(placement, "_KEPT", {})
    reads = []

    def of(name):
        return lambda: reads.append(name) or {name: torch.ones(4)}

    of.reads = reads
    return of


def test_tensors_are_loaded_once_on_a_device_and_each_time_on_a_cpu(load):
    for _ in range(2):
        there = placement.resident(("a",), OTHER, load("a"))
    assert load.reads == ["a"] and there["a"].device == OTHER
    assert placement.resident(("a",), "cpu", load("a"))["a"].tolist() == [1, 1, 1, 1]
    assert load.reads == ["a", "a"]
    placement.release()
    placement.resident(("a",), OTHER, load("a"))
    assert load.reads == ["a"] * 3


def test_what_was_used_longest_ago_makes_room(load, monkeypatch):
    monkeypatch.setattr(placement, "fits", lambda size, device: len(placement._KEPT) < 2)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert placement.resident((name,), OTHER, load(name))[name].device == OTHER
    assert load.reads == ["a", "b", "c", "b"]  # c took the place of b, b that of c
    monkeypatch.setattr(placement, "fits", lambda size, device: size < 16)
    assert placement.resident(("d",), OTHER, load("d"))["d"].device.type == "cpu"
    assert not placement._KEPT


def test_half_of_a_device_stays_free(monkeypatch):
    numbers = {"memory_reserved": 30, "memory_allocated": 10}  # 20 are held for nobody
    for name, value in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 100))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert placement.fits(30, "cuda:0") and not placement.fits(31, "cuda:0")
    assert placement.fits(10**12, "cpu")


@pytest.mark.parametrize(
    ("here", "there", "expected"), [(1.0, 2.0, "cpu"), (1.0, 1.4, "cuda"), (2.0, 1.0, "cuda")]
)
def test_decompositions_go_where_they_are_quick(device, monkeypatch, here, there, expected):
    def seconds(A):
        return here if A.device.type == "cpu" else there

    monkeypatch.setattr(placement, "_seconds", seconds)
    placement.decomposes.cache_clear()
    places, leading = [], singular.leading

    def seen(A, k):
        places.append(A.device.type)
        return leading(A, k)

    monkeypatch.setattr(singular, "leading", seen)
    vectors = [TaskVector({"w": torch.randn(4, 3).to("cuda")}) for _ in range(2)]
    merged = merging.merge("tsv_m", vectors)
    assert {*places} == {expected} and merged.device.type == "cuda"
    on_cpu = merging.merge("tsv_m", [vector.to("cpu") for vector in vectors])
    torch.testing.assert_close(merged["w"].cpu(), on_cpu["w"])
    placement.decomposes.cache_clear()
