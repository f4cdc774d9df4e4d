"""Merges of matrices by their singular vectors; other parameters are averaged.

All work on a matrix at a time, in float64. `tasklab.analyses.merging.vectors` decides which
parameters are matrices.

Singular vectors and polar factors come by the cheapest way that is exact enough. With A = U S V',
the eigenvectors of the smaller of A'A and AA' are singular vectors, at a fraction of the cost. A
direction whose singular value is c times the largest has a relative error of 1e-16 / c^2; where c
is below 1e-4 the decomposition itself is taken.

Letters: T tasks, O outputs, I inputs, r = min(O, I), K directions.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.merging.vectors import (
    Vectors,
    by_tensor,
    decomposed,
    is_matrix,
    is_narrow,
    listed,
    mean,
    total,
)
from tasklab.errors import real
from tasklab.storage.placement import decomposes
from tasklab.taskvector import TaskVector

_FINE = 1e-8  # c^2
_NULL = 1e-10  # relative singular value that is rounding error in float64
_ROUNDED = 1e-5  # relative to |A|: of weights in float32 with a product of factors added
_FEW = 0.05  # share of directions that full fine-tuning may leave as short
_log = logging.getLogger(__name__)


def tsv_m(vectors: Vectors, *, alpha: float = 1.0) -> TaskVector:
    """Concatenate each task's leading singular directions, and orthogonalise them.

    *Task Singular Vectors*, arXiv:2412.00081 (TSV-Merge):

        tau_t = U_t S_t V_t', truncated to the r / T largest triplets
        U = [U_1 ... U_T], V = [V_1 ... V_T], S = diag(S_1, ..., S_T)
        merged = alpha polar(U) S polar(V)'

    One task alone stays as it is. A direction that tasks share exactly counts once, shared among
    them. Of a matrix with r < T, such as a head of one output, the mean is taken. (TSV-Compress
    keeps a model for each task: it is no merge.)
    """
    return decomposed(listed(vectors), orthogonalised, alpha)


def orthogonalised(name: str, matrices: list[Tensor]) -> Tensor:
    """Return one matrix of all tasks' leading singular directions, as `tsv_m` does."""
    if is_narrow(name, matrices):
        return mean(matrices)
    k = min(matrices[0].shape) // len(matrices)
    return _rejoined([leading(x, k) for x in matrices])


def iso_c(vectors: Vectors, *, alpha: float = 1.0) -> TaskVector:
    """Set all singular values of the sum to their mean.

    *Isotropic Merging in Common Subspace*, arXiv:2502.04959:

        sum_t tau_t = U S V',      merged = alpha U mean(S) V'

    Of a sum of low rank, as of adapters, a part of U and V is undetermined: a warning says so.
    """
    ranks = _Ranks("Iso-C")
    return decomposed(
        listed(vectors), lambda name, matrices: flattened(total(matrices), name, ranks), alpha
    )


def boosting(vectors: Vectors, *, beta: float = 0.01, alpha: float = 1.0) -> TaskVector:
    """Raise the small singular values of the sum.

    *Subspace-Boosted Model Merging*, arXiv:2506.16506, as FusionBench implements it on task
    arithmetic:

        sum_t tau_t = U S V',      merged = alpha U max(S, s_k) V'

    with s_k the first singular value at which the share beta of their sum is reached. Of q, k and v
    each is a matrix. Other parameters are summed.

    Args:
        vectors: Task vectors of one model.
        beta: 0.01 is FusionBench's default. From the first direction's share on down, all
            singular values become the largest.
        alpha: Coefficient of the result.
    """
    each, beta = listed(vectors), real("beta", beta, 0, 1)
    place = decomposes(each[0].device)

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        S = total(tensors)
        if not is_matrix(name, S):
            return S
        S = S.to(place)
        parts = S.chunk(3) if name.endswith(("in_proj_weight", "qkv.weight")) else (S,)
        return torch.cat([raised(part, beta) for part in parts])

    return by_tensor(each, rule, alpha)


