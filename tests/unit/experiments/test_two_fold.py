"""Halves of an odd number of validation images, on images made by hand."""

from types import SimpleNamespace

import pytest
import torch

from tasklab.evidence.experiments.two_fold import Halves
from tasklab.tasks.drawn import Images
from tests.helpers import refuses

COUNTS = {"train": 7, "val": 5, "test": 4}
FIRST = {"train": 100, "val": 0, "test": 200}


def load(task, split, *, n=None, device="cpu"):
    x = torch.arange(FIRST[split], FIRST[split] + (n or COUNTS[split]))
    return Images(x.float(), x)


@pytest.fixture
def halves():
    own = SimpleNamespace(
        load=load,
        size=lambda task, split: COUNTS[split],
        version=lambda task, split: f"{task}:{split}",
    )
    return [Halves(own, reports) for reports in (0, 1)]


def test_an_odd_number_is_halved_without_losing_an_image(halves):
    for half, reports, chooses in ((halves[0], [0, 2, 4], [1, 3]), (halves[1], [1, 3], [0, 2, 4])):
        for split, expected in (("test", reports), ("val", chooses)):
            assert half.load("a", split).y.tolist() == expected
            assert half.load("a", split).x.tolist() == expected
            assert half.size("a", split) == len(expected)
            assert half.load("a", split, n=1).y.tolist() == expected[:1]
            few = len(expected) + 1
            refuses(f"half of a/val has {few - 1} images", half.load, "a", split, n=few)
        assert half.size("a", "train") == 7 and half.version("a", "train") == "a:train"
        assert half.load("a", "train", n=2).y.tolist() == [100, 101]
        assert half.version("a", "test") == f"a:val/{reports[0]}of2"
        assert half.version("a", "val") == f"a:val/{chooses[0]}of2"
