"""How often the rule of verdicts errs: drawn images, seeds and tasks, judged as records are.

Two methods answer the images of some tasks at some seeds of fine-tuning. Whether an image is
answered depends on how easy it is, for both alike; on what a method makes of it, at every seed; on
the seed; and on the method's accuracy in that task at that seed. Without an effect the two methods
are drawn in the same way, so that every *holds*, and every *does not hold*, is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from tasklab.errors import choose
from tasklab.evidence.records import images, intervals, targets
from tasklab.evidence.records.intervals import LEVEL, Interval, Source
from tasklab.evidence.records.judgement import judged


@dataclass(frozen=True, kw_only=True)
class World:
    """What is drawn."""

    seeds: int = 3
    tasks: int = 8  #: Number of tasks
    n_images: int = 1000  #: Test images of each
    accuracy: float = 70.0  #: Mean of both methods, in %
    effect: float = 0.0  #: How much more accurate the first one is, in points
    #: Standard deviation over seeds of a method's accuracy on one task, in points.
    seed_spread: float = 2.0
    #: Share of the variance in answering that is the image's, for both methods alike.
    ease: float = 0.5
    own: float = 0.25  #: Share that is the image's for one method, at all of its seeds
    counts: bool = False  #: Whether records hold no more than how many images were answered


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What came of many draws."""

    holds: float  #: Share in which the first method was found better
    does_not_hold: float  #: Share in which it was found worse
    half_width: float  #: Median half-width of the interval, in points
    unlike: float  #: Share of images that one method alone answers, at the same seed


def answers(world: World, rng: np.random.Generator) -> np.ndarray:
    """Return which images are answered: (2 methods, tasks, seeds, images).

    Args:
        world: What is drawn.
    """
    w, n = world, world.n_images
    normal = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    rest = math.sqrt(1 - w.ease - w.own)
    z = rest * normal(2, w.tasks, w.seeds, n) + math.sqrt(w.own) * normal(2, w.tasks, 1, n)
    z += math.sqrt(w.ease) * normal(1, w.tasks, 1, n)
    percent = w.accuracy + w.seed_spread * normal(2, w.tasks, w.seeds)
    percent += np.array([w.effect / 2, -w.effect / 2])[:, None, None]
    return z < ndtri(np.clip(percent, 0.1, 99.9) / 100)[..., None]


def judge(world: World, right: np.ndarray) -> Interval:
    """Return the interval of a draw, from the same sources as a claim's.

    Args:
        right: What `answers` returned.
    """
    difference = 100.0 * (right[0].astype(np.float32) - right[1])  # tasks, seeds, images
    means = difference.mean(2, dtype=float)
    sources = [intervals.of_means("seeds", means.mean(0))]
    sources.append(Source(name="images", variance=_of_images(world, right, difference)))
    return intervals.interval(float(means.mean()), sources)


def _of_images(world: World, right: np.ndarray, difference: np.ndarray) -> float:
    if world.counts:  # as `images.bounded` adds them
        p = right.mean((2, 3), dtype=float)
        middle = (p * world.n_images + 2) / (world.n_images + 4)
        each = 1e4 * middle * (1 - middle) / world.n_images
        return float(each.sum()) / world.tasks**2
    return max(0.0, sum(images.shared(task / world.tasks) for task in difference))


def rates(world: World, repeats: int, seed: int = 0) -> Rates:
    """Return how often each outcome comes out.

    Args:
        world: What is drawn.
    """
    rng = np.random.default_rng(seed)
    outcomes, halves, unlike = [], [], []
    for _ in range(repeats):
        right = answers(world, rng)
        interval = judge(world, right)
        outcomes.append(judged(interval))
        halves.append((interval.high - interval.low) / 2)
        unlike.append((right[0] != right[1]).mean())
    share = lambda name: outcomes.count(name) / repeats  # noqa: E731
    return Rates(
        holds=share("holds"),
        does_not_hold=share("does not hold"),
        half_width=float(np.median(halves)),
        unlike=float(np.mean(unlike)),
    )


@dataclass(frozen=True, kw_only=True)
class Crossed:
    """Differences in one set of tasks or in several, and how far they spread, in points."""

    sets: tuple[str, ...]  #: The sets, each with its tasks joined by `+`
    tasks: float  #: Standard deviation over tasks
    company: float = 0.0  #: Over tasks, of what each changes for the others in its set
    of_sets: float = 0.0  #: Over sets, of what all tasks of a set have in common
    rest: float = 1.5  #: Of a task in a set at a seed
    vectors: float = 1.0  #: Over seeds, of a task's vector, in itself and as company
    common: float = 0.0  #: Over seeds, of what all tasks have in common
    seeds: int = 3
    shape: str = "normal"  #: Of `SHAPES`, of tasks' effects, company, sets and runs
    uneven: float = 0.0  #: Standard deviation over tasks of the logarithm of the rest's spread


