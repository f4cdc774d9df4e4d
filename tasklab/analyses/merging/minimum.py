"""The merge that loses least in the tangent model, over all weights, by conjugate gradients.

    E(tau) = sum_t E_{x in t} e' G_t(x) e,      e = J(x) (tau - tau_t)

E is quadratic and `best.Metric` is G. A step takes one forward-mode and one backward pass over all
images for H p = sum_t E J' G_t J p. The tau of least E on unlabelled validation images is the
result (early stopping). Rounds on few images come first; each starts where the last one ended.

Steps are preconditioned by H's Kronecker factors. With v random of covariance G_t(x), a matrix's
gradient g = J(x)' v has E vec(g) vec(g)' = H, which is near L x R / tr(L) with L = E g g' and
R = E g' g: few images and backward passes give both, of any network.

Letters: N images, D features.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.best import Metric, total
from tasklab.errors import TasklabError, whole
from tasklab.models.encoder import Encoder
from tasklab.placement import placed
from tasklab.progress import bar
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent

Weights = dict[str, Tensor]
_FACTORS = 16  # images whose gradients are one random sample
_DAMPING = 0.03  # of the preconditioner, times H's mean eigenvalue


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A task's part of E, on some of its images."""

    images: Tensor
    own: Float[Tensor, "N D"]  #: J(x) tau_t
    metric: Metric

    def first(self, count: int) -> Part:
        """Return the part of the first images alone."""
        at = None if self.metric.at is None else self.metric.at[:count]
        metric = dataclasses.replace(self.metric, at=at)
        return Part(self.images[:count], self.own[:count], metric)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A merge over all weights, and the last round's values at its start and after each step."""

    vector: TaskVector  #: tau, on the encoder's device
    objective: tuple[float, ...]  #: E on the images that it is solved for
    checked: tuple[float, ...]  #: E on the images for checks
    #: Norm of the gradient, in that of the preconditioner, relative to the round's start.
    residual: tuple[float, ...]


def minimum(
    encoder: Encoder,
    parts: Sequence[Part],
    start: TaskVector,
    checks: Sequence[Part] = (),
    *,
    rounds: Sequence[tuple[int, int]],
    patience: int = 2,
    tolerance: float = 1e-8,
    factors: int = 256,
    batch_size: int = 128,
    progress: bool = False,
) -> Solution:
    """Minimise E over all weights that a vector changes.

    Args:
        checks: Parts of other images of each task, for early stopping; none for the minimum itself.
        rounds: Images of each task, at most, and steps, at most, of each round.
        patience: Steps without a lower E on `checks` that end a round.
        factors: Images of each task behind the preconditioner, at most.
    """
    if not parts or not all(len(part.images) for part in (*parts, *checks)):
        raise TasklabError("the best merge needs images of every task.")
    goes = memory.Parts(whole("batch_size", batch_size, 1))
    solution = Solution(placed(start, encoder.device), (), (), ())
    with bar(sum(steps for _, steps in rounds), "conjugate gradients", on=progress) as counter:
        for count, steps in rounds:
            few, other = ([one.first(count) for one in each] for each in (parts, checks))
            inverse = _inverse(encoder, few, dict(solution.vector), factors)
            solution = _round(
                _Problem(encoder, few, other, goes), dict(solution.vector), inverse,
                (steps, patience, tolerance), counter.update,
            )  # fmt: skip
    return solution


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    encoder: Encoder
    parts: Sequence[Part]
    checks: Sequence[Part]
    goes: memory.Parts

    def product(self, p: Weights, *, left: bool = False) -> tuple[list[Tensor], Weights]:
        """Return J p and H p; or, of what is `left`, J (tau_t - p) and sum_t E J' G_t of it."""
        sums: Weights = {}
        each = []
        for part in self.parts:
            rows = []
            of_batch = functools.partial(self._batch, part, p, left)
            for e, gradient in self.goes(of_batch, torch.arange(len(part.images))):
                rows.append(finite(e, "tangents"))
                for name, x in gradient.items():
                    x = x / len(part.images)
                    sums[name] = sums[name] + x if name in sums else x
            each.append(torch.cat(rows))
        return each, sums

    def _batch(self, part: Part, p: Weights, left: bool, rows: Tensor) -> tuple[Tensor, Weights]:
        found: list[Tensor] = []

        def weighed(v: Tensor) -> Tensor:
            found.append(part.own[rows].to(v) - v if left else v)
            return part.metric(found[-1], rows)

        encoder, x = self.encoder, self.encoder.preprocess(part.images[rows])
        _, gradient = tangent.normal(encoder, encoder.params, p, x, weighed)
        return found[-1], gradient

    def moved(self, p: Weights) -> list[Tensor]:
        """Return J p on the images for checks."""
        of = functools.partial(tangent.features, self.encoder, self.encoder.params, p)
        return [of(part.images, self.goes.size).jtau for part in self.checks]


