"""The merge that loses least in the tangent model: what the other methods approximate.

In the tangent model f(x; theta_0) + J(x) tau, a merge loses nothing on task t if J(x) tau is
J(x) tau_t for its images x. So the best one minimises

    E(tau) = sum_t E_{x in t} |J(x) (tau - tau_t)|^2,

of which average, Fisher, RegMean and WUDI keep a part of each task's matrix H_t = E J(x)' J(x)
(`tasklab.analyses.merging.quadratic`). Two minima of it are computed here:

- on the span of the vectors, tau = sum_s c_s tau_s, from their tangent features alone (`span`);
- over all weights, sum_t H_t tau = sum_t H_t tau_t by conjugate gradients (`everywhere`).

On the images that it is solved for the second is never higher. With more weights than images times
features it goes to 0 there, so that only other images tell what it is worth, and the number of
steps is a choice like that of any training.

Letters: T tasks, S vectors, N images, D features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.finite import check_vectors, finite
from tasklab.analyses.merging.vectors import listed
from tasklab.errors import TasklabError, shown, whole
from tasklab.models.encoder import Encoder
from tasklab.placement import placed
from tasklab.progress import bar
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent

PerTask = Sequence[Float[Tensor, "N D"]]  # J(x) tau on the images of each task


def tangents(
    evaluator: Evaluator, vector: TaskVector, tasks: Sequence[str], split: str = "val"
) -> list[Float[Tensor, "N D"]]:
    """Return J(x) tau of a vector on the images of each task, from the store if it is there."""
    return [evaluator.tangent_features(vector, task, split).jtau for task in tasks]


def objective(merged: PerTask, own: PerTask) -> float:
    """Return E(tau) = sum_t E |J(x) tau - J(x) tau_t|^2."""
    return sum(_mean_product(a - b, a - b) for a, b in pairs(merged, own))


def relative(merged: PerTask, own: PerTask) -> float:
    """Return E(tau) / E(0): 0 if nothing is lost on any task, 1 for the unedited model."""
    start = sum(_mean_product(b, b) for b in own)
    if start == 0:
        raise TasklabError("the task vectors change no feature of these images.")
    return objective(merged, own) / start


def pairs(one: PerTask, two: PerTask) -> list[tuple[Tensor, Tensor]]:
    """Return the tangent features of two vectors task by task, or raise if they do not match."""
    if len(one) != len(two) or any(a.shape != b.shape for a, b in zip(one, two, strict=True)):
        raise TasklabError("tangent features must be of the same images of the same tasks.")
    return list(zip(one, two, strict=True))


def span(basis: Sequence[PerTask], own: PerTask) -> Float[Tensor, " S"]:
    """Return the c that minimise E(sum_s c_s tau_s), from S x S products of tangent features.

    With the tasks' own vectors as basis this is the best merge on their span; with a single merged
    vector it is its best coefficient. Of several minima it is the smallest c.

    Args:
        basis: J(x) tau_s on the images of each task, for each s.
        own: J(x) tau_t on the images of each task t.

    >>> span([[torch.tensor([[2.0, 0.0]])]], [torch.tensor([[1.0, 5.0]])])
    tensor([0.5000], dtype=torch.float64)
    """
    if not basis:
        raise TasklabError("a span needs at least one vector.")
    A = torch.zeros(len(basis), len(basis), dtype=torch.float64)
    b = torch.zeros(len(basis), dtype=torch.float64)
    for s, one in enumerate(basis):
        for r, other in enumerate(basis[: s + 1]):
            A[s, r] = A[r, s] = sum(_mean_product(x, y) for x, y in pairs(one, other))
        b[s] = sum(_mean_product(x, y) for x, y in pairs(one, own))
    return torch.linalg.pinv(finite(A, "products of tangent features"), hermitian=True) @ b


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A merge over all weights."""

    vector: TaskVector  #: tau after the last step, on the encoder's device
    #: E(tau) before the first step and after each, on the images it is solved for.
    objective: tuple[float, ...]


