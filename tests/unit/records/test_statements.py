"""One entry a statement, by the verdicts on its cells."""

import dataclasses
import math

import pytest
from scipy import stats

from tasklab.evidence.records import verdict_rows
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.statements import (
    COLUMNS,
    both_scopes,
    correction,
    effect_of,
    entries,
    headlines,
    seen,
)
from tests.rows import CLAIM


def cell(name, effect, half=1.0, entry="s", **more):
    more |= {"id": name, "cell": name, "entry": entry, "evidence": "tangent#add"}
    claim = dataclasses.replace(CLAIM, **more)
    if math.isnan(effect):
        return Verdict(claim=claim)
    interval = Interval(effect, effect - half, effect + half)
    outcome = "undecided" if not abs(effect) > half else "holds" if effect > 0 else "does not hold"
    p = 2 * stats.norm.sf(1.96 * abs(effect) / half) if half == half else math.nan
    return Verdict(claim=claim, outcome=outcome, interval=interval, p=p, n_pretrainings=1,
                   by_seed={0: effect, 1: effect}, by_task={"x": effect, "y": -1.0})  # fmt: skip


@pytest.mark.parametrize(
    ("effects", "outcome", "weakest"),
    [
        ([2.0, 3.0], "holds", 2.0),
        ([2.0, 0.5], "undecided", 0.5),
        ([2.0, 2.0, -3.0], "does not hold", -3.0),
        ([2.0, 0.1, -1.01], "undecided", -1.01),  # against, but not if three are looked at
        ([-1.01], "does not hold", -1.01),
        ([2.0, math.nan], "holds", 2.0),  # what was not tested says nothing
        ([math.nan, math.nan], "not tested", math.nan),
    ],
)
def test_a_statement_holds_if_each_of_its_cells_does(effects, outcome, weakest):
    (entry,) = entries(cell(str(i), effect) for i, effect in enumerate(effects))
    assert entry.outcome == outcome
    assert entry.weakest.interval.effect == pytest.approx(weakest, nan_ok=True)


def test_cells_numbers_and_growth():
    (entry,) = entries([cell("a", 3.0), cell("b", 3.0, half=math.nan)])
    assert entry.outcome == "undecided" and entry.weakest.claim.id == "b"
    assert math.isnan(entry.p)
    found = entries([cell("a", 3.0, entry="a"), *(cell(x, 1.1, entry=x) for x in "bcdef")])
    assert [entry.outcome for entry in found] == ["holds"] * 6
    assert [entry.corrected for entry in found] == ["holds", *["undecided"] * 5]
    assert entries([cell("b", 1.1, entry="b")])[0].corrected == "holds"
    base, weak = cell("a", 3.0, entry="one"), cell("b", 0.1, entry="two")
    grown = [cell("c", 2.0, entry="grown", grows="a"), cell("d", -9.0, entry="grown", grows="b")]
    found = {entry.cells[0].claim.entry: entry for entry in entries([base, weak, *grown])}
    assert [v.claim.id for v in found["grown"].cells] == ["c", "d"]  # whatever came of "b"
    assert found["grown"].outcome == "does not hold"


def test_the_correction_of_headlines_counts_every_one_of_them():
    first = cell("a", 2.0, entry="a", headline=1)
    others = [cell(x, 0.1, entry=x, headline=9, grows="a") for x in "bcd"]
    table = headlines([first, *others, cell("e", 3.0, entry="e")])
    assert list(table["headline"]) == [1, 9, 9, 9] and list(table["p"])[0] == first.p
    assert table["corrected"][0] == pytest.approx(4 * first.p)
    assert list(table["kept"]) == [4 * first.p <= 0.05, False, False, False]
    assert list(headlines([cell("a", 3.0, headline=1)])["kept"]) == [True]


def general(name, effect, here=0.5, entry="s"):
    alone = Interval(effect, effect - here, effect + here)
    made = cell(name, effect, 2 * abs(effect), entry)
    return dataclasses.replace(made, sources=("seeds", "tasks"), here=alone, p_here=0.01)


