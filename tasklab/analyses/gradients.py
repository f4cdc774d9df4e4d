"""Gradients of tasks' losses, each at its own model, and how they agree.

A metric of *Demystifying Mergeability* (arXiv:2601.22285; there on 10 images of each task): with
g_t the mean gradient of the cross-entropy of task t's own images at theta_0 + tau_t, in the weights
that were trained, the cosine of g_s and g_t and their distance |g_s - g_t|. Of a tangent vector the
loss is that of the tangent model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasklab.analyses.finite import finite
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder
from tasklab.models.heads import Head
from tasklab.storage.placement import placed
from tasklab.taskvector import TaskVector
from tasklab.tuning import steps

_PART = 32  # images in one pass


@isolated
def gradient(
    encoder: Encoder, head: Head, x: Tensor, y: Tensor, vector: TaskVector, *, linear: bool
) -> TaskVector:
    """Return the mean gradient of the loss on images x with labels y, at the vector's model.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        x: Preprocessed images (N, 3, H, W).
        y: Their classes (N,).
        vector: Added to theta_0 before the gradient is taken.
        linear: Whether the vector edits the tangent model.
    """
    how = steps.tangent_gradient if linear else steps.gradient
    delta = dict(placed(vector, encoder.device))
    theta0 = {name: encoder.params[name].detach() for name in delta}
    sums = {name: torch.zeros_like(tau) for name, tau in delta.items()}
    for some, labels in zip(x.split(_PART), y.split(_PART), strict=True):

        def loss(features: Tensor, labels: Tensor = labels) -> Tensor:
            return cross_entropy(head(features), labels, reduction="sum")

        _, found = how(encoder, theta0, delta, encoder.preprocess(some), loss)
        for name, slope in found.items():
            sums[name] += slope / len(y)
    return TaskVector({name: finite(g, f"the gradient of {name}") for name, g in sums.items()})


def agreement(gradients: Mapping[str, TaskVector]) -> Iterator[dict[str, Any]]:
    """Yield the cosine and the distance of every two tasks' gradients."""
    for one, other in itertools.combinations(gradients, 2):
        a, b = gradients[one], gradients[other]
        pair = {"task": f"{one}+{other}"}
        yield {**pair, "metric": "gradient_cosine", "value": float(a.cosine(b))}
        yield {**pair, "metric": "gradient_distance", "value": float((a - b).norm())}
