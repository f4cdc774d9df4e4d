"""The sentences of the landing page."""

from __future__ import annotations

import math
import re
import sys

import pandas as pd
import pytest

from tasklab import study
from tasklab.errors import TasklabError
from tasklab.records.claims import CLAIMS
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict
from tasklab.records.table import nothing, tidy
from tasklab.study.findings import _equally_accurate, _takes, _verdict

MODULE = sys.modules["tasklab.study.findings"]  # its function has the same name


def accuracies(experiment, metric, values, **more):
    """Return records of two tasks, by method."""
    return [
        {"experiment": experiment, "metric": metric, "model": "mini", "method": method,
         "task": task, "seed": 0, "n": 100, "value": value, **more}
        for method, value in values.items()
        for task in ("Signs", "Places")
    ]  # fmt: skip


def everything():
    """Return what the chapters' sentences are made of, by chapter."""
    alone = ("single", "single")
    eight = ("addition", "absolute")
    of_eight = {"n_tasks": 8, "alpha": 0.3}
    untrained = {"init": "random"}
    tangent = [
        *accuracies(*alone, {"pretrained": 50.0, "nonlinear": 95.0, "linearized": 90.0}),
        *accuracies(*eight, {"nonlinear": 70.0, "linearized": 72.5}, **of_eight),
        *accuracies("negation", "target", {"pretrained": 50.0, "nonlinear": 20.0}),
        *accuracies("negation", "control", {"pretrained": 80.0, "nonlinear": 77.0}),
        *accuracies(*alone, {"nonlinear": 60.0}, **untrained),
        *accuracies(*eight, {"nonlinear": 12.0}, **of_eight, **untrained),
    ]
    ctl = [
        {"experiment": "ctl", "metric": metric, "model": "mini", "method": "nonlinear", "seed": 0,
         "task": "Signs+Places", "alpha": 0.5, "block": block, "value": value * times}
        for metric, value in {"distance": 0.02, "base": 0.3, "coef": 0.97}.items()
        for block, times in {5: 0.1, math.nan: 1.0}.items()  # judged at the output
    ]  # fmt: skip
    closed = [
        row
        for model, values in {"mini_clip_more": (41.0, 52.0), "mini_mae": (31.0, 33.0)}.items()
        for row in accuracies(*eight, dict(zip(("probe", "nonlinear"), values, strict=True)),
                              **of_eight, model=model)
    ]  # fmt: skip
    layers = accuracies(*eight, {"attention": 66.0, "nonlinear": 69.0}, **of_eight)
    layers += accuracies(*eight, {"linearized": 71.0}, **of_eight)
    tables = {"tangent": tangent, "linear_layers": layers, "ctl": ctl, "closed_vocab": closed}
    return {chapter: tidy(rows) for chapter, rows in tables.items()}


@pytest.fixture
def written(monkeypatch):
    """Return the sentences of some chapters' records; the others are not recorded."""

    def write(tables):
        for name, function in {
            "evidence": lambda chapter: tables.get(chapter, nothing()),
            "recorded": lambda chapter: (tables.get(chapter, nothing()), {}),
        }.items():
            monkeypatch.setattr(MODULE, name, function)
        return study.findings([])

    return write


def test_sentences_take_their_numbers_from_the_records(written):
    sentences = written(everything())
    assert [s.split("**")[1] for s in sentences] == [
        "Addition.", "Subtraction.", "Pre-training.", "Attention alone.", "Features.",
        "Without text.",
    ]  # fmt: skip
    assert "from 50.0 to 70.0 %. Each alone reaches 95.0 %" in sentences[0]
    assert "the sum of linearized ones 72.5 %" in sentences[0]
    assert "from 50.0 to 20.0 %, and the control task from 80.0 to 77.0 %" in sentences[1]
    assert "reaches 66.0 %; with all weights it is 69.0 %, linearized 71.0 %" in sentences[3]
    assert "to 60.0 %, but the sum of eight vectors has 12.0 %" in sentences[2]
    assert "a distance (1 − cosine) of 0.020" in sentences[4] and "0.300 apart" in sentences[4]
    assert "0.10 in the blocks and 0.97 at the output" in sentences[4]
    assert "from 41.0 to 52.0 %, and a masked autoencoder from 31.0 to 33.0 %." in sentences[5]


def test_two_numbers_that_read_alike_are_one():
    moved, left = ("this", 38.72, 52.0), ("that", 38.68, 38.73)
    assert _takes(left) == "leaves that at 38.7 %"
    assert _takes(moved, left) == "takes this from 38.7 to 52.0 %, and leaves that at 38.7 %"
    assert (
        _takes(moved, ("that", 1.0, 2.0))
        == "takes this from 38.7 to 52.0 %, and that from 1.0 to 2.0 %"
    )


