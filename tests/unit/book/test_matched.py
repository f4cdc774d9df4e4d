"""Comparisons at equal accuracy and equal norm, in one line."""

from tasklab import figures
from tasklab.book.words import say
from tasklab.records.claims import CLAIMS
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict


def made(name, effect):
    claim = next(c for c in CLAIMS if c.id == name)
    outcome = "undecided" if abs(effect) <= 1 else "holds" if effect > 0 else "does not hold"
    return Verdict(claim=claim, outcome=outcome, interval=Interval(effect, effect - 1, effect + 1),
                   p=0.01, by_seed={0: effect, 1: effect})  # fmt: skip


def test_a_comparison_has_one_row_whatever_its_rates():
    names = [c.id for c in CLAIMS if c.id.partition("@")[0] == "tangent-2-target"]
    assert len(names) > 3  # several of one rate
    table = figures.matched_table([made(name, 5.0) for name in names])
    assert len(table) == 1 and table["equal accuracy"].item().startswith("confirmed: +5.0")
    assert say("  ") is None and say("a").data == "a"
