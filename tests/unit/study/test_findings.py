"""The findings of the landing page."""

import math
import sys

import pytest

from tasklab.evidence import study
from tasklab.evidence.records.table import nothing, tidy
from tasklab.evidence.study.findings import Finding

MODULE = sys.modules[Finding.__module__]  # its function has the same name


def rows(experiment, metric, values, **more):
    return [
        {"experiment": experiment, "metric": metric, "model": "mini", "method": method,
         "task": task, "seed": 0, "n": 100, "value": value, **more}
        for method, value in values.items()
        for task in ("Signs", "Places")
    ]  # fmt: skip


def everything():
    of_eight, random = {"n_tasks": 8, "alpha": 0.3}, {"init": "random"}
    tangent = [
        *rows("single", "single", {"pretrained": 50.0, "nonlinear": 95.0}),
        *rows("addition", "absolute", {"nonlinear": 70.0, "linearized": 72.5}, **of_eight),
        *rows("negation", "target", {"pretrained": 50.0, "nonlinear": 20.0}),
        *rows("negation", "control", {"pretrained": 80.0, "nonlinear": 77.0}),
        *rows("single", "single", {"nonlinear": 60.0}, **random),
        *rows("addition", "absolute", {"nonlinear": 12.0}, **of_eight, **random),
    ]
    ctl = [
        {"experiment": "ctl", "metric": metric, "model": "mini", "method": "nonlinear", "seed": 0,
         "task": "Signs+Places", "alpha": 0.5, "block": block, "value": value * times}
        for metric, value in {"distance": 0.02, "base": 0.3, "coef": 0.97}.items()
        for block, times in {5: 0.1, math.nan: 1.0}.items()  # judged at the output
    ]  # fmt: skip
    merging = [
        row | {"merge": merge}
        for merge, value in {"arithmetic": 70.0, "ties": 62.0, "wudi": 75.0, "best_span": 99.0,
                             "regmean": 80.0, "least_few": 85.0,
                             "least_features": 90.0}.items()
        for n, other in ((2, 90.0), (8, value))
        for row in rows("merging", "absolute", {"nonlinear": other}, n_tasks=n)
    ]  # fmt: skip
    without = {"merge": "least_few", "chosen_by": "normalised", "n_tasks": 8}
    merging += rows("merge_loss", "absolute", {"nonlinear": 82.5}, **without)
    return {"tangent": tidy(tangent), "ctl": tidy(ctl), "merging": tidy(merging)}


@pytest.fixture
def recorded(monkeypatch):

    def write(tables):
        def read(name, *_):
            return tables.get(name, nothing()), {}

        for module in (MODULE, sys.modules["tasklab.evidence.study.answers"]):
            monkeypatch.setattr(module, "recorded", read)

    return write


def test_three_findings_have_the_numbers_of_the_records(root, recorded):
    recorded(everything())
    added, features, merged = study.findings([])
    for one in (added, features, merged):  # each leads to its figure
        page, _, figure = one.figure.partition("#")
        notebook = (root / page).with_suffix(".ipynb").read_text("utf-8")
        assert f'"figure": "{figure}"' in notebook
    assert added.number == "50 → 70 %" and "70.0 % on the eight" in added.text
    assert "sum scores 12 %" in added.text
    assert added.mark == added.elsewhere == ""  # no verdict was given
    assert features.number == "0.02 of 0.30"
    assert merged.number == "70 → 75 %" and "WUDI reaches 75.0 %" in merged.text
    told = "82.5 % without a label, and 85.0 % with a coefficient from labels (one seed)"
    assert told in merged.text


def test_what_is_not_recorded_is_no_finding(recorded):
    recorded({})
    assert study.findings([]) == ()
    recorded({"ctl": everything()["ctl"]})
    assert [one.number for one in study.findings([])] == ["0.02 of 0.30"]


def test_solved_merges_stand_beside_the_best_published_one(recorded):
    recorded({})
    assert math.isnan(MODULE._solved("mini")["few"])
    recorded({"merging": everything()["merging"].query("n_tasks == 8")})
    found = MODULE._solved("mini")
    numbers = {
        "seeds": "one seed",
        "few": 85.0,
        "solved": 90.0,
        "published": "RegMean",
        "most": 80.0,
        "compared": 4,
    }
    assert found == numbers
