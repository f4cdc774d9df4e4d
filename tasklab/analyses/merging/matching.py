"""The merge that matches models in their tasks' parameter subspaces, by conjugate gradients.

*MaTS* (arXiv:2312.04339, sections 3 and 4; code: r-three/mats) asks of the merged weights W of a
linear layer that

    sum_t B_t W A_t = sum_t B_t W_t A_t,

with A_t and B_t K-FAC's factors of task t's Fisher information at its own model
(`tuning.kronecker.fisher`). It is solved for tau = W - W_0, in which it has the same form, by some
steps of conjugate gradients from a start; fewer steps stay nearer to it. Parameters
without factors are averaged.

Letters: O outputs, I inputs of a layer; one more input is the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.sums import average
from tasklab.analyses.merging.vectors import Vectors, listed
from tasklab.errors import TasklabError, wholes
from tasklab.isolation import isolated
from tasklab.storage.placement import placed
from tasklab.taskvector import TaskVector
from tasklab.tuning.kronecker import Factors

COUNTS = (10, 20, 50, 100)  # steps of conjugate gradients that are looked at


@isolated
def mats(
    vectors: Vectors,
    factors: Sequence[Factors],
    start: TaskVector,
    counts: Sequence[int] = COUNTS,
) -> list[TaskVector]:
    """Return tau after each of some numbers of steps (MaTS).

    Args:
        vectors: The tasks' own.
        factors: Of each task, in the vectors' order.
        start: The tau to begin with; parameters without factors are averaged.
        counts: Numbers of steps, ascending.

    Raises:
        TasklabError: If factors are missing, or belong to other shapes.
    """
    each = listed(vectors, 2)
    if len(factors) != len(each):
        raise TasklabError(f"{len(each)} vectors need as many factors, not {len(factors)}.")
    counts, merged = sorted(wholes("counts", counts, 1)), average(each)
    found = [dict(merged) for _ in counts]
    start = placed(start, each[0].device)
    for name in sorted(set.intersection(*(set(one.inputs) for one in factors)) & set(merged)):
        bias = factors[0].biases.get(name, "")
        turned = name in factors[0].turned

        def joined(tau: TaskVector, name: str = name, bias: str = bias) -> Tensor:
            D = (tau[name].T if name in factors[0].turned else tau[name]).double()
            if not bias:
                return D
            last = tau[bias].double() if bias in tau else D.new_zeros(len(D))
            return torch.cat([D, last[:, None]], 1)

        A, B = (
            [placed(t[name].double(), each[0].device) for t in (f.inputs for f in factors)],
            [placed(t[name].double(), each[0].device) for t in (f.outputs for f in factors)],
        )
        own = [*map(joined, each)]
        if A[0].shape[0] != own[0].shape[1] or B[0].shape[0] != own[0].shape[0]:
            raise TasklabError(f"the factors of {name} belong to another shape.")
        steps = _solved(A, B, own, joined(start), counts)
        for place, X in enumerate(steps):
            W = X[:, :-1] if bias else X
            found[place][name] = (W.T if turned else W).to(merged[name])
            if bias in merged:
                found[place][bias] = X[:, -1].to(merged[bias])
    return [TaskVector(one, merged.base) for one in found]


def _solved(
    A: Sequence[Tensor],
    B: Sequence[Tensor],
    own: Sequence[Tensor],
    X: Tensor,
    counts: Sequence[int],
) -> Iterator[Tensor]:
    """Yield X after some numbers of steps towards sum_t B_t X A_t = sum_t B_t X_t A_t."""

    def product(Y: Tensor) -> Tensor:
        return sum(b @ Y @ a for a, b in zip(A, B, strict=True))  # type: ignore[return-value]

    target = sum(b @ x @ a for a, b, x in zip(A, B, own, strict=True))
    r = finite(target - product(X), "Fisher information")
    p, size = r.clone(), float(r.square().sum())
    least = 1e-24 * max(size, float(target.square().sum()))
    for step in range(1, counts[-1] + 1):
        if size > least:
            Hp = product(p)
            length = size / float((p * Hp).sum())
            X, r = X + length * p, r - length * Hp
            before, size = size, float(r.square().sum())
            p = r + size / before * p
        if step in counts:
            yield X
