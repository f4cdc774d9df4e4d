"""Singular vectors and polar factors, in float64, by the cheapest way that is exact enough.

With A = U S V', the eigenvectors of the smaller of A'A and AA' are singular vectors, at a fraction
of the cost. A direction whose singular value is c times the largest has a relative error of
1e-16 / c^2; where c is below 1e-4 the decomposition itself is taken.

Letters: O outputs, I inputs, K leading directions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_FINE = 1e-8  # c^2
_NULL = 1e-10  # relative singular value that is rounding error in float64


class Triplets(NamedTuple):
    """Singular values and vectors: A is nearly u diag(s) vh."""

    u: Float[Tensor, "O K"]
    s: Float[Tensor, " K"]
    vh: Float[Tensor, "K I"]


def leading(A: Float[Tensor, "O I"], k: int) -> Triplets:
    """Return the k largest singular values of a matrix, with their vectors; none that are 0.

    Args:
        k: At most its smaller side; fewer are returned if its rank is lower.
    """
    A = A.double()
    if A.shape[0] < A.shape[1]:
        u, s, vh = leading(A.T, k)
        return Triplets(vh.T, s, u.T)
    squares, v = torch.linalg.eigh(A.T @ A)
    squares, v = squares[-k:].flip(0), v[:, -k:].flip(1)
    if float(squares[-1]) > _FINE * float(squares[0]):
        s = squares.sqrt()
        return Triplets(A @ v / s, s, v.T)
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    k = min(k, int((s > _NULL * s[0]).sum()))
    return Triplets(u[:, :k], s[:k], vh[:k])


def flattened(A: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    """Return U mean(S) V': a matrix with all its singular values replaced by their mean.

    Where A is not of full rank, its null space is filled by directions that no rule determines.
    """
    A = A.double()
    if A.shape[0] < A.shape[1]:
        return flattened(A.T).T
    squares, v = torch.linalg.eigh(A.T @ A)
    if float(squares[0]) > _FINE * float(squares[-1]):
        s = squares.sqrt()
        return (A @ (v / s)) @ (v.T * s.mean())
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    return (u * s.mean()) @ vh


def raised(A: Float[Tensor, "O I"], share: float) -> Float[Tensor, "O I"]:
    """Return a matrix whose small singular values are raised to s_k; those that are 0 stay.

    s_k is the first one at which a share of their sum is reached, from the largest on.
    """
    u, s, vh = leading(A, min(A.shape))
    if not len(s):
        return A
    k = int((s.cumsum(0) < share * s.sum()).sum())
    return (u * s.clamp_min(s[min(k, len(s) - 1)])) @ vh


def orthogonal(A: Float[Tensor, "O K"]) -> Float[Tensor, "O K"]:
    """Return the polar factor U V' of a matrix: the nearest one with orthogonal columns, or rows.

    Directions without length stay so: columns that are equal are one direction, which they share.
    """
    if A.shape[0] < A.shape[1]:
        return orthogonal(A.T).T
    squares, v = torch.linalg.eigh(A.T @ A)
    if float(squares[0]) > _FINE * float(squares[-1]):
        return (A @ (v / squares.sqrt())) @ v.T
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    kept = s > _NULL * s[0]
    return u[:, kept] @ vh[kept]