def test_a_statement_about_tasks_in_general_says_what_is_found_on_these_alone():
    table = verdict_rows([general("a", 3.0), general("b", 2.0, here=1.9)])
    assert table["outcome"].tolist() == ["undecided"] * 3 and (table["here"] == "holds").all()
    first = table.iloc[0]  # the weakest in general is not the weakest there
    assert (first["here_effect"], first["here_low"]) == (2.0, pytest.approx(0.1))
    assert first["here_cell"] == "b" and table["here_cell"][1:].tolist() == ["", ""]
    rows = verdict_rows([general("a", 3.0), general("b", -2.0)], cells=False)
    assert rows["here"].tolist() == ["does not hold"]
    (row,) = verdict_rows([general("a", 3.0), general("b", 1.0, here=2.0)], cells=False).to_dict(
        "records"
    )
    assert row["here"] == "undecided"
    (row,) = verdict_rows([cell("a", 3.0)]).to_dict("records")
    assert row["here"] == "" and math.isnan(row["here_low"])


def test_statements_are_counted_in_both_scopes():
    several = [general("a", 3.0, entry="a"), general("b", -3.0, entry="b"), cell("c", 3.0)]
    told = both_scopes([*several, general("d", 1.0, here=2.0, entry="d")])
    assert told.startswith("3 verdicts are about tasks in general: 3 open.")
    assert told.endswith(" 1 confirmed, 1 not confirmed, 1 open.")
    weak = [dataclasses.replace(general(x, 3.0, entry=x), p_here=0.02) for x in "bcd"]
    several = [dataclasses.replace(general("a", 3.0, entry="a"), p_here=0.001), *weak]
    found = {entry.cells[0].claim.entry: entry for entry in entries(several)}
    assert found["a"].here.corrected == "holds" and found["b"].here.corrected == "undecided"
    assert found["b"].here.outcome == "holds"
    told = correction([*several, cell("e", 3.0, entry="e")])
    assert "all 5 verdicts keeps 1 of the 1 decided ones" in told
    assert told.endswith("with the tasks held fixed, it keeps 2 of the 5.")
    assert both_scopes([cell("a", 3.0)]) == both_scopes([]) == ""
    made = dataclasses.replace(cell("a", 3.0), pretrainings=Interval(2.0, 1.0, 3.0))
    (row,) = verdict_rows([made]).to_dict("records")
    assert effect_of(seen(row, "others")) == "+2.0 points (1.0 to 3.0 over pre-trainings)"
    assert row["others"] == ""  # one pre-training says nothing of others


@pytest.mark.parametrize(
    ("others", "outcome"),
    [
        (Interval(2.0, 1.0, 3.0), "holds"),
        (Interval(2.0, -1.0, 5.0), "undecided"),
        (Interval(-2.0, -3.0, -1.0), "does not hold"),
    ],
)
def test_other_pretrainings_have_an_outcome_of_their_own(others, outcome):
    made = dataclasses.replace(cell("a", 3.0), pretrainings=others, n_pretrainings=3)
    (row,) = verdict_rows([made]).to_dict("records")
    assert row["others"] == outcome and row["others_effect"] == others.effect


def test_rows_have_a_statement_and_below_it_its_cells():
    settings = [cell(f"{x}@accuracy", 0.1, setting="equal accuracy") for x in "ab"]
    table = verdict_rows([cell("a", 2.0), cell("b", -3.0), *settings])
    assert list(table.columns) == list(COLUMNS)
    assert table["id"].tolist() == ["s", "a", "b", "s", "a@accuracy", "b@accuracy"]
    first = table.iloc[0]
    assert (first["outcome"], first["effect"], first["unit"]) == ("does not hold", -3.0, "points")
    assert (first["low"], first["high"]) == (-4.0, -2.0)
    assert (first["n_cells"], first["cells_holding"]) == (2, 1)
    assert (first["tasks_as_claimed"], first["n_tasks"], first["n_seeds"]) == (0, 2, 2)
    assert first["evidence"] == "tangent#add" and table["setting"].nunique() == 2
    assert len(verdict_rows([cell("a", 2.0), cell("b", -3.0)], cells=False)) == 1
    assert verdict_rows([]).empty
