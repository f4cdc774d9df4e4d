"""Weight disentanglement: how much one task vector disturbs a model on another task's images.

The disentanglement error of two task vectors at the coefficients (a_1, a_2) is

    xi(a_1, a_2) = sum_{t=1,2} E_{x in D_t} [ dist( f(x; theta_0 + a_t tau_t),
                                                    f(x; theta_0 + a_1 tau_1 + a_2 tau_2) ) ].

All papers sum over the two tasks (tangent, figure 3; closed vocabulary, section 4.1; linear layers,
section 4); they differ in `dist`:

- *classifier*: 1 where the two predicted classes differ, else 0, with each task's own head
  (tangent; closed vocabulary; linear layers, footnote 3). Here in %, so from 0 to 200.
- *representation*: the Kullback-Leibler divergence between softmaxed features (linear layers,
  section 4), which needs no head. The paper writes KL; its code takes the mean of both directions,
  which is symmetric, and so does this module. In nats, from 0.

For a linearized model every cell of a map is arithmetic on features that are computed once,
f0 + a_1 J tau_1 + a_2 J tau_2. For any other model a map of A x A cells is A x A evaluations of
joint models on the images of both tasks, and 2 A of models with one vector.

Letters: A coefficients, N images, D features.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.edited import Line
from tasklab.analyses.evaluation import Evaluator, Vectors
from tasklab.analyses.finite import (
    as_coefficient,
    as_coefficients,
    check_grid,
    check_vectors,
    finite_rows,
)
from tasklab.analyses.shares import packed
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.models import inference
from tasklab.models.encoder import Encoder
from tasklab.progress import track
from tasklab.storage.placement import placed


def grid(reach: float, points: int) -> tuple[float, ...]:
    """Return equispaced coefficients from -reach to reach.

    >>> grid(1, 5)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    if as_coefficient(reach, "reach") <= 0:
        raise TasklabError(f"a grid needs a reach above 0, not {reach}.")
    return tuple(float(a) for a in np.linspace(-reach, reach, whole("points", points, 2)))


GRID_TANGENT = grid(3, 20)  # tangent, appendix A
GRID_LINEAR_LAYERS = grid(2, 15)  # linear layers, appendix A
IMAGES = 2048  # test points of each task: tangent, appendix A; linear layers, appendix A
_PATCHES = 2 * 2**30  # the most bytes of embedded patches that are kept: ViT-B/32's of all images
METRICS = ("xi_classifier", "xi_representation")
SEARCHED = 1.0  # the widest box, that of the closed-vocabulary paper, is [-1, 1]²
_NEAR = 1e-9  # the end of a grid may miss the edge of a box by a rounding error

