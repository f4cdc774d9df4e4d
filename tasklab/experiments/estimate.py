"""How much work is asked for, and how fast this machine is.

Time is that of a measured step, in the precision of the runs, and of a pass in float32, both of few
images.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tasklab.experiments.registry import trained
from tasklab.isolation import isolated
from tasklab.models import inference, training
from tasklab.models.encoder import TextEncoder
from tasklab.tasks import drawn
from tasklab.tuning import rates
from tasklab.tuning.methods import TABLE
from tasklab.tuning.recipe import FineTune, usual_precision

if TYPE_CHECKING:
    from tasklab.experiments.lab import Lab

TANGENT = 3.0  # passes that a forward-mode pass stands for
PROBES = (2, 8, 32)  # images of the measured step and pass: more where it is short; a rehearsal's 2
SHORT = 0.5  # seconds of a batch after which no larger one is measured
Typical = Callable[[Sequence[float]], float]
TRIES, LONG = 6, 2.0  # as many of each, while they take no longer than these seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Fine-tuning runs and evaluation passes."""

    runs: int = 0
    kept: int = 0  #: Those that are in the store
    steps: int = 0  #: Of the runs to do, all together
    trained: int = 0  #: Images of these steps
    equivalent: float = 0.0  #: The same, counted as images of standard steps
    passed: int = 0  #: Images that pass through a model without training

    def __add__(self, other: Plan) -> Plan:
        return Plan(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __str__(self) -> str:
        runs = f"{self.runs} fine-tuning run{'' if self.runs == 1 else 's'}"
        steps = f", {self.steps:,} steps" if self.runs else ""
        kept = f" ({self.kept} found in the store)" if self.kept else ""
        return f"{runs}{steps}{kept}; at most {self.passed:,} images to evaluate"


def looked_at(lab: Lab, split: str) -> int:
    """Count the images of a task that are evaluated; `"control"` is the control task's test."""
    task = lab.suite.control.name if split == "control" else lab.suite.names[0]
    size = drawn.images_of(lab.suite).size(task, "test" if split == "control" else split)
    most = lab.scale.counts.get(split)
    return size if most is None else min(size, most)


def tangent_images(lab: Lab) -> float:
    """Return the images of the tangent features of one method's vectors, counted as passes."""
    val, test, control = (looked_at(lab, split) for split in ("val", "test", "control"))
    return TANGENT * len(lab.suite.names) * (val + test + 2 * control)


def searched(lab: Lab, methods: Iterable[str]) -> Iterator[FineTune]:
    """Yield the runs of the searches for learning rates that some methods ask for (`rates`)."""
    for method in trained(methods):
        yield from rates.runs(lab.run(lab.suite.names[0], method, lab.seeds[0]), lab.suite)


def work(runs: Collection[tuple[FineTune, bool]], passed: int) -> Plan:
    """Return the work of some runs."""
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
    """Seconds for an image, on this machine at this moment."""

    step: float  #: In a standard training step
    passed: float  #: In a pass without derivatives

    def seconds(self, work: Plan) -> float:
        """Return the seconds of some work."""
        return self.step * work.equivalent + self.passed * work.passed


@isolated
def pace(lab: Lab) -> Pace:
    """Time this machine by a step and a pass of few images, the fastest of some tries.

    Beside other work a try can wait long for a core, which a run of minutes does only now and then.
    """
    encoder = lab.clip.encoder
    trained = training.passes(encoder)
    precision = lab.parameters.precision or usual_precision(str(lab.parameters.device))
    leaves = {name: value.detach().requires_grad_() for name, value in encoder.params.items()}

    def step(x: Tensor) -> None:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            total = trained(leaves, x).float().square().mean()
        float(torch.autograd.grad(total, list(leaves.values()), allow_unused=True)[-1].sum())

    return Pace(per_image(lab, step), passing(lab, min))


def passing(lab: Lab, typical: Typical = statistics.median) -> float:
    """Return the seconds of a pass for an image."""
    encoder = lab.clip.encoder
    quick = inference.passes(encoder)
    return per_image(lab, lambda x: float(quick(encoder.params, x).sum()), typical)


@isolated
def per_image(lab: Lab, what: Callable[[Tensor], object], typical: Typical = min) -> float:
    """Return the seconds that something takes for an image, the least over a few batch sizes.

    Args:
        what: Is given a batch of inputs.
        typical: Several tries of one batch -> their time.
    """
    encoder, least = lab.clip.encoder, math.inf
    for count in PROBES[:1] if lab.light else PROBES:
        if isinstance(encoder, TextEncoder):
            texts = lab.evaluator.images(lab.suite.names[0], "test")
            x = encoder.preprocess(texts.x[:count])
        else:
            x = torch.randn(count, 3, *[encoder.image_size] * 2, device=encoder.device)
        tries = [_timed(what, x)]
        while len(tries) < TRIES and sum(tries) < LONG:
            tries.append(_timed(what, x))
        least = min(least, typical(tries) / len(x))
        if min(tries) > SHORT:
            break
    return least


def _timed(what: Callable[[Tensor], object], x: Tensor) -> float:
    began = time.perf_counter()
    what(x)
    return time.perf_counter() - began
