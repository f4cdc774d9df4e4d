"""Conjecture 4.1 of *On the Emergence of Cross-Task Linearity*: is the relation transitive?

The conjecture: models (i, k) satisfy cross-task linearity if (i, j) and (j, k) do. The paper infers
it from all of its pairs satisfying it; here it is tested over all triples of models, beside triples
whose middle model is replaced by another.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # its parts load where they are used, for that takes a second

from tasklab.analyses.finite import as_coefficients, finite_array
from tasklab.analyses.statistics import by_pair, rank_correlation
from tasklab.errors import TasklabError
from tasklab.isolation import isolated


class Transitivity(NamedTuple):
    """Conjecture 4.1 over triples of models."""

    triples: pd.DataFrame  #: One row per triple
    summary: pd.DataFrame  #: One row per group of pairs


@isolated
def transitivity(
    table: pd.DataFrame, threshold: float | Sequence[float] | None = None, *, by: Sequence[str] = ()
) -> Transitivity:
    """Test whether the pairs (i, j) and (j, k) predict the pair (i, k) (conjecture 4.1).

    The prediction is the worse of the two, max(value_ij, value_jk). CTL is symmetric, so (k, j, i)
    is the triple (i, j, k) and is listed once. How to read the numbers:

    - The conjecture is about small values: two bad pairs do not constrain the third. So violations
      at a threshold test it; a rank correlation, which takes large values too, only illustrates.
    - A model that is bad in all its pairs makes premises and conclusion bad together without any
      chain. The columns named `unlinked` are the same measures for (i, j) and (l, k) with another
      l in place of j: only an advantage over these comes from the model in the middle.

    Args:
        table: One row per pair: one, other, value (1 - cos_alpha, mean over images) and, for the
            threshold, base (1 - cos_ij).
        threshold: A pair satisfies CTL if value / base is at most this. Of several, each has a row
            of the summary.
        by: Columns that define groups of pairs, e.g. method and layer; each is taken by itself.

    Returns:
        `triples`: by, one, middle, other, predicted, value, excess (value / predicted), and with
        the column base relative_predicted and relative, the same of value / base.
        `summary`: by, rank (Spearman's correlation of predicted and value), low, high (95 %
        jackknife interval: one model left out at a time), rank_unlinked, excess_95 (95 % quantile),
        n_models, n_triples; and with a threshold held (triples both whose premises hold),
        violations (share of these whose conclusion does not), violations_unlinked, and unsatisfied
        (share of all triples whose conclusion does not hold: the violations for uninformative
        premises).
    """
    alone = isinstance(threshold, numbers.Number)
    several = [threshold] if alone else threshold
    thresholds = () if threshold is None else as_coefficients(several, "thresholds")
    needed = {"one", "other", "value", *by} | ({"base"} if thresholds else set())
    if missing := sorted(needed - set(table)):
        raise TasklabError(f"transitivity needs the columns {', '.join(missing)}.")
    triples, summary = [], []
    for key, part in table.groupby(list(by), sort=False) if by else [((), table)]:
        labels = dict(zip(by, key, strict=True))
        table_of_part, measures = _triples(part, thresholds)
        triples.append(table_of_part.assign(**labels)[[*by, *table_of_part]])
        summary += [{**labels, **row} for row in measures]
    return Transitivity(pd.concat(triples, ignore_index=True), pd.DataFrame(summary))


def _triples(
    part: pd.DataFrame, thresholds: Sequence[float]
) -> tuple[pd.DataFrame, list[dict[str, float]]]:
    """Return the triples of a group of pairs, and its rows of the summary."""
    names = pd.Index(pd.unique(part[["one", "other"]].to_numpy().ravel()))
    V, n = _matrix(part, "value", names), len(names)
    if n < 3:
        raise TasklabError("transitivity needs at least three models.")
    i, j, k = (a.ravel() for a in np.indices((n, n, n)))
    keep = (i < k) & np.isfinite(V[i, j] + V[j, k] + V[i, k])
    i, j, k = i[keep], j[keep], k[keep]
    x, y = np.maximum(V[i, j], V[j, k]), V[i, k]
    triples = pd.DataFrame({"one": names[i], "middle": names[j], "other": names[k],
                            "predicted": x, "value": y, "excess": y / x})  # fmt: skip
    without = ((i != m) & (j != m) & (k != m) for m in range(n))
    rank, low, high = _jackknife(
        rank_correlation(x, y), [rank_correlation(x[w], y[w]) for w in without]
    )
    measures = {"rank": rank, "low": low, "high": high,
                "rank_unlinked": rank_correlation(*_unlinked(V)),
                "excess_95": float(np.quantile(y / x, 0.95)), "n_models": n,
                "n_triples": len(x)}  # fmt: skip
    if "base" in part:
        R = V / _matrix(part, "base", names)
        triples["relative_predicted"] = np.maximum(R[i, j], R[j, k])
        triples["relative"] = R[i, k]
    if not thresholds:
        return triples, [measures]
    linked = (triples["relative_predicted"].to_numpy(), triples["relative"].to_numpy())
    unlinked, rows = _unlinked(R), []
    for threshold in thresholds:
        held, violations = _violations(*linked, threshold)
        told = {"threshold": threshold, "held": held, "violations": violations}
        told["violations_unlinked"] = _violations(*unlinked, threshold)[1]
        told["unsatisfied"] = float(np.mean(~(linked[1] <= threshold)))
        rows.append(measures | told)
    return triples, rows


def _jackknife(value: float, left_out: Sequence[float]) -> tuple[float, float, float]:
    """Return a correlation and its 95 % interval from its values with one model left out each.

    Drawing models with replacement would be biased: copies of a model have no pair of their own.
    """
    n = len(left_out)
    error = np.sqrt((n - 1) / n * np.square(left_out - np.mean(left_out)).sum())
    half = error * scipy.stats.t.ppf(0.975, n - 1)
    low, high = np.clip([value - half, value + half], -1, 1)
    return value, float(low), float(high)


def _violations(x: np.ndarray, y: np.ndarray, threshold: float) -> tuple[int, float]:
    held = x <= threshold
    return int(held.sum()), float(np.mean(~(y[held] <= threshold))) if held.any() else np.nan


def _unlinked(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return max(V_ij, V_lk) and V_ik for any four models."""
    i, j, m, k = (a.ravel() for a in np.indices(V.shape * 2))
    keep = (i < k) & (j != m) & np.isfinite(V[i, j] + V[m, k] + V[i, k] + V[j, k] + V[i, m])
    i, j, m, k = i[keep], j[keep], m[keep], k[keep]
    return np.maximum(V[i, j], V[m, k]), V[i, k]


