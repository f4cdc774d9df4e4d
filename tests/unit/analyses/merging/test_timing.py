"""Estimates of merges grow with the vectors as what the merges do."""

import pytest
import torch

from tasklab.analyses.merging import timing
from tasklab.analyses.merging.registry import METHODS
from tasklab.taskvector import TaskVector


def vectors(width):
    return {
        task: TaskVector({f"{n}.weight": torch.ones(width, width) for n in range(6)})
        for task in "abc"
    }


@pytest.mark.parametrize(
    ("name", "width", "times"),
    [
        ("ties", 128, 6.0),  # six tensors, each as large as the corner that was timed
        ("ties", 384, 6 * (384 / 256) ** 2),
        ("tsv_m", 384, 6 * (384 / 256) ** 3),  # a decomposition's products
        ("regmean", 128, 0.0),  # which looks at images
    ],
)
def test_an_estimate_is_a_corners_time_scaled(name, width, times, monkeypatch):
    clock = [0.0]

    def merge(_, corner, **__):
        clock[0] += 2.0 * len(corner[0])

    monkeypatch.setattr(timing, "merge", merge)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    tried = max(1, len(METHODS[name].values))
    assert timing.seconds(vectors(width), name) == pytest.approx(2.0 * times * tried)


@pytest.mark.parametrize("name", METHODS)
def test_every_merge_is_timed_where_the_largest_matrix_is_in_no_block(name):
    each = {task: TaskVector({"proj": torch.randn(8, 8), "b": torch.ones(8)}) for task in "ab"}
    assert (timing.seconds(each, name) > 0) is not bool(METHODS[name].needs)
