"""Merges that minimise a quadratic distance from all task vectors.

    merged = argmin_tau sum_t |tau - tau_t|^2_{G_t}

| rule | G_t |
|---|---|
| average | the identity |
| Fisher | the diagonal of task t's Fisher information |
| RegMean | of each matrix W: the Gram matrix X_t' X_t of what it reads on task t's images |
| WUDI | of each matrix: tau_t' tau_t / |tau_t|^2, in the place of images |

What all of them approximate is the minimum for G_t = E_x J(x)' J(x), which
`tasklab.analyses.merging.best` computes.

Letters: T tasks, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.finite import as_coefficient, finite
from tasklab.analyses.merging.vectors import (
    Vectors,
    by_matrix,
    by_tensor,
    is_matrix,
    listed,
    mean,
    total,
)
from tasklab.errors import TasklabError, abridged, real, shown, whole
from tasklab.taskvector import TaskVector

Tensors = Mapping[str, Tensor]
PerTask = Sequence[Tensors] | Mapping[str, Tensors]
_SINGULAR = 1e-10  # smallest pivot, relative to the largest, that is no rounding error


def fisher(vectors: Vectors, diagonals: PerTask | None = None, *, alpha: float = 1.0) -> TaskVector:
    """Weigh every number by the task's Fisher information.

    *Merging Models with Fisher-Weighted Averaging*, arXiv:2111.09832:

        merged = alpha sum_t F_t tau_t / sum_t F_t

    Numbers of which no task tells anything are averaged.

    Args:
        vectors: tau_t, at least two.
        diagonals: F_t of each, as `images.fisher_diagonals` gives it, in the vectors' order or by
            the same names.
        alpha: Coefficient of the result.

    Raises:
        TasklabError: If Fisher information is missing, negative or of another shape.
    """
    each = listed(vectors, 2)
    asked = "fisher needs the Fisher information of images: give diagonals=[fisher_diagonals(...)]"
    F = _matched(vectors, diagonals, asked, len(each))
    for one in F:
        if missing := [name for name in each[0] if name not in one]:
            raise TasklabError(f"the Fisher information lacks {abridged(missing)}.")

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        weights = [one[name].to(tensors[0]) for one in F]
        if any(w.shape != x.shape or (w < 0).any() for w, x in zip(weights, tensors, strict=True)):
            raise TasklabError(f"the Fisher information of {name} is negative, or of other shape.")
        norm = finite(sum(weights), f"the Fisher information of {name}")
        weighed = sum(w * x for w, x in zip(weights, tensors, strict=True))
        return torch.where(norm > 0, weighed / norm, mean(tensors))

    return by_tensor(each, rule, alpha)


def regmean(
    vectors: Vectors,
    grams: PerTask | None = None,
    *,
    ratio: float = 0.9,
    ridge: float = 0.0,
    alpha: float = 1.0,
) -> TaskVector:
    """Solve for the matrices that give what each task's own gives, on its images.

    *Dataless Knowledge Fusion by Merging Weights* (RegMean), arXiv:2212.09849:

        W = (sum_t W_t G_t) (sum_t G_t)^-1,      G_t = X_t' X_t

    For task vectors it is the same formula. What has no Gram matrix is averaged, and so are the
    columns of inputs that are 0 on all images.

    Args:
        vectors: tau_t, at least two.
        grams: G_t (I, I) of each, by the parameter's name, as `images.grams` gives it, in the
            vectors' order or by the same names.
        ratio: What numbers off the diagonal of G_t are multiplied by; 0.9 is the paper's.
        ridge: Times the mean of the diagonal of sum_t G_t / T, is added to the diagonal of each
            G_t: the larger, the nearer is the result to the average.
        alpha: Coefficient of the result.

    Raises:
        TasklabError: If Gram matrices are missing or of other shapes, or their sum is singular.
    """
    each = listed(vectors, 2)
    ratio, ridge = real("ratio", ratio, 0, 1), real("ridge", ridge, 0)
    asked = "regmean needs the Gram matrices of images: give grams=[images.grams(...)]"
    G = _matched(vectors, grams, asked, len(each))
    if not any(is_matrix(name, x) and all(name in one for one in G) for name, x in each[0].items()):
        raise TasklabError("the Gram matrices are of none of the vectors' parameters.")

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        if not all(name in one for one in G):
            return mean(tensors)
        moments = [_shrunk(one[name].to(tensors[0].device), ratio) for one in G]
        side = tensors[0].shape[1]
        if any(moment.shape != (side, side) for moment in moments):
            raise TasklabError(f"the Gram matrices of {name} must have {side} rows and columns.")
        size = finite(sum(moment.diagonal().mean() for moment in moments), f"Grams of {name}")
        unread = sum(moments).diagonal() == 0
        for moment in moments:
            moment.diagonal()[unread] = 1
            moment.diagonal().add_(ridge * size / len(moments))
        top = sum(x.double() @ moment for x, moment in zip(tensors, moments, strict=True))
        solved = _solved(top, sum(moments))
        if solved is None:
            raise TasklabError(
                f"the Gram matrices of {name} sum up to a singular one: give more images, or a "
                "ridge such as 1e-6."
            )
        return solved

    return by_matrix(each, rule, alpha)


def wudi(vectors: Vectors, *, alpha: float = 1.0) -> TaskVector:
    """Minimise what the merged matrix does on each task's own rows, in closed form.

    *Whoever Started the Interference Should End It* (WUDI), arXiv:2503.08099:

        min_W sum_t |(W - tau_t) tau_t'|^2 / |tau_t|^2

    Its minimum is RegMean's formula with G_t = tau_t' tau_t / |tau_t|^2, no images needed. Where
    that leaves directions free that no task reads, nothing is read there: it is the minimum that
    gradient descent from the sum of the vectors goes to. What is no matrix is averaged.

    Args:
        vectors: tau_t, at least two.
        alpha: Coefficient of the result.
    """

    def rule(name: str, matrices: list[Tensor]) -> Tensor:
        own = [x.double() for x in matrices if x.any()]
        if not own:
            return matrices[0]
        rows, inputs = len(own) * own[0].shape[0], own[0].shape[1]
        if rows >= inputs:
            A, B = _interference(own)
            solved = _solved(B, A)
            return B @ torch.linalg.pinv(A, hermitian=True) if solved is None else solved
        # With R = [tau_t / |tau_t|] on top of each other, A = R'R, B = C R and W = C (R R')^-1 R.
        sizes = [x.norm() for x in own]
        R = torch.cat([x / size for x, size in zip(own, sizes, strict=True)])
        C = torch.cat([x @ x.T / size for x, size in zip(own, sizes, strict=True)], 1)
        solved = _solved(C, R @ R.T)
        return C @ torch.linalg.pinv(R).T if solved is None else solved @ R

    return by_matrix(listed(vectors, 2), rule, alpha)


def wudi_descent(
    vectors: Vectors, *, steps: int = 300, lr: float = 1e-5, alpha: float = 1.0
) -> TaskVector:
    """Go towards the minimum that `wudi` computes, by Adam from the sum of the vectors.

    This is how it was published (arXiv:2503.08099), and how far 300 steps lead depends on the size
    of the vectors.

    Args:
        vectors: tau_t, at least two.
        steps: Of Adam; 300 of 1e-5 are those of the published code.
        lr: Its learning rate, in the units of the weights.
        alpha: Coefficient of the result.
    """
    steps, lr = whole("steps", steps, 1), real("lr", lr, 0)
    beta1, beta2, eps = 0.9, 0.999, 1e-8  # Adam's usual ones

    def rule(name: str, matrices: list[Tensor]) -> Tensor:
        A, B = _interference(matrices)
        W = total(matrices)
        first, second = torch.zeros_like(W), torch.zeros_like(W)
        for step in range(1, steps + 1):
            gradient = 2 * (W @ A - B)
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            size = (second / (1 - beta2**step)).sqrt_().add_(eps)
            W.addcdiv_(first, size, value=-lr / (1 - beta1**step))
        return W

    return by_matrix(listed(vectors, 2), rule, as_coefficient(alpha, "alpha"))


def interference(W: Float[Tensor, "O I"], matrices: Sequence[Float[Tensor, "O I"]]) -> float:
    """Return WUDI's objective, sum_t |(W - tau_t) tau_t'|^2 / |tau_t|^2, at a matrix.

    Args:
        W: The merged matrix.
        matrices: tau_t.
    """
    return sum(
        float(((W - x) @ x.T).square().sum() / x.square().sum()) for x in matrices if x.any()
    )


def _interference(matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return A and B of the gradient 2 (W A - B) of `interference`."""
    A = matrices[0].new_zeros(matrices[0].shape[1], matrices[0].shape[1])
    B = torch.zeros_like(matrices[0])
    for x in matrices:
        if x.any():
            G = x.T @ x / x.square().sum()
            A += G
            B += x @ G
    return A, B


