"""The interval of an effect that has several sources of error, some known from few values.

An effect is a mean over seeds of fine-tuning, over test images and, where it is about tasks in
general, over tasks. Each adds its variance v_k to that of the mean, known with f_k degrees of
freedom: those of three seeds are two. Each alone would give an interval of the half-width
t(f_k) sqrt(v_k), with Student's quantile t; together the half-widths add as errors do, in squares,

    h^2 = t(f_1)^2 v_1 + t(f_2)^2 v_2 + ...

With one source it is Student's interval. With several it errs on the side of caution (book page
"How a claim is judged").

Source: W. G. Howe, Approximate confidence limits on the mean of X + Y where X and Y are two tabled
independent random variables, Journal of the American Statistical Association 69 (1974), 789-794.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit  # scipy.stats has the same, and takes seconds to load

LEVEL = 0.95
_FEWEST, _REPEATS = 5, 1999  # tasks and draws of a studentised bootstrap
_ENDLESS = 1e9  # standard errors, in the place of infinitely many
_SMALLEST = 1e-12  # a p-value that is not told apart from zero


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source of error of a mean."""

    name: str  #: What is drawn: seeds, images, tasks
    variance: float  #: What it adds to the variance of the mean
    freedom: float = math.inf  #: Degrees of freedom that the variance is known with


class Interval(NamedTuple):
    """An effect with its 95 % interval; without one both ends are NaN."""

    effect: float  #: The mean
    low: float
    high: float


def in_words(
    effect: float, low: float = math.nan, high: float = math.nan, *,
    unit: str = "points", over: str = "", shown: bool = True, named: bool = True,
) -> str:  # fmt: skip
    """Return an effect with its interval in words: every page prints it by this function.

    Points have one decimal; other units have two digits of the half-width, or three in all.

    >>> in_words(3.86, 2.5, 5.22, over="seeds")
    '+3.9 points (2.5 to 5.2 over seeds)'
    >>> in_words(-0.0123, -0.02, -0.0046, unit="nats"), in_words(2.0)
    ('−0.0123 nats (−0.0200 to −0.0046)', '+2.0 points')
    >>> in_words(math.nan)  # as a correlation of equal numbers
    'undefined'

    Args:
        effect: The mean.
        low: Lower end of its interval; NaN without one.
        high: Upper end.
        unit: As claims name it; empty for none.
        over: Units of the draws: seeds; seeds and tasks; rounds; pre-trainings; sets.
        shown: Whether a known interval is printed.
        named: Whether the unit is printed.
    """
    if math.isnan(effect):
        return "undefined"
    half = (high - low) / 2
    form = ".1f" if unit == "points" else ".3g"
    if half > 0 and unit != "points":  # two digits of the half-width
        form = f".{min(max(1 - math.floor(math.log10(half)), 0), 6)}f"
    text = f"{effect:+z{form}} {unit if named else ''}".rstrip()
    if half > 0 and shown:
        text += f" ({low:z{form}} to {high:z{form}}{f' over {over}' if over else ''})"
    return re.sub(r"-(?=[\d.])", "−", text)


def of_means(name: str, values: ArrayLike) -> Source:
    """Return the source of error of a mean whose terms were drawn independently."""
    drawn = np.asarray(values, float)
    return Source(name=name, variance=drawn.var(ddof=1) / len(drawn), freedom=len(drawn) - 1)


def of_tasks(values: Mapping[str, float]) -> Source:
    """Return the source of error of a mean over tasks, or over pairs of them, if tasks are drawn.

    Pairs that share no task are drawn as they are. Where they share tasks, tasks are drawn: by the
    jackknife, which leaves out each task with all of its pairs (B. Efron and C. Stein, Annals of
    Statistics 9, 1981, 586-596: cautious for such means).

    Returns:
        The source; of an infinite variance for one or two of them.
    """
    members = [re.split(r"[+|]", str(name)) for name in values]
    pairs = all(len(two) > 1 for two in members)
    numbers = np.array([float(value) for value in values.values()])
    if len(numbers) < 3:
        return Source(name="tasks", variance=math.inf, freedom=1)
    names = sorted({name for two in members for name in two})
    if not pairs or len(names) == sum(map(len, members)):
        return of_means("tasks", numbers)
    without = [numbers[[name not in two for two in members]] for name in names]
    if not all(map(len, without)):
        return of_means("tasks", numbers)
    return jackknife("tasks", [rest.mean() for rest in without])


