"""Merges that are trained until the merged network gives each task's own features.

With f the features and theta_t = theta_0 + tau_t the model of task t, they lower

    L(tau) = sum_t E_{x in t} e' G_t e,      e = f(x; theta_0 + tau) - f(x; theta_t),

by gradient steps on unlabelled images; `best.Metric` is G, the identity by default. Of a network
that is linear in its parameters L is the E that `minimum` solves for. `distilled` moves all weights
by Adam. `progressive` is *ProDistill* (arXiv:2502.12706, section 3; code:
JingXuTHU/Scalable_Model_Merging_with_Progressive_Layerwise_Distillation): from the first block to
the last, it learns a coefficient lambda_t of every entry,

    min over lambda   sum_t E_{x in t} |h(z; W_0 + sum_s lambda_s * tau_s) - h(z_t; W_0 + tau_t)|^2,

h a block, z its input behind the merged blocks before it, and z_t that in task t's own model.

Each tries some learning rates, and keeps of all looks the weights of least L on other unlabelled
images.

Letters: N images, D features, T tasks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.best import total
from tasklab.analyses.merging.minimum import Part, Solution, Weights
from tasklab.analyses.merging.sums import arithmetic
from tasklab.analyses.merging.vectors import Vectors, listed
from tasklab.errors import TasklabError, whole
from tasklab.errors import seed as checked_seed
from tasklab.isolation import isolated
from tasklab.models import intercept
from tasklab.models.encoder import Encoder, math_attention
from tasklab.progress import bar
from tasklab.storage.placement import placed
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory

RATES = (3e-4, 1e-3)  # of Adam on weights
COEFFICIENT_RATES = (1e-2, 1e-1)  # of Adam on coefficients; the first is the published code's
START = 0.3  # every coefficient of `progressive` at first, and that of what is in no block
BATCH = 16  # images of each task in a step
LOOKS = 8  # at the images for checks, by equal numbers of steps
_WARM_UP = 0.1  # share of the steps, before the rate falls along a cosine
_BATCH_SIZE = 128  # images in a pass without derivatives


@isolated
def features(
    encoder: Encoder, vector: TaskVector, images: Tensor, batch_size: int = _BATCH_SIZE
) -> Tensor:
    """Return f(x; theta_0 + tau) of images, (N, D): the targets `Part.own`.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        vector: The task vector tau.
        images: Preprocessed images (N, 3, H, W).
        batch_size: Images in one pass.
    """
    params = {**encoder.params, **vector.apply(encoder.params)}
    with torch.no_grad():
        each = memory.Parts(batch_size)(
            lambda rows: encoder(params, encoder.preprocess(rows)), images, "features"
        )
        return torch.cat([finite(f, "features") for f in each])


@isolated
def distilled(
    encoder: Encoder,
    parts: Sequence[Part],
    start: TaskVector,
    checks: Sequence[Part],
    *,
    rates: Sequence[float] = RATES,
    steps: int = 320,
    batch_size: int = BATCH,
    seed: int = 0,
    progress: bool = False,
) -> Solution:
    """Train all weights that a vector changes to give each task's own features.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        parts: A task's images and its own model's `features` there; all of one shape.
        start: The tau to begin with.
        checks: Parts of other images of each task, which choose among rates and looks.
        rates: Highest learning rates of Adam; each begins anew.
        steps: Of each rate, on `batch_size` images of every task.
        batch_size: Images per pass; fewer where memory is short.
        seed: Of the order of images.
        progress: Whether to show a bar.

    Returns:
        tau, with L on the two kinds of images at the start and at each look of the rate that was
        chosen. `residual` is empty.
    """
    _check(parts, checks, rates)
    start = placed(start, encoder.device)
    looks = _looks(steps)
    found: list[Solution] = []
    with bar(len(rates) * steps, "distilling", on=progress) as counter:
        for rate in rates:
            leaves = {n: (encoder.params[n] + x).requires_grad_() for n, x in start.items()}
            numbers = torch.Generator().manual_seed(checked_seed("seed", seed))
            batches = _batches([len(part.images) for part in parts], batch_size, numbers)
            values = [_values(encoder, start, parts, checks)]
            best = start

            def loss(taken: Sequence[Tensor], leaves: Weights = leaves) -> Tensor:
                return _loss(encoder, leaves, parts, taken)

            for step in _descent(leaves, rate, steps, batches, loss):
                counter.update(1)
                if step not in looks:
                    continue
                tau = TaskVector({n: x.detach() - encoder.params[n] for n, x in leaves.items()})
                values.append(_values(encoder, tau, parts, checks))
                if values[-1][1] <= min(checked for _, checked in values):
                    best = tau
            found.append(_solution(best, values))
    return min(found, key=lambda one: min(one.checked))


@isolated
def progressive(
    encoder: Encoder,
    vectors: Vectors,
    parts: Sequence[Part],
    checks: Sequence[Part],
    *,
    rates: Sequence[float] = COEFFICIENT_RATES,
    steps: int = 320,
    batch_size: int = BATCH,
    start: float = START,
    seed: int = 0,
    progress: bool = False,
) -> Solution:
    """Learn a coefficient of every entry of every vector, block by block (ProDistill).

    Parameters outside of blocks are `start` times the sum, as in the published code. Minibatches
    are drawn once, and visited in a new order in each pass; that code draws them anew.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        vectors: The tasks' own, in the order of `parts`.
        parts: As of `distilled`, and so `checks`, which choose among the rates.
        checks: Parts of each task's images on which the result is compared.
        rates: Learning rates that are tried.
        steps: Of each rate and block, on `batch_size` images of every task.
        batch_size: Images per pass; fewer where memory is short.
        start: Every coefficient at first.
        seed: Of the order of images.
        progress: Whether to show a bar.

    Returns:
        tau, with L of the whole network on the two kinds of images: at the start, and after each
        block at the rate that was chosen.
    """
    _check(parts, checks, rates)
    each = [placed(vector, encoder.device) for vector in listed(vectors, 2)]
    if len(each) != len(parts):
        raise TasklabError(
            f"{len(each)} vectors need images of {len(each)} tasks, not of {len(parts)}."
        )
    blocks = [name for name in encoder.blocks if any(n.startswith(f"{name}.") for n in each[0])]
    if not blocks:
        raise TasklabError(f"{encoder.name} has no blocks that these vectors change.")
    numbers = torch.Generator().manual_seed(checked_seed("seed", seed))
    cut = [torch.randperm(len(part.images), generator=numbers).split(batch_size) for part in parts]
    found: list[Solution] = []
    with bar(len(rates) * len(blocks) * steps, "distilling", on=progress) as counter:
        for rate in rates:
            tau: TaskVector = arithmetic(each, alpha=start)
            values = [_values(encoder, tau, parts, checks)]
            for name in blocks:
                block = _Block(encoder, name, each, start)
                pairs = block.read(tau, parts, cut)
                order = _passes([len(one) for one in pairs], numbers)
                descent = _descent(block.coefficients, rate, steps, order, block.loss(pairs))
                for _ in descent:
                    counter.update(1)
                tau = TaskVector({**tau, **block.merged()})
                values.append(_values(encoder, tau, parts, checks))
            found.append(_solution(tau, values))
    return min(found, key=lambda one: one.checked[-1])


@isolated
def looked(
    encoder: Encoder, each: Sequence[TaskVector], parts: Sequence[Part], checks: Sequence[Part]
) -> Solution:
    """Return, of some vectors, the one of least L on images for checks, and the values of all.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        each: The vectors.
        parts: As of `distilled`, and so `checks`.
        checks: Parts of each task's images for checks.
    """
    each = [placed(tau, encoder.device) for tau in each]
    values = [_values(encoder, tau, parts, checks) for tau in each]
    return _solution(min(zip(each, values, strict=True), key=lambda one: one[1][1])[0], values)


Read = tuple[tuple[Any, ...], dict[str, Any], Tensor]  # a block's arguments, and its target


@dataclasses.dataclass(frozen=True, eq=False)
class _Block:
    """One block, whose entries have a coefficient for each task."""

    encoder: Encoder
    name: str
    vectors: Sequence[TaskVector]
    start: float
    coefficients: Weights = dataclasses.field(init=False)  #: lambda (T, ...) by parameter

    def __post_init__(self) -> None:
        made = {n: torch.full_like(x, self.start) for n, x in self._stacked.items()}
        coefficients = {n: x.requires_grad_() for n, x in made.items()}
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def _stacked(self) -> Weights:
        own = [n for n in self.vectors[0] if n.startswith(f"{self.name}.")]
        return {n: torch.stack([vector[n] for vector in self.vectors]) for n in own}

    @torch.no_grad()
    def merged(self) -> Weights:
        """Return the block's part of tau."""
        return {n: (self.coefficients[n] * x).sum(0) for n, x in self._stacked.items()}

    @torch.no_grad()
    def read(
        self, tau: TaskVector, parts: Sequence[Part], cut: Sequence[Sequence[Tensor]]
    ) -> list[list[Read]]:
        """Return the block's inputs in the merged network, and outputs in each task's own."""
        encoder, read = self.encoder, []
        merged = {**encoder.params, **tau.apply(encoder.params)}
        for vector, part, batches in zip(self.vectors, parts, cut, strict=True):
            own = {**encoder.params, **vector.apply(encoder.params)}
            pairs = []
            for rows in batches:
                x = encoder.preprocess(part.images[rows])
                args, named, _ = _through(encoder, merged, x, self.name)
                pairs.append((args, named, _through(encoder, own, x, self.name)[2]))
            read.append(pairs)
        return read

    def loss(self, pairs: Sequence[Sequence[Read]]) -> Callable[[Sequence[int]], Tensor]:
        """Return the loss of one minibatch of each task as a function of their places."""
        stacked, module = self._stacked, self.encoder.module.get_submodule(self.name)
        at = {n: self.encoder.params[n] for n in self.encoder.params}
        inner = [n for n in at if n.startswith(f"{self.name}.")]

        def loss(places: Sequence[int]) -> Tensor:
            moved = {n: at[n] + (self.coefficients[n] * x).sum(0) for n, x in stacked.items()}
            params = {n.removeprefix(f"{self.name}."): moved.get(n, at[n]) for n in inner}
            value = torch.zeros((), device=self.encoder.device)
            for one, place in zip(pairs, places, strict=True):
                args, named, target = one[place]
                with math_attention():
                    given = torch.func.functional_call(module, params, args, named)
                value = value + (_tensor(given) - target).square().sum()
            return value

        return loss


