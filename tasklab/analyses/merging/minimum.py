"""The merge of least loss E in the tangent model, over all weights.

    E(tau) = sum_t E_{x in t} e' G_t(x) e,      e = J(x) (tau - tau_t)

E is quadratic and `best.Metric` is G. A step of conjugate gradients takes one forward-mode and one
backward pass over the images for H p = sum_t E J' G_t J p. The result is the tau of least E on
unlabelled validation images (early stopping). Rounds on few images can precede those on all; each
continues from the last one's tau. Before all rounds, steps on small batches with momentum can
follow a step length that falls to zero. Near the minimum all e are small and with them the noise of
a batch, so an epoch gains more than a step on all images.

Steps are preconditioned by H's blocks of one parameter each. With v random of covariance G_t(x), a
matrix's gradient g = J(x)' v has E vec(g) vec(g)' = H, which is near L x R / tr(L) with L = E g g'
and R = E g' g; a vector's block is near its diagonal E g^2. All blocks of any network need only few
images and backward passes.

Letters: N images, D features.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.best import Metric, total
from tasklab.analyses.merging.vectors import Vectors, by_tensor, listed
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder
from tasklab.progress import bar
from tasklab.storage.placement import decomposes, placed
from tasklab.sums import add_to
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent

Weights = dict[str, Tensor]
_FACTORS = 16  # images whose gradients are one random sample
_DAMPING = 1.0  # of the preconditioner, times H's mean eigenvalue
_BATCH = 32  # images of each task in a step on a batch
_LENGTH, _MOMENTUM = 0.3, 0.9  # of the first such step, over the largest eigenvalue
_POWER = 6  # products that tell it


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
    """A merge over all weights, and values before and after each conjugate-gradient step."""

    vector: TaskVector  #: tau, on the encoder's device
    objective: tuple[float, ...]  #: E on the images that it is solved for
    checked: tuple[float, ...]  #: E on the images for checks
    #: Norm of the gradient, in that of the preconditioner, relative to the first.
    residual: tuple[float, ...]


@isolated
def least(vectors: Vectors, *, solution: TaskVector, alpha: float = 1.0) -> TaskVector:
    """Scale the solution that `minimum` found for these vectors.

    Args:
        vectors: The vectors that were merged.
        solution: The vector that `minimum` found.
        alpha: Coefficient of the merge.
    """
    return by_tensor(listed(vectors), lambda name, _: solution[name], alpha)


def size(vector: TaskVector) -> int:
    """Return about how many bytes `minimum` takes for vectors of these shapes.

    The preconditioner comes from two float64 matrices for every matrix of the network, with four
    copies of the weights; steps take these matrices' bases in float32 and eight copies.
    """
    matrices = [x.flatten(1).shape for x in vector.values() if x.dim() > 1]
    factors = sum(rows**2 + columns**2 for rows, columns in matrices)
    weights = 4 * sum(x.numel() for x in vector.values())
    return max(8 * factors + 4 * weights, 4 * factors + 8 * weights)


@isolated
def minimum(
    encoder: Encoder,
    parts: Sequence[Part],
    start: TaskVector,
    checks: Sequence[Part] = (),
    *,
    epochs: float = 0,
    rounds: Sequence[tuple[int, int]],
    patience: int = 2,
    tolerance: float = 1e-8,
    factors: int = 256,
    batch_size: int = 128,
    progress: bool = False,
) -> Solution:
    """Minimise E over all weights that a vector changes.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        parts: One part of each task's images, with its targets.
        start: The vector to begin with.
        checks: Parts of other images of each task, for early stopping; none for the minimum itself.
        epochs: Epochs of steps on batches, before all rounds.
        rounds: Most images of each task and most conjugate-gradient steps of each round.
        patience: Steps without a lower E on `checks` that end a round.
        tolerance: Relative residual at which steps end.
        factors: Images of each task behind the preconditioner, at most.
        batch_size: Images per pass; fewer where memory is short.
        progress: Whether to show a bar.
    """
    if not parts or not all(len(part.images) for part in (*parts, *checks)):
        raise TasklabError("the best merge needs images of every task.")
    goes = memory.Parts(whole("batch_size", batch_size, 1))
    solution = Solution(placed(start, encoder.device), (), (), ())
    tau = dict(solution.vector)
    most = max(len(part.images) for part in parts)
    batches = round(epochs * most / _BATCH)
    sized = [(*one, math.ceil(min(one[0], most) / _BATCH)) for one in rounds]  # in batches
    total = batches + sum(steps * size for _, steps, size in sized)
    with bar(total, "minimum", on=progress) as counter:
        if batches:
            inverse = _inverse(encoder, parts, tau, factors)
            problem = _Problem(encoder, parts, checks, goes)
            moved = _descended(problem, tau, inverse, batches, counter.update)
            tau = min(moved, tau, key=problem.error)  # noise may have won
        for count, steps, size in sized:
            few, other = ([one.first(count) for one in each] for each in (parts, checks))
            inverse = _inverse(encoder, few, tau, factors)
            problem, ends = _Problem(encoder, few, other, goes), (steps, patience, tolerance)
            done = functools.partial(counter.update, size)
            solution = _conjugated(problem, tau, inverse, ends, done)
            tau = dict(solution.vector)
    return solution


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    encoder: Encoder
    parts: Sequence[Part]
    checks: Sequence[Part]
    goes: memory.Parts
    numbers: torch.Generator = dataclasses.field(
        default_factory=lambda: torch.Generator().manual_seed(0)
    )

    def product(
        self, p: Weights, *, left: bool = False, count: int = 2**62
    ) -> tuple[list[Tensor], Weights]:
        """Return J p and H p; of a residual `left`, J (tau_t - p) and its sum_t E J' G_t.

        Args:
            count: Images of each task, at most, sampled at random.
        """
        sums: Weights = {}
        each = []
        for part in self.parts:
            rows, n = [], len(part.images)
            taken = torch.randperm(n, generator=self.numbers)[:count] if count < n else range(n)
            of_batch = functools.partial(self._batch, part, p, left)
            for e, gradient in self.goes(of_batch, torch.as_tensor(taken)):
                rows.append(finite(e, "tangents"))
                for name, x in gradient.items():
                    add_to(sums, name, x / len(taken))
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

    def error(self, tau: Weights) -> float:
        """Return E on the images for checks; without any, on all others."""
        if not self.checks:
            return total(self.product(tau, left=True)[0], [part.metric for part in self.parts])
        each = zip(self.checks, self.moved(tau), strict=True)
        return total([part.own - v for part, v in each], [part.metric for part in self.checks])

    def moved(self, p: Weights) -> list[Tensor]:
        """Return J p on the images for checks."""
        of = functools.partial(tangent.features, self.encoder, self.encoder.params, p)
        return [of(part.images, self.goes.size).jtau for part in self.checks]


def _descended(
    problem: _Problem,
    tau: Weights,
    inverse: Callable[[Weights], Weights],
    steps: int,
    step: Callable[[int], object],
) -> Weights:
    """Return tau after preconditioned steps with momentum on random images of every task."""
    p, largest = inverse(problem.product(tau, left=True, count=_BATCH)[1]), 0.0
    for _ in range(_POWER):  # the largest eigenvalue of what a step multiplies the error by
        size = _dot(p, p) ** 0.5
        if not size > 0:
            return tau
        p = inverse(problem.product(_scaled(p, 1 / size), count=_BATCH)[1])
        largest = max(largest, _dot(p, p) ** 0.5)
    speed = _scaled(tau, 0.0)
    for k in range(steps):
        z = inverse(problem.product(tau, left=True, count=_BATCH)[1])
        length = _LENGTH / largest * (1 - k / steps)
        speed = _plus(_scaled(speed, _MOMENTUM), z, length)
        tau = _plus(tau, speed, 1.0)
        step(1)
    return tau


def _conjugated(
    problem: _Problem,
    tau: Weights,
    inverse: Callable[[Weights], Weights],
    ends: tuple[int, int, float],
    step: Callable[[], object],
) -> Solution:
    """Return the best tau of conjugate gradients, and the values of all their steps."""
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
        step()
        if checked.index(min(checked)) < len(checked) - patience and problem.checks:
            break
    return Solution(TaskVector(best), tuple(objective), tuple(checked), tuple(residual))


def _inverse(
    encoder: Encoder, parts: Sequence[Part], tau: Weights, count: int
) -> Callable[[Weights], Weights]:
    """Return the product with the inverse of H's blocks, from some images of each task.

    A kernel of a convolution is a matrix of its outputs' rows.
    """
    numbers = torch.Generator().manual_seed(0)
    leaves = {name: encoder.params[name].detach().requires_grad_() for name in tau}
    factors: dict[str, tuple[Tensor, Tensor]] = {}  # of matrices
    squares: dict[str, Tensor] = {}  # of vectors
    for part in parts:
        many = min(whole("factors", count, 1), len(part.images))
        for rows in torch.arange(many).split(_FACTORS):
            with torch.enable_grad():
                x = encoder.preprocess(part.images[rows])
                f = encoder({**encoder.params, **leaves}, x)
                v = part.metric.draw(f.detach(), rows, numbers)
                gradients = tangent.pullback(f, leaves, v)
            for name, g in gradients.items():
                g = g.double() / many**0.5
                if g.dim() < 2:
                    squares[name] = squares.get(name, 0) + g.square()
                    continue
                L, R = factors.get(name, (0, 0))
                factors[name] = L + (g := g.flatten(1)) @ g.T, R + g.T @ g
    traces = {name: float(L.trace()) for name, (L, _) in factors.items()}
    size = sum(traces.values()) + sum(float(x.sum()) for x in squares.values())
    if not size > 0:
        raise TasklabError("the task vectors change no feature of these images.")
    damping = _DAMPING * size / sum(x.numel() for x in tau.values())
    scales = {name: 1 / (x + damping).to(tau[name]) for name, x in squares.items()}
    bases: dict[str, tuple[Tensor, Tensor]] = {}
    while factors:  # each is freed when its bases are there
        name, sides = factors.popitem()
        place = decomposes(sides[0].device)
        (a, U), (b, V) = map(torch.linalg.eigh, placed(sides, place))
        sizes = torch.outer(a, b).clamp(min=0) / (traces[name] or 1.0)
        scales[name] = 1 / (sizes + damping).to(tau[name])
        bases[name] = U.to(tau[name]), V.to(tau[name])

    def inverse(r: Weights) -> Weights:
        made = {}
        for name, x in r.items():
            if name in bases:
                U, V = bases[name]
                turned = scales[name] * (U.T @ x.flatten(1) @ V)
                made[name] = (U @ turned @ V.T).reshape(x.shape)
            else:
                made[name] = scales[name] * x
        return made

    return inverse


def _scaled(x: Mapping[str, Tensor], scale: float) -> Weights:
    return {name: scale * one for name, one in x.items()}


def _plus(one: Weights, two: Mapping[str, Tensor], scale: float) -> Weights:
    return {name: torch.add(x, two[name], alpha=scale) for name, x in one.items()}


def _dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    return sum(float((x.double() * two[name].double()).sum()) for name, x in one.items())
