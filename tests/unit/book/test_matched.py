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
    [(5.0, "one is unchanged"), (0.5, "one is undecided"), (-5.0, "one is the other way round")],
)
def test_it_is_told_what_stays_where_both_are_equal(equal: float, told: str) -> None:
    found = [made("tangent-2-target", 5.0, 1.0), made("tangent-2-target@accuracy", equal, 1.0)]
    text = page.made_equal(found, nothing(), "mini").data
    assert "At the chosen rates one of the one comparison are decided, all as claimed." in text
    assert f"Of these, at equal accuracy {told}; at equal length one is not compared." in text


def test_all_and_none_are_said() -> None:
    names = ("tangent-2-target", "tangent-1-absolute")
    found = [made(name + ending, -5.0, 1.0) for name in names for ending in ("", "@length")]
    text = page.made_equal(found, nothing(), "mini").data
    assert "all of the two comparisons are decided, none as claimed" in text


def test_nothing_decided_is_said() -> None:
    found = [made("tangent-2-target", 0.0, 1.0), made("tangent-2-target@length", 0.0, 1.0)]
    assert "Nothing of this is decided" in page.made_equal(found, nothing(), "mini").data


@pytest.mark.parametrize(("effect", "told"), [(8.0, "undecided becomes holds"), (0.5, "")])
def test_it_is_told_what_another_end_of_the_rates_changes(effect, told, monkeypatch) -> None:
    monkeypatch.setattr(
        "tasklab.book.matched.verdict",
        lambda claim, *_, **__: dataclasses.replace(
            made("tangent-2-target", effect, 1.0), claim=claim
        ),
    )
    found = [made("tangent-2-target", 5.0, 1.0), made("tangent-2-target@length", 0.0, 1.0)]
    text = page.made_equal(found, nothing(), "mini").data
    said = "these outcomes at equal length change: Linearized vectors forget better (target): "
    assert text.endswith(f"{said}{told}." if told else "no outcome at equal length changes.")


def test_an_empty_sentence_shows_nothing() -> None:
    assert say("  ") is None and say("a").data == "a"
    assert seeds_recorded({}) == ""


def test_what_is_recorded_and_did_not_run_is_said() -> None:
    beside = pd.DataFrame({"method": ["a", "b"], "live": [2.0, 1.0], "recorded": [2.0, 1.0],
                           "± images": [0.1, 0.1], "std over seeds": [0.1, 0.1]})  # fmt: skip
    whole = "No value differs from the recorded one by more than so few images and the spread over "
    assert page.agreement(beside).data.endswith(f"a 2.0, b 1.0. {whole}seeds explain.")
    for left, said in {
        "one more task": "One more task is",
        "two more pairs": "Two more pairs are",
    }.items():
        beside.attrs["left out"] = left
        assert page.agreement(beside).data.endswith(f" {said} recorded that did not run here.")
