"""The sentences of the landing page."""

from __future__ import annotations

import re

from tasklab import evidence, records, study

CHAPTERS = ("tangent", "linear_layers", "ctl", "closed_vocab")


def test_five_sentences_take_their_numbers_from_the_records():
    tables = {name: evidence(name) for name in CHAPTERS}
    found = [v for name, df in tables.items() for v in records.verdicts(df, name, model="mini")]
    told = study.findings(found)
    assert len(told) == 5
    for sentence in told:
        assert "nan" not in sentence
        assert re.search(r'href="notebooks/\w+\.html#[\w-]+"', sentence) or "not tested" in sentence
    df = tables["tangent"]
    alone = df[(df["experiment"] == "single") & (df["method"] == "nonlinear")]
    alone = alone[(alone["model"] == "mini") & (alone["init"] == "pretrained")]["value"].mean()
    assert f"{alone:.1f} %" in told[0]


def test_without_verdicts_they_say_so():
    assert all("not tested" in sentence for sentence in study.findings([]))
