"""Penalties in the loss that reduce interference between task vectors.

The loss of a step is then L + lambda P. A penalty is a function of the change delta = theta -
theta_0 alone, and its gradient is written down, so that nothing is differentiated twice.

**tau Jp** (K. Yoshida et al., *Mastering Task Arithmetic: tau Jp as a key indicator for weight
disentanglement*, ICLR 2025): the first-order effect of the vector on images of other tasks,

    P = E_{x in other tasks} |J(x) delta|^2,      gradient 2 E J(x)' J(x) delta,

from one forward pass with tangents and one backward pass at theta_0 (`tangent.normal`). In a sum
of vectors this is the other vectors' contribution to a task's features. The published code uses
the norm itself, |J delta|, which has no gradient at 0, and 16 images of every other task in every
step; here a step reads 16 of one other task, in turn.

**TAK** (arXiv:2602.17385) replaces images by Kronecker factors of J'J, computed once before the
first step (`tasklab.tuning.kronecker`, with the published weights of G's parts):

    P = delta' G delta,      gradient 2 G delta,      G about sum_{other tasks} E J(x)' J(x).

**DELTA** (arXiv:2605.18993) uses such factors of a reference data set (EK-FAC), and a teacher
(`tasklab.tuning.distillation`).

**OrthoReg** (*Understanding and Enforcing Weight Disentanglement in Task Arithmetic*,
arXiv:2604.17078, CVPR 2026): the columns of each change of a matrix become orthonormal,

    P = sum_l |G_l - 1|_F,   G_l = DW_l' DW_l,      gradient 2 DW_l (G_l - 1) / |G_l - 1|_F,

as in the published code: not squared, with DW DW' in place of DW' DW where that is smaller, over
all parameters of two axes that train. It needs no images. Short columns grow to length 1.

**Off-diagonal**, a variant without a source: columns become orthogonal, while the loss alone
determines their lengths,

    P = sum_l |G_l - diag G_l|_F^2,      gradient 4 DW_l (G_l - diag G_l),

over the weights DW (O, I) of the linear layers of all blocks.

Letters: B images, D features, O outputs and I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder
from tasklab.tasks import drawn
from tasklab.tuning import kronecker, memory, tangent
from tasklab.tuning.methods import TABLE, matrices

IMAGES = 16  # of one other task in a step: the published code's, of each task
REFERENCE = 512  # of the images that are none of the tasks', at most
Model = Encoder | memory.Recomputed


class Penalty(NamedTuple):
    """A penalty of the present change."""

    value: Float[Tensor, ""]
    gradients: dict[str, Tensor]  #: dP / d delta, by the names of the parameters that it reaches


def tangent_change(
    model: Model, delta: Mapping[str, Tensor], images: Tensor, size: int | None = None
) -> Penalty:
    """Return E|J(x) delta|^2 over images of other tasks, and its gradient (tau Jp).

    Args:
        model: With parameters theta_0.
        delta: The change of parameters by name.
        images: Images of other tasks (N, 3, H, W), before preprocessing.
        size: Images per pass; by default all.

    Raises:
        TasklabError: If there are no images.
    """
    if len(images) == 0:
        raise TasklabError("the penalty of tau Jp needs at least one image of another task.")
    total: dict[str, Tensor] = {}
    values = []
    for part in images.split(size or len(images)):
        x = model.preprocess(part)
        jtau, products = tangent.normal(model, model.params, delta, x)
        values.append(jtau.square().sum())
        for name, product in products.items():
            total[name] = total[name] + product if name in total else product
    scale = 2 / len(images)
    gradients = {name: product * scale for name, product in total.items()}
    return Penalty(torch.stack(values).sum() / len(images), gradients)


def orthonormal(delta: Mapping[str, Tensor]) -> Penalty:
    """Return sum_l |DW_l' DW_l - 1|_F, of the smaller side, and its gradient (OrthoReg).

    >>> orthonormal({"w": torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])}).value  # |9 - 1|
    tensor(8.)
    """
    value, gradients = torch.zeros(()), {}
    with torch.autocast(next(iter(delta.values())).device.type, enabled=False):
        for name, W in delta.items():
            if W.dim() != 2:
                continue
            wide = W.shape[0] < W.shape[1]
            G = W @ W.T if wide else W.T @ W
            G.diagonal().sub_(1)
            size = G.norm()
            value = value.to(W) + size
            product = G @ W if wide else W @ G
            gradients[name] = product.mul_(2 / size) if size else torch.zeros_like(W)
    return Penalty(value, gradients)


def off_diagonal(delta: Mapping[str, Tensor]) -> Penalty:
    """Return sum_l |DW_l' DW_l off its diagonal|_F^2 and its gradient.

    >>> name = "blocks.0.mlp.fc1.weight"
    >>> off_diagonal({name: torch.tensor([[1.0, 2.0]])}).value  # columns 1 and 2: twice (1 x 2)^2
    tensor(8.)
    """
    value, gradients = torch.zeros(()), {}
    with torch.autocast(next(iter(delta.values())).device.type, enabled=False):
        for name in matrices(delta):
            W = delta[name]
            G = W.T @ W
            G.fill_diagonal_(0)
            value = value.to(W) + G.square().sum()
            gradients[name] = (W @ G).mul_(4)
    return Penalty(value, gradients)


def curved(delta: Mapping[str, Tensor], factors: kronecker.Factors) -> Penalty:
    """Return delta' G delta and its gradient (TAK)."""
    with torch.autocast(next(iter(delta.values())).device.type, enabled=False):
        return Penalty(*factors.penalty(delta))


