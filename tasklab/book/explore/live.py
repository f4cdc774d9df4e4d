"""An editor without a kernel: a slider for each task vector, all accuracies at each movement.

Scores of a linearized model are affine in the coefficients, so that a page stores them for some
images and computes accuracies exactly (`explore.payload`). A model that is not linear is a
recorded curve along one coefficient, measured below 0; with one or two vectors it has an editor of
its own, of predictions on a grid.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import UInt8
from PIL import Image

from tasklab.analyses.coefficients import affine_scores
from tasklab.analyses.editing import normalised
from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.step_curves import ascend
from tasklab.book.explore.payload import Curve, Payload, ShownTask, quantised
from tasklab.errors import TasklabError, choose, whole
from tasklab.evidence.experiments import LINEAR, Lab
from tasklab.evidence.figures.style import METHOD_LABEL
from tasklab.isolation import isolated
from tasklab.progress import track
from tasklab.tasks.suites import inputs
from tasklab.taskvector import TaskVector

_LARGEST = 64  # pixels: larger pictures are made smaller
_BYTES = 800_000  # of all scores: with pictures and in base64 that stays below 1.5 MB
_BELOW = (-1.0, -0.75, -0.5, -0.25)  # coefficients that no sum is recorded at
_MEASURED = 100  # images at most, at every point of a grid
_GRID = (*_BELOW, 0.0, 0.25, 0.5, 0.75, 1.0)  # each vector's, where a model is measured
_SPLITS = {"val": "validation", "test": "test"}


@dataclasses.dataclass(frozen=True, eq=False)
class Editor:
    """Sliders, bars and pictures of a `payload`."""

    payload: Payload

    @functools.cached_property
    def _html(self) -> str:
        return self.payload.document()

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        p = self.payload
        return f"editor of {len(p.vectors)} task vectors, {p.method} model, {p.counted}"


@isolated
def editor(
    lab: Lab,
    method: str = "linearized",
    *,
    split: str = "val",
    beside: pd.DataFrame | None = None,
    images: int = 250,
    pictures: int = 6,
) -> Editor:
    """Return an editor of the model with every vector: f0 + sum_t alpha_t J tau_t if it is linear.

    One that is not linear is measured at nine coefficients of each of at most two vectors.

    Args:
        lab: Model, tasks, seeds, scale and store.
        method: One of `EDITS`.
        split: Of the images that are shown; coefficients are chosen on `"val"`.
        beside: Records of the experiment `addition`, whose non-linear sums are drawn beside the
            live point; coefficients below 0 are measured in four passes over its images.
        images: At most so many of each task; fewer with many classes, to keep the page small.
        pictures: Images of each task that are shown.
    """
    choose("split", split, _SPLITS)
    whole("images", images, 1)
    whole("pictures", pictures, 0)
    linear, tasks = method in LINEAR, lab.suite.names
    if not linear and len(tasks) > 2:
        raise TasklabError(
            f"only {', '.join(LINEAR)} are affine in the coefficients; {method!r} is not, and is "
            "measured with at most two vectors: Lab(tasks=[...]). explore.coefficients takes "
            "passes over images."
        )
    vectors, evaluator = lab.vectors(method), lab.evaluator_of(method)
    every = list(vectors.values())
    names = [*vectors, evaluator.suite.control.name] if lab.clip.text is not None else [*vectors]
    measured = {} if linear else _measured(lab, every, evaluator, names, split)
    shown = []
    for name in names:
        if linear:
            scores = affine_scores(evaluator, every, name, split)
            fitting = _BYTES // (len(names) * 2 * scores.base.shape[1] * (len(every) + 1))
            most = max(1, min(images, fitting))
            values = quantised(scores.base[:most], scores.slopes[:, :most])
        else:
            values = measured[name][..., :images]
            most = values.shape[-1]
        shown.append(_shown(evaluator, name, split, values, most, pictures))
    own = [task for task in shown if task.name in vectors]
    if linear:
        chosen = [affine_scores(evaluator, every, task, "val") for task in vectors]
        of = [one.accuracy for one in chosen]
        starts = presets(of, lab.scale.alphas, lambda *at: ascend(chosen, *at).alphas)
    else:
        of = [functools.partial(task.accuracy, grid=_GRID) for task in own]
        starts = presets(of, _GRID, lambda alone, _: _best(of, alone))
    start = "probes" if lab.parameters.head == "probe" else "pre-trained"
    counts = {len(task.labels) for task in own}
    many = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return Editor(
        Payload(
            method=METHOD_LABEL[method],
            images=f"{many} {_SPLITS[split]} {inputs(lab.suite.name)} of each task",
            vectors=tuple(vectors),
            tasks=tuple(shown),
            presets={start: (0.0,) * len(every)} | starts,
            curves=() if beside is None else _curves(lab, beside, split),
            grid=() if linear else _GRID,
            start=start,
        )
    )


def presets(
    accuracies: Sequence[Callable[[np.ndarray], float]],
    grid: Sequence[float],
    own: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> dict[str, tuple[float, ...]]:
    """Return initial coefficients by label.

    The shared one has the highest mean normalised accuracy of the grid.

    Args:
        accuracies: Of each task's validation images, at coefficients of all vectors.
        grid: Shared coefficients to try.
        own: Finds each task's own coefficients, from single-task accuracies and the shared ones.
    """
    ones = np.ones(len(accuracies))
    alone = np.array([at(unit) for at, unit in zip(accuracies, np.eye(len(ones)), strict=True)])
    share = [normalised(np.array([at(a * ones) for at in accuracies]), alone) for a in grid]
    alpha = grid[int(np.mean(share, axis=1).argmax())]
    presets = {
        f"all at {alpha:.2f} (chosen)": alpha * ones,
        "each at its own best": own(alone, alpha * ones),
        **({} if alpha == 1 else {"all at 1": ones}),
        "negate all": -alpha * ones,
    }
    return {label: tuple(alphas.tolist()) for label, alphas in presets.items()}


@torch.inference_mode()
def _measured(
    lab: Lab, every: Sequence[TaskVector], evaluator: Evaluator, names: Sequence[str], split: str
) -> dict[str, np.ndarray]:
    """Return predicted classes at all points of the grid (G, ..., G, N), by task."""
    encoder = evaluator.passes
    images = {name: evaluator.preprocessed(name, split, _MEASURED) for name in names}
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    points = list(itertools.product(_GRID, repeat=len(every)))
    for point in track(points, len(points), "editor", unit="point", on=lab.progress):
        vector = TaskVector.sum(v * a for v, a in zip(every, point, strict=True))
        params = vector.apply(encoder.params)
        for name, x in images.items():
            parts = evaluator.parts(functools.partial(encoder, params), x)
            logits = evaluator.logits(torch.cat(list(parts)), name)
            found[name].append(logits.argmax(-1).cpu().numpy().astype(np.int16))
    shape = [len(_GRID)] * len(every)
    return {name: np.reshape(rows, (*shape, -1)) for name, rows in found.items()}


def _best(accuracies: Sequence[Callable[[np.ndarray], float]], alone: np.ndarray) -> np.ndarray:
    points = [np.array(one) for one in itertools.product(_GRID, repeat=len(accuracies))]
    share = [normalised(np.array([at(one) for at in accuracies]), alone).mean() for one in points]
    return points[int(np.argmax(share))]


def _curves(lab: Lab, records: pd.DataFrame, split: str) -> tuple[Curve, ...]:
    """Return mean accuracies along the coefficient of each sum of a non-linear model."""
    rows = records[(records["experiment"] == "sweep") & (records["metric"] == "absolute")]
    rows = rows[(rows["split"] == _SPLITS[split]) & (rows["n_tasks"] == len(lab.suite.names))]
    rows = rows[rows["seed"] == rows["seed"].iloc[0]] if len(rows) else rows  # the lab's first
    drawn = []
    for method, of_method in rows[~rows["method"].isin(LINEAR)].groupby("method", sort=False):
        vectors = lab.vectors(method)
        below = lab.evaluator_of(method).sweep(
            TaskVector.sum([*vectors.values()]), [*vectors], split, linear=False, alphas=_BELOW
        )
        means = dict(zip(_BELOW, below.mean(axis=1), strict=True))
        means |= of_method.groupby("alpha")["value"].mean().to_dict()
        values = tuple(round(float(value), 3) for value in means.values())
        drawn.append(Curve(label=METHOD_LABEL[method], alphas=tuple(means), means=values))
    return tuple(drawn)


def _shown(
    evaluator: Evaluator, task: str, split: str, scores: np.ndarray, images: int, pictures: int
) -> ShownTask:
    seen, classes = evaluator.images(task, split), tuple(evaluator.suite[task].classes)
    labels, shown = seen.y.cpu().numpy()[:images], _pictures(seen.x[:pictures].cpu().numpy())
    return ShownTask(name=task, classes=classes, labels=labels, scores=scores, pictures=shown)


def _pictures(x: np.ndarray) -> UInt8[np.ndarray, "K S S 3"]:
    if x.ndim != 4:
        return np.zeros((0, 1, 1, 3), np.uint8)
    side = min(_LARGEST, max(x.shape[2:]))
    whole = (Image.fromarray(image.transpose(1, 2, 0)) for image in x)
    squares = [np.asarray(image.resize((side, side))) for image in whole]
    return np.stack(squares) if squares else np.zeros((0, side, side, 3), np.uint8)
