"""95 % intervals of accuracies and of paired gains, from ten images on.

A share of right answers has the score interval with continuity correction (R. Newcombe, Statistics
in Medicine 17, 1998, 857-872, method 4; E. Wilson, 1927). Without the correction it covers 91 % at
10 images and an accuracy of 95 %.

A gain is measured on the same images: only discordant ones count, which one of the models alone
classifies correctly. The gain is the share of gained images minus the share of lost ones; the
intervals of both are combined by MOVER with their correlation (G. Zou and A. Donner, Statistics in
Medicine 27, 2008, 1693-1702).

Means over tasks keep the tasks and draw their images. Copies of one image are one draw.

Axes: T tasks, N images.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tasklab.errors import TasklabError

Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution
DISCORDANT = 10  # with fewer discordant images no gain is sure
Answers = Mapping[str, Bool[np.ndarray, " N"]]  # task -> which images are classified correctly
Copies = Mapping[str, Int[np.ndarray, " N"]]  # task -> images of equal number are the same image


def packed(hits: np.ndarray) -> str:
    """Return which images were answered as a short text, for a record.

    >>> packed(np.array([True, False, True]))
    'oA=='
    """
    return base64.b64encode(np.packbits(np.asarray(hits, bool)).tobytes()).decode()


def unpacked(text: str, n: int) -> np.ndarray:
    """Return which of n images were answered.

    >>> unpacked("oA==", 3).tolist()
    [True, False, True]
    """
    try:
        bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except ValueError:
        bits = np.empty(0, np.uint8)
    if len(bits) != (n + 7) // 8:
        raise TasklabError(f"a record's hits are not those of {n} images.")
    return np.unpackbits(bits, count=n).astype(bool)


class Estimate(NamedTuple):
    """A mean accuracy in %, or a mean gain in points, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def named(self, name: str) -> dict[str, float]:
        """Return the numbers by name: `{"gain": 1.0, "gain_low": 0.5, "gain_high": 1.5}`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero; for a gain, whether its sign is known."""
        return self.low > 0 or self.high < 0


def interval(
    shares: Float[np.ndarray, "... T"], n: Float[np.ndarray, "... T"]
) -> tuple[Float[np.ndarray, ...], Float[np.ndarray, ...]]:
    """Return the ends of the interval of a mean over tasks of shares, all from 0 to 1.

    Equation of the lower end, for one task: (2np + z² - 1 - z √(z² - 2 - 1/n + 4p(n(1 - p) + 1))) /
    (2n + 2z²), and 0 at p = 0; the upper end follows from 1 - p. For several tasks, n is the number
    of images of one task whose share varies as much as the mean does.

    Args:
        n: Independent images, at least one.

    >>> low, high = interval(np.array([0.875]), np.array([8]))
    >>> round(float(low), 3), round(float(high), 3)
    (0.467, 0.993)
    """
    shares, n = np.asarray(shares, float), np.asarray(n, float)
    if np.any(n < 1) or np.any(shares < 0) or np.any(shares > 1):
        raise TasklabError("an accuracy needs at least one image, and lies within 0 and 100 %.")
    n, p = _independent(shares, n), shares.mean(-1)
    ends = []
    for share in (p, 1 - p):  # the upper end is the lower one of wrong answers
        root = Z95**2 - 2 - 1 / n + 4 * share * (n * (1 - share) + 1)
        low = (2 * n * share + Z95**2 - 1 - Z95 * np.sqrt(np.maximum(root, 0))) / 2
        ends.append(np.clip(low / (n + Z95**2), 0, share))
    return ends[0], 1 - ends[1]


