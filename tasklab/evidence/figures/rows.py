"""Selections from tidy records and their averages, as figures need them."""

from __future__ import annotations

from typing import Any, TypeVar

import pandas as pd

from tasklab.evidence.figures.style import COLOURS, NothingToDrawError, selected
from tasklab.evidence.records.table import most_tasks as most_tasks
from tasklab.evidence.records.table import where as where

Rows = TypeVar("Rows", pd.DataFrame, pd.Series)


def require_rows(df: Rows, absent: str = "the table has no rows of this kind") -> Rows:
    """Return the rows; raise `NothingToDrawError`, with `absent`, if they are empty."""
    if df.empty:
        raise NothingToDrawError(f"nothing to draw: {absent}.")
    if isinstance(df, pd.DataFrame):
        selected(df)
    return df


def select(
    df: pd.DataFrame, experiment: str, metric: str | None = None, split: str = "test", **more: Any
) -> pd.DataFrame:
    """Return the records of an experiment; raise `NothingToDrawError` if none were recorded.

    Args:
        df: Tidy records.
        experiment: Name of the experiment.
        metric: Its name; `None` takes all.
        split: Images the accuracy is of.
        more: Further columns and their values; `None` takes all.
    """
    wanted = {"experiment": experiment, "metric": metric, "split": split} | more
    rows = where(df, **{name: value for name, value in wanted.items() if value is not None})
    words = " ".join(word for word in (experiment, metric, split) if word)
    there = list(dict.fromkeys(df["experiment"])) if "experiment" in df else []
    have = f", only of {', '.join(map(str, there))}" if there else ""
    return require_rows(rows, f"there are no records of {words!r}{have}")


def averaged(df: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return the mean value of each group, in order of appearance."""
    return df.groupby(list(by), as_index=False, sort=False)["value"].mean()


def ends(df: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return measured intervals as three rows a group, which `marks.GIVEN` draws.

    The columns value, low and high are averaged. A mean outside the quartiles of a skewed
    distribution is its own end.
    """
    groups = df.groupby(list(by), dropna=False, sort=False, observed=True)
    means = groups[["value", "low", "high"]].mean()
    means["low"] = means[["low", "value"]].min(axis=1)
    means["high"] = means[["high", "value"]].max(axis=1)
    return pd.concat([means.assign(value=means[end]) for end in means]).reset_index()


def methods_in(df: pd.DataFrame, *, baseline: bool = False) -> list[str]:
    """Return the methods in `df` in the book's order, without the pre-trained model by default."""
    present = set(df["method"])
    return [m for m in COLOURS if m in present and (baseline or m != "pretrained")]
