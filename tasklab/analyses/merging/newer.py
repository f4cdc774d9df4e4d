"""Merges of 2026 that need no images, as their authors' code has them.

They are ACE-Merging, ACTMat and DC-Merge.

They treat matrices and take the mean of everything else. No chapter records them yet.

Letters: T tasks, O outputs, I inputs, K directions of each task.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.merging.singular import leading, orthogonal
from tasklab.analyses.merging.vectors import Vectors, decomposed, is_narrow, listed, mean, total
from tasklab.errors import real
from tasklab.taskvector import TaskVector

_APART = 0.3  # of the lengths' spread, from which on tasks are scaled alike
_TINY = 1e-12


def ace(
    vectors: Vectors, *, eps: float = 1e-2, share: float = 0.3, alpha: float = 1.0
) -> TaskVector:
    """Merge by RegMean with covariances of inputs that are estimated from the vectors alone.

    *ACE-Merging*, arXiv:2603.02945, as the authors' code has it. With each column's mean over
    outputs subtracted, tau_t becomes W_t, and

        G_t = W_t' W_t,         merged = alpha (sum_t W_t (G_t + eps)) (sum_t (G_t + eps) + 1 c')^-1

    where c is the mean row of sum_t G_t. Where lengths differ, that is where the variance of
    ln |tau_t|^2 is larger than 0.3 times the square of its mean, G_t and eps are divided by
    trace G_t, c by the mean of |tau_t|^2, and the leading directions U V' of

        merged + sum_t tau_t (G_t - mean_s (G_s + eps))

    are added, times the mean of their singular values.

    Args:
        vectors: Task vectors of one model.
        eps: Added to the diagonal; it has the square of the vectors' unit, so that the merge does
            not scale with them. 0.01 is the code's.
        share: Of the directions that are added; 0.3 is the code's.
        alpha: Coefficient of the result.
    """
    eps, share = real("eps", eps, 0), real("share", share, 0, 1)
    return decomposed(listed(vectors), lambda _, tensors: _ace(tensors, eps, share), alpha)


def _ace(matrices: list[Tensor], eps: float, share: float) -> Float[Tensor, "O I"]:
    each = torch.stack([x.double() for x in matrices])
    squares = each.square().sum((1, 2))
    logs = (squares + _TINY).log()
    spread = logs.var() / (logs.mean() ** 2 + _TINY) if len(logs) > 1 else logs.new_zeros(())
    differ = bool(spread > _APART)
    W = each - each.mean(1, keepdim=True)
    G = W.mT @ W
    ridge = eps * torch.ones(len(G), 1, 1).to(G)
    if differ:
        traces = (G.diagonal(dim1=1, dim2=2).sum(1) + _TINY)[:, None, None]
        G, ridge = G / traces, ridge / traces
    full = G + ridge * torch.eye(G.shape[-1]).to(G)
    row = G.sum(0).mean(0, keepdim=True) / (squares.mean() + _TINY if differ else 1)
    A, B = full.sum(0) + row, (W @ full).sum(0)
    try:
        made = torch.linalg.solve(A, B, left=False)
    except torch.linalg.LinAlgError:  # eps is 0
        made = B @ torch.linalg.pinv(A)
    if not differ:
        return made
    u, s, vh = leading(made + (each @ (G - full.mean(0))).sum(0), min(made.shape))
    k = int(min(made.shape) * share)
    return made + s[:k].mean() * (u[:, :k] @ vh[:k]) if k and len(s) else made


def actmat(vectors: Vectors, *, rtol: float | None = None, alpha: float = 1.0) -> TaskVector:
    """Merge by RegMean with tau_t' tau_t for the covariance of each task's inputs.

    *Model Merging via Data-Free Covariance Estimation* (ACTMat), arXiv:2604.01329, as the authors'
    code has it:

        merged = alpha (sum_t tau_t tau_t' tau_t) (sum_t tau_t' tau_t)^+

    It minimises the objective of `wudi_exact` without the division by |tau_t|^2. In float32, which
    the code uses, the pseudo-inverse leaves out directions that the vectors hardly have.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        rtol: Share of the largest eigenvalue of the sum, at or below which a direction is left out;
            by default I times the precision of float32, as in the code.
        alpha: Coefficient of the merge.
    """
    least = None if rtol is None else real("rtol", rtol, 0, 1)

    def rule(_: str, matrices: list[Tensor]) -> Float[Tensor, "O I"]:
        each = torch.stack([x.double() for x in matrices])
        G = each.mT @ each
        share = G.shape[-1] * torch.finfo(torch.float32).eps if least is None else least
        return (each @ G).sum(0) @ torch.linalg.pinv(G.sum(0), rtol=share, hermitian=True)

    return decomposed(listed(vectors), rule, alpha)


def dc_merge(
    vectors: Vectors, *, keep: float = 1e-3, smooth: bool | float = False, alpha: float = 1.0
) -> TaskVector:
    """Merge the largest entries of the vectors in a basis that all tasks share.

    *DC-Merge*, arXiv:2603.06242, as the authors' code has it. With U_t S_t V_t' the r / T largest
    triplets of tau_t,

        U = polar([U_1 ... U_T]),     V = polar([V_1 ... V_T]),     M_t = U' U_t S_t V_t' V

    trimmed to the largest entries; their sum elects each entry's sign, those that agree are
    averaged, and of the mean M only the blocks of a task with itself: merged = alpha U M V'.

    Args:
        vectors: Task vectors of one model.
        keep: Share of the unmasked entries of each M_t, at least one; 0.001 is the code's.
        smooth: Whether the singular values of a task are replaced by their mean, as the code does
            for adapters, and not for whole networks.
        alpha: Coefficient of the result.
    """
    keep = real("keep", keep, 0, 1)

    def rule(name: str, matrices: list[Tensor]) -> Tensor:
        if is_narrow(name, matrices):
            return mean(matrices)
        k = min(matrices[0].shape) // len(matrices)
        return _covered([leading(x, k) for x in matrices], keep, bool(smooth))

    return decomposed(listed(vectors), rule, alpha)


def _covered(parts: list, keep: float, smooth: bool) -> Float[Tensor, "O I"]:
    sizes = [len(part.s) for part in parts]
    if not sum(sizes):
        return parts[0].u @ parts[0].vh  # of a matrix that no task changes
    U = orthogonal(torch.cat([part.u for part in parts], 1))
    V = orthogonal(torch.cat([part.vh for part in parts]).T)
    kept = []
    for part in parts:
        s = part.s.mean().expand_as(part.s) if smooth and len(part.s) else part.s
        M = (U.T @ part.u * s) @ (part.vh @ V)
        least = M.abs().flatten().topk(max(1, int(keep * M.numel()))).values[-1]
        kept.append(torch.where(M.abs() >= least, M, 0.0))
    sign = total(kept).sign()
    agree = torch.stack([one.sign() == sign for one in kept])
    M = (torch.stack(kept) * agree).sum(0) / agree.sum(0).clamp(min=1)
    blocks = torch.block_diag(*(torch.ones(k, k) for k in sizes)).to(M)
    return U @ torch.where(sign == 0, 0.0, M * blocks) @ V.T
