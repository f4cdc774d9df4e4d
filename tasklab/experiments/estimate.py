"""What a chapter will take with its own model, and how fast this machine is.

Counted are fine-tuning runs that are not in the store yet, and the images that the chapter's main
experiments (`PASSES`) pass through the model, as if none of their records were in the store. Time
is that of a measured step, in the precision of the runs, and of a pass in float32, both of few
images. Models that a chapter compares with its own are `relatives`.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tasklab import chapters
from tasklab.models import inference, training
from tasklab.models.encoder import TextEncoder
from tasklab.tasks import drawn
from tasklab.tuning import rates
from tasklab.tuning.methods import LINEAR, POSTHOC, TABLE
from tasklab.tuning.recipe import usual_precision

if TYPE_CHECKING:
    from tasklab.experiments.lab import Lab
    from tasklab.tuning.recipe import FineTune

TANGENT = 3.0  # passes that a forward-mode pass stands for
PROBES = (2, 8, 32)  # images of the measured step and pass: more where it is short
SHORT = 0.1  # seconds
LONG = 2.0  # seconds of a step that is measured once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a chapter.

    Attributes:
        runs: Fine-tuning runs to do.
        kept: Those that are in the store.
        steps: Of the runs to do, all together.
        trained: Images of these steps.
        equivalent: The same, counted as images of standard steps.
        passed: Images that pass through a model without training.
    """

    runs: int = 0
    kept: int = 0
    steps: int = 0
    trained: int = 0
    equivalent: float = 0.0
    passed: int = 0

    def __add__(self, other: Plan) -> Plan:
        """Return the work of both."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        names = (field.name for field in dataclasses.fields(Plan))
        return Plan(**dict(zip(names, map(sum, pairs), strict=True)))

    def __str__(self) -> str:
        """Return it as a sentence tells it."""
        runs = f"{self.runs} fine-tuning run{'' if self.runs == 1 else 's'}"
        if self.kept:
            runs += f" ({self.kept} more are in the store)"
        if self.runs:
            runs += f", {self.steps:,} steps, {self.trained:,} images"
        return f"{runs}; evaluation passes at most {self.passed:,} images"


def _splits(lab: Lab) -> tuple[int, int, int]:
    """Return how many images of validation, of test, and of the control are looked at."""
    data, most = drawn.images_of(lab.suite), lab.scale.counts
    task, control = lab.suite.names[0], lab.suite.control.name
    asked = ((task, "val", "val"), (task, "test", "test"), (control, "test", "control"))
    sizes = [(data.size(name, split), most.get(limit)) for name, split, limit in asked]
    val, test, held = (size if limit is None else min(size, limit) for size, limit in sizes)
    return val, test, held


Count = Callable[["Lab"], int]


# Images that an experiment passes through a model with one method and seed: A coefficients, T tasks
# and the numbers of `Scale`.
def _single(lab: Lab) -> int:
    return len(lab.suite.names) * _splits(lab)[1]


def _addition(lab: Lab) -> int:
    tasks, (val, test, _) = len(lab.suite.names), _splits(lab)
    each = tasks * (len(lab.scale.alphas) + 1) * val + 2 * tasks * test
    return len(lab.sizes()) * each


def _negation(lab: Lab) -> int:
    val, test, control = _splits(lab)
    return len(lab.suite.names) * (len(lab.scale.alphas) * (val + control) + test + control)


def maps(lab: Lab) -> int:
    """Return the images of maps of disentanglement: passes with one method's vectors and seed."""
    scale, odd = lab.scale, lab.scale.points % 2  # then 0 is among them, whose cells are known
    return scale.pairs * 2 * (scale.points**2 + scale.points * (1 - odd)) * scale.map_images


def linearity(lab: Lab) -> int:
    """Return the images of cross-task linearity of all pairs, likewise."""
    tasks, count = len(lab.suite.names), lab.scale.feature_images[0]
    pairs = len(list(itertools.combinations(range(tasks), 2)))
    return count * (tasks**2 + 2 * pairs * 3)


def merging(lab: Lab) -> int:
    """Return the images of the preset's merges, likewise."""
    from tasklab.experiments.merging import FULL, LEADING, MERGES, QUICK  # it imports `Lab`

    tasks, (val, test, _) = len(lab.suite.names), _splits(lab)
    quick = lab.parameters.preset == "quick"
    merges, looks = (LEADING, QUICK["looks"]) if quick else (MERGES, FULL["looks"])
    each = tasks * ((looks + 2 * TANGENT) * val + test)
    return len(lab.sizes()) * len(merges) * round(each)


def tangent_images(lab: Lab) -> float:
    """Return the images of the tangent features of one method's vectors, counted as passes."""
    val, test, control = _splits(lab)
    return TANGENT * len(lab.suite.names) * (val + test + 2 * control)


