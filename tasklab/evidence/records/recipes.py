"""How each method with a published recipe follows it: `recipes.csv`, a setting a row.

Columns: the method's name, the setting, its published value and ours, and for values that code
holds `where` it does and the `value` there, which a test compares.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from tasklab.analyses.merging.registry import METHODS
from tasklab.storage import shipped
from tasklab.tuning.methods import TABLE


def read_recipes() -> pd.DataFrame:
    """Return the table of settings, all columns as text."""
    data = shipped.content(Path(__file__).with_suffix(".csv"))
    return pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)


def lines() -> dict[str, str]:
    """Return by method how its recipe here differs from the published one, as one sentence."""
    found = {}
    for name, rows in read_recipes().groupby("method", sort=False):
        apart = rows[
            [not _same(*pair) for pair in zip(rows["published"], rows["ours"], strict=True)]
        ]
        differences = [
            f"{row.setting}: {row.published} / {row.ours}" for row in apart.itertuples(index=False)
        ]
        told = "; ".join(differences)
        found[str(name)] = f"published / ours: {told}." if told else "as published."
    return found


def recipe_table() -> str:
    """Return the lines as a Markdown table, with the methods' titles."""
    titles = {name: one.title for name, one in METHODS.items()}
    titles |= {name: one.title for name, one in TABLE.items()}
    rows = [f"| {titles[name]} | {line} |" for name, line in lines().items()]
    return "\n".join(["| method | recipe |", "|---|---|", *rows])


def _same(published: str, ours: str) -> bool:
    """Return whether a value is the published one, for runs of 2,000 steps."""
    return ours.removesuffix(" of 2000") == published