def everywhere(
    encoder: Encoder,
    vectors: Mapping[str, TaskVector],
    images: Mapping[str, Tensor],
    *,
    start: TaskVector | None = None,
    steps: int = 20,
    batch_size: int = 32,
    progress: bool = False,
) -> Solution:
    """Minimise E(tau) over all weights that the vectors change, by conjugate gradients.

    A step takes one forward-mode and one backward pass over all images, of which no Jacobian is
    kept: E is quadratic, and only H p for a direction p is needed. Nearest to `start` of all minima
    is the one that it goes to.

    Args:
        start: Where to begin, e.g. the minimum on the span; by default at 0.
        steps: The most steps; fewer where nothing is left to gain.
    """
    check_vectors(vectors)
    each, steps = placed(listed(vectors, 2), encoder.device), whole("steps", steps, 0)
    vectors = dict(zip(vectors, each, strict=True))
    if start is not None:
        _, start = listed([each[0], placed(start, encoder.device)])
    for task in vectors:
        if task not in images or not len(images[task]):
            raise TasklabError(f"the best merge needs images of task {shown(task)}.")
    parts = memory.Parts(whole("batch_size", batch_size, 1))
    tau = dict(TaskVector.zeros_like(each[0]) if start is None else start)
    r = {name: torch.zeros_like(x) for name, x in tau.items()}
    errors: dict[str, Tensor] = {}  # J(x) (tau - tau_t)
    for task, vector in vectors.items():
        left = {name: vector[name] - x for name, x in tau.items()}
        residual, product = _product(encoder, parts, left, images[task])
        errors[task] = -residual
        _add(r, product)
    p, size = dict(r), _dot(r, r)
    first, objective = size, [_total(errors)]
    with bar(steps, "conjugate gradients", on=progress) as counter:
        for _ in range(steps):
            if not size > 1e-24 * first:
                break
            Hp = {name: torch.zeros_like(x) for name, x in p.items()}
            moved = {}
            for task in vectors:
                moved[task], product = _product(encoder, parts, p, images[task])
                _add(Hp, product)
            length = _dot(p, Hp)
            if not length > 0:
                break
            a = size / length
            tau = {name: x + a * p[name] for name, x in tau.items()}
            _add(r, Hp, -a)
            for task, x in moved.items():
                errors[task] = errors[task] + a * x
            size, before = _dot(r, r), size
            p = {name: x + size / before * p[name] for name, x in r.items()}
            objective.append(_total(errors))
            counter.update(1)
    return Solution(TaskVector(tau), tuple(objective))


def _product(
    encoder: Encoder, parts: memory.Parts, tau: Mapping[str, Tensor], images: Tensor
) -> tuple[Float[Tensor, "N D"], dict[str, Tensor]]:
    """Return J tau on the images, and E J' J tau, at theta_0."""
    rows: list[Tensor] = []
    total: dict[str, Tensor] = {}
    for jtau, part in parts(
        lambda x: tangent.normal(encoder, encoder.params, tau, encoder.preprocess(x)), images
    ):
        rows.append(finite(jtau, "tangents"))
        total = {name: x + total[name] if total else x for name, x in part.items()}
    return torch.cat(rows), {name: x / len(images) for name, x in total.items()}


def _add(to: dict[str, Tensor], what: Mapping[str, Tensor], scale: float = 1.0) -> None:
    for name, x in what.items():
        to[name] = torch.add(to[name], x, alpha=scale)


def _dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    return sum(float((x.double() * two[name].double()).sum()) for name, x in one.items())


def _total(errors: Mapping[str, Tensor]) -> float:
    return sum(_mean_product(x, x) for x in errors.values())


def _mean_product(one: Tensor, two: Tensor) -> float:
    return float((one.double() * two.double()).sum() / len(one))
