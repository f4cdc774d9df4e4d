"""What all records and all chapters say."""

import sys

from tasklab import study
from tasklab.chapters import CHAPTERS
from tasklab.experiments import estimate
from tasklab.experiments.parameters import Parameters
from tasklab.experiments.registry import find, usual_runs
from tasklab.study import outlook


def test_every_part_that_trains_at_several_rates_is_counted_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "pace", lambda lab: estimate.Pace(step=0.1, passed=0.1))
    given = {"seeds": 1, "steps": 2, "store_root": tmp_path, "device": "cpu"}
    parameters = Parameters(model="mini_xs", preset="full", **given)
    order = [
        (chapter, part)
        for chapter, entry in CHAPTERS.items()
        for part, works in entry.parts.items()
        if any(find(name).runs is not usual_runs for work in works for name in work.names)
    ]
    assert {("merging", "fewer_rates"), ("tangent", "lengths")} <= {*order}
    for one in order:
        assert outlook.outlook(parameters, [one])["runs"].item() > 0, one


def test_the_shipped_records_answer():
    found = study.answers()
    both = [
        one for one in found if set(one.effects) == {*sys.modules["tasklab.study.answers"].WORLDS}
    ]
    assert len(found) >= 9 and len(both) >= 8