def jackknife(name: str, without: ArrayLike) -> Source:
    """Return the leave-one-out (jackknife) source of error of a mean."""
    left = np.asarray(without, float)
    n = len(left)
    variance = (n - 1) / n * float(((left - left.mean()) ** 2).sum())
    return Source(name=name, variance=variance, freedom=n - 1)


def bootstrap_t(
    effect: np.ndarray | float, values: np.ndarray, others: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of an interval that draws tasks by the studentised bootstrap.

    Where tasks are few and their effects skewed, Student's interval errs more often on one side
    than it says. Here the quantiles of t come from the values themselves, one for each side; they
    replace Student's in the sum of squares, in which the other sources stay.

    Source: P. Hall, Theoretical comparison of bootstrap confidence intervals, Annals of Statistics
    16 (1988), 927-953.

    Args:
        effect: The mean over tasks.
        values: Of tasks (..., n), drawn independently; at least five, else the ends are NaN.
        others: Squared half-width of all other sources (...).
    """
    values = np.asarray(values, float)
    n = values.shape[-1]
    if n < _FEWEST:
        return np.full(values.shape[:-1], np.nan), np.full(values.shape[:-1], np.nan)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _REPEATS) / n
    centred = values - values.mean(-1, keepdims=True)
    means = centred @ counts.T
    with np.errstate(divide="ignore", invalid="ignore"):
        t = means / np.sqrt(np.maximum(centred**2 @ counts.T - means**2, 0) / (n - 1))
    t = np.clip(t, -_ENDLESS, _ENDLESS)  # between infinite values no quantile is interpolated
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(t, (tail, 1 - tail), axis=-1)
    error = np.sqrt((centred**2).mean(-1) / (n - 1))
    ends = [np.hypot(quantile * error, np.sqrt(others)) for quantile in (high, low)]
    return effect - ends[0], effect + ends[1]


def of_mean(values: Sequence[float] | np.ndarray) -> Interval:
    """Return a mean with Student's interval, whose ends are NaN for one value.

    >>> [round(x, 2) for x in of_mean([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    return interval(mean, [of_means("draws", values)])


def half_width(sources: Iterable[Source], level: float = LEVEL) -> float:
    """Return the half-width of the interval; NaN if no source varied, or a variance is unknown.

    >>> round(half_width([Source(name="seeds", variance=1.0, freedom=2)]), 2)
    4.3
    """
    tail = (1 - level) / 2
    squared = sum(s.variance * quantile(tail, s.freedom) ** 2 for s in sources)
    return math.sqrt(squared) if 0 < squared < math.inf else math.nan


def quantile(tail: float, freedom: float) -> float:
    """Return the upper quantile of Student's distribution, which has a tail beyond it."""
    return -float(ndtri(tail) if math.isinf(freedom) else stdtrit(freedom, tail))


def interval(effect: float, sources: Iterable[Source], level: float = LEVEL) -> Interval:
    """Return the interval of an effect whose error has several sources.

    Args:
        effect: The mean.
        sources: Variances and degrees of freedom; half-widths add in squares.
        level: Share of confidence.
    """
    half = half_width(sources, level)
    return Interval(effect, effect - half, effect + half)


def p_value(effect: float, sources: Iterable[Source]) -> float:
    """Return at which 1 - level the interval just reaches zero (two-sided); NaN without one."""
    sources = list(sources)
    if math.isnan(half_width(sources)):
        return math.nan
    low, high = math.log10(_SMALLEST), 0.0
    for _ in range(36):  # the half-width falls with p; to ten digits
        middle = (low + high) / 2
        too_wide = half_width(sources, 1 - 10**middle) > abs(effect)
        low, high = (middle, high) if too_wide else (low, middle)
    return 10**high


def holm(p: ArrayLike) -> np.ndarray:
    """Return p-values corrected for their number (Holm, 1979); NaN stays NaN.

    >>> [round(float(value), 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, float)
    finite = np.flatnonzero(np.isfinite(values))
    order = finite[np.argsort(values[finite], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected = np.full(len(values), np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return corrected
