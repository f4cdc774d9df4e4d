"""The sources of error of a mean difference, by the target of a sentence about it.

A difference is measured at each seed of fine-tuning and on each task, and a sum or a merge also in
one set of tasks or in many. The target of a sentence decides which of them count as drawn:

- `THESE`: these tasks. Seeds are drawn; where answers are known, so are the images.
- `SETS`: other sets of these tasks. Seeds and sets are drawn.
- `TASKS`: other tasks. Seeds and tasks are drawn. In one set these are the tasks' differences, with
  all pairs of tasks those of the jackknife. In many sets a task t of a set S has

      d(S, t) = mean + a(t) + mean of b(j) over the other tasks j of S + c(S) + rest,

  as a task differs in itself (a), as company to others (b), and a set in itself (c). All terms are
  drawn; their variances are estimated by restricted maximum likelihood, and the degrees of freedom
  of the mean's variance by Satterthwaite's rule (`components`).

The spread over seeds of a mean over tasks or sets has two parts: a common one, and one that
averages out and is in the spread over tasks or sets already. The second is subtracted, so that it
counts once. Simulated draws test that each interval covers its target (`benchmarks.simulation`).

Sources: H. D. Patterson and R. Thompson, Biometrika 58 (1971), 545-554; F. E. Satterthwaite,
Biometrics Bulletin 2 (1946), 110-114.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from tasklab.evidence.records import intervals
from tasklab.evidence.records.intervals import Interval, Source

THESE, SETS, TASKS = "these tasks", "other sets of these tasks", "other tasks"
_STEPS, _CLOSE = 60, 1e-5  # of Fisher scoring: at most, and a change that ends it


def interval(table: pd.DataFrame, target: str = TASKS) -> Interval:
    """Return the mean of differences with its 95 % interval; the ends are NaN for one seed.

    Args:
        table: As of `sources`.
        target: One of `THESE`, `SETS` and `TASKS`.
    """
    effect = float(table.groupby("seed")["difference"].mean().mean())
    return intervals.interval(effect, sources(table, target))


def sources(table: pd.DataFrame, target: str) -> list[Source]:
    """Return the sources of error of the mean difference; images are not among them.

    Args:
        table: Columns seed, task, subset (a set, its tasks joined by `+`) and difference.
        target: One of `THESE`, `SETS` and `TASKS`.

    Returns:
        Seeds, and further drawn units; a variance is infinite where too few were drawn.
    """
    of_set = table.fillna({"subset": ""})
    if target == THESE or table["seed"].nunique() < 2:
        seeds = table.groupby("seed")["difference"].mean()
        return [intervals.of_means("seeds", seeds) if len(seeds) > 1 else _unknown("seeds")]
    if target == SETS:
        return drawn(_by(of_set, "subset"), lambda values: _of_few("sets", values))
    if of_set["subset"].nunique() == 1:
        units = _by(of_set, "task")
        return drawn(
            units, lambda values: intervals.of_tasks(dict(zip(units.index, values, strict=True)))
        )
    units = _by(of_set, ["task", "subset"])
    crossed = design(units.index)
    return drawn(units, lambda values: components(values, crossed).source)


def drawn(units: pd.DataFrame, of: Callable[[np.ndarray], Source]) -> list[Source]:
    """Return seeds and units as sources of error; the noise of a unit at a seed counts once.

    Each of the n - 1 orthonormal contrasts of n seeds has that noise alone, so the units' variance
    of a contrast is the noise's share in the variance of a seed's mean.

    Args:
        units: Differences, a row for each unit (task, pair or set) and a column for each seed.
        of: Values of the units -> their source of error.
    """
    seeds = intervals.of_means("seeds", units.mean())
    n, whole = units.shape[1], units.dropna()
    if len(whole) < len(units):  # a unit lacks seeds: the cautious sum of both
        return [seeds, of(units.mean(axis=1).to_numpy())]
    contrasts = np.linalg.svd(np.ones((1, n)))[2][1:]
    noise = [of(whole.to_numpy() @ contrast).variance for contrast in contrasts]
    once = max(0.0, seeds.variance - float(np.mean(noise)) / n)
    return [dataclasses.replace(seeds, variance=once), of(whole.to_numpy().mean(1))]


def _by(table: pd.DataFrame, unit: str | Sequence[str]) -> pd.DataFrame:
    return table.pivot_table(index=unit, columns="seed", values="difference", sort=False)


def _of_few(name: str, values: np.ndarray) -> Source:
    return intervals.of_means(name, values) if len(values) > 1 else _unknown(name)


def _unknown(name: str) -> Source:
    return Source(name=name, variance=math.inf, freedom=1)


def design(index: pd.MultiIndex) -> list[np.ndarray]:
    """Return the weights of tasks, of company and of sets in each row: three of rows × levels.

    Args:
        index: Levels task and subset.
    """
    (tasks, task_names), (sets, set_names) = (
        pd.factorize(index.get_level_values(level)) for level in ("task", "subset")
    )
    members = np.array([task_names.isin(one.split("+")) for one in set_names], float)
    own, of_set = np.eye(len(task_names))[tasks], np.eye(len(set_names))[sets]
    others = np.maximum(members[sets] - own, 0)
    return [own, others / np.maximum(others.sum(1, keepdims=True), 1), of_set]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Components:
    """Variances of a mean's random terms."""

    variances: np.ndarray  #: Of each term, the rest last
    source: Source  #: What they add to the variance of the mean over all rows


