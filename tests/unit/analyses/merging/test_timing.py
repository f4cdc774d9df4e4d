"""Estimates of merges grow with the vectors, and are of the size of what merges take."""

from __future__ import annotations

import time

import torch

from tasklab.analyses.merging import merge, timing
from tasklab.taskvector import TaskVector


def vectors(width):
    draw = torch.Generator().manual_seed(0)
    return {
        task: TaskVector(
            {f"{n}.weight": torch.randn(width, width, generator=draw) for n in range(6)}
        )
        for task in "abc"
    }


def test_an_estimate_is_of_the_size_of_the_time():
    small, large = vectors(128), vectors(384)
    for name in ("ties", "tsv_m"):
        estimate = timing.seconds(large, name)
        assert estimate > 2 * timing.seconds(small, name)
        began = time.perf_counter()
        merge(name, large)
        taken = (time.perf_counter() - began) * (3 if name == "ties" else 1)
        assert taken / 10 < estimate < 10 * taken
    assert timing.seconds(small, "regmean") == 0  # which looks at images
