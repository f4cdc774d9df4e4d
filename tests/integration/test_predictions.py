"""Predictions for CLIP: frozen, followed by the records, graded."""

import pandas as pd
import pytest

from tasklab.__main__ import main
from tasklab.cluster import grid
from tasklab.experiments import Lab
from tasklab.study import predictions


@pytest.fixture(scope="module")
def now():
    return predictions.predicted()


def test_what_is_frozen_follows_from_the_records(now, monkeypatch):
    monkeypatch.setattr(predictions, "predicted", lambda: now)
    written = predictions.frozen()
    assert list(written) == predictions.COLUMNS
    keys = ["claim", "rate", "sides"]
    assert {*now[keys].itertuples(index=False)} <= {*written[keys].itertuples(index=False)}
    counts = written[written["metric"].isin(["absolute", "target"])].groupby("claim")["rate"]
    assert counts.apply(list).map(tuple).unique().tolist() == [tuple(predictions.RATES.values())]
    if len(moved := predictions.moved()):
        pytest.skip(f"records moved since:\n{moved[['claim', 'rate', 'effect', 'now']]}")


def test_what_is_written_down_stays(now, monkeypatch, tmp_path):
    """A failed prediction is not replaced: only new claims and rates are added."""
    monkeypatch.setattr(predictions, "FROZEN", tmp_path / "predictions.csv")
    monkeypatch.setattr(predictions, "predicted", lambda: now[:2])
    predictions.freeze("2026-01-01")
    monkeypatch.setattr(predictions, "predicted", lambda: now[:3].assign(effect=9.0))
    predictions.freeze("2027-01-01")
    written = predictions.frozen()
    assert written["effect"].tolist() == [*now["effect"][:2], 9.0]
    assert written["day"].tolist() == ["2026-01-01", "2026-01-01", "2027-01-01"]


def test_records_that_moved_and_rows_of_all_rates(now, monkeypatch):
    table = predictions.by_rate(now)
    assert table.columns[1:].tolist() == ["1.25e-6", "2.5e-6", "5e-6", "1e-5", "2e-5"]
    (first,) = now[(now["claim"] == "tangent-1-absolute") & (now["rate"] == 1e-5)].to_dict(
        "records"
    )
    assert table["1e-5"][0].startswith(predictions._signed(first["effect"]))
    assert (table["1e-5"] != "").all() and (table.loc[1, "2e-5"], len(table)) == ("", 10)
    other = now.assign(effect=now["effect"] + (now.index == 3) * 0.5)
    monkeypatch.setattr(predictions, "predicted", lambda: now)
    monkeypatch.setattr(predictions, "frozen", lambda: other.assign(day="2026-01-01"))
    (row,) = predictions.moved().to_dict("records")
    assert row["claim"] == now.loc[3, "claim"] and row["effect"] - row["now"] == pytest.approx(0.5)


def test_grades_are_of_sign_and_size(monkeypatch):
    row = {"claim": "a", "sides": "x − y", "metric": "absolute", "unit": "points", "day": "d"}
    rows = [{**row, "rate": r, "effect": -2.0, "low": -5.0, "high": 1.0} for r in (1e-5, 2e-5)]
    monkeypatch.setattr(predictions, "frozen", lambda: pd.DataFrame(rows))
    found = [(1e-5, -1.0), (1e-5, 0.5), (1e-5, -6.0), (2e-5, 3.0), (5e-6, 1.0)]
    measured = pd.DataFrame([{"claim": "a", "rate": r, "value": v} for r, v in found])
    grades = predictions.graded(measured)
    assert grades["sign"].tolist() == [True, False, True, False]
    assert grades["size"].tolist() == [True, True, False, False]
    shown = predictions.shown(grades.assign(model="m"))
    assert shown["found"].tolist() == ["−1.0", "+0.5", "−6.0", "+3.0"]
    assert predictions._signed(-0.14) == "−0.14"


def test_printed_effects_agree_with_the_papers_tables():
    rows = predictions.printed().set_index(["claim", "model"])["value"]
    assert rows["tangent-1-absolute", "vitb32"] == 5.1  # 76.5 - 71.4
    assert rows["tangent-2-target", "vitl14"] == 10.1  # 18.0 - 7.9
    assert rows["linear-1-absolute-nonlinear", "vitb32"] == 8.37  # 78.37 - 70.00
    table = pd.DataFrame({"here": [1.0, 2, 3, 4], "paper": [10.0, 20, 30, 40]}, index=list("abcd"))
    found = predictions._ranked("sums", "", "", table)
    assert (found["rank"], found["low"], found["n"]) == (1.0, 1.0, 4)
    assert predictions._ranked("sums", "", "", table[:3]) is None
    rows = predictions.orders()
    eight = rows[rows["source"] == "closed vocabulary, table 1"].iloc[0]
    assert eight["n"] == 8 and eight["low"] <= eight["rank"] <= eight["high"]


def test_what_is_in_the_store_is_measured(monkeypatch, tmp_path, capsys):
    all_of_them = predictions.frozen()
    two = all_of_them[(all_of_them["claim"] == "tangent-1-absolute")][:2]
    monkeypatch.setattr(predictions, "frozen", lambda: two)
    common = {"steps": 2, "seeds": 1, "device": "cpu", "store_root": tmp_path}
    words = ["predict", "mini_xs", "--check", "--preset", "quick", "--steps", "2", "--seeds", "1"]
    words += ["--device", "cpu", "--store-root", str(tmp_path)]
    assert main(words) == 1
    assert "16 runs are missing" in capsys.readouterr().out
    rate = float(two["rate"].iloc[1])
    runs = grid.Grid(models="mini_xs", methods=["nonlinear", "linearized"], lr=rate, **common)
    grid.run(runs, progress=False)
    assert main(words) == 0
    assert "1 predictions measured" in capsys.readouterr().out
    lab = Lab(model="mini_xs", preset="quick", **common)
    (row,) = predictions.check(lab, waiting=lambda line: None).to_dict("records")
    other = lab.sibling(tasks=lab.suite.names, lr=rate)
    table = predictions.addition(other, ["nonlinear", "linearized"], n_tasks=(8,))
    table = table[(table["metric"] == "absolute") & (table["split"] == "test")]
    means = table.groupby("method")["value"].mean()
    assert row["value"] == pytest.approx(means["linearized"] - means["nonlinear"])