def components(values: np.ndarray, terms: Sequence[np.ndarray]) -> Components:
    """Estimate the variances of crossed random terms by restricted maximum likelihood.

    Fisher scoring with variances kept from falling below zero. All products are of the levels'
    size, as in Henderson's equations, so that a thousand rows take milliseconds.

    Args:
        values: One for each row.
        terms: Weights of each term's levels in each row, rows × levels.

    Returns:
        The variances, and the source `tasks`: the variance of the mean over rows with
        Satterthwaite's degrees of freedom, at least 1.
    """
    z, y, n = np.hstack(terms), values - values.mean(), len(values) - 1
    unit = math.sqrt(y @ y / n)  # so that numbers are near 1
    if not unit > 1e-12 * np.abs(values).max():  # nothing varies
        still = Source(name="tasks", variance=0.0, freedom=n)
        return Components(variances=np.zeros(len(terms) + 1), source=still)
    z, y = z - z.mean(0), y / unit
    of = np.repeat(np.arange(len(terms)), [term.shape[1] for term in terms])
    sums = np.array([of == k for k in range(len(terms))], float)
    gram, score = z.T @ z, z.T @ y
    theta = np.full(len(terms) + 1, 1 / (len(terms) + 1))
    for _ in range(_STEPS):
        rest, root = theta[-1], np.sqrt(theta[of])
        inner = rest * np.eye(len(of)) + root[:, None] * gram * root
        b = root[:, None] * np.linalg.solve(inner, np.diag(root))
        bg = b @ gram
        projected = (gram - gram @ bg) / rest  # Z' P Z
        twice = (gram - 2 * gram @ bg + gram @ bg @ bg) / rest**2  # Z' P P Z
        p_y, b_score = (score - gram @ (b @ score)) / rest, b @ score
        information = np.empty((len(theta), len(theta)))
        information[:-1, :-1] = sums @ projected**2 @ sums.T
        information[:-1, -1] = information[-1, :-1] = sums @ np.diag(twice)
        information[-1, -1] = (n - 2 * np.trace(bg) + float((bg * bg.T).sum())) / rest**2
        of_rest = (n - 2 * score @ b_score + b_score @ gram @ b_score) / rest**2
        found = _above_zero(information, np.append(sums @ p_y**2, of_rest))
        found[-1] = max(found[-1], 1e-9)
        step, theta = np.abs(found - theta).max(), found
        if step < _CLOSE * theta.sum():
            break
    weights = np.array([(term.mean(0) ** 2).sum() for term in terms] + [1 / len(values)])
    variance, there = float(weights @ theta), theta > 0  # in units of the values' own
    known = _inverse(information[np.ix_(there, there)])
    of_variance = 2 * weights[there] @ known @ weights[there]
    freedom = max(1.0, float(2 * variance**2 / of_variance))
    drawn_tasks = Source(name="tasks", variance=unit**2 * variance, freedom=freedom)
    return Components(variances=unit**2 * theta, source=drawn_tasks)


def _above_zero(information: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the solution of the scoring equations with those that fall below zero left out."""
    kept = np.ones(len(scores), bool)
    while True:
        found = np.zeros(len(scores))
        found[kept] = _inverse(information[np.ix_(kept, kept)]) @ scores[kept]
        if (found >= 0).all():
            return found
        kept &= found > 0


def _inverse(information: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse: sets without a common task leave terms undetermined."""
    scale = 1 / np.sqrt(np.diag(information))
    scaled = np.linalg.pinv(scale[:, None] * information * scale, rcond=1e-9, hermitian=True)
    return scale[:, None] * scaled * scale
