"""Every way of merging some task vectors, with the same rule and the same budget.

All methods are searched alike (`analyses.merging.search`): their options and one coefficient are
chosen on validation images, in as many looks (`FULL`, `QUICK`). Beside them stand minima of the
loss E that they approximate: on the span of the vectors, over all weights in three metrics, and in
the network by training (`MINIMA`); and the least loss on the span.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from tasklab import machine
from tasklab.analyses import editing
from tasklab.analyses.merging import METHODS, best, merge, of_images, search
from tasklab.analyses.merging.best import span_of_loss
from tasklab.analyses.merging.own import FEATURES, features_of
from tasklab.analyses.merging.registry import Method, method
from tasklab.bench.minima import CACHE_VERSION, MINIMA, effort, memory, solved
from tasklab.bench.trial import Given, Trial
from tasklab.progress import tell
from tasklab.storage.placement import device_of, placed
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures

# Of merges whose records alone have changed since: `wudi` and `breadcrumbs` are the published ones.
_VERSIONS = {"wudi": 5, "wudi_exact": 4, "breadcrumbs": 4}
SPAN, LOSS = "best_span", "best_loss"
MERGES = (*METHODS, SPAN, LOSS)
AnyTrial = TypeVar("AnyTrial", bound=Trial)
Statistics = dict[str, Any]  # by the option of a method that takes them
# Looks at validation images, and training images of each task. Keys have the last two, which the
# minimum over all weights once took.
FULL = {"looks": search.BUDGET, "grams": 256, "diagonals": 64, "best": 64, "steps": 20}
QUICK = {"looks": 8, "grams": 128, "diagonals": 24, "best": 24, "steps": 6}
REHEARSAL = {"looks": 4, "grams": 2, "diagonals": 1, "best": 1, "steps": 1}
REHEARSED = 2**24  # numbers of each vector that a rehearsal at full size merges, at most


class Bench(Generic[AnyTrial]):
    """Merges of one trial: statistics of its vectors, and each merge with its coefficient.

    Attributes:
        sizes: Looks at validation images, training images of each task, and steps.
        keep: Name, how a number is computed -> the number; a `Journal` where a search that was
            killed is to go on.
    """

    def __init__(self, trial: AnyTrial) -> None:
        self.trial, self.tasks, lab = trial, tuple(trial.tasks), trial.lab
        self.keep: Callable[[str, Callable[[], Any]], Any] = lambda _, make: make()
        self.known: dict[str, np.ndarray] = {}  # what `alone` returns, by split
        quick = lab.parameters.preset == "quick"
        self.sizes = REHEARSAL if lab.rehearsal else QUICK if quick else FULL

    @functools.cached_property
    def vectors(self) -> dict[str, TaskVector]:
        """The vectors that are merged: in a rehearsal at full size their first parameters alone.

        Merges by decompositions take minutes for all matrices of a large model.
        """
        if not self.trial.lab.light:
            return self.trial.vectors
        sizes = {name: x.numel() for name, x in next(iter(self.trial.vectors.values())).items()}
        ends = itertools.accumulate(sizes.values())
        few = [name for name, end in zip(sizes, ends, strict=True) if end <= REHEARSED]
        vectors = self.trial.vectors.items()
        return {t: TaskVector({name: v[name] for name in few}) for t, v in vectors}

    @functools.cached_property
    def features(self) -> list[TangentFeatures]:
        """Tangent features of each task's own vector on its validation images."""
        evaluator = self.trial.evaluator
        vectors = self.trial.vectors.items()
        return [evaluator.tangent_features(v, task, "val") for task, v in vectors]

    @functools.cached_property
    def own(self) -> list[Tensor]:
        """J(x) tau_t on the validation images of each task."""
        return [one.jtau for one in self.features]

    def metrics(self, name: str) -> list[best.Metric]:
        """Return a metric of `best` on the validation images of each task."""
        heads = [self.trial.evaluator.head(task) for task in self.tasks]
        return best.metrics(name, self.features, heads)

    @functools.cached_property
    def looks(self) -> search.Looks:
        """Scores of merges in the network, on validation images."""
        score = functools.partial(_score, alone=self.alone("val"))
        return search.Looks(self.trial.evaluator, self.tasks, "val", score)

    @functools.cached_property
    def least(self) -> float:
        """E(tau) / E(0) of the best merge on the span of the vectors."""
        return best.relative(self.tangents(self.merged(SPAN)), self.own)

    def tangents(self, vector: TaskVector) -> list[Tensor]:
        """Return J(x) tau of a vector on the validation images of each task."""
        return best.tangents(self.trial.evaluator, vector, self.tasks, "val")

    def alone(self, split: str) -> np.ndarray:
        """Return accuracies (T,) in % of each vector alone, in the model that is edited."""
        if split not in self.known:
            trial = self.trial
            measure = functools.partial(
                editing.single_task, trial.evaluator, trial.vectors, split, linear=trial.linear
            )
            kept = self.keep(f"alone {split}", lambda: list(map(float, measure())))
            self.known[split] = np.array(kept)
        return self.known[split]

    def place(
        self, vector: TaskVector, by: Sequence[best.Metric] | None = None
    ) -> tuple[float, float]:
        """Return the best coefficient in the tangent model, and its E / E(0).

        `by` has the metric of each task; features' by default.
        """
        moved = self.tangents(vector)
        scale = float(best.span([moved], self.own, by)[0])
        return scale, best.relative([scale * x for x in moved], self.own, by)

    def choose(self, name: str) -> search.Choice:
        """Return a merge with the option and coefficient chosen on validation images."""
        trial, statistics = self.trial, self.statistics(name)
        number = itertools.count()  # a search takes the same steps again

        def place(vector: TaskVector) -> tuple[float, float]:
            scale, objective = self.keep(f"{next(number)} place", lambda: self.place(vector))
            return scale, objective

        def look(vector: TaskVector, alpha: float, least: float) -> float:
            step = f"{next(number)} look at {alpha:.6g}"
            return self.keep(step, lambda: score(vector, alpha, least))

        def score(vector: TaskVector, alpha: float, least: float) -> float:
            if not trial.linear:
                return self.looks(vector, alpha, least)
            sweep = trial.evaluator.sweep  # of features that are kept: there is nothing to save
            accuracies = sweep(vector, self.tasks, "val", linear=True, alphas=[alpha])[0]
            return _score(accuracies, self.alone("val"))

        def make(option: float | None) -> TaskVector:
            return self.merged(name, option, statistics)

        options, looks = self.options(name), self.sizes["looks"]
        if isinstance(trial, Given):  # of somebody's few images
            images = sum(trial.evaluator.count(task, "val") for task in self.tasks)
            whole = functools.partial(look, least=-math.inf)
            about: dict[str, Any] = {"images": images, "budget": looks}
            return search.smoothly(make, options, place, whole, **about)
        return search.choose(make, options, place, look, budget=looks)

    def options(self, name: str) -> tuple[float | None, ...]:
        """Return the values of a merge's option that are tried: one in a rehearsal at full size."""
        return options(name)[:1] if self.trial.lab.light else options(name)

    def key(self, name: str) -> dict[str, Any]:
        """Return a merge's key beside that of the trial."""
        return {
            "merge": name,
            "options": list(self.options(name)),
            "sizes": self.sizes,
            "rule": [_VERSIONS.get(name, 3), search.LOW, search.HIGH],
            **({"numbers": REHEARSED} if self.trial.lab.light else {}),
            **({"rule_of": rule.digest} if (rule := _rule(name)) and rule.digest else {}),
            **({"minimum": [CACHE_VERSION, *effort(self, name)]} if name in MINIMA else {}),
        }

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of all tasks' training images, if a method needs some."""
        needs = "" if name in (SPAN, LOSS) else method(name).needs
        if not needs:
            return {}
        if name in MINIMA:
            return {
                needs: placed(TaskVector(solved(self, name).tensors()), device_of(self.vectors))
            }
        if needs == FEATURES:
            return {needs: features_of(self.trial.lab.clip.encoder, self._unlabelled)}
        each = (self._of_images(needs, task) for task in self.tasks)  # one task's at a time
        return {needs: METHODS[name].pooled(self.vectors, each)}

    @functools.cached_property
    def _unlabelled(self) -> Callable[[str], Tensor]:
        return functools.cache(lambda task: self.images(task, self.read("grams")))

    def tell_memory(self, names: Iterable[str]) -> None:
        """Print the memory that merges take which are solved for; raise if they do not fit.

        Args:
            names: Of merges; others take little.
        """
        needed = max((memory(self, name) for name in names if name in MINIMA), default=0)
        if needed > machine.GIB:
            tell(f"solving for a merge takes about {machine.gib(needed)} of memory.")

    def read(self, needs: str) -> int:
        """Return the number of training images of each task that a method reads."""
        return self.sizes.get(needs, self.sizes["grams"])

    def merged(
        self, name: str, option: float | None = None, statistics: Statistics | None = None
    ) -> TaskVector:
        """Return the merged vector of the trial's tasks, before its coefficient.

        Args:
            name: Of the merge rule.
            option: Value of the option that is searched for; `None` for the method's own.
            statistics: Of the tasks' images, if already computed.
        """
        vectors = self.vectors
        if name == SPAN:
            basis = [self.tangents(vector) for vector in vectors.values()]
            return merge("arithmetic", vectors, alpha=best.span(basis, self.own).tolist())
        if name == LOSS:
            return merge("arithmetic", vectors, alpha=self._least_loss())
        rule = method(name)
        chosen = dict(rule.fixed if isinstance(self.trial, Given) else rule.recorded)
        if option is not None:
            chosen[METHODS[name].searched] = option
        if statistics is None:
            statistics = self.statistics(name)
        return merge(name, vectors, **statistics, **chosen)

    def _least_loss(self) -> list[float]:
        evaluator, vectors = self.trial.evaluator, self.trial.vectors
        first, basis = next(iter(vectors.values())), [self.tangents(v) for v in vectors.values()]
        at_start = [evaluator.tangent_features(first, task, "val").f0 for task in self.tasks]
        heads = [evaluator.head(task) for task in self.tasks]
        labels = [evaluator.images(task, "val").y for task in self.tasks]
        start = best.span(basis, self.own).tolist()
        return span_of_loss(at_start, basis, heads, labels, start=start).tolist()

    def _of_images(self, needs: str, task: str) -> Any:
        trial, x = self.trial, self.images(task, self.read(needs))
        encoder, head = trial.lab.clip.encoder, trial.evaluator.head(task)
        told = of_images(needs, encoder, head, x, self.vectors[task], linear=trial.linear)
        return told if callable(told) else placed(told, device_of(self.vectors))

    def images(self, task: str, count: int) -> Tensor:
        """Return the first training images of a task."""
        lab = self.trial.lab
        data = drawn.images_of(lab.suite)
        many = min(count, data.size(task, "train"))
        return data.load(task, "train", n=many, device=lab.clip.encoder.device).x


