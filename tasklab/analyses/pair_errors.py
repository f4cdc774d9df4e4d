"""Loss by adding two vectors, and its prediction by cross-task linearity."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses.edited import Edited
from tasklab.analyses.evaluation import Evaluator, Vectors
from tasklab.analyses.finite import as_coefficients, check_vectors
from tasklab.analyses.statistics import by_pair
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import inference
from tasklab.taskvector import merged


@isolated
def pair_errors(
    evaluator: Evaluator,
    vectors: Vectors,
    coefficients: Sequence[float],
    count: int,
    *,
    linear: bool = False,
    first: int = 0,
) -> Iterator[dict]:
    """Yield disentanglement error and loss in addition of all pairs of tasks.

    Of theta_0 + c (tau_i + tau_j) on either task, beside theta_0 + c tau_i of the task alone: the
    share of changed predictions (xi, tangent, equation 3) and the accuracy that is lost.

    Args:
        evaluator: The pre-trained model with its heads and images.
        vectors: Task vectors of one model, by task.
        coefficients: Common coefficients of both vectors.
        count: Images of each task, at most.
        linear: Whether to edit the linearized model.
        first: How many pairs are left out: an interrupted call had them.

    Yields:
        Task (`"T1+T2"`), alpha (c), the metrics `xi_pair` (%) and `lost` (points), means over both
        tasks, as value, and n (images of both).
    """
    check_vectors(vectors)
    if len(vectors) < 2:
        raise TasklabError("pairs of tasks need at least two task vectors.")
    as_coefficients(coefficients, "coefficients")
    if linear:
        yield from _linear(evaluator, vectors, coefficients, count, first)
        return
    encoder = evaluator.clip.encoder
    passes, theta = inference.passes(encoder), encoder.params
    data = {
        t: (evaluator.preprocessed(t, "test", count), evaluator.images(t, "test").y[:count])
        for t in vectors
    }

    @torch.inference_mode()
    def guess(params: Mapping[str, Tensor], task: str) -> Tensor:
        parts = evaluator.parts(lambda x: evaluator.logits(passes(params, x), task), data[task][0])
        return torch.cat([logits.argmax(-1) for logits in parts])

    for c in coefficients:
        models = {t: Edited(theta, v, c) for t, v in vectors.items()}  # made when asked for
        alone = {t: guess(dict(params), t) for t, params in models.items()}
        for pair in itertools.islice(itertools.combinations(vectors, 2), first, None):
            both = merged([*(models[task] for task in pair), theta], (1, 1, -1))
            sides = [(guess(both, task), alone[task], data[task][1]) for task in pair]
            del both  # before the next one is made
            yield from _rows(pair, c, sides)


def _linear(
    evaluator: Evaluator, vectors: Vectors, coefficients: Sequence[float], count: int, first: int
) -> Iterator[dict]:
    """Yield the same of the linearized model, whose features add up."""
    for pair in itertools.islice(itertools.combinations(vectors, 2), first, None):
        parts = {
            task: [evaluator.tangent_features(vectors[one], task, "test") for one in pair]
            for task in pair
        }
        for c in coefficients:
            sides = []
            for task, own in zip(pair, (0, 1), strict=True):
                f0, moved = parts[task][0].f0[:count], [x.jtau[:count] for x in parts[task]]
                together, alone = (
                    evaluator.logits(f0 + c * change, task).argmax(-1)
                    for change in (sum(moved), moved[own])
                )
                sides.append((together, alone, evaluator.images(task, "test").y[:count]))
            yield from _rows(pair, c, sides)


def _rows(
    pair: tuple[str, str], c: float, sides: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Iterator[dict]:
    values = {
        "xi_pair": [_share(together != alone) for together, alone, _ in sides],
        "lost": [_share(alone == y) - _share(together == y) for together, alone, y in sides],
    }
    n = sum(len(labels) for *_, labels in sides)
    for metric, parts in values.items():
        value = 100 * sum(parts) / len(parts)
        yield {"task": "+".join(pair), "alpha": c, "metric": metric, "value": value, "n": n}


def _share(flags: Tensor) -> float:
    return flags.double().mean().item()


def foretold(linearity: pd.DataFrame, errors: pd.DataFrame, alpha: float = 0.5) -> pd.DataFrame:
    """Put a pair's linearity beside its disentanglement error and its loss in addition.

    Args:
        linearity: Records of `cross_task`.
        errors: Records of `pair_errors`.
        alpha: Weight of the first model at which linearity is read.

    Returns:
        One row per pair and method, means over seeds: method, one, other, distance (1 - cos at the
        features), base, xi_pair (%) and lost (points); group is the method.
    """
    left = linearity[
        linearity["block"].isna()
        & (linearity["alpha"] - alpha).abs().lt(1e-9)
        & linearity["metric"].isin(["distance", "base"])
    ]
    right = errors[(errors["alpha"] - alpha).abs().lt(1e-9)]
    table = by_pair(pd.concat([left, right]), ["method", "task"]).dropna(ignore_index=True)
    return table.assign(group=table["method"])
