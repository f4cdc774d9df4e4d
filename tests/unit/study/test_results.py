"""Recorded results: whole, or an error; only a part without any file is not recorded yet."""

import shutil

import pandas as pd
import pytest

from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.records import table
from tasklab.evidence.records.table import combine, is_awaited, nothing, tidy, write
from tasklab.evidence.study import results
from tasklab.evidence.study.sittings import rows_of
from tests.helpers import refuses


def test_a_recorded_file_that_is_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    assert is_awaited(results.recorded("ctl", "editing")[0])
    for name in ("ctl.csv.xz", "ctl.json"):
        shutil.copy(results.__file__.replace("results.py", f"recorded/{name}"), tmp_path)
    assert len(results.recorded("ctl", "editing")[0])
    (tmp_path / "ctl.csv.xz").unlink()
    refuses("ctl.csv.xz is missing", results.recorded, "ctl", "editing")


@pytest.mark.parametrize(
    ("sitting", "own"),
    [
        ({"seeds": [0, 1]}, [True, True, True, False]),
        ({"seeds": [0], "only": "tak, delta"}, [False, True, False, False]),
        ({"seeds": [0, 2], "only": "0.0032"}, [True, False, False, False]),
        ({"seeds": [1], "only": "WUDI's minimum and mini_s"}, [False, False, True, False]),
    ],
)
def test_records_are_of_the_sitting_that_has_their_seeds_and_what_it_added(sitting, own):
    rows = pd.DataFrame({
        "seed": pd.array([0, 0, 1, 2], dtype="Int64"), "lr": [3.2e-3, 1e-3, 1e-3, 1e-3],
        "model": ["mini", "mini", "mini_s", "mini"], "method": ["nonlinear", "tak", "tak", "delta"],
        "experiment": "merging",
    })  # fmt: skip
    assert rows_of(sitting, rows).tolist() == own


def part(values, model="mini", experiment="addition"):
    return tidy([
        {"experiment": experiment, "model": model, "method": "nonlinear", "metric": "absolute",
         "task": task, "n_tasks": 8, "seed": 0, "alpha": alpha, "value": value, "n": 500}
        for task, (alpha, value) in values.items()
    ])  # fmt: skip


def test_each_part_is_read_once_however_often_all_are_gone_through(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    read = []
    monkeypatch.setattr(table, "read", lambda path: read.append(path) or (nothing(), {}))
    every = [(chapter, name) for chapter, entry in CHAPTERS.items() for name in entry.parts]
    for one in every:
        results.path_of(*one).touch()
    for one in 2 * every:
        results.recorded(*one)
    assert read == [results.path_of(*one) for one in every]


def test_evidence_is_joined_once_until_a_part_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    joined, made = results.gathered, []
    monkeypatch.setattr(results, "gathered", lambda *a: made.append(a[0]) or joined(*a))
    for value in (70.0, 60.0):
        write(results.path_of("ctl", "editing"), part({"Signs": (0.3, value)}), {})
        for _ in range(2):
            found = results.evidence("ctl")
            assert found["value"].tolist() == [value]
            found["value"] = 0.0  # the caller's own
    assert made == ["ctl"] * 2


def test_parts_that_share_or_lack_records():
    # Machines round otherwise: the second one's value and chosen coefficient may differ.
    first = part({"Signs": (0.3, 70.0), "Scenes": (0.3, 80.0)})
    second = part({"Signs": (0.3, 71.0), "Scenes": (0.35, 81.0), "Places": (0.35, 60.0)})
    third = part({"Signs": (0.4, 50.0)}, model="mini_3")
    refuses("recorded twice", combine, first, second)
    whole = results._of_the_first([first, second, third])
    found = {(row.model, row.task): row.value for row in whole.itertuples()}
    assert len(whole) == 4 and list(whole) == list(first)
    assert found == {
        **{("mini", "Signs"): 70.0, ("mini", "Scenes"): 80.0, ("mini", "Places"): 60.0},
        ("mini_3", "Signs"): 50.0,
    }
    rows = [part({"Signs": (alpha, 70.0)}) for alpha in (0.3, 0.5)]
    assert len(results._of_the_first([combine(*rows), part({"Signs": (0.9, 1.0)})])) == 2
    first, second = (
        part({"Signs": (0.3, 70.0)}),
        part({"Signs": (0.3, 71.0), "Places": (0.3, 60.0)}),
    )
    whole = results.joined(first, nothing(), second)
    assert dict(zip(whole["task"], whole["value"], strict=True)) == {"Places": 60.0, "Signs": 70.0}
    assert results.joined(nothing()).empty
