"""Cosines and sizes of vectors, also of a model that has no attention to tell apart."""

import pytest

from tasklab.evidence.experiments import Lab, cosines


@pytest.mark.parametrize(("model", "parts"), [("mini_xs", True), ("mini_convnext", False)])
def test_projections_are_told_apart_where_there_is_attention(model, parts):
    lab = Lab(model=model, steps=1, tasks=("Signs", "Places"), progress=False)
    table = cosines(lab, ["nonlinear"])
    whole = table[table["metric"] == "cosine"]
    assert len(whole) == 1 and whole["subset"].tolist() != whole["task"].tolist()
    assert set(table["metric"]) == {"cosine", "cosine_part", "norm"}
    assert (table["projection"].nunique() > 1) == parts and table["block"].nunique() > 1
    norms = table[(table["metric"] == "norm") & table["block"].isna()]
    assert (norms["projection"] == "all").any() and (norms["value"] > 0).any()
