"""Agreement of a merged model with each task's own model, in a network or its tangent model.

A merge is one vector tau in place of the vectors tau_t of T tasks. On the images of task t its
model g(.; tau) is compared with g(.; tau_t), where g is the network f(.; theta_0 + tau), or its
tangent model f(.; theta_0) + J tau:

The *disentanglement error* has the terms of `analyses.disentanglement` for any merged vector,

    xi_t = E_{x in t} dist( g(x; tau_t), g(x; tau) ),

with dist = 1 where the classes differ (in %), or the symmetrised divergence of softmaxed features
(in nats). For tau = sum_t tau_t their sum over tasks is the papers' xi at all coefficients 1
(tangent, equation 3), for T tasks in place of two.

*Cross-task linearity* compares u = g(x; tau) and v = 1/T sum_s g(x; tau_s),

    distance = 1 - cos(u, v),      coef = |u| cos(u, v) / |v|

(CTL, section 4.2, equation 1, at the features); of the average in the tangent model 0 and 1.

Letters: T tasks, N images, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tasklab.analyses.disentanglement import symmetric_kl
from tasklab.analyses.evaluation import Evaluator, Vectors
from tasklab.analyses.finite import check_vectors, finite_rows
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.taskvector import TaskVector
from tasklab.tuning import tangent

METRICS = ("xi_classifier", "xi_representation", "distance", "coef")


@dataclass(frozen=True, eq=False)
class Singles:
    """Answers of the tasks' own models."""

    linear: bool
    split: str
    own: Mapping[str, Float[Tensor, "N D"]]  #: g(x; tau_t) (N, D) on all images of each task t
    #: 1/T sum_s g(x; tau_s) on the first images of each task t.
    mean: Mapping[str, Float[Tensor, "n D"]]


def linearity(
    merged: Float[Tensor, "N D"], mean: Float[Tensor, "N D"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return 1 - cos(u, v) and |u| cos(u, v) / |v| of each image, u = `merged` and v = `mean`.

    >>> import torch
    >>> linearity(torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 0.0]]))
    (tensor([0.4000], dtype=torch.float64), tensor([0.6000], dtype=torch.float64))
    """
    u, v = merged.double(), mean.double()
    cos = cosine_similarity(u, v, dim=-1, eps=1e-300)
    return 1 - cos, u.norm(dim=-1) * cos / v.norm(dim=-1).clamp_min(1e-300)


@isolated
def features(
    evaluator: Evaluator, vector: TaskVector, task: str, split: str, *, linear: bool
) -> Float[Tensor, "N D"]:
    """Return g(x; tau) on all images of a task.

    Args:
        evaluator: The pre-trained model with its heads and images.
        vector: A task vector.
        task: Name of a task.
        split: `"val"` or `"test"`.
        linear: Whether to use the tangent model, whose features are stored.
    """
    if linear:
        return evaluator.tangent_features(vector, task, split).at(1.0)
    return evaluator.features(vector.apply(evaluator.clip.encoder.params), task, split)


@isolated
def singles(
    evaluator: Evaluator, vectors: Vectors, count: int, *, linear: bool, split: str = "test"
) -> Singles:
    """Predict with each task's own model; the answers serve every merge of these vectors.

    Args:
        evaluator: The pre-trained model with its heads and images.
        vectors: tau_t by the task's name, at least two.
        count: Images of each task, at most, on which all models are compared.
        linear: Whether to use the tangent model.
        split: `"train"`, `"val"` or `"test"`.
    """
    check_vectors(vectors)
    if len(vectors) < 2:
        raise TasklabError("a merge is compared with the models of at least two tasks.")
    count, encoder = whole("count", count, 1), evaluator.clip.encoder
    own = {t: features(evaluator, v, t, split, linear=linear) for t, v in vectors.items()}
    if linear:
        average, mean = TaskVector.sum(vectors.values()) / len(vectors), {}
        for task in vectors:
            x = evaluator.images(task, split).x[:count]
            size = evaluator.parts.size
            mean[task] = tangent.features(encoder, encoder.params, average, x, size).at(1.0)
        return Singles(linear, split, own, mean)
    totals = {task: own[task][:count].clone() for task in vectors}
    for other, vector in vectors.items():
        theta = vector.apply(encoder.params)
        for task in vectors.keys() - {other}:  # each has a total of its own
            x = evaluator.images(task, split).x[:count]
            totals[task] += evaluator.passed(theta, x)
        del theta  # before the next model is made
    return Singles(linear, split, own, {t: total / len(vectors) for t, total in totals.items()})


@isolated
def agreement(
    evaluator: Evaluator, merged: Mapping[str, Float[Tensor, "N D"]], alone: Singles
) -> Iterator[dict]:
    """Yield the disentanglement error and the cross-task linearity of a merged model, by task.

    Args:
        evaluator: The pre-trained model with its heads and images.
        merged: g(x; tau) on all images of each task (`features`).
        alone: Answers of the tasks' own models (`singles`).

    Yields:
        task, metric (one of `METRICS`), value (a mean over images) and n (images).
    """
    for task, own in alone.own.items():
        if task not in merged or merged[task].shape != own.shape:
            raise TasklabError(f"the merged model's features on {task!r} are of other images.")
        u, v = finite_rows(merged[task], f"features (task {task!r}, merged)"), alone.mean[task]
        changed = evaluator.logits(u, task).argmax(-1) != evaluator.logits(own, task).argmax(-1)
        distance, coef = linearity(u[: len(v)], v)
        values: Sequence[Tensor] = (100 * changed, symmetric_kl(own, u), distance, coef)
        for metric, value in zip(METRICS, values, strict=True):
            n = len(value)
            yield {"task": task, "metric": metric, "value": float(value.double().mean()), "n": n}
