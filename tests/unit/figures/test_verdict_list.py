"""The list of all verdicts."""

from __future__ import annotations

import dataclasses
import re

from tasklab import figures
from tasklab.records.claims import CLAIMS
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict


def test_every_row_has_its_outcome_its_numbers_and_its_evidence():
    claim = next(c for c in CLAIMS if c.paper == "tangent")
    found = [
        Verdict(
            claim=claim,
            outcome="does not hold",
            interval=Interval(-2.5, -4.0, -1.0),
            p=0.01,
            by_seed={0: -2.0, 1: -3.0},
            by_task={"A": -3.0, "B": 1.0},
        ),
        Verdict(claim=dataclasses.replace(claim, id="x", entry="x", statement="a < b")),
    ]
    shown = figures.verdict_list(found)
    assert list(shown.rows["outcome"]) == ["does not hold"]  # what was not tested is left out
    text = shown._repr_html_()
    (row,) = re.findall(r"<tr class=.*?</tr>", text, re.S)
    assert "<b>does not hold</b>" in row and "−2.5 [−4, −1]" in row and "1 of 2" in row
    page, _, heading = claim.evidence.partition("#")
    assert f'href="notebooks/{page}.html#{heading}"' in row


def test_two_lists_have_names_of_their_own():
    names = {re.search('id="(.*?)"', figures.verdict_list([])._repr_html_())[1] for _ in range(2)}
    assert len(names) == 2
