"""Selections from tidy records and their averages, as figures need them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tasklab.figures.style import COLOURS, NothingToDrawError


def require_rows(df: pd.DataFrame) -> None:
    """Raise `NothingToDrawError` if there is no row to draw."""
    if df.empty:
        raise NothingToDrawError("nothing to draw: the table has no rows of this kind.")


def select(
    df: pd.DataFrame,
    experiment: str,
    metric: str | None = None,
    n_tasks: int | None = None,
    split: str = "test",
) -> pd.DataFrame:
    """Return the records of an experiment; raise `NothingToDrawError` if there are none.

    Args:
        df: Records.
        experiment: Its name.
        metric: Its name; `None` takes all.
        n_tasks: Number of added tasks; `None` takes all.
        split: Images the accuracy is of.
    """
    wanted = {"experiment": experiment, "metric": metric, "split": split, "n_tasks": n_tasks}
    rows = where(df, **{name: value for name, value in wanted.items() if value is not None})
    if rows.empty:
        words = " ".join(word for word in (experiment, metric, split) if word)
        raise NothingToDrawError(f"nothing to draw: there are no records of {words!r}.")
    return rows


def where(df: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Return the records whose columns have the wanted values."""
    for name, value in wanted.items():
        df = df[(df[name] == value).fillna(False).astype(bool)]
    return df


def averaged(df: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return the mean value of each group, a row a group in order of appearance."""
    return df.groupby(list(by), as_index=False, sort=False)["value"].mean()


def most_tasks(df: pd.DataFrame) -> pd.DataFrame:
    """Return the records with the largest number of tasks that there are."""
    return where(df, n_tasks=df["n_tasks"].max())


def methods_in(df: pd.DataFrame, *, baseline: bool = False) -> list[str]:
    """Return the methods in `df` in the book's order, without the pre-trained one by default."""
    present = set(df["method"])
    return [m for m in COLOURS if m in present and (baseline or m != "pretrained")]


def tasks_in(df: pd.DataFrame) -> list[str]:
    """Return the tasks in `df` in order of appearance."""
    return list(dict.fromkeys(df["task"]))