def _rule(name: str) -> Method | None:
    return None if name in (SPAN, LOSS) else method(name)


def _score(accuracies: np.ndarray, alone: np.ndarray) -> float:
    return float(editing.normalised(accuracies, alone).mean())


def options(name: str) -> tuple[float | None, ...]:
    """Return the values that are tried of a merge's option; `(None,)` if it has none.

    >>> options("ties"), options("average")
    ((0.1, 0.2, 0.3), (None,))
    """
    return (METHODS[name].values if name in METHODS else ()) or (None,)


class Unlabelled(NamedTuple):
    """A merge as E chooses it."""

    vector: TaskVector  #: Before its coefficient
    option: float | None
    alpha: float  #: The coefficient of least E
    loss: float  #: E(alpha vector) / E(0)


def unlabelled(bench: Bench, name: str, by: Sequence[str]) -> list[Unlabelled]:
    """Return a merge with the option and the coefficient of least E, for each metric.

    Args:
        bench: Vectors, images and metrics.
        name: Of the merge rule.
        by: Metrics of E, any of `best.METRICS`.
    """
    statistics, found = bench.statistics(name), dict[str, Unlabelled]()
    for option in bench.options(name):
        vector = bench.merged(name, option, statistics)
        for metric in by:
            alpha, loss = bench.place(vector, bench.metrics(metric))
            if metric not in found or loss < found[metric].loss:
                found[metric] = Unlabelled(vector, option, alpha, loss)
    return [found[metric] for metric in by]