def iso_cts(vectors: Vectors, *, common: float = 0.8, alpha: float = 1.0) -> TaskVector:
    """Combine common and task-specific directions, all with one singular value.

    *Isotropic Merging in Common and Task-Specific Subspaces*, arXiv:2502.04959:

        U_c S_c V_c'  the leading part of sum_t tau_t
        U_t S_t V_t'  the leading part of (1 - U_c U_c') tau_t, with an equal share of the rest of r
        merged        alpha mean(S) polar([U_1 ... U_T U_c]) polar([V_1 ... V_T V_c])'

    The rest is rounded to a multiple of T, as in the published code. Of changes of low rank, as of
    adapters, a part of these directions is undetermined: a warning says so.

    Args:
        vectors: Task vectors of one model.
        common: Share of the directions that are common; 0.8 is the paper's.
        alpha: Coefficient of the result.
    """
    each, common = listed(vectors, 2), real("common", common, 0, 1)
    ranks = _Ranks("Iso-CTS")

    def rule(name: str, matrices: list[Tensor]) -> Tensor:
        matrices = [x.double() for x in matrices]
        many, r = len(matrices), min(matrices[0].shape)
        own = min(round((r - int(r * common)) / many), r // many)
        S = total(matrices)
        if not own:
            return flattened(S, name, ranks)
        parts, lengths = [], [float(x.norm()) for x in matrices]
        if r > own * many:
            parts = [leading(S, r - own * many)]
            ranks.check(name, parts[0].s, r - own * many, float(S.norm()))
            u = parts[0].u
            matrices = [x - u @ (u.T @ x) for x in matrices]
        each_own = [leading(x, own) for x in matrices]
        for one, length in zip(each_own, lengths, strict=True):
            ranks.check(name, one.s, own, length)
        return _rejoined([*each_own, *parts], flat=True)

    return decomposed(each, rule, alpha)


def _rejoined(parts: list[Triplets], *, flat: bool = False) -> Tensor:
    s = torch.cat([part.s for part in parts])
    if not len(s):
        return parts[0].u @ parts[0].vh  # of a matrix that no task changes
    if flat:
        s = s.mean().expand_as(s)
    u = orthogonal(torch.cat([part.u for part in parts], 1))
    v = orthogonal(torch.cat([part.vh for part in parts]).T)
    return (u * s) @ v.T


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


@dataclasses.dataclass
class _Ranks:
    """Logs, once a merge, that a rule takes directions of a matrix that only rounding has."""

    title: str  #: Of the rule
    told: bool = False

    def check(self, name: str, s: Float[Tensor, " K"], count: int, length: float) -> None:
        """Compare a parameter's rank with the number of directions that a rule takes.

        Args:
            name: Of the parameter.
            s: Its singular values, at least the `count` largest, or all that are not 0.
            count: How many directions the rule takes.
            length: Norm of the matrix, or of the one that it is a part of.
        """
        rank, sure = (int((s > share * length).sum()) for share in (_ROUNDED, _NULL))
        if self.told or not length or (sure == count and count - rank <= _FEW * count):
            return
        self.told = True
        _log.warning(
            "%s takes %d directions of %s, and the changes have only %d, as those of adapters: "
            "nothing determines the others. Take tsv_m or arithmetic, or merge networks without "
            "--model in the space knots.",
            self.title, count, name, rank,
        )  # fmt: skip


def flattened(
    A: Float[Tensor, "O I"], name: str = "", ranks: _Ranks | None = None
) -> Float[Tensor, "O I"]:
    """Return U mean(S) V': a matrix with all its singular values replaced by their mean.

    Where A is not of full rank, its null space is filled by directions that no rule determines.

    Args:
        A: The matrix.
        name: Of the parameter.
        ranks: Is told the singular values of a matrix that may not be of full rank.
    """
    A = A.double()
    if A.shape[0] < A.shape[1]:
        return flattened(A.T, name, ranks).T
    squares, v = torch.linalg.eigh(A.T @ A)
    if float(squares[0]) > _FINE * float(squares[-1]):
        s = squares.sqrt()
        return (A @ (v / s)) @ (v.T * s.mean())
    u, s, vh = torch.linalg.svd(A, full_matrices=False)
    if ranks is not None:
        ranks.check(name, s, len(s), float(s.norm()))
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