def test_a_chapter_has_its_own_findings_and_counts_its_statements(written):
    written(everything())
    chosen = [c for c in CLAIMS if c.id in ("tangent-2-target", "tangent-3-single")]
    alone = Interval(2.0, 1.0, 3.0)
    judged = [
        Verdict(claim=claim, outcome="undecided", interval=Interval(2.0, -1.0, 5.0), here=alone,
                by_seed={0: 2.0, 1: 2.0}, sources=("seeds", "tasks"), p=0.1, p_here=0.01)
        for claim in chosen
    ]  # fmt: skip
    told = study.found("tangent", judged)
    assert re.findall(r"^- \*\*(.*?)\.\*\*", told, re.M) == [
        "Addition", "Subtraction", "Pre-training"]  # fmt: skip
    assert 'href="#' in told and "notebooks/" not in told  # links within the chapter
    assert "Of this chapter's 2 verdicts, 2 are undecided; on these" in told
    assert told.endswith("tasks alone, 2 hold.")
    assert study.findings(judged, chapter="ctl")[0].startswith("**Features.**")
    assert study.found("tangent", []) == ""
    with pytest.raises(TasklabError, match="did you mean 'tangent'"):
        study.found("tangnet", [])


def test_what_is_not_recorded_has_no_sentence(written):
    assert written({}) == ()
    (sentence,) = written({"ctl": everything()["ctl"]})
    assert sentence.startswith("**Features.**")


def test_merges_have_a_sentence_once_they_are_recorded(written):
    common = {"experiment": "merging", "model": "mini", "method": "nonlinear", "metric": "absolute"}
    values = {"arithmetic": 60.0, "ties": 62.0, "wudi": 65.0, "best_span": 61.0}
    rows = [
        {**common, "task": task, "seed": 0, "n_tasks": n, "n": 100, "merge": name, "value": v + n}
        for name, v in values.items()
        for task in ("Signs", "Places")
        for n in (2, 8)
    ]
    (told,) = written({"merging": tidy(rows)})
    assert (
        "Of 2 other merges of 8 task vectors without training images, WUDI is the most accurate: "
        in told
    )
    assert "73.0 %, where the sum has 68.0 %. TIES beats the sum: not tested;" in told


def test_a_verdict_has_its_effect_and_says_what_is_found_on_these_tasks_alone():
    row = {"evidence": "tangent#Do they add?", "outcome": "undecided", "corrected": "undecided"}
    row |= {"effect": 3.0, "low": -1.0, "high": 7.0, "unit": "points", "n_seeds": 5, "n_tasks": 1}
    row |= {
        "here": "holds",
        "here_effect": 3.0,
        "here_low": 2.0,
        "here_high": 4.0,
        "others": "",
        "n_pretrainings": 1,
    }
    told = _verdict(pd.DataFrame([row], index=["one"]), "one")
    assert told.endswith("(+3.0 [−1.0, 7.0] points; on these tasks alone it holds)")  # landing page
    told = _verdict(pd.DataFrame([row], index=["one"]), "one", "ctl")
    both = "(+3.0 [−1.0, 7.0] points; on these tasks alone it holds: +3.0 [2.0, 4.0] points)"
    assert told.endswith(f"<strong>undecided</strong></a> {both}")
    told = _verdict(pd.DataFrame([row | {"here": ""}], index=["one"]), "one")
    assert told.endswith("(+3.0 [−1.0, 7.0] points)")
    row |= {"here": "", "n_pretrainings": 3, "others": "does not hold"}
    row |= {"others_effect": -2.0, "others_low": -3.0, "others_high": -1.0}
    told = _verdict(pd.DataFrame([row], index=["one"]), "one", "ctl")
    assert "7.0] points; over 3 pre-trainings of a smaller CLIP it does not hold: −2.0 [" in told


def test_the_fair_comparison_is_told_once_it_is_recorded():
    row = {"evidence": "tangent#Do they add?", "outcome": "holds", "corrected": "holds"}
    row |= {"effect": 3.0, "low": 1.0, "high": 5.0, "unit": "points", "n_seeds": 2, "n_tasks": 1}
    row |= {"here": "holds", "others": "", "n_pretrainings": 1}
    rows = pd.DataFrame([row, row | {"outcome": "not tested"}], index=["one", "two"])
    told = _equally_accurate(rows, "one")
    assert told.startswith("; at equal single-task accuracy: <a ") and "[1.0, 5.0]" in told
    assert _equally_accurate(rows, "two") == _equally_accurate(rows, "three") == ""
    assert _equally_accurate(None, "one") == ""


def test_without_verdicts_they_say_so():
    assert all("not tested" in sentence for sentence in study.findings([]))
