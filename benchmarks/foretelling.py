"""Rank correlations of metrics with merged accuracy, over tasks or pairs that share tasks.

The recorded table of the cross-examination (`experiments.crossing`) has each metric x and the cost
y of merging, of the same T tasks, or of their T (T - 1) / 2 pairs. Pairs share models: if the model
of one task is easily disturbed, all T - 1 pairs with it are. An interval that takes pairs for
independent is then too short, and a test rejects too often. So tasks are drawn here:

- **p-value**: the tasks of x are permuted against those of y, rows and columns of the matrix of
  pairs together, and the correlation computed anew (QAP; N. Mantel, *Cancer Research* 27 (1967),
  209-220; D. Krackhardt, *Social Networks* 10 (1988), 359-381). If x and y are unrelated and tasks
  exchangeable, its level is exact, whatever pairs share.
- **interval**: tasks are drawn with replacement, and a pair counts as often as both its tasks were
  (the vertex bootstrap of T. Snijders and S. Borgatti, *Connections* 22 (1999), 161-170), with the
  ranks of all pairs.

Of several methods, encoders or seeds the correlation is taken within each and averaged, and one
draw of tasks serves all of them, for they share these too.

In simulations with 8 tasks (600 draws; pairs x_ij = a_i + a_j + e_ij, likewise y), where shares of
0, 0.5 and 0.9 of the variance belong to the tasks and x and y are unrelated, intervals of 28
independent points contain 0 in 97, 91 and 70 % of the draws, these in 99.8, 99 and 95 %; where the
correlation is 0.6 to 0.7, in 96, 89 and 68 % against 99, 99 and 90 %. QAP rejects in 4, 6 and 6 %
(level 5 %). Read p for whether a correlation exists, the interval for its rough size.

Letters: T tasks, P units (tasks or pairs), G groups (a method of an encoder at a seed).

    python benchmarks/foretelling.py      # write tasklab/evidence/records/foretold.csv
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy

from tasklab.analyses.statistics import REPEATS, Correlation, pearson, times
from tasklab.errors import TasklabError, choose
from tasklab.evidence import study
from tasklab.evidence.records.foretelling import FORETOLD, GROUP, units
from tasklab.evidence.records.intervals import holm
from tasklab.evidence.records.replication import with_properties
from tasklab.evidence.records.schema import LEADING_MERGES
from tasklab.tasks.suites import suite

IN_MERGES = tuple(f"lost_{merge}" for merge in LEADING_MERGES)
# n_tasks of a unit
OUTCOMES = {"lost": 2, "xi_pair": 2, "lost_sum": 1, "normalised": 1, **dict.fromkeys(IN_MERGES, 1)}
# What outcomes of sums and merges are made of (all share the accuracies alone), and what is no
# property of the vectors.
_NOT_OF_IT = (
    "absolute", "normalised", "lost_sum", *IN_MERGES, "seconds_finetune", "trainable", "share"
)  # fmt: skip


def foretelling(
    df: pd.DataFrame,
    outcome: str = "lost",
    *,
    by: Sequence[str] = ("model", "method"),
    repeats: int = REPEATS,
) -> pd.DataFrame:
    """Return the rank correlation of every metric with the loss by merging.

    Args:
        df: Tidy records.
        outcome: One of `OUTCOMES`: `lost` and `xi_pair` of a pair, `lost_sum` and `normalised` of a
            task in the sum of all, `lost_ties`, ... (`IN_MERGES`) in a merge of all.
        by: Columns that a row of the result is for; `()` for one over all methods and encoders.
        repeats: Draws and permutations; at 0 neither intervals nor p.

    Returns:
        Columns `by`, metric, value, low, high (95 %), p (QAP), p_holm (corrected for the metrics of
        the table), tasks, units and groups; the largest |value| first.
    """
    rows = []
    for key, metric, part in _parts(df, outcome, by):
        correlation, p, groups = correlated(part, metric, outcome, repeats=repeats)
        sizes = {"tasks": len({*part["one"], *part["other"]})}
        sizes |= {"units": part["task"].nunique(), "groups": groups}
        rows.append({**key, "metric": metric, **correlation._asdict(), "p": p, **sizes})
    result = pd.DataFrame(rows)
    result.insert(result.columns.get_loc("p") + 1, "p_holm", holm(result["p"]))
    order = result["value"].abs().sort_values(ascending=False, kind="stable").index
    return result.loc[order].reset_index(drop=True)


def left_out(
    df: pd.DataFrame, outcome: str = "lost", *, by: Sequence[str] = ("model", "method")
) -> pd.DataFrame:
    """Return the error of each metric's rule for tasks that it has not seen.

    A rule is the line outcome = a + b metric, fitted within a group to all tasks or pairs without
    one task, and used for those with it; every task is left out once.

    Args:
        df: Tidy records.
        outcome: Metric that the rules predict.
        by: Columns that a row of the result is for; `()` for one over all methods and encoders.

    Returns:
        Columns `by`, metric, error (the mean of |predicted - measured|), mean_error (the same
        where the mean of the others is the prediction), units and groups; the least error first.
    """
    rows = []
    for key, metric, part in _parts(df, outcome, by):
        groups = [group for _, group in part.groupby(GROUP, dropna=False, sort=False)]
        error, mean_error = np.mean([_errors(group, metric, outcome) for group in groups], axis=0)
        row = {"metric": metric, "error": error, "mean_error": mean_error}
        rows.append({**key, **row, "units": part["task"].nunique(), "groups": len(groups)})
    found = pd.DataFrame(rows, columns=[*by, "metric", "error", "mean_error", "units", "groups"])
    return found.sort_values("error", kind="stable", ignore_index=True)


def _parts(
    df: pd.DataFrame, outcome: str, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], str, pd.DataFrame]]:
    """Yield the labels of each part, a metric, and the units that have it and the outcome."""
    choose("outcome", outcome, OUTCOMES)
    table = units(df, OUTCOMES[outcome])
    if outcome not in table:
        raise TasklabError(f"there are no records of {outcome!r} to foretell.")
    columns = {*GROUP, "task", "one", "other", outcome, *_NOT_OF_IT}
    for key, part in table.groupby(list(by), sort=False) if by else [((), table)]:
        for metric in (name for name in table if name not in columns):
            both = part.dropna(subset=[metric, outcome])
            if len(both):
                yield dict(zip(by, key, strict=True)), metric, both


def _errors(group: pd.DataFrame, x: str, y: str) -> tuple[float, float]:
    ends, lines, means = group[["one", "other"]].to_numpy(), [], []
    X, Y = (group[name].to_numpy(float) for name in (x, y))
    for task in np.unique(ends):
        away = (ends == task).any(1)
        a, b = X[~away].mean(), Y[~away].mean()
        spread = np.square(X[~away] - a).sum()
        slope = ((X[~away] - a) * (Y[~away] - b)).sum() / spread if spread > 0 else 0.0
        lines.append(np.abs(b + slope * (X[away] - a) - Y[away]))
        means.append(np.abs(b - Y[away]))
    return float(np.concatenate(lines).mean()), float(np.concatenate(means).mean())


def correlated(
    table: pd.DataFrame, x: str, y: str, *, repeats: int = REPEATS, seed: int = 0
) -> tuple[Correlation, float, int]:
    """Return the mean rank correlation within groups, its interval and its p-value.

    The interval is a bootstrap over tasks; p is from permutations of the tasks' names.

    Args:
        table: One row a pair (or a task: `one` equals `other`) and group, complete in each group.
        x: Column of the metric.
        y: Column of the result.
        repeats: Draws and permutations; 0 for the correlation alone.
        seed: Of the draws.

    Returns:
        The correlation with its 95 % interval, p, and the number of groups that have one; NaN where
        a column is constant in every group.

    Raises:
        TasklabError: If there are fewer than four tasks, or rows are missing or doubled.
    """
    tasks = pd.Index(pd.unique(table[["one", "other"]].to_numpy().ravel()))
    T = len(tasks)
    if T < 4:
        raise TasklabError(f"a correlation over tasks needs at least four of them, not {T}.")
    paired = bool((table["one"] != table["other"]).any())
    many = T * (T - 1) // 2 if paired else T
    ends = [tasks.get_indexer(table[name]) for name in ("one", "other")]
    table = table.assign(_low=np.minimum(*ends), _high=np.maximum(*ends))
    X, Y = [], []
    for _, rows in table.groupby(GROUP, dropna=False, sort=False):
        rows = rows.sort_values(["_low", "_high"])
        if len(rows) != many or rows.duplicated(["_low", "_high"]).any():
            raise TasklabError(
                f"{len(rows)} of {many} {'pairs' if paired else 'tasks'} have {x!r} and {y!r}: all "
                "are needed."
            )
        one, other = (scipy.stats.rankdata(rows[name]) for name in (x, y))
        if np.ptp(one) and np.ptp(other):
            X.append(one)
            Y.append(other)
        low, high = rows["_low"].to_numpy(), rows["_high"].to_numpy()
    if not X:
        return Correlation(np.nan, np.nan, np.nan), np.nan, 0
    X, Y = (np.stack(part) for part in (X, Y))  # (G, P)
    place = np.zeros((T, T), int)
    place[low, high] = place[high, low] = np.arange(many)

    def within(weights: np.ndarray) -> np.ndarray:
        return np.mean([pearson(a, b, weights) for a, b in zip(X, Y, strict=True)], axis=0)

    value = float(within(np.ones(many)))
    if not repeats:
        return Correlation(value, np.nan, np.nan), np.nan, len(X)
    a, b = ((part - part.mean(1, keepdims=True)) for part in (X, Y))
    a, b = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (a, b))

    products, pairs = a.T @ b / len(a), np.arange(many)  # (P, P): of all groups at once

    def permuted(order: np.ndarray, axis: int = -1) -> np.ndarray:
        order = np.moveaxis(order, axis, -1)
        return products[place[order[..., low], order[..., high]], pairs].sum(-1)

    test = scipy.stats.permutation_test(
        (np.arange(T),), permuted, permutation_type="pairings", vectorized=True,
        n_resamples=repeats - 1, random_state=np.random.default_rng(seed),
    )  # fmt: skip
    drawn = times(T, repeats, np.random.default_rng(seed))
    weights = drawn[:, low] * drawn[:, high] if paired else drawn[:, low]
    draws = within(weights[weights.sum(1) > 0].astype(float))
    low_end, high_end = np.nanquantile(draws, (0.025, 0.975))
    return Correlation(value, float(low_end), float(high_end)), float(test.pvalue), len(X)


def tables() -> pd.DataFrame:
    """Return what pages show of the recorded cross-examination, as `records.foretold` says."""
    matrix = study.recorded("merging", "matrix")[0]
    keys = ["model", "method"]
    parts = [foretelling(matrix, name, by=()).assign(outcome=name) for name in ("lost", "lost_sum")]
    parts.append(left_out(matrix, by=()).assign(outcome="lost"))
    parts.append(foretelling(matrix, "lost", by=keys, repeats=0).assign(outcome="lost"))
    parts.append(left_out(matrix, "lost", by=keys).assign(outcome="lost"))
    for model, part, world in (("mini", "matrix", "mini"), ("icons_s", "pairs", "icons")):
        rows = study.recorded("merging", part)[0]
        rows = rows[(rows["model"] == model) & (rows["init"] == "pretrained")]
        classes = {name: len(suite(world)[name].classes) for name in suite(world).names}
        given = with_properties(rows, classes)
        found = foretelling(given, "xi_pair", by=())
        parts.append(found.assign(outcome="xi_pair", model=model, method="nonlinear"))
    columns = ["outcome", *keys, "metric"]
    table = pd.concat(parts).fillna(dict.fromkeys(keys, ""))
    table = table.groupby(columns, sort=False).first()
    numbers = ["value", "low", "high", "p_holm", "groups", "error", "mean_error"]
    return table[numbers].reset_index()


if __name__ == "__main__":
    tables().to_csv(FORETOLD, index=False, float_format="%.6g")