def covered(world: Crossed, target: str, repeats: int, seed: int = 0) -> float:
    """Return how often an interval of `records.targets` contains what its target names.

    That is the mean over all tasks, zero, or for `targets.SETS` over all sets of the drawn tasks.

    Args:
        target: One of `targets.SETS` and `targets.TASKS`.
    """
    rng, w = np.random.default_rng(seed), world
    rows = [(task, one) for one in w.sets for task in one.split("+")]
    index = pd.MultiIndex.from_tuples(rows, names=["task", "subset"])
    own, company, of_set = targets.design(index)
    table = index.to_frame(index=False).merge(pd.DataFrame({"seed": range(w.seeds)}), how="cross")
    draw, hits = lambda *size: SHAPES[w.shape](rng, size), 0
    for _ in range(repeats):
        a, b = w.tasks * draw(own.shape[1]), w.company * draw(own.shape[1])
        mean = own @ a + company @ b + of_set @ (w.of_sets * draw(of_set.shape[1]))
        runs = w.vectors * draw(2, own.shape[1], w.seeds)
        values = mean[:, None] + own @ runs[0] + company @ runs[1] * (w.company > 0)
        values += w.common * draw(1, w.seeds)
        spread = np.exp(w.uneven * draw(own.shape[1]) - w.uneven**2) if w.uneven else 1.0
        values += (
            w.rest * (own @ np.broadcast_to(spread, own.shape[1]))[:, None] * draw(*values.shape)
        )
        found = targets.interval(table.assign(difference=values.ravel()), target)
        truth = (a + b).mean() if target == targets.SETS else 0.0
        hits += found.low < truth < found.high
    return hits / repeats


SHAPES = {  # of the tasks' effects: mean 0, variance 1
    "normal": lambda rng, size: rng.standard_normal(size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "Student's t, 3 degrees": lambda rng, size: rng.standard_t(3, size) / math.sqrt(3),
}


def skewed(
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray],
    *,
    seeds: int = 5,
    tasks: int = 8,
    repeats: int = 20_000,
    seed: int = 0,
) -> dict[str, float]:
    """Return how often a claim about tasks in general is decided wrongly, on its worse side.

    Differences on a task at a seed are the task's effect, of spread 4, and a seed's and their own
    noise, of spread 0.75 and 1.5, as of headline 1. The mean effect is zero.

    Args:
        draw: Generator and shape -> effects of tasks, of mean 0 and variance 1.
        tasks: Number of tasks.

    Returns:
        The larger rate of *holds* and *does not hold* by Student's t and by the bootstrap's.
    """
    rng = np.random.default_rng(seed)
    values = 4.0 * draw(rng, (repeats, tasks))[..., None]
    values = values + 0.75 * rng.standard_normal((repeats, 1, seeds))
    values += 1.5 * rng.standard_normal((repeats, tasks, seeds))
    of_seeds, of_tasks = values.mean(1), values.mean(2)
    effect = of_seeds.mean(1)
    own = values - of_seeds[:, None] - of_tasks[..., None] + effect[:, None, None]
    noise = (own**2).sum((1, 2)) / ((seeds - 1) * (tasks - 1) * seeds * tasks)
    variances = {"tasks": of_tasks.var(1, ddof=1) / tasks}
    variances["seeds"] = np.maximum(0, of_seeds.var(1, ddof=1) / seeds - noise)
    squared = {
        name: variances[name] * intervals.quantile((1 - LEVEL) / 2, size - 1) ** 2
        for name, size in (("seeds", seeds), ("tasks", tasks))
    }
    half = np.sqrt(squared["seeds"] + squared["tasks"])
    low, high = np.concatenate(
        [
            np.stack(intervals.bootstrap_t(effect[part], of_tasks[part], squared["seeds"][part]))
            for part in np.array_split(np.arange(repeats), 1 + repeats // 2000)
        ],
        axis=1,
    )
    rates = {"t": [effect > half, effect < -half], "bootstrap-t": [low > 0, high < 0]}
    return {rule: float(max(np.mean(side) for side in sides)) for rule, sides in rates.items()}


RULES = ("howe", "cochran", "satterthwaite")


def wrong(
    freedoms: Sequence[float], variances: Sequence[float], rule: str = "howe", level: float = LEVEL
) -> float:
    """Return how often an interval lies wholly on one given side of the truth, without drawing.

    The effect is normal, and each source's variance is estimated with its degrees of freedom; over
    these estimates is integrated.

    Args:
        freedoms: Degrees of freedom of each source, of two sources at most finite.
        variances: What each truly adds to the variance of the mean.
        rule: Of `RULES`: how the sources are combined. The first one is that of `intervals`;
            Cochran's takes the mean of their quantiles, weighted by their variances, and
            Satterthwaite's a quantile for the degrees of freedom that their sum would have.
        level: Of the interval.
    """
    choose("rule", rule, RULES)
    points = 1000 if sum(map(math.isfinite, freedoms)) < 2 else 500
    parts = [_chi_squared(f, points) for f in freedoms]
    grids = np.meshgrid(*(values for values, _ in parts), indexing="ij")
    weights = np.meshgrid(*(likely for _, likely in parts), indexing="ij")
    v = [variance * grid for variance, grid in zip(variances, grids, strict=True)]
    t = [intervals.quantile((1 - level) / 2, f) for f in freedoms]
    total = np.sum(v, axis=0)
    if rule == "howe":
        half = np.sqrt(sum(v_k * t_k**2 for v_k, t_k in zip(v, t, strict=True)))
    elif rule == "cochran":
        half = sum(v_k * t_k for v_k, t_k in zip(v, t, strict=True)) / np.sqrt(total)
    else:
        below = sum(v_k**2 / f for v_k, f in zip(v, freedoms, strict=True))
        freedom = np.minimum(total**2 / np.maximum(below, 1e-300), 1e9)
        half = -stdtrit(freedom, (1 - level) / 2) * np.sqrt(total)
    beyond = ndtr(-half / math.sqrt(sum(variances)))
    return float((np.prod(weights, axis=0) * beyond).sum())


def _chi_squared(freedom: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values of a variance's estimate over its truth, and how likely each is."""
    if math.isinf(freedom):
        return np.ones(1), np.ones(1)
    middles = (np.arange(points) + 0.5) / points
    return chdtri(freedom, 1 - middles) / freedom, np.full(points, 1 / points)
