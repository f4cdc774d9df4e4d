"""Verdicts on the recorded results are kept, and are those that judging gives."""

import math
import sys

from tasklab.records import judgement
from tasklab.records.claims import CLAIMS
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict
from tasklab.records.statements import marked
from tasklab.records.table import tidy
from tasklab.storage.store import Store
from tasklab.study import judged, results
from tests.helpers import refuses


def test_another_package_is_judged_again(tmp_path, monkeypatch):
    module = sys.modules["tasklab.study.judged"]
    verdict = Verdict(  # of no field the default
        claim=CLAIMS[0], outcome="undecided", interval=Interval(math.inf, -math.inf, math.nan),
        sources=("seeds", "tasks"), here=Interval(0.1, 0.2, 0.3), n_pretrainings=3, mixed=2,
        pretrainings=Interval(1 / 3, 0.0, 1.0), p=0.1, p_here=1e-300, value=0.7, bound=2 / 3,
        robust=Interval(0.1, -0.1, 0.3), by_seed={3: 0.1}, by_task={"Signs": -0.0},
    )  # fmt: skip
    plain = Verdict(claim=CLAIMS[0])
    left = [n for n in vars(plain) if repr(getattr(plain, n)) == repr(getattr(verdict, n))]
    assert left == ["claim", "survives"]
    calls = []
    monkeypatch.setattr(module, "CHAPTERS", {CLAIMS[0].paper: None})
    monkeypatch.setattr(results, "tables_of", lambda chapter: [])
    monkeypatch.setattr(judgement, "verdicts", lambda *_, **__: calls.append(1) or [verdict])
    for package in ("a", "a", "b"):
        monkeypatch.setattr(module, "_package", lambda package=package: package)
        assert repr(judged(CLAIMS[0].paper, store=Store(tmp_path))) == repr(marked([verdict]))
    assert len(calls) == 2


def test_a_claim_is_judged_on_records_of_one_make_where_other_parts_have_them():
    of_one_make = sys.modules["tasklab.study.judged"]._of_one_make

    def table(make, seeds, values):
        rows = [
            {"experiment": "addition", "metric": "absolute", "model": "mini", "method": method,
             "seed": seed, "task": task, "value": value + seed, "split": "test", "n": 99,
             "n_tasks": 8}
            for method, value in values.items() for seed in seeds for task in "ab"
        ]  # fmt: skip
        return tidy(rows).assign(make=make)

    first = table("Intel", (0, 1), {"nonlinear": 70.0})
    second = table("AMD", (0,), {"nonlinear": 60.0})
    third = table("AMD", (0, 1), {"linearized": 75.0})
    claim = next(one for one in CLAIMS if one.id == "tangent-1-absolute")

    def both(*tables):
        found = judgement.of_claims([claim], results.joined(*tables), model="mini")
        return found[0], of_one_make(found, tables, "mini")[0]

    plain, chosen = both(first, second, third)
    assert (plain.mixed, plain.by_seed) == (2, {0: 5.0, 1: 5.0})
    assert (chosen.mixed, chosen.by_seed) == (1, {0: 15.0, 1: 5.0})  # seed 1 is on Intel alone
    plain, chosen = both(first, third)
    assert chosen is plain and plain.mixed == 2


def test_a_misspelt_chapter_is_told(tmp_path):
    refuses("did you mean 'tangent'", lambda: judged("tangnt", store=Store(tmp_path)))
