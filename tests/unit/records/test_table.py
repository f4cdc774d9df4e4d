"""Tables of records: what is no record, or no file of records, is refused in a sentence."""

from __future__ import annotations

import hashlib
import json

import pytest

from tasklab.errors import TasklabError
from tasklab.records import table

RECORD = {"experiment": "single", "model": "mini", "method": "nonlinear", "task": "Signs",
          "metric": "single", "value": 50.0}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("value", "x", "numbers"),
        ("alpha", [1], "numbers"),
        ("n", 1.5, "whole numbers"),
        ("seed", "first", "whole numbers"),
        ("n", 10**30, "whole numbers"),
    ],
)
def test_what_is_no_number_is_named_by_its_column(name, value, kind):
    with pytest.raises(TasklabError, match=f"the column {name!r} holds {kind} only"):
        table.tidy([RECORD | {name: value}])


def test_numbers_that_were_not_recorded_stay_empty():
    (row,) = table.filled(table.tidy([RECORD | {"n": "12", "seed": None}]))
    assert row["n"] == 12 and not {"seed", "alpha", "n_tasks"} & set(row)


def test_nothing_cannot_be_combined():
    with pytest.raises(TasklabError, match="no records to combine"):
        table.combine()
    assert len(table.combine(table.nothing())) == 0


@pytest.mark.parametrize("note", [["sha256"], None, 5])
def test_a_provenance_that_is_no_mapping_is_refused(tmp_path, note):
    path = table.write(tmp_path / "some.csv", [RECORD], {})
    table.provenance_path(path).write_text(json.dumps(note))
    with pytest.raises(TasklabError, match="does not describe records"):
        table.read(path)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b'"a,b\n1'])
def test_a_file_without_a_table_is_refused(tmp_path, text):
    path = tmp_path / "some.csv"
    path.write_bytes(text)
    sha256 = hashlib.sha256(text).hexdigest()
    table.provenance_path(path).write_text(json.dumps({"sha256": sha256}))
    with pytest.raises(TasklabError, match="holds no table"):
        table.read(path)
