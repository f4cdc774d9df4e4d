"""Accuracy as a function of the coefficients of task vectors: exact curves, and their maxima.

The scores of a linearized model are affine in the coefficients of its task vectors,

    S(a) = S_0 + sum_s a_s dS_s,

because the encoder is linearized and a head's scores are affine in the features. Along any line of
coefficients an image is therefore classified correctly on one interval, whose ends are crossings of
two straight lines: accuracy is a step function, known exactly (`exact_curve`). A grid as in the
papers (tangent, appendix A) only samples it.

Over several coefficients, `ascend` maximises along one after the other, each step exactly. `climb`
takes any objective, and a bounded number of trials.

Letters: T tasks, N images, C classes, K knots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tasklab.analyses.finite import as_coefficient, as_coefficients, finite, finite_array
from tasklab.errors import TasklabError, whole

BETTER = 1e-9  # smaller differences of accuracies, in %, are rounding


class Best(NamedTuple):
    """Where a step function is highest.

    Attributes:
        low, high: Ends of the widest interval on which it is; the first of those equally wide.
    """

    low: float
    high: float
    value: float

    @property
    def alpha(self) -> float:
        """The middle of the interval, as far as can be from where the value changes."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, eq=False)
class PiecewiseConstant:
    """A step function on the interval from the first to the last knot.

    >>> step = PiecewiseConstant(np.array([0, 0.4, 1]), np.array([5, 9]), np.array([5, 9, 9]))
    >>> step.at([0.2, 0.4]).tolist(), step.best()
    ([5, 9], Best(low=0.4, high=1.0, value=9.0))
    """

    knots: Float[np.ndarray, " K"]  #: Where it may change, ascending (K,)
    between: np.ndarray  #: Values between neighbouring knots (K - 1,)
    #: Values at the knots themselves (K,): there two classes tie, and `argmax` takes the first.
    points: np.ndarray

    def at(self, alpha: float | Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the values at one coefficient or several, shaped like them."""
        alpha = finite_array(alpha, "coefficients")
        if not ((alpha >= self.knots[0]) & (alpha <= self.knots[-1])).all():
            raise TasklabError(
                f"the curve is known from {self.knots[0]:g} to {self.knots[-1]:g}, not at {alpha}."
            )
        right = self.knots.searchsorted(alpha, side="right") - 1
        inside = self.between[np.minimum(right, len(self.between) - 1)]
        return np.where(self.knots[right] == alpha, self.points[right], inside)

    def best(self) -> Best:
        """Return the maximum over the intervals, and the widest stretch where it is taken."""
        top = self.between.max()
        good = self.between >= top - BETTER
        joined = good[:-1] & good[1:] & (self.points[1:-1] >= top - BETTER)
        first = np.flatnonzero(good & ~np.concatenate([[False], joined]))
        last = np.flatnonzero(good & ~np.concatenate([joined, [False]]))
        low, high = self.knots[first], self.knots[last + 1]
        widest = (high - low).argmax()
        return Best(float(low[widest]), float(high[widest]), float(top))


def exact_curve(
    scores: Float[np.ndarray, "N C"],
    slopes: Float[np.ndarray, "N C"],
    labels: Int[np.ndarray, " N"],
    low: float = 0.0,
    high: float = 1.0,
) -> PiecewiseConstant:
    """Return the accuracy in % of argmax(scores + alpha slopes) as a function of alpha.

    The true class y leads class c at alpha by (s_y - s_c) + alpha (d_y - d_c), which is positive on
    one side of the crossing. Over all c, an image is right on an interval, from the last crossing
    that y must pass to the first at which it falls back. At a crossing itself, `argmax` gives the
    class with the lower index. Sorting the ends of all intervals costs O(N C + N log N).

    Args:
        scores: Scores of N images at alpha = 0.
        slopes: Their derivatives by alpha.
        labels: Classes of the images.
        low: Least alpha.
        high: Largest alpha.
    """
    low, high = as_coefficient(low, "the lowest alpha"), as_coefficient(high, "the highest alpha")
    if not low < high:
        raise TasklabError(f"the lowest alpha must be below the highest: {low}, {high}.")
    scores, slopes = finite_array(scores, "scores"), finite_array(slopes, "slopes of scores")
    labels = np.asarray(labels)
    if not labels.size:
        raise TasklabError("accuracy needs at least one image.")
    if scores.shape != slopes.shape or scores.ndim != 2 or labels.shape != scores.shape[:1]:
        shapes = f"{scores.shape}, {slopes.shape} and {labels.shape}"
        raise TasklabError(f"scores and slopes are (N, C) and labels (N,), not {shapes}.")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise TasklabError(f"labels are whole numbers from 0 to {scores.shape[1] - 1}.")
    own = labels[:, None]
    loses_ties = np.arange(scores.shape[1]) < own
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lead = finite(np.take_along_axis(scores, own, 1) - scores, "differences of scores")
        gain = finite(np.take_along_axis(slopes, own, 1) - slopes, "differences of slopes")
        crossing = -lead / gain
    rises, falls = np.where(gain > 0, crossing, -np.inf), np.where(gain < 0, crossing, np.inf)
    starts, ends = rises.max(1), falls.min(1)
    after = ((rises == starts[:, None]) & (gain > 0) & loses_ties).any(1)  # wrong at the start
    before = ((falls == ends[:, None]) & (gain < 0) & loses_ties).any(1)  # wrong at the end
    level = gain == 0  # parallel to the true class, which itself is among them: lead 0, no tie
    never = (level & ((lead < 0) | ((lead == 0) & loses_ties))).any(1)
    right = ~never & ((starts < ends) | ((starts == ends) & ~after & ~before))
    starts, ends, after, before = starts[right], ends[right], after[right], before[right]

    changes = np.concatenate([starts, ends])
    changes = changes[(changes > low) & (changes < high)]
    knots = np.unique(np.concatenate([[low, high], changes]))
    started, ended = _count(starts, knots, "right"), _count(ends, knots, "right")
    at_knots = _count(starts, knots, "left") - _count(ends, knots, "left")
    at_knots += _count(starts[~after], knots, "right") - _count(starts[~after], knots, "left")
    at_knots -= _count(ends[before], knots, "right") - _count(ends[before], knots, "left")
    share = 100 / len(labels)
    return PiecewiseConstant(knots, share * (started - ended)[:-1], share * at_knots)


def _count(values: np.ndarray, knots: np.ndarray, side: str) -> np.ndarray:
    return np.sort(values).searchsorted(knots, side)


def mean_curve(
    curves: Sequence[PiecewiseConstant], weights: Sequence[float] | np.ndarray | None = None
) -> PiecewiseConstant:
    """Return the mean of step functions, each times its weight, with the knots of all.

    Args:
        weights: By default 1 each; 100 / single-task accuracy makes accuracies normalised.
    """
    ends = {(curve.knots[0], curve.knots[-1]) for curve in curves}
    if len(ends) != 1:
        raise TasklabError("a mean needs curves, all known on the same interval.")
    shares = np.ones(len(curves)) if weights is None else finite_array(weights, "weights")
    if shares.shape != (len(curves),):
        raise TasklabError(f"{len(curves)} curves need as many weights, not {shares.size}.")
    knots = np.unique(np.concatenate([curve.knots for curve in curves]))
    between, points = np.zeros(len(knots) - 1), np.zeros(len(knots))
    for curve, weight in zip(curves, shares, strict=True):
        left = curve.knots.searchsorted(knots[:-1], side="right") - 1
        between += weight / len(curves) * curve.between[left]
        points += weight / len(curves) * curve.at(knots)
    return PiecewiseConstant(knots, between, points)


@dataclass(frozen=True, eq=False)
class AffineScores:
    """Scores of one task's images, affine in the coefficients of T task vectors."""

    base: Float[np.ndarray, "N C"]  #: Scores of the pre-trained model (N, C)
    #: Change of the scores per unit of each coefficient (T, N, C).
    slopes: Float[np.ndarray, "T N C"]
    labels: Int[np.ndarray, " N"]

    def at(self, alphas: Sequence[float] | np.ndarray) -> Float[np.ndarray, "N C"]:
        """Return the scores at coefficients (T,)."""
        scores = self.base + np.tensordot(self._checked(alphas), self.slopes, 1)
        return finite(scores, "scores")

    def _checked(self, alphas: Sequence[float] | np.ndarray) -> Float[np.ndarray, " T"]:
        if len(as_coefficients(alphas)) != len(self.slopes):
            raise TasklabError(
                f"{len(self.slopes)} task vectors need as many coefficients, not {len(alphas)}."
            )
        return np.asarray(alphas, dtype=float)

    def accuracy(self, alphas: Sequence[float] | np.ndarray) -> float:
        """Return the accuracy in % at coefficients (T,)."""
        return float(100 * (self.at(alphas).argmax(1) == self.labels).mean())

    def along(
        self,
        direction: Sequence[float] | np.ndarray,
        origin: Sequence[float] | np.ndarray | None = None,
        low: float = 0.0,
        high: float = 1.0,
    ) -> PiecewiseConstant:
        """Return the accuracy in % at origin + alpha direction, as a function of alpha.

        Args:
            direction: A change of the coefficients (T,), e.g. ones for a shared coefficient.
            origin: Coefficients (T,) at alpha = 0; by default the pre-trained model.
            low: Smallest alpha.
            high: Largest alpha.
        """
        start = self.base if origin is None else self.at(origin)
        slope = np.tensordot(self._checked(direction), self.slopes, 1)
        return exact_curve(start, slope, self.labels, low, high)


def normalising(single: np.ndarray) -> np.ndarray:
    """Return the weights that normalise accuracies (tangent, equation 7)."""
    return 100 / np.maximum(finite_array(single, "single-task accuracies"), 1e-9)


@dataclass(frozen=True, eq=False)
class Ascent:
    """The end of a search over coefficients."""

    alphas: np.ndarray  #: Coefficients (T,)
    #: The objective at the start and after each sweep over the coefficients, in %.
    values: tuple[float, ...]
    #: Evaluations of the objective at new coefficients, the start among them. Those that are solved
    #: for along a line are not counted: they need no model.
    trials: int

    @property
    def sweeps(self) -> int:
        """Sweeps over all coefficients, the last without improvement among them."""
        return len(self.values) - 1


def ascend(
    tasks: Sequence[AffineScores],
    single: np.ndarray,
    start: Sequence[float] | np.ndarray,
    *,
    sweeps: int = 50,
) -> Ascent:
    """Maximise the mean normalised accuracy over coefficients in [0, 1]^T, one at a time.

    Each step takes the best value of one coefficient, the others fixed: the middle of the widest
    interval where the exact curve is highest. It stops when no coefficient improves. That is a
    local maximum: moving two coefficients at once may find more.

    Args:
        tasks: Scores of each task, affine in the coefficients.
        single: Accuracies in % of each vector alone (T,).
        start: Coefficients from which to start (T,).
        sweeps: The most passes over all coefficients.
    """

    def objective(alphas: np.ndarray) -> float:
        return float((weights * [task.accuracy(alphas) for task in tasks]).mean())

    if not tasks:
        raise TasklabError("a search over coefficients needs at least one task.")
    weights = normalising(single)
    alphas = np.array(as_coefficients(start, "start"))
    value, trials = objective(alphas), 1
    values = [value]
    for _ in range(sweeps):
        for s, direction in enumerate(np.eye(len(alphas))):
            origin = np.where(direction == 1, 0.0, alphas)
            curves = [task.along(direction, origin) for task in tasks]
            trial = origin + mean_curve(curves, weights).best().alpha * direction
            reached, trials = objective(trial), trials + 1
            if reached > value + BETTER:
                alphas[s], value = trial[s], reached
        values.append(value)
        if values[-1] <= values[-2] + BETTER:
            break
    return Ascent(alphas, tuple(values), trials)


def climb(
    objective: Callable[[np.ndarray], float],
    start: Sequence[float] | np.ndarray,
    *,
    step: float = 0.1,
    budget: int | None = None,
) -> Ascent:
    """Maximise any objective over coefficients in [0, 1]^T with a bounded number of trials.

    Each coefficient in turn moves one step up or down if `objective`, a function of coefficients
    (T,), increases; no point is evaluated twice.

    Args:
        objective: Coefficients (T,) -> a number.
        start: Coefficients (T,) to begin with.
        step: First step of every coefficient.
        budget: The most trials, the start among them; by default 2 T + 1, for one sweep.
    """
    alphas = np.array(as_coefficients(start, "start"))
    budget = 2 * len(alphas) + 1 if budget is None else whole("budget", budget, 1)
    if as_coefficient(step, "step") <= 0:
        raise TasklabError(f"a search needs a step above 0, not {step}.")
    tried: dict[bytes, float] = {}

    def value_at(trial: np.ndarray) -> float:
        key = np.round(trial, 9).tobytes()
        if key not in tried:
            if len(tried) >= budget:
                return -np.inf
            tried[key] = finite(float(objective(trial)), f"values at coefficients {trial.tolist()}")
        return tried[key]

    value = value_at(alphas)
    values = [value]
    while len(tried) < budget:
        for s in range(len(alphas)):
            trials = []
            for move in (step, -step):
                trial = alphas.copy()
                trial[s] = np.clip(trial[s] + move, 0.0, 1.0)
                trials.append((value_at(trial), trial))
            reached, trial = max(trials, key=lambda pair: pair[0])
            if reached > value + BETTER:
                alphas, value = trial, reached
        values.append(value)
        if values[-1] <= values[-2] + BETTER:
            break
    return Ascent(alphas, tuple(values), len(tried))