PASSES: dict[str, tuple[Count, ...]] = {
    "tangent": (_single, _addition, _negation, maps),
    "linear_layers": (_single, _addition, maps),
    "ctl": (linearity, linearity),
    "closed_vocab": (_single, _addition, maps),
    "merging": (_single, merging),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A fine-tuning run.

    Attributes:
        lab: Where it belongs.
        task: Name of the task.
        method: One that trains a vector.
        seed: Order of the images.
        penalty: Strength of the method's penalty; `None` is its own.
    """

    lab: Lab
    task: str
    method: str
    seed: int
    penalty: float | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines its result: its key in the store."""
        return self.lab.trainer.identity(self.recipe)

    @property
    def kept(self) -> bool:
        """Whether its result is in the store."""
        return self.lab.store.has("finetune", self.identity)

    @property
    def recipe(self) -> FineTune:
        """What it is."""
        usual = self.lab.run(self.task, self.method, self.seed)
        return usual if self.penalty is None else dataclasses.replace(usual, penalty=self.penalty)


def planned(lab: Lab, methods: Iterable[str]) -> Iterator[Planned]:
    """Yield the runs behind the vectors of some methods, each once.

    Args:
        lab: Its tasks and seeds.
        methods: Any; a post-hoc one uses the vectors of another, and `"probe"` trains none.
    """
    trains = dict.fromkeys(POSTHOC.get(method, method) for method in methods)
    trains.pop("probe", None)
    for method, seed, task in itertools.product(trains, lab.parameters.seeds, lab.suite.names):
        yield Planned(lab=lab, task=task, method=method, seed=seed)


def searched(lab: Lab, methods: Iterable[str]) -> Iterator[FineTune]:
    """Yield the runs of the searches for learning rates that some methods ask for (`rates`).

    Args:
        lab: Its tasks and parameters.
        methods: Any.
    """
    for method in dict.fromkeys(POSTHOC.get(method, method) for method in methods):
        if method != "probe":
            run = lab.run(lab.suite.names[0], method, lab.parameters.seeds[0])
            yield from rates.runs(run, lab.suite)


def plan(lab: Lab, chapter: str) -> Plan:
    """Return what a chapter asks of a lab.

    Args:
        lab: Its model, tasks, parameters and store.
        chapter: One of `chapters.CHAPTERS`.
    """
    methods = chapters.chapter(chapter).methods
    runs = [(run.recipe, run.kept) for run in planned(lab, methods)]
    for run in searched(lab, methods):
        runs.append((run, lab.store.has("finetune", lab.trainer.identity(run))))
    linear = [method for method in methods if method in LINEAR]
    once = sum(count(lab) for count in PASSES[chapter]) * (len(methods) - len(linear))
    tangents = len(linear) * tangent_images(lab)
    return work(runs, round((once + tangents) * len(lab.parameters.seeds)))


def work(runs: Collection[tuple[FineTune, bool]], passed: int) -> Plan:
    """Return what some runs take.

    Args:
        runs: Each with whether it is in the store.
        passed: Images that pass through a model without training.
    """
    waiting = [run for run, kept in runs if not kept]
    images = [run.steps * run.batch_size for run in waiting]
    weights = (TABLE[run.method].products for run in waiting)
    return Plan(
        runs=len(waiting),
        kept=len(runs) - len(waiting),
        steps=sum(run.steps for run in waiting),
        trained=sum(images),
        equivalent=sum(n * weight for n, weight in zip(images, weights, strict=True)),
        passed=passed,
    )


class Pace(NamedTuple):
    """Seconds for an image, on this machine at this moment.

    Attributes:
        step: In a standard training step.
        passed: In a pass without derivatives.
    """

    step: float
    passed: float

    def seconds(self, work: Plan) -> float:
        """Return how long some work takes."""
        return self.step * work.equivalent + self.passed * work.passed


def pace(lab: Lab) -> Pace:
    """Return how fast this machine is, from a step and a pass of few images.

    Args:
        lab: Whose model is measured.
    """
    encoder = lab.clip.encoder
    quick, trained = inference.passes(encoder), training.passes(encoder)
    precision = lab.parameters.precision or usual_precision(lab.parameters.device)
    leaves = {name: value.detach().requires_grad_() for name, value in encoder.params.items()}

    def inputs(count: int) -> Tensor:
        if isinstance(encoder, TextEncoder):
            texts = lab.evaluator.images(lab.suite.names[0], "test")
            return encoder.preprocess(texts.x[:count])
        return torch.randn(count, 3, *[encoder.image_size] * 2, device=encoder.device)

    def step(x: Tensor) -> None:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            total = trained(leaves, x).float().square().mean()
        float(torch.autograd.grad(total, list(leaves.values()), allow_unused=True)[-1].sum())

    def passing(x: Tensor) -> None:
        float(quick(encoder.params, x).sum())

    def taken(what: Callable[[Tensor], None]) -> float:
        for count in PROBES:
            x = inputs(count)
            first = second = timed(what, x)
            if first < LONG:  # else the first is not much longer than any other
                second = timed(what, x)
            if second > SHORT:  # else most of it is not arithmetic
                break
        return second / len(x)

    def timed(what: Callable[[Tensor], None], x: Tensor) -> float:
        began = time.perf_counter()
        what(x)
        return time.perf_counter() - began

    return Pace(taken(step), taken(passing))
