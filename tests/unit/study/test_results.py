"""Recorded results: whole, or an error; only a part without any file is not recorded yet."""

import shutil

import pytest

from tasklab.errors import TasklabError
from tasklab.records.table import is_awaited
from tasklab.study import results


def test_a_recorded_file_that_is_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    assert is_awaited(results.recorded("ctl", "editing")[0])
    for name in ("ctl.csv.xz", "ctl.json"):
        shutil.copy(results.__file__.replace("results.py", f"recorded/{name}"), tmp_path)
    assert len(results.recorded("ctl", "editing")[0])
    (tmp_path / "ctl.csv.xz").unlink()
    with pytest.raises(TasklabError, match="ctl.csv.xz is missing"):
        results.recorded("ctl", "editing")