def _matched(vectors: Vectors, given: PerTask | None, asked: str, many: int) -> list[Tensors]:
    """Return what images told of each task, in the order of the vectors."""
    if given is None:
        raise TasklabError(f"{asked}.")
    if isinstance(vectors, Mapping) and isinstance(given, Mapping):
        if missing := [name for name in vectors if name not in given]:
            raise TasklabError(f"{asked}: that of {shown(missing[0])} is missing.")
        return [given[name] for name in vectors]
    if not isinstance(given, Mapping | Sequence):
        raise TasklabError(f"{asked}, not {type(given).__name__}.")
    listed_ = list(given.values() if isinstance(given, Mapping) else given)
    if len(listed_) != many:
        raise TasklabError(f"{asked} for each of {many} vectors, not {len(listed_)}.")
    if not all(isinstance(one, Mapping) for one in listed_):
        raise TasklabError(f"{asked}, each by the names of parameters.")
    return listed_


def _shrunk(G: Tensor, ratio: float) -> Tensor:
    """Return a Gram matrix in float64 with what is off its diagonal multiplied by a ratio."""
    diagonal = G.double().diagonal().clone()
    G = G.double() * ratio
    G.diagonal().copy_(diagonal)
    return G


def _solved(top: Float[Tensor, "O I"], G: Float[Tensor, "I I"]) -> Tensor | None:
    """Return `top` G^-1 for a symmetric G that is not negative; `None` if G is singular.

    Inputs are scaled to one size first, so that a faint one makes nothing singular.
    """
    size = G.diagonal().sqrt()
    if not size.all():
        return None
    L, failed = torch.linalg.cholesky_ex(G / torch.outer(size, size))
    pivots = L.diagonal().square()
    if failed or not float(pivots.min()) > _SINGULAR * float(pivots.max()):
        return None
    return torch.cholesky_solve((top / size).T, L).T / size
