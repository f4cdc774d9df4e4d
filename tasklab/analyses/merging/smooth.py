"""The best coefficient from a few noisy looks: where a smooth curve is highest.

The mean accuracy in % along a coefficient is, with x = ln(alpha / center),

    y(x) = level + slope x - bend x² + rest(x) + noise

a Gaussian process: slope and bend are normal with the spreads that recorded curves have
(`benchmarks/coefficients.py`), `rest` is smooth with a length of `LENGTH`, and the noise is that of
the available images. The coefficient maximises the posterior mean given the looks, so that one
lucky look decides little, and few images leave the coefficient near the center.

Source: C. Rasmussen and C. Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2
and 2.7 (explicit basis functions).

Letters: L looks, G points of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

BEND = 6.0  # points that are lost one unit of x away from the best
BENDS = 4.0  # its spread
SLOPE = 4.0  # spread of the slope: the best x is SLOPE / (2 BEND) from the center
REST, LENGTH = 1.0, 0.5  # spread in points, and length in x, of what no parabola has
SHARED = 0.6  # part of the variance that looks at the same images share
LEVEL = 100.0  # spread of the level: any
REACH = 1.1  # of looks, in x
_GRID = 401


class Peak(NamedTuple):
    """Where a curve is highest."""

    alpha: float
    value: float  #: Accuracy there in %, expected
    error: float  #: Its standard error, in points


def curve(
    x: Float[np.ndarray, " G"],
    looks: Float[np.ndarray, " L"],
    scores: Float[np.ndarray, " L"],
    images: float,
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Return mean and standard error of the accuracy in % along x.

    Args:
        x: ln(alpha / center) of the result.
        looks: That of the looks.
        scores: Mean accuracy in % of each look.
        images: Number of images behind each.
    """
    share = np.clip(scores / 100, 0.0, 1.0).mean()
    variance = 1e4 * max(share * (1 - share), 1 / (images + 4)) / images
    noise = (1 - SHARED) * variance
    known = _covariance(looks, looks) + noise * np.eye(len(looks))
    weights = np.linalg.solve(known, _covariance(looks, x))
    middle = float(np.mean(scores))
    mean = middle - BEND * x**2 + weights.T @ (scores - middle + BEND * looks**2)
    spread = np.diagonal(_covariance(x, x)) - (weights * _covariance(looks, x)).sum(0)
    return mean, np.sqrt(np.maximum(spread, 0.0) + SHARED * variance)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    apart = (a[:, None] - b[None]) / LENGTH
    rest = REST**2 * np.exp(-(apart**2) / 2)
    product = np.outer(a, b)
    return LEVEL**2 + SLOPE**2 * product + BENDS**2 * product**2 + rest


def places(count: int, *, known: bool = False) -> Float[np.ndarray, " L"]:
    """Return where to look: x evenly from -`REACH` to `REACH`; 0 only where it is not `known`.

    An even number of evenly spaced places has no 0 among them.


    >>> places(3), places(2, known=True)
    (array([-1.1,  0. ,  1.1]), array([-1.1,  1.1]))
    """
    if count == 1 and not known:
        return np.zeros(1)
    return np.linspace(-REACH, REACH, count + (known and count % 2))[:count]


def peak(alphas: Sequence[float], scores: Sequence[float], *, center: float, images: float) -> Peak:
    """Return the coefficient at which the smooth curve through some looks is highest.

    Args:
        alphas: Coefficients above 0 that were looked at.
        scores: Mean accuracy in % of each.
        center: The coefficient that is expected to be the best.
        images: Number of images behind each look, all tasks together.

    >>> alphas = [0.25, 0.5, 1.0, 2.0, 4.0]
    >>> best = peak(alphas, [60.0, 70.0, 73.0, 70.0, 60.0], center=1.0, images=1e6)
    >>> round(best.alpha, 2), round(best.value, 1)
    (1.0, 73.0)
    """
    looks, given = np.log(np.asarray(alphas) / center), np.asarray(scores, float)
    x = np.linspace(looks.min(), looks.max(), _GRID)
    mean, error = curve(x, looks, given, images)
    best = int(mean.argmax())
    return Peak(center * math.exp(x[best]), float(mean[best]), float(error[best]))