PENALTIES: Mapping[str, Callable[..., Penalty]] = {
    "tangent_change": tangent_change,
    "orthonormal": orthonormal,
    "off_diagonal": off_diagonal,
    "kronecker": curved,
}


def images(method: str) -> int:
    """Return the number of images of another task, in a step or in all, or of the reference."""
    if TABLE[method].teacher:
        return REFERENCE
    return kronecker.IMAGES if TABLE[method].once else IMAGES


@isolated
def known(
    method: str, encoder: Encoder, others: Sequence[str], data: drawn.SuiteImages
) -> kronecker.Factors | None:
    """Return the Kronecker factors that a penalty knows before training.

    Args:
        method: One of `METHODS`.
        encoder: The pre-trained encoder.
        others: The other tasks, whose training images make the factors.
        data: Images of the suite; a method with a teacher reads the control's in place of them.

    Returns:
        The factors by layer; `None` for a method that reads no images beforehand.
    """
    if not TABLE[method].once:
        return None

    def load(task: str, split: str) -> Tensor:
        count = min(images(method), data.size(task, split))
        return data.load(task, split, n=count, device=encoder.device).x

    own = TABLE[method].published
    if TABLE[method].teacher:
        reference = load(data.suite.control.name, "val")
        return kronecker.corrected(encoder, reference, published=own)
    each = (load(task, "train") for task in others)
    return kronecker.factors(encoder, each, published=own)


def turns(
    others: Sequence[str],
    data: drawn.SuiteImages,
    order: drawn.Order,
    steps: range,
    seed: int,
    device: drawn.Device,
) -> Iterator[Tensor | None]:
    """Yield each step's images of other tasks, one task a step.

    Args:
        others: Names of the other tasks.
        data: Images of the suite.
        order: Step and number of images -> the indices of the images.
        steps: Numbers of the steps.
        seed: Of the augmentation.
        device: Where the images go.

    Yields:
        Images (B, 3, H, W); `None` where there are no other tasks.
    """
    streams = {}
    for place, task in enumerate(others):
        first = steps.start + (place - steps.start) % len(others)
        own = range(first, steps.stop, len(others))
        streams[place] = data.batches(task, order, own, seed=seed, device=device)
    for step in steps:
        yield next(streams[step % len(others)]).x if others else None


def measure(
    method: str,
    model: Model,
    delta: Mapping[str, Tensor],
    images: Tensor | None,
    size: int,
    known: kronecker.Factors | None = None,
) -> Penalty:
    """Return the penalty of a method.

    Args:
        method: One of `METHODS`.
        model: The network with parameters theta_0.
        delta: The change of parameters by name.
        images: Of another task, for methods that read some in each step.
        size: Images per pass.
        known: Of methods that read other tasks' images once.
    """
    entry = TABLE[method]
    penalty = PENALTIES[entry.penalty]
    if entry.once:
        return penalty(delta, known)
    return penalty(model, delta, images, size) if entry.others else penalty(delta)
