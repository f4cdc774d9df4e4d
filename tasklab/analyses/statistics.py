"""Correlations whose points are not independent: intervals that draw tasks or models anew.

Rows of a table are not independent. Rows of one task share its images (`over_tasks`);
rows of pairs share models (`over_pairs`). So a bootstrap sample draws whole tasks, or models, and a
row counts as often as its task was drawn; a row of a pair, as often as both models were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError

REPEATS = 2000  # bootstrap samples


class Correlation(NamedTuple):
    """A correlation with its 95 % interval."""

    value: float  #: From -1 to 1; NaN if a column is constant
    low: float
    high: float


def rank_correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return Spearman's correlation for each row of weights; NaN if a column is constant.

    Args:
        x, y: Both columns (N,); with a NaN in them the correlation is NaN.
        weights: How often each row counts, (..., N); by default once.
    """
    if not len(x):
        return np.float64(np.nan)
    if np.isnan([x, y]).any():
        return np.full(np.shape(weights)[:-1], np.nan)
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    return pearson(_ranks(x, weights), _ranks(y, weights), weights)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    kinds, which = np.unique(values, return_inverse=True)
    counts = weights @ (which[:, None] == np.arange(len(kinds)))
    return (counts.cumsum(-1) - (counts - 1) / 2)[..., which]


def pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation for each row of weights; NaN where a column is constant.

    Args:
        x: First column (N,), or one for each row of weights (..., N).
        y: The other column (N,).
        weights: How often each row counts (..., N).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        w = weights / weights.sum(-1, keepdims=True)
        means = [(w * v).sum(-1, keepdims=True) for v in (x, y)]
        tiny_x, tiny_y = (1e-18 * (w * v**2).sum(-1) for v in (x, y))
        dx, dy = (v - mean for v, mean in zip((x, y), means, strict=True))
        xx, yy, xy = ((w * p).sum(-1) for p in (dx * dx, dy * dy, dx * dy))
        return np.where((xx > tiny_x) & (yy > tiny_y), xy / np.sqrt(xx * yy), np.nan)


def over_tasks(df: pd.DataFrame, x: str, y: str, *, seed: int = 0) -> Correlation:
    """Return the rank correlation of two columns with a bootstrap interval over tasks.

    A task's rows (methods, seeds) share its images, so they stay together. The interval does
    not cover other methods.

    Args:
        df: Rows with a column `task`.
        x, y: Names of the columns.
        seed: Of the bootstrap.

    Raises:
        TasklabError: If there are fewer than three tasks.
    """
    codes, names = pd.factorize(df["task"])
    if len(names) < 3:
        raise TasklabError("a rank correlation needs at least three tasks.")
    weights = times(len(names), REPEATS, np.random.default_rng(seed))[:, codes]
    return _interval(df, x, y, weights)


def over_pairs(df: pd.DataFrame, x: str, y: str, *, seed: int = 0) -> Correlation:
    """Return the rank correlation of two columns of pairs; models are drawn anew for the interval.

    Args:
        df: One row a pair of models, with the columns one and other. With a column group, the same
            name in two groups is two models, drawn within their group.
        x: Name of one column.
        y: Name of the other column.
        seed: Of the bootstrap.
    """
    if len(models_of(df)) < 4:
        raise TasklabError("a rank correlation over pairs needs at least four models.")
    return _interval(df, x, y, drawn_pairs(df, REPEATS, np.random.default_rng(seed)))


def _interval(df: pd.DataFrame, x: str, y: str, weights: np.ndarray) -> Correlation:
    columns = df[x].to_numpy(float), df[y].to_numpy(float)
    draws = rank_correlation(*columns, weights)
    finite = np.isfinite(draws).any()
    low, high = np.nanquantile(draws, (0.025, 0.975)) if finite else (np.nan, np.nan)
    return Correlation(float(rank_correlation(*columns)), float(low), float(high))


def by_pair(records: pd.DataFrame, index: Sequence[str]) -> pd.DataFrame:
    """Return records of pairs, task `"T1+T2"`, with a column for each metric, and one and other.

    Args:
        index: Columns that identify rows, the task among them.
    """
    table = records.pivot_table(index=list(index), columns="metric", values="value", sort=False)
    table = table.reset_index().rename_axis(None, axis=1)
    ends = table.pop("task").str.split("+", expand=True)
    return table.assign(one=ends[0], other=ends[1])


def models_of(df: pd.DataFrame) -> pd.DataFrame:
    """Return the models in a table of pairs: columns group and model."""
    df = df.assign(group=df["group"] if "group" in df else "")
    ends = [df[["group", name]].set_axis(["group", "model"], axis=1) for name in ("one", "other")]
    return pd.concat(ends).drop_duplicates()


def drawn_pairs(df: pd.DataFrame, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Return the count of each pair in each bootstrap sample of its group's models.

    Args:
        df: Pairs of models, in columns `one`, `other` and, if there are several, `group`.
        repeats: Number of samples.
        rng: Draws them.

    Returns:
        (repeats, pairs) whole numbers.
    """
    models = models_of(df)
    df = df.assign(group=df["group"] if "group" in df else "").reset_index(drop=True)
    weights = np.empty((repeats, len(df)), int)
    for group, rows in df.groupby("group").indices.items():
        index = pd.Index(models.loc[models["group"] == group, "model"])
        drawn = times(len(index), repeats, rng)
        one, other = (index.get_indexer(df[name].iloc[rows]) for name in ("one", "other"))
        weights[:, rows] = drawn[:, one] * drawn[:, other]
    return weights


def times(n: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Return bootstrap counts, (repeats, n).

    Args:
        n: Number of units that are drawn with replacement.
        repeats: Number of samples.
        rng: Draws them.
    """
    return rng.multinomial(n, np.full(n, 1 / n), size=repeats)
