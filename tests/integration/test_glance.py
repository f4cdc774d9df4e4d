"""A chapter's table of scales: what each takes."""

import pytest

from tasklab.bench.parameters import Parameters
from tasklab.book.page import SCALES, glance
from tasklab.cli.doctor import needs, speed
from tasklab.evidence.chapters import CHAPTERS
from tasklab.progress import duration

RUNS = {"tangent": 2, "linear_layers": 3, "ctl": 3, "closed_vocab": 2, "merging": 1}  # methods


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_scale_has_its_scope_and_time(name):
    _, _, _, _, _, *rows, _, _, _, full_size = glance(name).data.splitlines()
    assert all(scale in row for scale, row in zip(SCALES, rows, strict=True))
    assert f"{RUNS[name] * 8 * 3} runs of 2,000 steps" in rows[2]
    assert CHAPTERS[name].full_size in full_size
    if name != "closed_vocab":
        full = Parameters(model="vitb32", suite="paper", preset="full", device="cpu", seeds=1)
        (need,) = needs.evaluation(full, needs.Pace(speed.H100, compiled=True), [name])
        assert f"at most {duration(need.seconds)} of evaluation" in rows[1]
