"""The merge of least loss on the span of the task vectors, in the tangent model.

`tasklab.analyses.merging.best` aims at features and needs no labels; this one takes the labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.best import PerTask, pairs
from tasklab.errors import TasklabError, whole
from tasklab.models.heads import Head, minimise


def span_of_loss(
    f0: PerTask,
    basis: Sequence[PerTask],
    heads: Sequence[Head],
    labels: Sequence[Int[Tensor, " N"]],
    *,
    start: Sequence[float] | None = None,
    iterations: int = 100,
) -> Float[Tensor, " S"]:
    """Return the c that minimise the loss itself on the span, in the tangent model.

        sum_t E_{x, y in t} cross-entropy(head_t(f(x; theta_0) + sum_s c_s J(x) tau_s), y)

    By L-BFGS in float64, to the minimum next to `start`: a head that normalises features makes it
    not convex. It sees labels, and has a coefficient for each vector.

    Args:
        f0: f(x; theta_0) on the images of each task.
        basis: J(x) tau_s there, for each s.
        start: Where to begin, e.g. the c of `best.span`; by default at 0.
    """
    if not basis:
        raise TasklabError("a span needs at least one vector.")
    for one in basis:
        pairs(one, f0)
    if not len(f0) == len(heads) == len(labels):
        raise TasklabError("each task needs a head, and labels of its images.")
    precise = [head.to(torch.float64) for head in heads]
    slopes = [torch.stack([one[t] for one in basis]).double() for t in range(len(f0))]
    first = torch.zeros(len(basis)) if start is None else torch.as_tensor(start)
    c = first.detach().double().clone().requires_grad_()

    def loss() -> Tensor:
        return sum(
            F.cross_entropy(head(x.double() + torch.tensordot(c.to(x.device), J, 1)), y)
            for head, x, J, y in zip(precise, f0, slopes, labels, strict=True)
        )

    minimise(c, loss, whole("iterations", iterations, 1), 1e-9)
    return finite(c.detach(), "coefficients on the span")
