"""The neural tangent kernel of a finite network, and where its eigenfunctions live.

Training the linearized encoder on task t moves the score of class c by a sum of kernels,

    f_lin(x) - f(x; theta_0) = sum_i beta_i k_c(x_i, x),        x_i in D_t,
    k_c(x, x') = < d f_c(x; theta_0) / d theta,  d f_c(x'; theta_0) / d theta >,

so a task vector leaves the images of another task alone if these functions vanish there: if they
are *localized* on D_t (tangent paper, section 6.1 and proposition 1). `gram` computes k_c for each
class by itself, "one kernel matrix per output logit" (appendix A), and `localization` finds where
the functions have their energy.

**Which output.** f_c is the head's score w_c · f(x; theta), before features are scaled to unit
length: it is what the linearized *encoder* is affine in (`tasklab.tuning.tangent`).

**Memory.** No Jacobian (N, P) is held: parameters are taken in groups, and K = sum over parameters
of J_p J_p'. A small `memory` costs time, as each group is a pass of its own over the images.

Letters: C classes, N images of the task, M images in all (the task's first), P parameters of a
group, B images of a chunk, R eigenfunctions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from tasklab.analyses.finite import finite
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.models.heads import Head
from tasklab.models.loading import math_attention
from tasklab.tuning.tangent import Model, Params


@isolated
@torch.no_grad()
def gram(
    encoder: Model,
    params: Params,
    head: Head,
    x: Tensor,
    control: Tensor | None = None,
    *,
    classes: Sequence[int] | None = None,
    trainable: Collection[str] | None = None,
    chunk: int = 16,
    memory: int = 2**30,
) -> Float[Tensor, "C N M"]:
    """Return the empirical kernels k_c(x_i, x_j) between a task's images and all images.

    Args:
        encoder: The network.
        params: Its parameters by name.
        head: The task's head; its scores before normalisation are the outputs.
        x: Preprocessed inputs (N, ...) of the task: rows, and the first N columns.
        control: Further inputs, the other columns; `None` for none (M = N).
        classes: Rows of the head's weight; all of them by default.
        trainable: Names of the parameters that would train; all of them by default.
        chunk: Images per pass.
        memory: Bytes for the gradients of a group of parameters; the largest parameter needs N + B
            times its size in any case.

    Returns:
        Kernels in float64, added up from products in the parameters' own type.
    """
    names, chunk = _names(params, trainable), whole("chunk", chunk, 1)
    memory = whole("memory", memory, 1)
    classes = _classes(head, classes)
    if not len(x):
        raise TasklabError("a kernel needs images.")
    weights = head.weight.detach()[list(classes)].to(x.device)
    columns = len(x) + (0 if control is None else len(control))
    kernels = torch.zeros(len(classes), len(x), columns, dtype=torch.float64, device=x.device)
    room = memory // ((len(x) + chunk) * next(iter(params.values())).element_size())
    for group in _groups({name: params[name].numel() for name in names}, room):
        theta = {name: params[name].detach() for name in group}
        rows = [p.new_empty(len(x), p.numel()) for p in theta.values()]  # each class fills them
        for kernel, weight in zip(kernels, weights, strict=True):
            for at, images in _chunks(x, chunk):
                parts = _gradients(encoder, params, theta, images, weight)
                for row, part in zip(rows, parts, strict=True):
                    row[at] = part
            kernel[:, : len(x)] += _products(rows, rows)
            for at, images in _chunks(control, chunk):
                parts = _gradients(encoder, params, theta, images, weight)
                kernel[:, len(x) :][:, at] += _products(rows, parts)
    return finite(kernels, f"tangent kernels (classes {classes})")


def _gradients(
    encoder: Model, params: Params, theta: Params, x: Tensor, weight: Float[Tensor, " D"]
) -> list[Float[Tensor, "B P"]]:
    def score(theta: Params, one: Tensor) -> Tensor:
        return encoder({**params, **theta}, one[None])[0] @ weight

    with math_attention():
        parts = vmap(grad(score), in_dims=(None, 0))(dict(theta), x)
    return [part.flatten(1) for part in parts.values()]


def _products(rows: list[Tensor], columns: list[Tensor]) -> Float[Tensor, "N M"]:
    pairs = zip(rows, columns, strict=True)
    return sum((row @ column.T).double() for row, column in pairs)


def _groups(sizes: Mapping[str, int], room: int) -> Iterator[list[str]]:
    """Yield names in order, in groups of at most `room` numbers, or of one parameter.

    >>> list(_groups({"a": 2, "b": 2, "c": 9, "d": 1}, 4))
    [['a', 'b'], ['c'], ['d']]
    """
    group: list[str] = []
    for name, size in sizes.items():
        if group and sum(sizes[other] for other in group) + size > room:
            yield group
            group = []
        group.append(name)
    yield group


def _chunks(x: Tensor | None, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    if x is None:
        return
    for start in range(0, len(x), chunk):
        at = slice(start, start + chunk)
        yield at, x[at]


def _names(params: Params, trainable: Collection[str] | None) -> list[str]:
    absent = [] if trainable is None else [name for name in trainable if name not in params]
    if absent:
        raise TasklabError(f"the model has no parameter {absent[0]!r}: see the names in `params`.")
    chosen = [name for name in params if trainable is None or name in trainable]
    if not chosen:
        raise TasklabError("a tangent kernel needs at least one parameter that would train.")
    return chosen


def _classes(head: Head, classes: Sequence[int] | None) -> list[int]:
    count = len(head.weight)
    chosen = list(range(count) if classes is None else classes)
    if not chosen or not all(c in range(count) for c in chosen):
        raise TasklabError(f"classes are numbers from 0 to {count - 1}, at least one: {chosen}.")
    return chosen


class Localization(NamedTuple):
    """Where the eigenfunctions of some kernels have their energy."""

    energy: Float[Tensor, "C M"]  #: E_loc of each class at each image
    #: Of each class, the mean energy of a task's image over the sum of its mean and that of a
    #: control image. 1: all energy on the task; 1/2: as much here as there.
    share: Float[Tensor, " C"]


@isolated
def localization(kernels: Float[Tensor, "C N M"], own: int) -> Localization:
    """Return the local energy of the eigenfunctions, and the task's share of it.

        K = U S V',     E_loc(x_j) = sum_r phi_r(x_j)²,     phi_r(x_j) = V_jr.

    K has a row for each training image of task t and a column for each image of D_t and of the
    control task, so it is not square: its right singular vectors are the paper's phi_r ("we compute
    the singular value decomposition", appendix A; E_loc in section 6.1, figures 6, 14 and 15). They
    are an orthonormal basis of the functions that training on D_t can add. E_loc lies in [0, 1]; it
    is the squared value at x_j of that one function of unit energy which is largest there. Singular
    values below rounding error are left out.

    Every kernel is large between an image and itself, so images that are rows and columns at once
    have more energy than other images of their own task. The share on *unseen* images is free of
    this: leave the training images out of the columns, as in `localization(kernels[:, :, N:], ...)`
    where `gram`'s control images begin with held-out images of the task.

    Args:
        own: How many columns are the task's.

    >>> kernel = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])  # zero on the control image
    >>> localization(kernel, own=2)
    Localization(energy=tensor([[1., 1., 0.]]), share=tensor([1.]))
    """
    if not 0 < own < kernels.shape[-1]:
        raise TasklabError(
            f"{own} of {kernels.shape[-1]} columns cannot be the task's: it and the control each "
            "need at least one."
        )
    _, s, phi = torch.linalg.svd(finite(kernels, "kernels"), full_matrices=False)
    floor = s[:, :1] * max(kernels.shape[1:]) * torch.finfo(s.dtype).eps
    energy = ((s > floor)[:, :, None] * phi.square()).sum(1)
    task, control = energy[:, :own].mean(1), energy[:, own:].mean(1)
    return Localization(energy, task / (task + control))
