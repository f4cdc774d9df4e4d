"""An editor without a kernel: a slider for each task vector, all accuracies at each movement.

Scores of a linearized model are affine in the coefficients, so that a page stores them for some
images and computes accuracies exactly (`tasklab.explore.payload`). A model that is not linear is a
recorded curve along one coefficient, measured below 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import UInt8
from PIL import Image

from tasklab.analyses.coefficients import affine_scores
from tasklab.analyses.editing import normalised
from tasklab.analyses.evaluation import ALPHAS, Evaluator
from tasklab.analyses.step_curves import AffineScores, ascend
from tasklab.errors import TasklabError, choose, whole
from tasklab.experiments import LINEAR, Lab
from tasklab.explore import page
from tasklab.explore.payload import Curve, Payload, ShownTask, quantised
from tasklab.figures.style import METHOD_LABEL
from tasklab.taskvector import TaskVector

_LARGEST = 64  # pixels: larger pictures are made smaller
_BYTES = 800_000  # of all scores: with pictures and in base64 that stays below 1.5 MB
_BELOW = (-1.0, -0.75, -0.5, -0.25)  # coefficients that no sum is recorded at
_SPLITS = {"val": "validation", "test": "test"}


@dataclasses.dataclass(frozen=True, eq=False)
class Editor:
    """Sliders, bars and pictures of a `payload`."""

    payload: Payload

    @functools.cached_property
    def _html(self) -> str:
        return page.document(self.payload)

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        """Return a line for front ends without HTML."""
        p = self.payload
        return f"editor of {len(p.vectors)} task vectors, {p.method} model, {p.counted}"


def editor(
    lab: Lab,
    method: str = "linearized",
    *,
    split: str = "val",
    beside: pd.DataFrame | None = None,
    images: int = 250,
    pictures: int = 6,
) -> Editor:
    """Return an editor of a linear model: f0 + sum_t alpha_t J tau_t.

    Args:
        lab: The model and tasks.
        method: Whose vectors: one of `experiments.LINEAR`.
        split: Images; coefficients are chosen on `"val"`.
        beside: Records of the experiment `addition`, whose non-linear sums are drawn beside the
            live point; coefficients below 0 are measured in four passes over its images.
        images: At most so many of each task; fewer with many classes, to keep the page small.
        pictures: Images of each task that are shown.

    Raises:
        TasklabError: If the method's model is not linear, or the split unknown.
    """
    if method not in LINEAR:
        raise TasklabError(
            f"only {', '.join(LINEAR)} are affine in the coefficients; {method!r} is not: "
            "explore.coefficients takes passes over images."
        )
    choose("split", split, _SPLITS)
    whole("images", images, 1)
    whole("pictures", pictures, 0)
    vectors, evaluator = lab.vectors(method), lab.evaluator_of(method)
    every = list(vectors.values())
    names = [*vectors, evaluator.suite.control.name] if lab.clip.text is not None else [*vectors]
    shown = []
    for name in names:
        scores = affine_scores(evaluator, every, name, split)
        fitting = _BYTES // (len(names) * 2 * scores.base.shape[1] * (len(every) + 1))
        shown.append(_shown(evaluator, name, split, scores, max(1, min(images, fitting)), pictures))
    counts = {len(task.labels) for task in shown if task.name in vectors}
    many = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return Editor(
        Payload(
            method=METHOD_LABEL[method],
            images=f"{many} {_SPLITS[split]} images of each task",
            vectors=tuple(vectors),
            tasks=tuple(shown),
            presets=presets(
                [affine_scores(evaluator, every, task, "val") for task in vectors],
                lab.scale.alphas,
            ),
            curves=() if beside is None else _curves(lab, beside, split),
        )
    )


def presets(
    scores: Sequence[AffineScores], grid: Sequence[float] = ALPHAS
) -> Mapping[str, tuple[float, ...]]:
    """Return initial coefficients by label.

    The shared one has the highest mean normalised accuracy of the grid; from it each task's own are
    found.

    Args:
        scores: Of each task's validation images along all vectors.
        grid: Shared coefficients to try.
    """
    alone = np.array(
        [task.accuracy(unit) for task, unit in zip(scores, np.eye(len(scores)), strict=True)]
    )
    ones = np.ones(len(scores))
    share = [normalised(np.array([s.accuracy(a * ones) for s in scores]), alone) for a in grid]
    alpha = grid[int(np.mean(share, axis=1).argmax())]
    own = ascend(scores, alone, alpha * ones).alphas
    presets = {
        "pre-trained": 0 * ones,
        f"all at {alpha:.2f} (chosen)": alpha * ones,
        "each at its own best": own,
        "all at 1": ones,
        "negate all": -alpha * ones,
    }
    return {label: tuple(alphas.tolist()) for label, alphas in presets.items()}


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
    evaluator: Evaluator, task: str, split: str, scores: AffineScores, images: int, pictures: int
) -> ShownTask:
    seen = evaluator.images(task, split)
    return ShownTask(
        name=task,
        classes=tuple(evaluator.suite[task].classes),
        labels=scores.labels[:images],
        scores=quantised(scores.base[:images], scores.slopes[:, :images]),
        pictures=_pictures(seen.x[:pictures].cpu().numpy()),
    )


def _pictures(x: np.ndarray) -> UInt8[np.ndarray, "K S S 3"]:
    """Return images as squares of at most `_LARGEST` pixels; text has none."""
    if x.ndim != 4:
        return np.zeros((0, 1, 1, 3), np.uint8)
    side = min(_LARGEST, max(x.shape[2:]))
    squares = [
        np.asarray(Image.fromarray(image.transpose(1, 2, 0)).resize((side, side))) for image in x
    ]
    return np.stack(squares) if squares else np.zeros((0, side, side, 3), np.uint8)
