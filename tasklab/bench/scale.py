"""Scales of measurements: full, as in the papers, quick, or a rehearsal of everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasklab.analyses.evaluation import ALPHAS
from tasklab.tasks.drawn import PICTURES
from tasklab.tasks.suites import GLOSSES, inputs

if TYPE_CHECKING:
    from tasklab.bench.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Numbers of images, groups, pairs and points that are measured."""

    #: Images of each task by split, and of either split of the control task.
    counts: Mapping[str, int]
    alphas: tuple[float, ...] = ALPHAS
    n_tasks: tuple[int, ...] = (8,)  #: Sizes of the groups of added tasks
    pairs: int = 3  #: Pairs of tasks whose disentanglement is mapped
    points: int = 20  #: Coefficients along each axis of a map
    images: int = 64  #: The most images of each task in analyses that no paper names a number for
    map_images: int = 64  #: The most images of each task in a map of disentanglement
    #: The most images in cross-task linearity: of each task of a pair, and where there is one task.
    feature_images: tuple[int, int] = (64, 64)
    stitched_images: tuple[int, int] = (128, 128)  #: The same in stitched models
    places: tuple[float, ...] = (0.25, 0.5, 0.75)  #: On the segment between two models
    most_tasks: int = 8  #: The most tasks in analyses that look at every task by every vector
    kernel_images: int = 100  #: Images of each side of a tangent kernel
    #: The most classes that a tangent kernel is computed for; `None` for all.
    kernel_classes: int | None = 8
    cost_batch: int = 64  #: Images of a step whose cost is measured
    cost_rounds: int = 15  #: Times that such a step is timed


FULL = Scale(
    counts={"val": 500, "test": 1000, "control": 2000},
    n_tasks=(2, 4, 8),
    map_images=500,
    feature_images=(250, 500),
    stitched_images=(500, 500),
    kernel_images=200,
    kernel_classes=None,
)
PAPER = dataclasses.replace(  # tangent, appendix A; CTL, appendix C.1
    FULL,
    counts={},  # whole splits
    map_images=2048,
    feature_images=(5_000, 10_000),  # a pair's union has 10,000
    stitched_images=(1_000, 2_000),
)
QUICK = Scale(
    counts={"val": 80, "test": 250, "control": 250},
    pairs=1,
    points=13,
    images=32,
    map_images=32,
    feature_images=(32, 32),
    stitched_images=(64, 64),
    kernel_images=32,
    kernel_classes=4,
)
# A text takes a core about five milliseconds, and such a chapter has a hundred thousand passes.
QUICK_TEXTS = dataclasses.replace(
    QUICK,
    counts={"val": 50, "test": 100, "control": 100},
    alphas=ALPHAS[::2],
    map_images=20,
    cost_batch=32,
    cost_rounds=3,
)
REHEARSAL = Scale(
    counts={"val": 4, "test": 8, "control": 8},
    alphas=(0.0, 0.5, 1.0),
    pairs=1,
    points=3,
    images=2,
    map_images=2,
    feature_images=(2, 2),
    stitched_images=(4, 4),
    most_tasks=3,
    kernel_images=2,
    kernel_classes=2,
    cost_batch=2,
)
LIGHT = dataclasses.replace(  # of a full-size model, whose every pass takes long
    REHEARSAL,
    counts={"val": 2, "test": 2, "control": 2},
    alphas=(0.0, 1.0),
    feature_images=(1, 1),
    stitched_images=(1, 1),
    places=(0.5,),
)
REHEARSED_BLOCKS = 2  # of each tower of a full-size model: the others are the same code
REHEARSED_PATCHES = 4  # on a side of an image, if weights are random and images are drawn
REHEARSED_TASKS = 4  # of a full-size model: ranks of pairs need four models


def scale_of(parameters: Parameters) -> Scale:
    """Return the `Scale` of some parameters."""
    if parameters.rehearsal:
        return LIGHT if parameters.light else REHEARSAL
    if parameters.preset == "quick":
        return QUICK_TEXTS if parameters.suite == GLOSSES else QUICK
    return PAPER if parameters.suite == "paper" else FULL


def less_of(parameters: Parameters) -> dict[str, Any]:
    """Return the options of `loading.load` that make a rehearsed full-size model smaller.

    Images of the papers' data sets stay as large as the model takes them, as they are on the disk.
    """
    small = parameters.init == "random" and parameters.suite in PICTURES
    return {"blocks": REHEARSED_BLOCKS, "patches": REHEARSED_PATCHES if small else None}


def notice(parameters: Parameters) -> str:
    """Return the sentence that describes a rehearsal."""
    light = parameters.light
    images = inputs(str(parameters.suite))
    images = f"small {images}" if light and less_of(parameters)["patches"] else images
    less = ", few tasks and two blocks of each tower" if light else ""
    return (
        f"steps={parameters.steps} is a rehearsal: every cell runs, on a few {images}{less}, and "
        "no number that is computed here means anything."
    )
