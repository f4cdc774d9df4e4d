"""Models with replaced features: the front of some, the back of another.

With f_l(x; theta) the output of block l, and B_l(theta; h) the features that later blocks compute
from h, a stitched model is B_l(theta_0; h) of the pre-trained model, without a learnt layer between
(cross-task linearity, section 4.3). Two of them compare arithmetic
of weights with that of features:

- addition: h = (f_l(x; theta_0 + lambda tau_i) + f_l(x; theta_0 + lambda tau_j)) / 2   (figure 9);
- negation: h = f_l(x; theta_0) - (f_l(x; theta_0 + lambda tau) - f_l(x; theta_0)), beside
  h = f_l(x; theta_0 - lambda tau)                                                  (figure 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tasklab.analyses.edited import Line
from tasklab.analyses.finite import finite_rows
from tasklab.isolation import isolated
from tasklab.models import heads
from tasklab.models.encoder import Encoder
from tasklab.models.intercept import back, front, outputs
from tasklab.tasks.drawn import Images
from tasklab.taskvector import TaskVector

__all__ = ["accuracy", "back", "front", "negations", "sums"]


@isolated
@torch.inference_mode()
def accuracy(encoder: Encoder, head: heads.Head, data: Images, block: int, h: Tensor) -> float:
    """Return the accuracy in % of the pre-trained back on given features.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        data: Images and classes.
        block: Number of the block whose output is replaced, from 0.
        h: Its replacement, of N images.
    """
    features = back(encoder, encoder.params, data.x, block, h)
    finite_rows(features, f"features (stitched after block {block})")
    return 100 * heads.accuracy(head(features), data.y)


@isolated
def sums(
    encoder: Encoder,
    head: heads.Head,
    data: Images,
    own: TaskVector,
    other: TaskVector,
    alpha: float,
    blocks: Sequence[int],
) -> Iterator[tuple[int, str, float]]:
    """Yield the accuracies of stitched addition (figure 9).

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        data: Images and classes.
        own: The task's vector.
        other: Another task's vector.
        alpha: Coefficient of both.
        blocks: Last blocks of the front, each taken in turn.

    Yields:
        The block, the front, and the accuracy in %: `own` and `other` of one model's features,
        `both` of their mean, `edited` of those of theta_0 + lambda (tau_i + tau_j) / 2.
    """
    vectors = {"own": own, "other": other, "edited": (own + other) / 2}
    names = [encoder.blocks[block] for block in blocks]
    states = {  # one model at a time
        name: _fronts(encoder, vector.apply(encoder.params, alpha), data, names)
        for name, vector in vectors.items()
    }
    for block, place in zip(blocks, names, strict=True):
        h = {name: given[place] for name, given in states.items()}
        h["both"] = (h["own"] + h["other"]) / 2
        for name, given in h.items():
            yield block, name, accuracy(encoder, head, data, block, given)


@isolated
def negations(
    encoder: Encoder,
    head: heads.Head,
    data: Images,
    vector: TaskVector,
    alphas: Sequence[float],
    block: int,
) -> Iterator[tuple[float, str, float]]:
    """Yield the accuracies of stitched negation (figure 10).

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        data: Images with their labels.
        vector: The vector that is subtracted.
        alphas: Coefficients lambda.
        block: Number of the last block of the front.

    Yields:
        lambda, the front, and the accuracy in %: `features` with the change of the features
        subtracted, `weights` of theta_0 - lambda tau.
    """
    start = _front(encoder, encoder.params, data, block)
    line = Line(encoder.params, vector)
    for alpha in alphas:
        more = less = start
        if alpha:
            more, less = (_front(encoder, line.at(sign * alpha), data, block) for sign in (1, -1))
        for name, h in (("features", 2 * start - more), ("weights", less)):
            yield alpha, name, accuracy(encoder, head, data, block, h)


@torch.inference_mode()
def _fronts(
    encoder: Encoder, params: dict[str, Tensor], data: Images, names: list[str]
) -> dict[str, Tensor]:
    if len(names) == 1:
        block = encoder.blocks.index(names[0])
        return {names[0]: _front(encoder, params, data, block)}
    return outputs(encoder, params, data.x, names)


@torch.inference_mode()
def _front(encoder: Encoder, params: dict[str, Tensor], data: Images, block: int) -> Tensor:
    return front(encoder, params, data.x, block)
