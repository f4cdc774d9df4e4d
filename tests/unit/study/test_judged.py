"""Verdicts on the recorded results are kept, and are those that judging gives."""

import math
import sys

from tasklab.evidence.records import judgement
from tasklab.evidence.records.claims import CLAIMS
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.statements import marked
from tasklab.evidence.study import judged, results
from tasklab.storage import code
from tasklab.storage.store import Store
from tests.helpers import refuses


def test_another_package_is_judged_again(tmp_path, monkeypatch):
    module = sys.modules["tasklab.evidence.study.judged"]
    verdict = Verdict(  # of no field the default
        claim=CLAIMS[0], outcome="undecided", interval=Interval(math.inf, -math.inf, math.nan),
        sources=("seeds", "tasks"), here=Interval(0.1, 0.2, 0.3), n_pretrainings=3,
        pretrainings=Interval(1 / 3, 0.0, 1.0), p=0.1, p_here=1e-300, value=0.7, bound=2 / 3,
        robust=Interval(0.1, -0.1, 0.3), by_seed={3: 0.1}, by_task={"Signs": -0.0},
    )  # fmt: skip
    plain = Verdict(claim=CLAIMS[0])
    left = [n for n in vars(plain) if repr(getattr(plain, n)) == repr(getattr(verdict, n))]
    assert left == ["claim", "survives"]
    calls = []
    monkeypatch.setattr(module, "CHAPTERS", {CLAIMS[0].paper: None})
    monkeypatch.setattr(results, "evidence", lambda chapter: None)
    monkeypatch.setattr(judgement, "verdicts", lambda *_, **__: calls.append(1) or [verdict])
    for package in ("a", "a", "b"):
        monkeypatch.setattr(module, "package", lambda package=package: package)
        assert repr(judged(CLAIMS[0].paper, store=Store(tmp_path))) == repr(marked([verdict]))
    assert len(calls) == 2
    alone = judged(CLAIMS[0].paper, store=Store(tmp_path), corrected=False)
    assert len(calls) == 2 and repr(alone) == repr([verdict]) != repr(marked([verdict]))


def test_a_new_merge_rule_changes_no_verdict(monkeypatch):
    module, plain = sys.modules["tasklab.evidence.study.judged"], code._hash

    def package(changed):
        monkeypatch.setattr(code, "_hash", lambda n: "new" if changed in n else plain(n))
        return module.package.__wrapped__()

    judges = ("analyses.statistics", "records.judgement", "declared.editing", "chapters.tangent")
    names = ("no module", "analyses.merging.registry", "chapters.opening", *judges)
    assert [package(name) == module.package() for name in names] == [True] * 3 + [False] * 4


def test_without_corrections_other_chapters_are_not_judged(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(results, "evidence", asked.append)
    monkeypatch.setattr(judgement, "verdicts", lambda *_, **__: [])
    assert judged("ctl", store=Store(tmp_path), corrected=False) == [] and asked == ["ctl"]


def test_a_misspelt_chapter_is_told(tmp_path):
    refuses("did you mean 'tangent'", lambda: judged("tangnt", store=Store(tmp_path)))
