"""Loss of a merge in the tangent model, and the best merge on the span of the vectors.

In the tangent model f(x; theta_0) + J(x) tau, a merge loses nothing on task t if J(x) tau is
J(x) tau_t for its images x. So the best one minimises

    E(tau) = sum_t E_{x in t} e' G_t(x) e,      e = J(x) (tau - tau_t),

of which average, Fisher, RegMean and WUDI keep a part of each task's matrix H_t = E J' G_t J
(`tasklab.analyses.merging.quadratic`). G_t is one of three (`metrics`):

- `features`: the identity;
- `normalised`: the identity over the task's own term at tau = 0, so that all tasks count alike;
- `logits`: the Fisher information of the task's head, so that only what moves logits counts.

On the span of the vectors, tau = sum_s c_s tau_s, tangent features suffice (`span`); with labels,
`span_of_loss` minimises the loss there. `minimum` minimises E over all weights.

Letters: T tasks, S vectors, N images, D features, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.finite import finite
from tasklab.errors import TasklabError, choose, whole
from tasklab.isolation import isolated
from tasklab.models.heads import Head, minimise
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures

PerTask = Sequence[Float[Tensor, "N D"]]  # J(x) tau on the images of each task
METRICS = ("features", "normalised", "logits")
_NONE = "the task vectors change no feature of these images."


@dataclasses.dataclass(frozen=True, eq=False)
class Metric:
    """How errors of a task's features are weighed: e -> weight G(x) e.

    G is the identity or, with a head, A' (diag p - p p') A, with p the probabilities and A the
    Jacobian of the logits at the features of the task's own tangent model. There e' G e / 2 is, to
    second order, the divergence of the merge's probabilities from these.
    """

    weight: float = 1.0
    head: Head | None = None
    at: Float[Tensor, "N D"] | None = None  #: f(x; theta_0) + J(x) tau_t

    def __call__(
        self, e: Float[Tensor, "B D"], rows: Tensor | slice = slice(None)
    ) -> Float[Tensor, "B D"]:
        """Return weight G e of some of the images."""
        if self.head is None or self.at is None:
            return self.weight * e
        p, W, turn = self._linear(self.head, self.at[rows].to(e))
        moved = p * (turn(e) @ W.T)
        return self.weight * turn((moved - p * moved.sum(-1, keepdim=True)) @ W)

    def draw(
        self, like: Float[Tensor, "B D"], rows: Tensor, numbers: torch.Generator
    ) -> Float[Tensor, "B D"]:
        """Return random rows whose covariance is weight G of some of the images.

        Args:
            like: Features in whose shape, type and place the rows are drawn.
            rows: Numbers (B,) of the images whose G is taken.
            numbers: Source of the random numbers.
        """

        def signs(x: Tensor) -> Tensor:
            return (2 * torch.randint(0, 2, x.shape, generator=numbers) - 1).to(x)

        if self.head is None or self.at is None:
            return self.weight**0.5 * signs(like)
        p, W, turn = self._linear(self.head, self.at[rows].to(like))
        v = p.sqrt() * signs(p)
        return self.weight**0.5 * turn((v - p * v.sum(-1, keepdim=True)) @ W)

    @staticmethod
    def _linear(head: Head, at: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """Return p, and W and the symmetric P of the Jacobian of logits A = W P."""
        W, p = head.weight.to(at), head(at).softmax(-1).to(at)
        size = at.norm(dim=-1, keepdim=True)
        unit = at / size

        def turn(v: Tensor) -> Tensor:
            return (v - unit * (unit * v).sum(-1, keepdim=True)) / size if head.normalise else v

        return p, W, turn


def metrics(name: str, own: Sequence[TangentFeatures], heads: Sequence[Head]) -> list[Metric]:
    """Return the metric of each task's images.

    Args:
        name: One of `METRICS`.
        own: Tangent features of each task's own vector on them.
        heads: One classifier per task.
    """
    choose("metric", name, METRICS)
    if name == "logits":
        return [Metric(head=h, at=one.at(1.0)) for one, h in zip(own, heads, strict=True)]
    if name == "features":
        return [Metric() for _ in own]
    sizes = [_product(one.jtau, one.jtau) for one in own]
    if not all(sizes):
        raise TasklabError(_NONE)
    return [Metric(1 / size) for size in sizes]


@isolated
def tangents(
    evaluator: Evaluator, vector: TaskVector, tasks: Sequence[str], split: str = "val"
) -> list[Float[Tensor, "N D"]]:
    """Return J(x) tau of a vector on the images of each task, computed once per store.

    Args:
        evaluator: The model with its heads and images.
        vector: The task vector tau.
        tasks: Names of the tasks.
        split: `"train"`, `"val"` or `"test"`.
    """
    return [evaluator.tangent_features(vector, task, split).jtau for task in tasks]


def objective(merged: PerTask, own: PerTask, by: Sequence[Metric] | None = None) -> float:
    """Return E(tau); `by` is the metric of each task, features' by default.

    Args:
        merged: J(x) tau of the merged vector on the images of each task, (N, D) each.
        own: J(x) tau_t of each task's own vector on the same images.
        by: The metric of each task; features' by default.
    """
    return total([a - b for a, b in pairs(merged, own)], by)


def total(errors: PerTask, by: Sequence[Metric] | None = None) -> float:
    """Return the sum over tasks of the mean of e' G e."""
    weighed = _weighed(errors, by)
    return sum(_product(e, g) for e, g in zip(errors, weighed, strict=True))


