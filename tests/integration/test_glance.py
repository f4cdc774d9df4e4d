"""A chapter's table of scales: what each takes."""

import pytest

from tasklab.book.page import SCALES, glance
from tasklab.evidence.chapters import CHAPTERS

RUNS = {"tangent": 2, "linear_layers": 3, "ctl": 3, "closed_vocab": 2, "merging": 1}  # methods


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_scale_has_its_scope_and_runs(name):
    _, _, _, _, _, *rows, _, _, _, full_size = glance(name).data.splitlines()
    assert all(scale in row for scale, row in zip(SCALES, rows, strict=True))
    assert f"{RUNS[name] * 8 * 3} runs of 2,000 steps" in rows[2]
    assert CHAPTERS[name].full_size in full_size
    assert ("no fine-tuning" in rows[1]) == (name != "closed_vocab")