Single = Callable[[float], Tensor]  # a_t -> features (N, D) of task t's images
Joint = Callable[[float, float], Sequence[Tensor]]  # a_1, a_2 -> features of both tasks' images
Classify = Callable[[Tensor], Tensor]  # features (N, D) -> predicted classes (N,)


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The disentanglement errors of one pair of tasks on a grid of coefficients."""

    tasks: tuple[str, str]
    alphas: tuple[float, ...]  #: The coefficients (A,) along both axes
    #: Prediction errors (A, A) in %, from 0 to 200; row i, column j is xi(a_i, a_j).
    classifier: np.ndarray
    representation: np.ndarray  #: Symmetrised divergences (A, A) in nats
    n: int
    #: Whether the prediction on an image changes (A, A, 2, N), by cell and task.
    changed: np.ndarray | None = None

    def rows(self, method: str, seed: int) -> list[dict[str, Any]]:
        """Return one record for each metric and cell; `records.box_means` averages them.

        Returns:
            Records with method, task (`"T1+T2"`), metric, alpha1, alpha2, value, n and seed; of
            prediction errors in the widest search box also which images they are (`hits`).
        """
        common = {"method": method, "task": "+".join(self.tasks), "n": self.n, "seed": seed}
        rows = []
        for metric, values in zip(METRICS, (self.classifier, self.representation), strict=True):
            for (i, one), (j, two) in itertools.product(enumerate(self.alphas), repeat=2):
                value = float(values[i, j])
                row = {**common, "metric": metric, "alpha1": one, "alpha2": two, "value": value}
                inside = max(abs(one), abs(two)) <= SEARCHED + _NEAR
                if metric == "xi_classifier" and inside and self.changed is not None:
                    row["hits"] = packed(self.changed[i, j].ravel())
                rows.append(row)
        return rows


def symmetric_kl(one: Float[Tensor, "N D"], two: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
    """Return (KL(p|q) + KL(q|p)) / 2 of p = softmax(one) and q = softmax(two), in nats.

    The normalising constants cancel, because p and q both sum to one:

        (KL(p|q) + KL(q|p)) / 2 = <p - q, one - two> / 2.

    >>> symmetric_kl(torch.tensor([[1.0, 3.0]]).log(), torch.tensor([[1.0, 1.0]]))
    tensor([0.1373])
    """
    return ((one.softmax(-1) - two.softmax(-1)) * (one - two)).sum(-1) / 2


def error_cells(
    singles: tuple[Single, Single],
    joint: Joint,
    classify: Sequence[Classify],
    alphas: Sequence[float],
    *,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the classifier's and the representation's xi on a square grid, from any model.

    Args:
        singles: For each task t: a_t -> features of f(.; theta_0 + a_t tau_t) on task t's images.
        joint: (a_1, a_2) -> features of f(.; theta_0 + a_1 tau_1 + a_2 tau_2) on either task's.
        classify: For each task: features -> predicted classes.
        alphas: Ascending coefficients along both axes.
        progress: Whether to show a bar.

    Returns:
        Errors (A, A) in %, divergences (A, A) in nats, and whether the prediction on an image
        changes (A, A, 2, N). `singles` are called A times each, `joint` A² times.
    """
    as_coefficients(alphas)

    def answers(t: int, alpha: float) -> tuple[Tensor, Tensor]:
        place = f"features (task {t + 1} of 2, its vector times {alpha:g})"
        features = finite_rows(singles[t](alpha), place)
        return features, classify[t](features)

    alone = [[answers(t, alpha) for alpha in alphas] for t in (0, 1)]
    size, count = len(alphas), len(alone[0][0][0])
    changed, representation = np.zeros((size, size, 2, count), bool), np.zeros((size, size))
    cells = track(itertools.product(range(size), repeat=2), size**2, "xi", unit="cell", on=progress)
    for cell in cells:
        at = tuple(alphas[i] for i in cell)
        for t, features in enumerate(joint(*at)):
            finite_rows(features, f"features (task {t + 1} of 2, vectors times {at})")
            own, classes = alone[t][cell[t]]
            changed[cell][t] = (classify[t](features) != classes).cpu().numpy()
            representation[cell] += symmetric_kl(own, features).double().mean().item()
    return 100 * changed.mean(-1).sum(-1), representation, changed


@isolated
def error_map(
    evaluator: Evaluator,
    vectors: Vectors,
    *,
    linear: bool,
    alphas: Sequence[float] = GRID_TANGENT,
    images: int | None = IMAGES,
    split: str = "test",
    progress: bool = True,
) -> ErrorMap:
    """Return the disentanglement errors of two tasks on a grid.

    A linear model takes four forward-mode passes, none if they are in the store; another one
    2 A² + 2 A passes over a task's images, 2 A fewer if 0 is a coefficient. Preprocessed images
    stay in memory: 2,048 of 224 x 224 take 1.2 GB.

    Args:
        evaluator: The pre-trained model with its heads and images.
        vectors: Task vectors of one model, by task.
        linear: Whether to edit the linearized model.
        alphas: Coefficients of both axes, ascending: `GRID_TANGENT`, `GRID_LINEAR_LAYERS`, or e.g.
            a finer grid inside the search box.
        images: The most images of each task; `None` for all that the evaluator has. Both tasks get
            equally many.
        split: `"train"`, `"val"` or `"test"`.
        progress: Whether to show a bar.
    """
    check_grid(alphas)
    check_vectors(vectors)
    if len(vectors) != 2:
        raise TasklabError(f"xi is an error of two tasks, not of {len(vectors)}.")
    if not any(vectors.values()):
        raise TasklabError("both task vectors are empty: there is nothing to merge.")
    one, two = vectors
    alphas = tuple(map(float, alphas))
    n = min(evaluator.count(task, split) for task in vectors)
    n = n if images is None else min(n, whole("images", images, 1))
    make = _linear if linear else _nonlinear
    singles, joint = make(evaluator, vectors, split, n)
    classify = [
        lambda features, task=task: evaluator.logits(features, task).argmax(-1) for task in vectors
    ]
    with torch.inference_mode():  # not earlier: tangent features are made by differentiation
        errors = error_cells(singles, joint, classify, alphas, progress=progress)
    return ErrorMap((one, two), alphas, *errors[:2], n, errors[2])