def _matrix(part: pd.DataFrame, column: str, names: pd.Index) -> np.ndarray:
    one, other = (names.get_indexer(part[name]) for name in ("one", "other"))
    twice = pd.DataFrame({"a": np.minimum(one, other), "b": np.maximum(one, other)}).duplicated()
    if twice.any() or (one == other).any():
        raise TasklabError("transitivity needs one row a pair: average images and alphas first.")
    matrix = np.full((len(names), len(names)), np.nan)
    matrix[one, other] = matrix[other, one] = finite_array(part[column], f"the column {column!r}")
    return matrix


def pairs_in(records: pd.DataFrame, alpha: float = 0.5, block: int | None = None) -> pd.DataFrame:
    """Return the pairs of `experiments.cross_task` as `transitivity` takes them.

    Args:
        records: Tidy records.
        alpha: Coefficient of the records.
        block: Of the features; `None` is the encoder's output.

    Returns:
        One row per pair, method and seed: one, other, method, seed, value (1 - cos_alpha) and base.
    """
    chosen = np.isclose(records["alpha"], alpha) & records["metric"].isin(["distance", "base"])
    chosen &= (
        records["block"].isna() if block is None else (records["block"] == block).fillna(False)
    )
    pairs = by_pair(records[chosen], ["method", "seed", "task"])
    return pairs.rename(columns={"distance": "value"})