def _through(
    encoder: Encoder, params: Mapping[str, Tensor], x: Tensor, name: str
) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """Return the arguments and the output of a block in a pass through the network."""
    kept: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = []

    def forward(usual: Callable[..., Any], *args: Any, **named: Any) -> Any:
        given = usual(*args, **named)
        kept.append((args, named, _tensor(given)))
        return given

    with intercept.around(encoder.module, {name: forward}):
        encoder(params, x)
    return kept[0]


def _tensor(given: Any) -> Tensor:
    return given if isinstance(given, Tensor) else given[0]


def _solution(tau: TaskVector, values: Sequence[tuple[float, float]]) -> Solution:
    """Return a solution whose looks have L on images to learn from, and on those for checks."""
    objective, checked = zip(*values, strict=True)
    return Solution(tau, objective, checked, ())


def _check(parts: Sequence[Part], checks: Sequence[Part], rates: Sequence[float]) -> None:
    if not parts or len(parts) != len(checks) or not rates:
        raise TasklabError("distilling needs images of every task, others for checks, and a rate.")
    if not all(len(part.images) for part in (*parts, *checks)):
        raise TasklabError("distilling needs images of every task.")


def _looks(steps: int) -> set[int]:
    """Return the numbers of steps after which images for checks are looked at.

    >>> sorted(_looks(16)), sorted(_looks(3))
    ([2, 4, 6, 8, 10, 12, 14, 16], [1, 2, 3])
    """
    steps = whole("steps", steps, 1)
    return {math.ceil(steps * k / LOOKS) for k in range(1, LOOKS + 1)}