def _linear(
    evaluator: Evaluator, vectors: Vectors, split: str, n: int
) -> tuple[tuple[Single, Single], Joint]:
    parts = []
    for task in vectors:
        features = [evaluator.tangent_features(vector, task, split) for vector in vectors.values()]
        parts.append((features[0].f0[:n], *(f.jtau[:n] for f in features)))
    (base1, own1, _), (base2, _, own2) = parts
    singles = (
        lambda alpha: torch.add(base1, own1, alpha=alpha),
        lambda alpha: torch.add(base2, own2, alpha=alpha),
    )

    def joint(alpha1: float, alpha2: float) -> list[Tensor]:
        return [
            torch.add(base, one, alpha=alpha1).add_(two, alpha=alpha2) for base, one, two in parts
        ]

    return singles, joint


def _nonlinear(
    evaluator: Evaluator, vectors: Vectors, split: str, n: int
) -> tuple[tuple[Single, Single], Joint]:
    theta0, (tau1, tau2) = evaluator.clip.encoder.params, vectors.values()
    encoder, inputs, mixed = _inputs(evaluator, vectors, split, n)

    def features(params: Mapping[str, Tensor], x: Tensor, *at: float) -> Tensor:
        return torch.cat(list(evaluator.parts(lambda part: encoder(params, mixed(part, at)), x)))

    alone, ahead, line = Line(theta0, tau1), Line(theta0, tau1), Line(theta0, tau2)

    @functools.lru_cache(1)  # a row of the map: the vector of its column is all that moves
    def row(alpha1: float) -> Line:
        return line.begin(ahead.at(alpha1))

    known: dict[tuple[int, float], Tensor] = {}

    def first(alpha: float) -> Tensor:
        known[0, alpha] = features(alone.at(alpha), inputs[:n], alpha, 0.0)
        return known[0, alpha]

    def second(alpha: float) -> Tensor:
        known[1, alpha] = features(row(0.0).at(alpha), inputs[n:], 0.0, alpha)
        return known[1, alpha]

    def joint(alpha1: float, alpha2: float) -> Sequence[Tensor]:
        one = known.get((0, alpha1)) if alpha2 == 0 else None  # the model of one vector
        two = known.get((1, alpha2)) if alpha1 == 0 else None
        if one is not None and two is not None:
            return one, two
        x = inputs[:n] if two is not None else inputs[n:] if one is not None else inputs
        made = features(row(alpha1).at(alpha2), x, alpha1, alpha2)
        if len(x) == 2 * n:
            return made.split(n)
        return (made, two) if one is None else (one, made)

    return (first, second), joint


@torch.inference_mode()
def _inputs(
    evaluator: Evaluator, vectors: Vectors, split: str, n: int
) -> tuple[Encoder, Tensor, Callable[[Tensor, Sequence[float]], Tensor]]:
    """Return the encoder, both tasks' inputs (2 N, ...) and a function that mixes their outputs.

    Where the encoder can begin with embedded patches (`inference.from_patches`), these replace the
    images: those of theta_0 and of either vector's weight, (2 N, 3, D, h, w).
    """
    encoder, theta0 = evaluator.passes, evaluator.clip.encoder.params
    images = (evaluator.preprocessed(task, split, n) for task in vectors)
    behind = inference.from_patches(encoder)
    if behind is None:
        return encoder, torch.cat(list(images)), lambda part, at: part
    after, name, embed = behind
    weights = [theta0[name]]
    for tau in vectors.values():
        weights.append(placed(tau[name], theta0[name].device) if name in tau else 0 * theta0[name])
    kept = None
    for place, x in enumerate(images):
        for start in range(0, n, evaluator.parts.size):
            stop = min(n, start + evaluator.parts.size)
            made = torch.stack([embed(weight, x[start:stop]) for weight in weights], dim=1)
            if kept is None:
                if made[0].nbytes * 2 * n > _PATCHES:
                    return encoder, torch.cat([x, *images]), lambda part, at: part
                kept = made.new_empty(2 * n, *made.shape[1:])
            kept[place * n + start : place * n + stop] = made

    def mixed(part: Tensor, at: Sequence[float]) -> Tensor:
        one, two = at
        return torch.add(part[:, 0], part[:, 1], alpha=one).add_(part[:, 2], alpha=two)

    return after, kept, mixed