def _round(
    problem: _Problem,
    tau: Weights,
    inverse: Callable[[Weights], Weights],
    ends: tuple[int, int, float],
    step: Callable[[int], object],
) -> Solution:
    steps, patience, tolerance = ends
    errors, r = problem.product(tau, left=True)
    apart = [part.own - v for part, v in zip(problem.checks, problem.moved(tau), strict=True)]
    by, by_checks = ([part.metric for part in each] for each in (problem.parts, problem.checks))
    objective, checked, residual = [total(errors, by)], [total(apart, by_checks)], [1.0]
    p = z = inverse(r)
    size = first = _dot(r, z)
    best = tau
    for _ in range(steps):
        if residual[-1] <= tolerance or not size > 0:
            break
        moved, Hp = problem.product(p)
        length = _dot(p, Hp)
        if not length > 0:
            break
        a = size / length
        tau, r = _plus(tau, p, a), _plus(r, Hp, -a)
        errors = [e - a * v for e, v in zip(errors, moved, strict=True)]
        apart = [e - a * v for e, v in zip(apart, problem.moved(p), strict=True)]
        z = inverse(r)
        size, before = _dot(r, z), size
        p = _plus(z, p, size / before)
        objective.append(total(errors, by))
        residual.append((max(size, 0.0) / first) ** 0.5)
        checked.append(total(apart, by_checks))
        if checked[-1] <= min(checked):
            best = tau
        step(1)
        if checked.index(min(checked)) < len(checked) - patience and problem.checks:
            break
    return Solution(TaskVector(best), tuple(objective), tuple(checked), tuple(residual))


def _inverse(
    encoder: Encoder, parts: Sequence[Part], tau: Weights, count: int
) -> Callable[[Weights], Weights]:
    """Return the product with the inverse of H's Kronecker factors, from some images of each task.

    A vector is a matrix of one column, and a kernel of a convolution one of its outputs' rows.
    """
    numbers = torch.Generator().manual_seed(0)
    leaves = {name: encoder.params[name].detach().requires_grad_() for name in tau}
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for part in parts:
        many = min(whole("factors", count, 1), len(part.images))
        for rows in torch.arange(many).split(_FACTORS):
            with torch.enable_grad():
                x = encoder.preprocess(part.images[rows])
                f = encoder({**encoder.params, **leaves}, x)
                v = part.metric.draw(f.detach(), rows, numbers)
                gradients = tangent.pullback(f, leaves, v)
            for name, g in gradients.items():
                g = _matrix(g).double() / many**0.5
                L, R = factors.get(name, (0, 0))
                factors[name] = L + g @ g.T, R + g.T @ g
    traces = {name: float(L.trace()) for name, (L, _) in factors.items()}
    mean = sum(traces.values()) / sum(x.numel() for x in tau.values())
    if not mean > 0:
        raise TasklabError("the task vectors change no feature of these images.")
    bases: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for name, sides in factors.items():
        (a, U), (b, V) = map(torch.linalg.eigh, sides)
        sizes = torch.outer(a, b).clamp(min=0) / (traces[name] or 1.0)
        each = (U, V, 1 / (sizes + _DAMPING * mean))
        bases[name] = tuple(x.to(tau[name].dtype) for x in each)

    def inverse(r: Weights) -> Weights:
        made = {}
        for name, x in r.items():
            U, V, scale = bases[name]
            made[name] = (U @ (scale * (U.T @ _matrix(x) @ V)) @ V.T).reshape(x.shape)
        return made

    return inverse


def _matrix(x: Tensor) -> Tensor:
    return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)


def _plus(one: Weights, two: Mapping[str, Tensor], scale: float) -> Weights:
    return {name: torch.add(x, two[name], alpha=scale) for name, x in one.items()}


def _dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    return sum(float((x.double() * two[name].double()).sum()) for name, x in one.items())
