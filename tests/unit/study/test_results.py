"""Recorded results: whole, or an error; only a part without any file is not recorded yet."""

import shutil

import pandas as pd
import pytest

from tasklab.records.table import is_awaited
from tasklab.study import results
from tasklab.study.sittings import rows_of
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
