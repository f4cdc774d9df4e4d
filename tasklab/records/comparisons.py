"""What claims compare that are not two methods by one metric: tables by side.

Some claims speak of merged features against those of single models, of the middle of a segment
against its ends, of one number of epochs against another. Such a claim names a function that an
experiment declares among its `sides`, which makes these tables of its records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

Sides = Mapping[str, pd.DataFrame]  # by name, each with columns seed, task, subset and value


def by_seed(rows: pd.DataFrame, numbers: Callable[[pd.DataFrame], Mapping[str, float]]) -> Sides:
    """Return sides that are one number of each seed."""
    sides: dict[str, list[pd.DataFrame]] = {}
    for _, part in rows.groupby("seed"):
        for name, value in numbers(part).items():
            sides.setdefault(name, []).append(part.iloc[:1].assign(subset="", value=value))
    return {name: pd.concat(parts) for name, parts in sides.items()}
