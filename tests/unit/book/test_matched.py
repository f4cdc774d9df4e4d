"""What is said of comparisons at equal accuracy and equal length."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from tasklab.book import page
from tasklab.book.words import say, seeds_recorded
from tasklab.records.claims import CLAIMS
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict
from tasklab.records.table import nothing


def made(name: str, effect: float, half: float) -> Verdict:
    claim = next(c for c in CLAIMS if c.id == name)
    low, high = effect - half, effect + half
    outcome = "undecided" if low <= 0 <= high else "holds" if low > 0 else "does not hold"
    return Verdict(claim=claim, outcome=outcome, interval=Interval(effect, low, high), p=0.01,
                   by_seed={0: effect, 1: effect})  # fmt: skip


@pytest.mark.parametrize(
    ("equal", "told"),
    [(5.0, "one is as before"), (0.5, "one is undecided"), (-5.0, "one is the other way round")],
)
def test_it_is_told_what_stays_where_both_are_equal(equal: float, told: str) -> None:
    found = [made("tangent-2-target", 5.0, 1.0), made("tangent-2-target@accuracy", equal, 1.0)]
    text = page.made_equal(found, nothing(), "mini").data
    assert "one of the one comparison, all of them as claimed" in text
    assert f"equally accurate alone, {told}; where" in text
    assert "equally long, one is not compared" in text


def test_nothing_decided_is_said() -> None:
    found = [made("tangent-2-target", 0.0, 1.0), made("tangent-2-target@length", 0.0, 1.0)]
    assert "Nothing of this is decided" in page.made_equal(found, nothing(), "mini").data


def test_what_is_decided_with_the_tasks_held_fixed_is_counted() -> None:
    def general(name: str, effect: float) -> Verdict:
        alone = Interval(effect, effect - 1, effect + 1)
        given = {"sources": ("seeds", "tasks"), "here": alone, "p_here": 0.01}
        return dataclasses.replace(made(name, effect, 10.0), **given)

    found = [general("tangent-2-target", 5.0), general("tangent-2-target@accuracy", -5.0)]
    text = page.made_equal(found, nothing(), "mini").data
    assert "On these tasks alone, at the chosen rates one holds; where both are equally" in text
    assert "accurate alone one does not hold." in text
    usual = page.made_equal([made("tangent-2-target", 5.0, 1.0)], nothing(), "mini").data
    assert "these tasks" not in usual


def test_an_empty_sentence_shows_nothing() -> None:
    assert say("  ") is None and say("a").data == "a"
    assert seeds_recorded({}) == ""


def test_what_is_recorded_and_did_not_run_is_said() -> None:
    beside = pd.DataFrame({"method": ["a", "b"], "live": [2.0, 1.0], "recorded": [2.0, 1.0],
                           "± images": [0.1, 0.1], "std over seeds": [0.1, 0.1]})  # fmt: skip
    whole = "No value is further from the recorded one than so few images and the spread over "
    assert page.agreement(beside).data.endswith(f"a 2.0, b 1.0. {whole}seeds explain.")
    for left, said in {
        "one more task": "is one more task",
        "two more pairs": "are two more pairs",
    }.items():
        beside.attrs["left out"] = left
        assert page.agreement(beside).data.endswith(f" Recorded {said}, which did not run here.")