def _descent(
    leaves: Weights,
    rate: float,
    steps: int,
    batches: Iterator[Any],
    loss: Callable[[Any], Tensor],
) -> Iterator[int]:
    """Run Adam with warm-up and a cosine schedule; yield the number of each step."""
    adam = torch.optim.Adam([*leaves.values()], lr=rate)
    warm = max(1, round(_WARM_UP * steps))
    for k in range(steps):
        share = (k - warm) / max(1, steps - warm)
        scale = (k + 1) / warm if k < warm else (1 + math.cos(math.pi * share)) / 2
        for group in adam.param_groups:
            group["lr"] = rate * scale
        adam.zero_grad(set_to_none=True)
        with torch.enable_grad():
            value = loss(next(batches))
        value.backward()
        finite(value.detach(), "the loss of distillation")
        adam.step()
        yield k + 1


def _batches(sizes: Sequence[int], count: int, numbers: torch.Generator) -> Iterator[list[Tensor]]:
    """Yield rows of each task's images without end; each image once in a pass over its task."""
    left = [torch.empty(0, dtype=torch.int64) for _ in sizes]
    while True:
        for t, size in enumerate(sizes):
            while len(left[t]) < min(count, size):
                left[t] = torch.cat([left[t], torch.randperm(size, generator=numbers)])
        yield [rows[:count] for rows in left]
        left = [rows[count:] for rows in left]


def _passes(sizes: Sequence[int], numbers: torch.Generator) -> Iterator[list[int]]:
    """Yield the place of one minibatch of each task without end, each once in a pass."""
    for rows in _batches(sizes, 1, numbers):
        yield [int(place) for place in torch.cat(rows)]


def _loss(
    encoder: Encoder, leaves: Weights, parts: Sequence[Part], taken: Sequence[Tensor]
) -> Tensor:
    """Return L on some images of each task, which pass together."""
    params = {**encoder.params, **leaves}
    x = [encoder.preprocess(part.images[r]) for part, r in zip(parts, taken, strict=True)]
    together = len({one.shape[1:] for one in x}) == 1
    passed = encoder(params, torch.cat(x)).split([*map(len, x)]) if together else None
    value = torch.zeros((), device=encoder.device)
    for t, (part, rows) in enumerate(zip(parts, taken, strict=True)):
        f = passed[t] if passed is not None else encoder(params, x[t])
        e = f - part.own[rows].to(f)
        value = value + (e * part.metric(e, rows)).sum() / len(rows)
    return value


def _values(
    encoder: Encoder, tau: TaskVector, parts: Sequence[Part], checks: Sequence[Part]
) -> tuple[float, float]:
    """Return L on all images of `parts`, and on those of `checks`."""

    def value(each: Sequence[Part]) -> float:
        errors = [features(encoder, tau, one.images) - one.own.to(encoder.device) for one in each]
        return total(errors, [one.metric for one in each])

    return value(parts), value(checks)
