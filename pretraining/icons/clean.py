"""Near copies: pairs of pictures whose grey values correlate above a limit, found exactly.

Designers copy each other, and a drawing comes in several weights. All pairs are compared, but most
of them by their projections on smooth functions, which bound the correlation from above; the
correlations that decide are computed from sums of integers, so that every machine removes the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 0.95
_SLACK = 1e-3  # of the bound, in float32: far more than its rounding
_ROWS = 2048


def grey(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return brightness (n, S, S) of pictures (n, 1 or 3, S, S), by integers."""
    if pictures.shape[1] == 1:
        return pictures[:, 0]
    red, green, blue = pictures.astype(np.uint16).transpose(1, 0, 2, 3)
    return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)


def _smooth(side: int, per_axis: int) -> NDArray[np.float32]:
    """Return orthonormal cosines (side², per_axis²) of the lowest frequencies."""
    at = np.arange(side) + 0.5
    waves = np.stack([np.cos(np.pi * k * at / side) for k in range(min(side, per_axis))])
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    return np.einsum("ay,bx->yxab", waves, waves).reshape(side**2, -1).astype(np.float32)


def _bounded(images: NDArray[np.uint8], per_axis: int = 14) -> NDArray[np.float32]:
    """Return vectors whose inner products are at least the correlations of images (n, S, S)."""
    smooth = _smooth(images.shape[1], per_axis)
    result = np.empty((len(images), per_axis**2 + 1), np.float32)
    for start in range(0, len(images), _ROWS):
        x = images[start : start + _ROWS].reshape(-1, smooth.shape[0]).astype(np.float32)
        x -= x.mean(1, keepdims=True)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
        low = x @ smooth
        rest = np.sqrt(np.maximum(0, 1 - (low**2).sum(1)))
        result[start : start + _ROWS] = np.column_stack([low, rest])
    return result


def correlation(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the correlations of pairs of images (n, S, S); sums are integers, so exact."""
    x, y = (np.asarray(v, np.int64).reshape(len(v), -1) for v in (a, b))
    n = x.shape[1]
    cross = n * (x * y).sum(1) - x.sum(1) * y.sum(1)
    of_x, of_y = (n * (v * v).sum(1) - v.sum(1) ** 2 for v in (x, y))
    return cross / np.sqrt(np.maximum(of_x, 1).astype(float) * np.maximum(of_y, 1).astype(float))


def _over(a: NDArray[np.uint8], b: NDArray[np.uint8], limit: float) -> NDArray[np.bool_]:
    """Return whether correlations are over the limit: roughly, and exactly where that is close."""
    x, y = (v.reshape(len(v), -1).astype(np.float32) for v in (a, b))
    x -= x.mean(1, keepdims=True)
    y -= y.mean(1, keepdims=True)
    sizes = [np.sqrt(np.maximum(np.einsum("ij,ij->i", v, v), 1)) for v in (x, y)]
    rough = np.einsum("ij,ij->i", x, y) / (sizes[0] * sizes[1])
    close = np.abs(rough - limit) < _SLACK
    over = rough > limit
    if close.any():
        over[close] = correlation(a[close], b[close]) > limit
    return over


def distinct(images: NDArray[np.uint8], limit: float = LIMIT) -> NDArray[np.bool_]:
    """Return which images (n, S, S) to keep: none is a near copy of a kept one before it."""
    vectors = _bounded(images)
    kept = np.zeros(len(images), bool)
    for start in range(0, len(images), _ROWS):
        block = slice(start, min(start + _ROWS, len(images)))
        before = np.flatnonzero(kept)
        copied = np.zeros(block.stop - start, bool)
        if len(before):
            copied = _copies(images, vectors, np.arange(start, block.stop), before, limit)
        inside = start + np.flatnonzero(~copied)
        near = vectors[inside] @ vectors[inside].T > limit - _SLACK
        for row, i in enumerate(inside):
            others = inside[:row][near[row, :row]]
            others = others[kept[others]]
            same = len(others) and _over(images[[i] * len(others)], images[others], limit)
            kept[i] = not np.any(same)
    return kept


def copies(
    images: NDArray[np.uint8], of: NDArray[np.uint8], limit: float = LIMIT
) -> NDArray[np.bool_]:
    """Return which images (n, S, S) are near copies of one of others (m, S, S)."""
    both = np.concatenate([images, of])
    vectors, others = _bounded(both), np.arange(len(images), len(both))
    result = np.zeros(len(images), bool)
    for start in range(0, len(images), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(images)))
        result[rows] = _copies(both, vectors, rows, others, limit)
    return result


def _copies(
    images: NDArray[np.uint8],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    others: NDArray[np.int64],
    limit: float,
) -> NDArray[np.bool_]:
    """Return which of the images `rows` are near copies of the images `others`."""
    result = np.zeros(len(rows), bool)
    for start in range(0, len(others), 8 * _ROWS):
        part = others[start : start + 8 * _ROWS]
        row, column = np.nonzero(vectors[rows] @ vectors[part].T > limit - _SLACK)
        for first in range(0, len(row), _ROWS):
            i, j = row[first : first + _ROWS], column[first : first + _ROWS]
            i, j = i[~result[i]], j[~result[i]]
            result[i[_over(images[rows[i]], images[part[j]], limit)]] = True
    return result
