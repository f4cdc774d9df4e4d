"""The files of statements and claims."""

import json
import re
from pathlib import Path

import pytest

from tasklab.evidence.chapters import CHAPTERS, MORE
from tasklab.evidence.records import papers, schema
from tasklab.evidence.records.claims import BY_ID, CLAIMS, SETTINGS
from tasklab.evidence.records.statements import anchor
from tasklab.models import zoo

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


def test_claims_are_well_formed():
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    printed = papers.papers()
    known = set(zip(printed["paper"], printed["table"], strict=True))
    for claim in CLAIMS:
        entry = schema.EXPERIMENTS[claim.experiment]
        for side in (claim.left, claim.right):
            method, _, role = side.partition("@")
            assert claim.comparison or method in schema.METHODS
            assert role in ("", "random", *zoo.FAMILIES[0], *schema.NETWORKS)
        assert claim.comparison or claim.metric in entry.metrics
        assert (claim.paper, claim.table) in known or not claim.table.isdigit()
        assert claim.paper in CHAPTERS and claim.setting in SETTINGS
        assert (claim.relation == "=") == (claim.margin > 0)
        assert len(claim.short) <= 45, claim.short
    # The coefficient of negation keeps 95 % of the control by its choice.
    assert not [c.id for c in CLAIMS if c.experiment == "negation" and c.metric == "control"]
    assert {c.headline for c in CLAIMS} == set(range(10))
    first = [(c.metric, c.setting) for c in CLAIMS if c.headline == 1]
    usual = SETTINGS[:3]  # other rules for the rate are of the sum alone
    assert set(first) == {(m, s) for m in ("absolute", "normalised") for s in usual} | {
        ("absolute", s) for s in SETTINGS
    }
    grown = {c.grows for c in CLAIMS if c.headline == 9}
    assert {BY_ID[id].headline for id in grown} == {1, 2, 3, 4, 5, 7}  # 6 is of equality
    cells: dict[tuple[str, str], list[str]] = {}
    for claim in CLAIMS:
        cells.setdefault((claim.entry, claim.setting), []).append(claim.cell)
    for names in cells.values():
        assert len(set(names)) == len(names)
        assert len(names) == 1 or all(names)


def headings(name):
    book = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    texts = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "markdown"]
    found = re.findall(r"^#+ +(.*)$", "\n".join(texts), flags=re.MULTILINE)
    return set(found)


@pytest.mark.skipif(not NOTEBOOKS.is_dir(), reason="an installed package has no notebooks")
def test_every_statement_leads_to_a_heading_where_it_is_judged():
    for name in {*CHAPTERS, *(c.evidence.partition("#")[0] for c in CLAIMS)}:
        titles = {c.evidence.partition("#")[2] for c in CLAIMS if c.evidence.startswith(f"{name}#")}
        assert titles and titles <= headings(name)
        told = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
        assert all(f'\\"{anchor(t)}\\")' in told for t in titles)  # page.findings(..., "anchor")
    for claim in CLAIMS:
        here = claim.evidence.partition("#")[0].removesuffix(MORE)
        assert here == ("tangent" if claim.grows else claim.paper)
