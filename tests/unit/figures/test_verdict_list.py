"""The list of all verdicts."""

import dataclasses
import re

import pytest

from tasklab.evidence import figures, records
from tasklab.evidence.records.claims import BY_ID, CLAIMS
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import ABOUT_VERDICTS, Verdict
from tasklab.evidence.records.statements import SITE, anchor, evidence_link
from tests.rows import found


@pytest.fixture(autouse=True)
def on_the_site(monkeypatch):
    monkeypatch.setenv(SITE, "1")


def test_every_row_has_its_outcome_numbers_and_evidence():
    claim = next(c for c in CLAIMS if c.paper == "tangent")
    found = [
        Verdict(
            claim=claim, outcome="does not hold", interval=Interval(-2.5, -4.0, -1.0), p=0.01,
            by_seed={0: -2.0, 1: -3.0}, by_task={"A": -3.0, "B": 1.0},
        ),
        Verdict(claim=dataclasses.replace(claim, id="x", entry="x", statement="a < b")),
    ]  # fmt: skip
    shown = figures.verdict_list(found)
    text = shown._repr_html_()
    assert ABOUT_VERDICTS in text and "1 more are not tested" in text
    (row,) = re.findall(r"<tr[^>]* class=.*?</tr>", text, re.S)
    assert (
        "<b>not confirmed</b>" in row
        and "−2.5 points (−4.0 to −1.0 over" in row
        and "1 of 2" in row
    )
    page, _, heading = claim.evidence.partition("#")
    heading = anchor(heading)
    assert f'href="notebooks/{page}.html#{heading}"' in row
    at_home = figures.verdict_list(found, page)._repr_html_()
    assert f'href="#{heading}"' in at_home
    away = figures.verdict_list(found, "ctl")._repr_html_()
    assert f'href="{page}.html#{heading}"' in away
    names = {re.search('id="(.*?)"', figures.verdict_list([])._repr_html_())[1] for _ in range(2)}
    assert len(names) == 2


def test_outside_the_site_links_lead_to_notebooks_and_their_headings(monkeypatch):
    evidence = "ctl#Do they add, too?"
    assert evidence_link(evidence, "ctl") == "#do-they-add-too"
    monkeypatch.delenv(SITE)
    assert evidence_link(evidence, "ctl", site=True) == "#do-they-add-too"
    assert evidence_link(evidence, "ctl") == "#Do-they-add,-too?"
    assert evidence_link(evidence, "tangent") == "ctl.ipynb#Do-they-add,-too?"


def test_corrections_and_scopes_stand_beside_verdicts():
    def judged(paper, p):
        claim = next(c for c in CLAIMS if c.paper == paper and not c.grows)
        interval, seen = Interval(2.0, 1.0, 3.0), {0: 2.0}
        return Verdict(claim=claim, outcome="holds", interval=interval, p=p, by_seed=seen,
                       n_pretrainings=3, pretrainings=Interval(1.5, 0.5, 2.5))  # fmt: skip

    several = [judged("tangent", 0.04), judged("ctl", 0.001)]
    text = figures.verdict_list(several)._repr_html_()
    assert text.count(" all statements</small>") == 2  # Holm: 0.04 is the larger of two
    several[1] = judged("ctl", 0.03)
    text = figures.verdict_list(several)._repr_html_()
    assert "if all statements" not in text and "and 3 pre-trainings" in text
    assert " the headlines</small>" in text  # of which there is one
    assert text.count("<small>pre-trainings: +1.5") == 2
    told = records.correction(several)
    assert "all 2 verdicts keeps 0 of the 2 decided ones" in told
    assert several[0].claim.short in told
    assert several[0].claim.short not in records.correction(several, named=False)
    assert records.correction(several[:1]).endswith(
        "keeps 1 of the 1 decided ones; with the tasks held fixed, it keeps 1 of the 1."
    )
    claim = next(c for c in CLAIMS if c.general and not c.grows)
    both = {"interval": Interval(2.0, -1.0, 5.0), "here": Interval(2.0, 1.0, 3.0)}
    made = Verdict(claim=claim, outcome="undecided", by_seed={0: 2.0, 1: 2.0}, p=0.1, **both)
    general = dataclasses.replace(made, sources=("seeds", "tasks"), p_here=0.01)
    text = figures.verdict_list([general])._repr_html_()
    assert "<b>open</b><small>confirmed on these tasks</small>" in text
    assert (
        "<small>these tasks: +2.0 points (1.0 to 3.0 over seeds)" in text
        and 'data-here="confirmed"' in text
    )
    rows = figures.verdict_list([made])._repr_html_().partition("<tbody>")[2].partition("</tbody>")
    assert "these tasks" not in rows[0]


def test_settings_of_a_comparison_stand_side_by_side():
    rates = [c.id for c in CLAIMS if c.id.startswith("tangent-2-target@") and c.rate == c.rate]
    assert len(rates) == 5  # of one rate each: they have no column
    made = [found("tangent-2-target", 5.0), found("tangent-2-target@accuracy", 2.0)]
    made += [found(name, 9.0) for name in rates]
    made += [
        Verdict(claim=BY_ID[f"tangent-2-{end}"]) for end in ("target@length", "posthoc-target")
    ]
    (row,) = figures.matched_table(made).to_dict("records")
    assert row["statement"] == BY_ID["tangent-2-target"].short
    assert row["chosen rates"] == "confirmed: +5.0 points (4.0 to 6.0 over seeds)"
    assert row["equal accuracy"] == "confirmed: +2.0 points (1.0 to 3.0 over seeds)"
    assert row["equal norm"] == "–"
    assert row["compared"] == "negated task: linearized < non-linear"