def _independent(shares: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return the number of images of one share that varies as much as the mean over tasks.

    Two right and two wrong answers are added for each task, so that no variance is zero.
    """
    p = (shares * n + 2) / (n + 4)
    of_mean = p.mean(-1) * (1 - p.mean(-1))
    return of_mean * shares.shape[-1] ** 2 / (p * (1 - p) / n).sum(-1)


def difference(
    gained: Float[np.ndarray, "... T"],
    lost: Float[np.ndarray, "... T"],
    n: Float[np.ndarray, "... T"],
) -> tuple[Float[np.ndarray, ...], Float[np.ndarray, ...]]:
    """Return the ends of the interval of a mean over tasks of gains, from -1 to 1.

    Below ten discordant images the interval contains 0, whatever their signs.

    Args:
        gained: Share of the images that only the second model classifies correctly.
        lost: Share of those that only the first does.
        n: Independent images, at least one.
    """
    gained, lost, n = (np.asarray(one, float) for one in (gained, lost, n))
    up, down = gained.mean(-1), lost.mean(-1)
    (up_low, up_high), (down_low, down_high) = interval(gained, n), interval(lost, n)
    spreads = [(p * (1 - p) / n).sum(-1) for p in (gained, lost)]
    product = np.sqrt(spreads[0] * spreads[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.where(product > 0, -(gained * lost / n).sum(-1) / product, 0)

    def apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sqrt(a**2 + b**2 - 2 * r * a * b)

    low = np.maximum(up - down - apart(up - up_low, down_high - down), -1)
    high = np.minimum(up - down + apart(up_high - up, down - down_low), 1)
    few = ((gained + lost) * n).sum(-1) < DISCORDANT - 1e-9
    return np.where(few, np.minimum(low, 0), low), np.where(few, np.maximum(high, 0), high)


def independent(copies: Int[np.ndarray, " N"]) -> float:
    """Return the number of independent images: N² / sum of squared numbers of copies.

    Source: L. Kish, Survey Sampling, 1965, for copies that are all answered alike.

    >>> independent(np.array([0, 0, 0, 1, 1, 1]))
    2.0
    """
    sizes = np.unique(copies, return_counts=True)[1]
    return float(len(copies) ** 2 / (sizes**2).sum())


def accuracy(answers: Answers, copies: Copies | None = None) -> Estimate:
    """Return the mean accuracy over tasks in %, with its interval."""
    shares = np.array([right.mean() for right in answers.values()])
    low, high = interval(shares, _sizes(answers, copies))
    return Estimate(100 * float(shares.mean()), 100 * float(low), 100 * float(high))


def gain(after: Answers, before: Answers, copies: Copies | None = None) -> Estimate:
    """Return the mean gain over tasks in points, with its interval.

    Args:
        after: Answers of one model; its tasks count.
        before: Those of the other on the same images.
        copies: Which images are the same; by default all differ.
    """
    tasks = list(after)
    gained = _means(after[task] & ~before[task] for task in tasks)
    lost = _means(before[task] & ~after[task] for task in tasks)
    low, high = difference(gained, lost, _sizes(after, copies))
    return Estimate(100 * float((gained - lost).mean()), 100 * float(low), 100 * float(high))


def probability(one: Estimate) -> float:
    """Return about how probable it is that a gain is above 0, from its interval.

    A normal distribution with the estimate's value, whose standard deviation is the half of the
    interval that is towards 0 over 1.96; with a flat prior.

    >>> round(probability(Estimate(1.0, -1.0, 3.0)), 2), probability(Estimate(0.0, 0.0, 0.0))
    (0.84, 0.5)
    """
    half = one.value - one.low if one.value > 0 else one.high - one.value
    if not half:
        return 0.5 if not one.value else float(one.value > 0)
    return 0.5 * (1 + math.erf(one.value / half * Z95 / math.sqrt(2)))


def _means(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.array([part.mean() for part in parts])


def _sizes(answers: Answers, copies: Copies | None) -> np.ndarray:
    every: Sequence[float] = [
        independent(copies[task]) if copies and task in copies else len(right)
        for task, right in answers.items()
    ]
    return np.array(every, float)
