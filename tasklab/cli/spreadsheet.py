"""CSV files that people open in a spreadsheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t")  # begin a cell that a spreadsheet computes


def csv(table: pd.DataFrame) -> str:
    """Return a table as CSV; a text that a spreadsheet would run begins with an apostrophe."""
    return table.map(_inert).to_csv(index=False, lineterminator="\n")


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
