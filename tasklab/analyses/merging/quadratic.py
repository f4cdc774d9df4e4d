"""Merges that minimise a quadratic distance from all task vectors.

    merged = argmin_tau sum_t |tau - tau_t|^2_{G_t}

| rule | G_t |
|---|---|
| average | the identity |
| Fisher | the diagonal of task t's Fisher information |
| RegMean | for each matrix W the Gram matrix X_t' X_t of its inputs on task t's images |
| RegMean++ | the same, of its inputs in the merged model |
| WUDI | of each matrix: tau_t' tau_t / |tau_t|, in the place of images |

All of them approximate the minimum for G_t = E_x J(x)' J(x), which
`tasklab.analyses.merging.best` computes.

Letters: T tasks, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.finite import as_coefficient, finite
from tasklab.analyses.merging.images import Reader
from tasklab.analyses.merging.pooled import (
    Diagonals,
    Grams,
    PerTask,
    pooled_diagonals,
    pooled_grams,
    unpacked,
)
from tasklab.analyses.merging.sums import depths
from tasklab.analyses.merging.vectors import (
    Vectors,
    by_matrix,
    by_tensor,
    is_matrix,
    listed,
    mean,
    total,
    turned,
)
from tasklab.errors import TasklabError, real, whole
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import matrices

_SINGULAR = 1e-10  # smallest pivot, relative to the largest, that is no rounding error


def fisher(
    vectors: Vectors, diagonals: PerTask | Diagonals | None = None, *, alpha: float = 1.0
) -> TaskVector:
    """Weigh every entry by the task's Fisher information.

    *Merging Models with Fisher-Weighted Averaging*, arXiv:2111.09832:

        merged = alpha sum_t F_t tau_t / sum_t F_t

    Entries without Fisher information are averaged.

    Args:
        vectors: Task vectors of one model.
        diagonals: F_t of each, as `images.fisher_diagonals` gives it, in the vectors' order, where
            an iterator may make them one by one, or by the same names; or their sums
            (`pooled.pooled_diagonals`).
        alpha: Coefficient of the result.
    """
    sums = pooled_diagonals(vectors, diagonals)

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        norm = finite(sums.total[name], f"the Fisher information of {name}")
        return torch.where(norm > 0, sums.products[name] / norm, mean(tensors))

    return by_tensor(listed(vectors, 2), rule, alpha)


def regmean(
    vectors: Vectors,
    grams: PerTask | Grams | None = None,
    *,
    ratio: float = 0.9,
    ridge: float = 0.0,
    alpha: float = 1.0,
) -> TaskVector:
    """Solve least squares for the outputs of each task's own layers on its images.

    *Dataless Knowledge Fusion by Merging Weights* (RegMean), arXiv:2212.09849:

        W = (sum_t W_t G_t) (sum_t G_t)^-1,      G_t = X_t' X_t

    The formula is the same for task vectors. Parameters without a Gram matrix are averaged, and so
    are the columns of inputs that are 0 on all images.

    Args:
        vectors: Task vectors of one model.
        grams: G_t (I, I) of each, by the parameter's name, as `images.grams` gives it, in the
            vectors' order, where an iterator may make them one by one, or by the same names; or
            their sums (`pooled.pooled_grams`).
        ratio: Factor of numbers off the diagonal of G_t; 0.9 is the paper's.
        ridge: Times the mean of the diagonal of sum_t G_t / T, is added to the diagonal of each
            G_t: the larger, the nearer is the result to the average. Without it, the result may be
            hundreds of times as long as a vector.
        alpha: Coefficient of the result.
    """
    ratio, ridge = real("ratio", ratio, 0, 1), real("ridge", ridge, 0)
    sums = pooled_grams(vectors, grams)

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        if name not in sums.total:
            return mean(tensors)
        own = sums.diagonals[name]
        triangle = finite(sums.total[name], f"Grams of {name}")
        size = own.mean(1).sum()
        added = (own.sum(0) == 0) + ridge * size / len(own)  # an input that is never read: the mean
        top = ratio * sums.products[name]
        for x, diagonal in zip(tensors, own, strict=True):
            top += x.double() * ((1 - ratio) * diagonal + added)
        G = ratio * unpacked(triangle)
        G.diagonal().copy_(own.sum(0) + len(own) * added)
        solved = _solved(top, G)
        if solved is None:
            raise TasklabError(
                f"the Gram matrices of {name} sum up to a singular one: give more images, or a "
                "ridge such as 1e-6."
            )
        return solved

    return by_matrix(listed(vectors, 2), rule, alpha)


def regmean_plusplus(
    vectors: Vectors,
    readers: Iterable[Reader] | None = None,
    *,
    ratio: float = 0.9,
    ridge: float = 0.0,
    alpha: float = 1.0,
) -> TaskVector:
    """Merge block by block by RegMean, on images that the merged blocks before have passed.

    *RegMean++*, arXiv:2508.03121, as FusionBench implements it: Gram matrices of block l are those
    of task t's own block behind the merged blocks 0 ... l - 1. Parameters outside of blocks are
    averaged; that code leaves those behind the blocks at theta_0. Of tangent vectors, whose images
    are read at theta_0, this is `regmean`.

    Args:
        vectors: Task vectors of one model.
        readers: Of each task, in the vectors' order, a function of a vector and names that returns
            these parameters' Gram matrices at theta_0 + the vector (`images.of_images`).
        ratio: Factor of numbers off the diagonal of G_t.
        ridge: As of `regmean`.
        alpha: Coefficient of the result.
    """
    each = listed(vectors, 2)
    given = [] if readers is None else list(readers)
    if len(given) != len(each):
        raise TasklabError(
            "regmean_plusplus reads images again for every block: give readers=[...], as "
            f"images.of_images returns them, for each of {len(each)} vectors, not {len(given)}."
        )
    block = depths(each[0]) or dict.fromkeys(each[0], 0)
    parts: dict[int, list[str]] = {place: [] for place in sorted({*block.values()})}
    for name, place in block.items():
        parts[place].append(name)
    outside = [name for name in each[0] if name not in block]
    merged = {name: mean([vector[name] for vector in each]) for name in outside}
    for names in parts.values():
        grams = (
            read(TaskVector({**vector, **merged}), names)
            for read, vector in zip(given, each, strict=True)
        )
        own = [TaskVector({name: vector[name] for name in names}) for vector in each]
        merged |= regmean(own, grams, ratio=ratio, ridge=ridge)
    return by_tensor(each, lambda name, _: merged[name], alpha)


def wudi(vectors: Vectors, *, steps: int = 300, lr: float = 1e-5, alpha: float = 1.0) -> TaskVector:
    """Reduce interference on each task's own rows, by Adam from the sum.

    *Whoever Started the Interference Should End It* (WUDI), arXiv:2503.08099, as its authors' code
    does it, for the weights of the linear layers of all blocks:

        min_W sum_t |(W - tau_t) tau_t'|^2 / |tau_t|

    All other parameters stay at theta_0. How far 300 steps lead depends on the size of the vectors.
    Where the names of a block's matrices are not all known, all matrices of blocks are merged; of a
    model without blocks, all matrices.

    Args:
        vectors: Task vectors of one model.
        steps: Of Adam; 300 of 1e-5 are those of the authors' code.
        lr: Learning rate of Adam.
        alpha: Coefficient of the result.
    """
    each = listed(vectors, 2)
    every = [name for name in each[0] if is_matrix(name, each[0].like(name))]
    within = [name for name in every if name in depths(each[0])]
    chosen = {*matrices(each[0]), *within} or {*every}
    steps, lr = whole("steps", steps, 1), real("lr", lr, 0)

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        if name not in chosen:
            return torch.zeros_like(tensors[0])
        own = [turned(name, x) for x in tensors]
        return turned(name, _descended(own, steps, lr, power=1))

    return by_tensor(each, rule, as_coefficient(alpha, "alpha"))


def wudi_exact(vectors: Vectors, *, alpha: float = 1.0) -> TaskVector:
    """Minimise the objective of WUDI's text (arXiv:2503.08099) in closed form.

        min_W sum_t |(W - tau_t) tau_t'|^2 / |tau_t|^2

    Its minimum is RegMean's formula with G_t = tau_t' tau_t / |tau_t|^2; where that leaves
    directions free, the limit of gradient descent from the sum. Other parameters are
    averaged. Where the vectors have about as many rows as inputs, the minimum also fits their
    noise, and is far longer than their sum: `wudi_descent` ends before.
    """

    def rule(name: str, each: list[Tensor]) -> Tensor:
        own = [x.double() for x in each if x.any()]
        if not own:
            return each[0]
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
    """Go towards the minimum that `wudi_exact` computes, by Adam from the sum of the vectors.

    This is FusionBench's WUDI (arXiv:2503.08099): `wudi` of all matrices, with |tau_t|^2 in place
    of |tau_t|, and other parameters averaged.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        steps: Of Adam.
        lr: Adam's learning rate.
        alpha: Coefficient of the merge.
    """
    steps, lr = whole("steps", steps, 1), real("lr", lr, 0)

    def rule(_: str, own: list[Tensor]) -> Tensor:
        return _descended(own, steps, lr, power=2)

    return by_matrix(listed(vectors, 2), rule, as_coefficient(alpha, "alpha"))


def _descended(each: Sequence[Tensor], steps: int, lr: float, *, power: int) -> Tensor:
    """Return where Adam ends that starts at the sum of matrices, each divided by |tau_t|^power."""
    beta1, beta2, eps = 0.9, 0.999, 1e-8  # Adam's usual ones
    A, B = _interference(each, power)
    W = total(each)
    first, second = torch.zeros_like(W), torch.zeros_like(W)
    for step in range(1, steps + 1):
        gradient = 2 * (W @ A - B)
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = (second / (1 - beta2**step)).sqrt_().add_(eps)
        W.addcdiv_(first, size, value=-lr / (1 - beta1**step))
    return W


def interference(W: Float[Tensor, "O I"], each: Sequence[Float[Tensor, "O I"]]) -> float:
    """Return the objective of WUDI's text, sum_t |(W - tau_t) tau_t'|^2 / |tau_t|^2."""
    return sum(float(((W - x) @ x.T).square().sum() / x.square().sum()) for x in each if x.any())


def _interference(each: Sequence[Tensor], power: int = 2) -> tuple[Tensor, Tensor]:
    """Return A and B of the gradient 2 (W A - B) of `interference`, divided by |tau_t|^power."""
    A = each[0].new_zeros(each[0].shape[1], each[0].shape[1])
    B = torch.zeros_like(each[0])
    for x in each:
        if x.any():
            G = x.T @ x / x.square().sum() ** (power / 2)
            A += G
            B += x @ G
    return A, B


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