def relative(merged: PerTask, own: PerTask, by: Sequence[Metric] | None = None) -> float:
    """Return E(tau) / E(0): 0 for a merge without loss on any task, 1 for the unedited model.

    E is that of `objective`, with `by` as there.

    Args:
        merged: J(x) tau of the merged vector on the images of each task, (N, D) each.
        own: J(x) tau_t of each task's own vector on the same images.
        by: The metric of each task; features' by default.
    """
    start = total(own, by)
    if start == 0:
        raise TasklabError(_NONE)
    return objective(merged, own, by) / start


def pairs(one: PerTask, two: PerTask) -> list[tuple[Tensor, Tensor]]:
    """Return the tangent features of two vectors task by task, or raise if they do not match."""
    if len(one) != len(two) or any(a.shape != b.shape for a, b in zip(one, two, strict=True)):
        raise TasklabError("tangent features must be of the same images of the same tasks.")
    return list(zip(one, two, strict=True))


@isolated
def span(
    basis: Sequence[PerTask], own: PerTask, by: Sequence[Metric] | None = None
) -> Float[Tensor, " S"]:
    """Return the c that minimise E(sum_s c_s tau_s), from S x S products of tangent features.

    With the tasks' own vectors as basis this is the best merge on their span; with a single merged
    vector it is its best coefficient. Of several minima it is the smallest c.

    Args:
        basis: J(x) tau_s on the images of each task, for each s.
        own: J(x) tau_t on the images of each task t.
        by: The metric of each task; features' by default.

    >>> span([[torch.tensor([[2.0, 0.0]])]], [torch.tensor([[1.0, 5.0]])])
    tensor([0.5000], dtype=torch.float64)
    """
    if not basis:
        raise TasklabError("a span needs at least one vector.")
    A = torch.zeros(len(basis), len(basis), dtype=torch.float64)
    b = torch.zeros(len(basis), dtype=torch.float64)
    for s, one in enumerate(basis):
        weighed = _weighed(one, by)
        for r, other in enumerate(basis[: s + 1]):
            A[s, r] = A[r, s] = sum(_product(x, y) for x, y in pairs(weighed, other))
        b[s] = sum(_product(x, y) for x, y in pairs(weighed, own))
    return torch.linalg.pinv(finite(A, "products of tangent features"), hermitian=True) @ b


@isolated
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
        heads: One classifier per task.
        labels: Classes of the images, one tensor per task.
        start: Where to begin, e.g. the c of `best.span`; by default at 0.
        iterations: Steps of the optimiser, at most.
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


def _weighed(errors: PerTask, by: Sequence[Metric] | None) -> PerTask:
    if by is None:
        return errors
    return [metric(e) for metric, e in zip(by, errors, strict=True)]


def _product(one: Tensor, two: Tensor) -> float:
    return float((one.double() * two.double()).sum() / len(one))
