"""The data file of the papers' numbers: complete, in range, and in agreement with the papers."""

import pytest

from tasklab.analyses.merging import METHODS
from tasklab.evidence.records.claims import CLAIMS, SETTINGS
from tasklab.evidence.records.judgement import verdict
from tasklab.evidence.records.pairing import Split
from tasklab.evidence.records.papers import papers
from tasklab.evidence.records.schema import METHODS as WAYS
from tasklab.evidence.records.table import tidy, where
from tests.helpers import refuses

COUNTS = {
    ("tangent", "1"): 21, ("tangent", "2"): 24, ("tangent", "3"): 15, ("tangent", "4"): 5,
    ("tangent", "5"): 5, ("linear_layers", "1"): 21, ("linear_layers", "2"): 12,
    ("closed_vocab", "1"): 40, ("closed_vocab", "3"): 32, ("closed_vocab", "4"): 10,
    ("ctl", "C.2"): 3, ("merging", "task_vectors"): 18, ("merging", "tall_masks"): 9,
    ("merging", "fusionbench"): 15,
}  # fmt: skip


def _value(df, **named):
    return where(df, **named)["value"].item()


def test_counts_keys_and_units():
    assert papers().groupby(["paper", "table"]).size().to_dict() == COUNTS
    df = papers()
    assert not df.duplicated(["paper", "table", "row", "column"]).any()
    table4 = (df["paper"] == "closed_vocab") & (df["table"] == "4")  # one model under two regimes
    keys = ["paper", "table", "method", "model", "experiment", "metric"]
    rest = df[~table4 & ~df["paper"].isin(["ctl", "merging"])]  # these by their rows
    assert not rest.duplicated(keys).any()
    empty = papers()[lambda df: df["value"].isna()]
    assert set(empty["paper"] + empty["table"] + empty["row"]) == {"closed_vocab4Encoder"}
    assert sorted(empty["metric"]) == ["lambda", "normalised"]
    assert empty["note"].str.contains("missing").all()
    df = papers().dropna(subset=["value"])
    percent = df["unit"] == "%"
    assert df.loc[percent, "value"].between(2, 100).all()
    assert df.loc[~percent, "value"].between(0, 1).all()
    assert set(df.loc[~percent, "metric"]) == {"lambda", "r2"}
    assert set(df["method"]) - {""} <= set(WAYS)
    steps = df.loc[df["metric"] == "lambda", "value"] / 0.05
    assert (steps - steps.round()).abs().max() < 1e-9
    # By definition, as no single-task accuracy exceeds 100 %; one printed cell breaks it.
    df = df[df["metric"].isin(["absolute", "normalised"])]
    wide = df.pivot_table(
        index=["paper", "table", "row", "model"], columns="metric", values="value"
    ).dropna()
    broken = wide[wide["normalised"] < wide["absolute"]]
    assert list(broken.index) == [("tangent", "5", "Non-lin. FT", "vitb16_in1k")]
    assert df["note"].str.contains("misprint").sum() == 1


@pytest.mark.parametrize("model", ["vitb32", "vitb16", "vitl14"])
def test_the_papers_numbers_agree_and_support_their_claims(model):
    # The implied mean single-task accuracy is plausible: above the sum's, at most 100 %.
    for paper in ("tangent", "linear_layers"):
        df = papers(paper, "1")
        for method in ("nonlinear", "linearized"):
            run = {"model": model, "method": method}
            absolute = _value(df, metric="absolute", **run)
            implied = 100 * absolute / _value(df, metric="normalised", **run)
            assert 85 < implied < 97
    df = papers()
    df = df[(df["model"] == model) & (df["experiment"] != "random_init")]
    columns = ["experiment", "model", "method", "task", "metric", "n_tasks", "seed", "value"]
    judged = 0
    for paper in ("tangent", "linear_layers"):  # of whose table 2 some rows are those of table 1
        mine = df[df["paper"] == paper].assign(task="all", seed=0, n_tasks=8)[columns]
        records = Split(tidy(mine.drop_duplicates(["experiment", "method", "metric"])))
        for claim in (c for c in CLAIMS if (c.paper, c.setting) == (paper, SETTINGS[0])):
            found = verdict(claim, records)
            judged += found.outcome != "not tested"
            assert found.outcome == "not tested" or found.interval.effect > 0, claim.id
    assert judged >= 11


def test_control_in_the_tangent_paper():
    df = papers("tangent", "2")
    for model in ("vitb32", "vitb16", "vitl14"):
        before = {m: _value(df, model=model, method="pretrained", metric=m)
                  for m in ("target", "control")}  # fmt: skip
        addition = papers("tangent", "1")
        expected = _value(addition, model=model, method="pretrained", metric="absolute")
        assert before["target"] == expected
        for method in ("nonlinear", "posthoc", "linearized"):
            kept = _value(df, model=model, method=method, metric="control") / before["control"]
            assert 0.945 < kept < 0.965
            assert _value(df, model=model, method=method, metric="target") < before["target"] / 2


def test_tables_agree_with_what_is_printed():
    aligned, full = papers("closed_vocab", "1"), papers("closed_vocab", "3")
    for model in full["model"].unique():
        probe = _value(aligned, model=model, method="probe", metric="single")
        single = _value(aligned, model=model, method="nonlinear", metric="single")
        added = _value(aligned, model=model, method="nonlinear", metric="absolute")
        assert probe <= added < single
        assert _value(full, model=model, metric="single") < single
        assert _value(full, model=model, metric="absolute") < added
        normalised = _value(aligned, model=model, metric="normalised")
        # A mean of ratios is not the ratio of the means, but near it.
        assert abs(100 * added / single - normalised) < 2.5
    refuses("did you mean 'tangent'", papers, "tangnet")
    refuses("unknown table '9'", papers, "tangent", "9")
    assert papers("merging")["note"].str.contains("leaks").sum() == 9


def test_every_statement_on_merges_is_an_order_that_all_protocols_and_sizes_share():
    """Of merges that are printed side by side, the one is above the other wherever both are."""
    df = papers("merging").replace({"row": {m.title: name for name, m in METHODS.items()}})
    wide = df.pivot_table(index=["table", "model"], columns="row", values="value")
    claims = [claim for claim in CLAIMS if claim.comparison == "merges"]
    for claim in claims:
        gaps = (wide[claim.left] - wide[claim.right]).dropna()
        assert len(gaps) and (gaps > 0).all(), claim.id
    assert len({claim.entry for claim in claims}) >= 7
    single = wide["Single"].dropna()
    merged = wide.drop(columns="Single").max(axis=1)
    assert len(single) == 5 and (single > merged[single.index]).all()
