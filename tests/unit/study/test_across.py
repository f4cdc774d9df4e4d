"""Headlines in several worlds, side by side."""

import re

import pytest

from tasklab.evidence import study
from tasklab.evidence.records.claims import CLAIMS
from tasklab.evidence.records.judgement import Verdict
from tests.rows import found


@pytest.fixture
def names():
    asked = [one for one in CLAIMS if one.headline and one.setting == "chosen" and not one.grows]
    of_entries = {one.entry: one.id for one in asked}
    return [*of_entries.values()][:4]


@pytest.fixture
def worlds(names):
    effects = zip(names, ((3.0, 2.0), (3.0, -2.0), (3.0, 0.5), (0.5, -2.0)), strict=True)
    both = {"images": [], "texts": []}
    for name, pair in effects:
        for world, effect in zip(both.values(), pair, strict=True):
            world.append(found(name, effect, seeds=2))
    return both


def test_headlines_are_grouped_by_where_they_hold(worlds):
    lines = study.headline_groups(worlds).splitlines()
    shorts = [one.claim.short for one in worlds["images"]]
    kinds = ("every world", "one world and fails", "one world and is open", "no world")
    for line, short, kind in zip(lines, shorts, kinds, strict=True):
        assert line.startswith(f"- **Holds in {kind}")
        assert line.endswith(f":** {short[0].lower()}{short[1:]}.")


def test_a_headline_has_an_outcome_and_an_effect_in_each_world(worlds):
    lines = study.headline_table(worlds).splitlines()
    assert lines[0] == "| headline | images | texts |" and len(lines) == 6
    for line, one in zip(lines[2:], worlds["images"], strict=True):
        assert line.startswith(f'| {one.claim.short} | <a class="tl-chip ')
        assert f"verdicts.html#verdict-{one.claim.entry}" in line
    assert re.findall(r"<br>([+−][\d.]+) ", lines[3]) == ["+3.0", "−2.0"]


def test_a_headline_of_one_world_alone_is_left_out(worlds):
    untested = Verdict(claim=worlds["texts"][0].claim)
    lines = study.headline_table(
        {**worlds, "texts": [untested, *worlds["texts"][1:3]]}
    ).splitlines()
    assert len(lines) == 4
    three = {**worlds, "drawings": [untested, *worlds["texts"][1:3]]}
    assert study.headline_table(three).splitlines()[2].endswith("| – |")


def test_what_fails_in_a_world_is_told_with_its_effect(worlds):
    shorts = [f"{one.claim.short[0].lower()}{one.claim.short[1:]}" for one in worlds["texts"]]
    told = study.failing(worlds["texts"]).split("; ")
    assert [one.partition(", ")[0] for one in told] == [shorts[1], shorts[3]]
    assert all(re.search(r", −2\.0 points \(", one) for one in told)
    assert study.failing(worlds["images"]) == "" == study.failing([])
