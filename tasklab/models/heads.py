"""Heads: linear classifiers of features, made of prompts or fitted to images.

Letters: N images, D features, C classes, T templates.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models.loading import Clip, Encoder
from tasklab.storage import seals
from tasklab.storage.placement import placed
from tasklab.tasks.suites import Task

_NEAR = 1e-6  # apart are rows of the same text, by rounding
_STEPS = 500  # of L-BFGS, at most, for a probe
_MADE = weakref.WeakKeyDictionary[Clip, seals.Kept["Head"]]()


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A frozen linear classifier of an encoder's features.

        logits(f) = W normalize(f)        zero-shot
        logits(f) = W f + b               probe, or a head that was trained with its encoder

    Both are monotone in an affine function of the features (`scores`), so that along a line of
    features, as a linearized model draws one, predictions change at points that can be solved for.
    """

    weight: Float[Tensor, "C D"]  #: W (C, D)
    bias: Float[Tensor, " C"] | None = None  #: b (C,), or `None` for none
    normalise: bool = True  #: Whether features are scaled to unit length first

    def __post_init__(self) -> None:
        if self.normalise and self.bias is not None:
            raise TasklabError("a head that normalises features has no bias.")
        for name, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                check_finite(tensor, f"the {name} of a head")

    def __call__(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N C"]:
        """Return logits, where the features are. Those of a linearized model are summed first."""
        features = features.to(self.weight.dtype)  # before the division: bfloat16 has few digits
        return self.scores(F.normalize(features, dim=-1) if self.normalise else features)

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N C"]:
        """Return W f + b, affine in the features, with the logits' order within each row.

        >>> head = Head(torch.eye(2))
        >>> head(torch.tensor([[3.0, 4.0]])), head.scores(torch.tensor([[3.0, 4.0]]))
        (tensor([[0.6000, 0.8000]]), tensor([[3., 4.]]))
        """
        weight, bias = placed((self.weight, self.bias), features.device)
        product = features @ weight.T
        return product if bias is None else product + bias

    def to(self, place: torch.device | str | torch.dtype) -> Head:
        """Return the head on a device, or in a type."""
        bias = None if self.bias is None else self.bias.to(place)
        return dataclasses.replace(self, weight=self.weight.to(place), bias=bias)


def check_finite(x: Tensor, subject: str) -> None:
    """Raise if a number is not finite: `argmax` would make a class of NaN like any other."""
    if not x.isfinite().all():
        raise TasklabError(f"{subject} is not finite: NaN or infinity in {tuple(x.shape)} numbers.")


@isolated
def zero_shot(clip: Clip, task: Task) -> Head:
    """Return the zero-shot head of a task: one scaled unit vector for each class.

        w_c = scale * normalize( mean_t normalize( text( template_t(class_c) ) ) )

    For T5 it is w_c = text(class_c), the row of the output embedding, and features are not
    normalised: the class is the answer that is most likely to be generated first.

    The papers keep it frozen while the image encoder trains (tangent paper, appendix A).
    """
    if clip.text is None:
        raise TasklabError(
            f"model {clip.encoder.name!r} has no text tower to make a zero-shot head: train one."
        )
    prompts = task.prompts()
    with torch.no_grad():
        if not clip.cosine:
            text = clip.text(prompts)
            _check_apart(F.normalize(text, dim=-1), clip, task)
            return Head(text, normalise=False)
        text = F.normalize(clip.text(prompts), dim=-1)
        text = text.unflatten(0, (len(task.classes), len(task.templates))).mean(1)
        text = F.normalize(text, dim=-1)
        _check_apart(text, clip, task)
        return Head(clip.logit_scale * text)


def _check_apart(rows: Float[Tensor, "C D"], clip: Clip, task: Task) -> None:
    """Raise if two classes have the same row: the second would never be predicted.

    Prompts are the same to a model if it reads them without case, cuts them off, or does not know
    their letters.
    """
    if not rows.any(-1).all():
        raise TasklabError(f"the text tower of {clip.encoder.name!r} makes zeros of {task.name}.")
    pairs = (rows @ rows.T).triu(1).gt(1 - _NEAR).nonzero().tolist()
    alike = [(i, j) for i, j in pairs if (rows[i] - rows[j]).abs().max() <= _NEAR]
    if alike and not task.repeats:
        one, other = (task.classes[label] for label in alike[0])
        raise TasklabError(
            f"model {clip.encoder.name!r} reads the prompts of {one!r} and {other!r} of "
            f"{task.name} as the same text, so that one of them would never be predicted: give "
            "shorter templates= or other classes=."
        )


@isolated
def start(kind: str, clip: Clip, task: Task, seed: int = 0) -> Head:
    """Return the head that fine-tuning starts from, on the encoder's device.

    A frozen head is made once for each model and task, and again after its tensors were changed in
    place.

    Args:
        kind: `"trained"` for a linear layer with PyTorch's usual random weights; `"zero_shot"` or
            `"zero_shot_trained"` for one made of prompts. A `"probe"` is fitted by `probes.fit`.
        clip: The pre-trained model.
        task: The task with its classes and prompts.
        seed: Of a random head.
    """
    device = clip.encoder.device
    if kind not in ("zero_shot", "zero_shot_trained", "trained"):
        raise TasklabError(f"a head of kind {kind!r} needs fitting: see tasklab.tuning.probes.")
    if kind != "trained":
        key = tuple(task.prompts()), len(task.classes)
        with torch.inference_mode(False):  # it serves training, whoever asks first
            known = _MADE.setdefault(clip, seals.Kept())
            made = known.get(key, lambda: zero_shot(clip, task).to(device))
        trains = kind == "zero_shot_trained"
        return dataclasses.replace(made, weight=made.weight.clone()) if trains else made
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        layer = torch.nn.Linear(_width(clip.encoder), len(task.classes))
    return Head(layer.weight.detach(), layer.bias.detach(), normalise=False).to(device)


@functools.lru_cache(maxsize=8)
def _width(encoder: Encoder) -> int:
    with torch.no_grad():
        return encoder({}, encoder.blank).shape[-1]


def accuracy(logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Return the share of rows whose largest logit is the label's, in [0, 1].

    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    0.5
    """
    if len(logits) == 0:
        raise TasklabError("accuracy needs at least one image.")
    check_finite(logits, "what an accuracy is measured on")
    return (logits.argmax(-1) == labels.to(logits.device)).double().mean().item()


def minimise(
    x: Tensor, loss: Callable[[], Tensor], iterations: int, gradient: float, **options: int
) -> None:
    """Move x to the minimum next to it of a loss of the present x, by L-BFGS with `options`.

    It stops where no entry of the gradient is larger than `gradient`.

    Args:
        x: The point, which is moved in place.
        loss: Returns the loss at the present x.
        iterations: The most iterations.
        gradient: Largest entry of the gradient at the end.
        **options: Of `torch.optim.LBFGS`.
    """
    ends: dict[str, Any] = {"tolerance_grad": gradient, "tolerance_change": 1e-12, **options}
    solver = torch.optim.LBFGS([x], max_iter=iterations, line_search_fn="strong_wolfe", **ends)

    def closure() -> Tensor:
        solver.zero_grad()
        value = loss()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(closure)


@isolated
def linear_probe(
    features: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    *,
    classes: int,
    decay: float = 1e-4,
) -> Head:
    """Fit a linear classifier on frozen features, starting from zero.

    Minimises the mean cross-entropy plus decay/2 |weight|² with L-BFGS in float64, on features
    divided by their root mean square length s; the head's weight has that division in it. The
    problem is convex with one minimum in the weight; it needs no learning rate and no
    seed.

    Args:
        features: Of the training images.
        labels: Their classes.
        classes: C; some may have no image.
        decay: Strength of the penalty on s W. The default keeps the cross-entropy in charge: at
            |s W| = 30 a class, the size of a zero-shot head, the penalty is 0.05 a class.
    """
    if len(features) == 0:
        raise TasklabError("a linear probe needs at least one image.")
    check_finite(features, "what a probe is fitted to")
    if labels.min() < 0 or labels.max() >= classes:
        raise TasklabError(
            f"labels run from {labels.min()} to {labels.max()}, of {classes} classes."
        )
    x = features.detach().double()
    scale = x.square().sum(-1).mean().sqrt().clamp_min(1e-12)
    x, labels = x / scale, labels.to(x.device)
    parameters = x.new_zeros(classes, x.shape[1] + 1).requires_grad_()

    def objective() -> Tensor:
        weight, bias = parameters[:, :-1], parameters[:, -1]
        loss = F.cross_entropy(x @ weight.T + bias, labels)
        return loss + decay / 2 * weight.square().sum()

    most = {"max_eval": 2 * _STEPS, "history_size": 20}
    minimise(parameters, objective, _STEPS, 1e-8, **most)
    weight, bias = parameters.detach()[:, :-1] / scale, parameters.detach()[:, -1]
    dtype = features.dtype
    return Head(weight.to(dtype).contiguous(), bias.to(dtype).contiguous(), normalise=False)
