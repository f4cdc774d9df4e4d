"""CSV files that a spreadsheet shows, and does not run."""

import io

import pandas as pd
import pytest

from tasklab.cli import spreadsheet


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t"])
def test_a_text_that_a_spreadsheet_would_run_is_a_text(begin):
    name = f"{begin}cmd|' /C calc'!A0"
    table = pd.DataFrame({"task": [name, "Cars"], "gain": [-1.5, 2.0], "alpha": [None, 0.3]})
    text = spreadsheet.csv(table)
    read = pd.read_csv(io.StringIO(text))
    assert [*read["task"]] == [f"'{name}", "Cars"] and [*read["gain"]] == [-1.5, 2.0]
    assert text.splitlines()[-1] == "Cars,2.0,0.3"
