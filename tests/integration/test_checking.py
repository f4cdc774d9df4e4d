"""Recorded rows are measured again: equal ones, one that was changed, and those that cannot be."""

import json

import pandas as pd
import pytest

from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.evidence.chapters import CHAPTERS, Work
from tasklab.evidence.records import table as records
from tasklab.evidence.study import checking, recording, results

SMALL = {"model": "mini_xs", "steps": 2, "device": "cpu"}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return the path of a small recorded part, the only one there is."""
    works = (Work(("nonlinear",), {"single": {}, "addition": {}}),)
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", works)
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    path = tmp_path / "tangent.csv.xz"
    given = Parameters(**SMALL, preset="full", seeds=[0], store_root=tmp_path / "first")
    recording.study("tangent", given, out=path)
    return path


def check(tmp_path, capsys, *more):
    options = ["--model", "mini_xs", "--steps", "2", "--store-root", str(tmp_path / "second")]
    main(["record", "tangent", "--check", "6", *options, *more])
    return capsys.readouterr().out.splitlines()


def changed(path, change):
    table, origin = records.read(path)
    records.write(path, *change(table, origin))


def test_rows_come_out_and_a_changed_one_does_not(recorded, tmp_path, capsys):
    count = len(pd.read_csv(recorded))
    header, *rows, said, can = check(tmp_path, capsys)
    assert header.split("\t") == ["part", "row", "recorded", "now", "equal"]
    assert len(rows) == 6 and all(row.endswith("\tyes") for row in rows)
    assert said == "6 of 6 rows that can come out here are equal bit for bit."
    assert can == f"{count} recorded rows can."
    assert check(tmp_path, capsys)[1:7] == rows  # the same draw, from the store

    def off(table, origin):
        return table.assign(value=table["value"] * (1 - 2**-50)), origin

    changed(recorded, off)
    rows = check(tmp_path, capsys)[1:7]
    assert all(row.endswith("\tNO") for row in rows if not row.split("\t")[2].startswith("0.0"))


def test_what_cannot_come_out_is_not_measured_unless_asked_for(recorded, tmp_path, capsys):
    def of_former_images(table, origin):
        return table, {**origin, "data": "mini-2/Vehicles/test/1000/b20eeece66a2"}

    changed(recorded, of_former_images)
    _, said, cannot = check(tmp_path, capsys)
    assert said.startswith("0 of 0") and cannot.endswith("recorded rows cannot: former images.")
    _, *rows, said, cannot = check(tmp_path, capsys, "--check-others")
    assert len(rows) == 6 and said.startswith("0 of 0")
    (made,) = {row.rpartition("\t")[2] for row in rows} - {"yes"} or {""}
    assert made in ("", "no (former images)")
    assert results.sittings_of("tangent")["images"].tolist() == ["former"]

    def of_another_make(table, origin):
        machine = {**origin["machine"], "cpu": "A Processor", "make": "Another", "gpu": None}
        return table, {**origin, "data": "mini-2/Vehicles/test/1000", "machine": machine}

    changed(recorded, of_another_make)
    rows, reasons = checking.sample(3, Parameters(**SMALL, preset="full"), chapters=["tangent"])
    assert rows == [] and all("measured on Another A Processor" in why for why in reasons)


def test_a_check_takes_no_option_of_recording(capsys):
    for options in (["3", "--all"], ["3", "--part", "maps"], ["0"]):
        assert main(["record", "--check", *options]) != 0
        assert "--check" in capsys.readouterr().err


def test_recorded_sittings_of_former_images_are_told():
    told = [one for name in CHAPTERS for one in results.sittings_of(name)["images"]]
    assert told.count("former") == 39
    origin = json.loads((results.RECORDED / "tangent.json").read_text())
    assert "b20eeece66a2" not in json.dumps(origin)
