"""Statistics of all tasks' images, summed up a task at a time.

Fisher's and RegMean's merges need only sums of statistics over tasks, so that one task's statistics
are held beside the sums, whatever the number of tasks:

    pooled = pooled_grams(vectors, (grams(encoder, x, params=theta(t)) for t, x in images))
    merged = regmean(vectors, pooled, ratio=0.3)

The sums serve every ratio r and ridge c, with d_t the diagonal of G_t:

    sum_t tau_t (r G_t + (1 - r) diag(d_t) + c) = r sum_t tau_t G_t + sum_t tau_t ((1 - r) d_t + c)

Letters: T tasks, O outputs, I inputs, P = I (I + 1) / 2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.merging.vectors import Vectors, is_matrix, listed, turned
from tasklab.errors import TasklabError, abridged, shown
from tasklab.storage.placement import placed
from tasklab.sums import add_to
from tasklab.taskvector import TaskVector

Tensors = Mapping[str, Tensor]
PerTask = Iterable[Tensors] | Mapping[str, Tensors]
GRAMS = "this merge needs the Gram matrices of images: give grams=[images.grams(...)]"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Grams:
    """Sums over tasks of Gram matrices, in float64."""

    total: Tensors  #: sum_t G_t by parameter, its upper triangle (P,); of a scale (I,)
    products: Tensors  #: sum_t tau_t G_t (O, I); of a scale (I,)
    diagonals: Tensors  #: That of each G_t (T, I)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Diagonals:
    """Sums over tasks of Fisher information, of the vectors' type."""

    total: Tensors  #: sum_t F_t by parameter
    products: Tensors  #: sum_t F_t tau_t


def pooled_grams(vectors: Vectors, grams: PerTask | Grams | None) -> Grams:
    """Sum the Gram matrices that `regmean` needs, over matrices that all tasks have.

    Args:
        grams: G_t (I, I), symmetric, by the parameter's name, or its diagonal (I,) for the scales
            of a normalisation: in the vectors' order, where an iterator may make them one by one,
            or by the same names. Sums are only moved.
    """
    each = listed(vectors, 2)
    if isinstance(grams, Grams):
        return Grams(**placed(vars(grams), each[0].device))
    total: dict[str, Tensor] = {}
    products: dict[str, Tensor] = {}
    diagonals: dict[str, list[Tensor]] = {}
    known = list(each[0])
    for vector, one in matched(vectors, each, grams, GRAMS):
        shared = [n for n in known if n in one and (is_matrix(n, vector[n]) or one[n].dim() == 1)]
        for name in total.keys() - set(shared):
            del total[name], products[name], diagonals[name]
        for name in shared:
            tau = turned(name, vector[name]).double()
            G = gram_of(name, one, tau)
            add_to(total, name, G.clone() if G.dim() == 1 else packed(G))
            add_to(products, name, tau * G if G.dim() == 1 else tau @ G)
            diagonals.setdefault(name, []).append(G if G.dim() == 1 else G.diagonal().clone())
        known = list(total)
        del one  # before the next task's are made
    if not total:
        raise TasklabError("the Gram matrices are of none of the vectors' parameters.")
    stacked = {name: torch.stack(rows) for name, rows in diagonals.items()}
    return Grams(total=total, products=products, diagonals=stacked)


def gram_of(name: str, grams: Tensors, tau: Tensor) -> Tensor:
    """Return a Gram matrix as a task's matrix needs it, or raise if its shape is another.

    Args:
        name: Of the matrix.
        grams: Gram matrices of one task, by the name of each matrix.
        tau: The task's change of the matrix (O, I).
    """
    side, G = tau.shape[-1], grams[name].to(tau)
    if G.shape != (side,) * tau.dim():
        raise TasklabError(f"the Gram matrices of {name} must have {side} rows and columns.")
    return G


def pooled_diagonals(vectors: Vectors, diagonals: PerTask | Diagonals | None) -> Diagonals:
    """Sum the Fisher information that `fisher` needs.

    Args:
        diagonals: F_t in the parameters' shapes, by their names: in the vectors' order, where an
            iterator may make them one by one, or by the same names. Sums are only moved.
    """
    each = listed(vectors, 2)
    if isinstance(diagonals, Diagonals):
        return Diagonals(**placed(vars(diagonals), each[0].device))
    asked = "fisher needs the Fisher information of images: give diagonals=[fisher_diagonals(...)]"
    total: dict[str, Tensor] = {}
    products: dict[str, Tensor] = {}
    for vector, one in matched(vectors, each, diagonals, asked):
        if missing := [name for name in vector if name not in one]:
            raise TasklabError(f"the Fisher information lacks {abridged(missing)}.")
        for name, tau in vector.items():
            F = one[name].to(tau)
            if F.shape != tau.shape or (F < 0).any():
                raise TasklabError(
                    f"the Fisher information of {name} is negative, or of other shape."
                )
            add_to(total, name, F.clone())
            add_to(products, name, F * tau)
        del one  # before the next task's are made
    return Diagonals(total=total, products=products)


def packed(G: Float[Tensor, "I I"]) -> Float[Tensor, " P"]:
    """Return the upper triangle of a symmetric matrix, which is half of it.

    >>> packed(torch.tensor([[1, 2], [2, 3]]))
    tensor([1, 2, 3])
    """
    i, j = torch.triu_indices(*G.shape, device=G.device)
    return G[i, j]


def unpacked(triangle: Float[Tensor, " P"]) -> Float[Tensor, "I I"]:
    """Return the symmetric matrix of an upper triangle.

    >>> unpacked(torch.tensor([1, 2, 3]))
    tensor([[1, 2],
            [2, 3]])
    """
    side = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    i, j = torch.triu_indices(side, side, device=triangle.device)
    G = triangle.new_empty(side, side)
    G[i, j] = triangle
    G[j, i] = triangle
    return G


def matched(
    vectors: Vectors, each: Sequence[TaskVector], given: PerTask | None, asked: str
) -> Iterator[tuple[TaskVector, Tensors]]:
    """Yield each vector with its statistics, one task at a time, or raise if one has none.

    Args:
        vectors: The vectors that are merged.
        each: The same as a list.
        given: Statistics of the images of each task, by task or in order.
        asked: The needed statistics in a sentence, for messages.
    """
    if given is None:
        raise TasklabError(f"{asked}.")
    if isinstance(vectors, Mapping) and isinstance(given, Mapping):
        if missing := [name for name in vectors if name not in given]:
            raise TasklabError(f"{asked}: that of {shown(missing[0])} is missing.")
        given = [given[name] for name in vectors]
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise TasklabError(f"{asked}, not {type(given).__name__}.")
    if isinstance(given, Mapping):
        given = given.values()
    have = len(given) if isinstance(given, Sized) else len(each)
    if have == len(each):
        have = 0
        for one in given:
            have += 1
            if have > len(each):
                break
            if not isinstance(one, Mapping):
                raise TasklabError(f"{asked}, each by the names of parameters.")
            yield each[have - 1], one
            del one
    if have != len(each):
        raise TasklabError(f"{asked} for each of {len(each)} vectors, not {have}.")
