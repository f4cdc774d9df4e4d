"""Linearized models: values, training gradients and cached tangent features.

The linearization of an encoder f around the pre-trained weights is affine in the task vector tau,

    f_lin(x; theta_0 + tau) = f(x; theta_0) + J(x) tau,      J = df/dtheta at theta_0,

which is equation 3 of Task Arithmetic in the Tangent Space, and two things follow.

1. Its training gradient needs no derivative of a derivative: dL/dtau = J' dL/df_lin is an ordinary
   backward pass at theta_0. One forward pass that carries tangents gives f, J tau and the graph of
   f; that backward pass does the rest.
2. Every scaled or summed model alpha J tau_1 + beta J tau_2 + ... is arithmetic on features that
   are computed once.

The *encoder* is linearized: a head normalises after the sum (`tasklab.models.heads`).

| symbol | name here |
|---|---|
| theta_0, tau | `params`, `tau` |
| f(x; theta_0), J(x) tau | `f0`, `jtau` |

Letters: B batch, N images, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab import tuning
from tasklab.errors import TasklabError
from tasklab.isolation import differentiable
from tasklab.models.loading import math_attention
from tasklab.tuning import memory

Params = Mapping[str, Tensor]
Loss = Callable[[Tensor], Tensor]


class Model(Protocol):
    """A function of named parameters and inputs; `tasklab.models.loading.Encoder` is one."""

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Return features (B, D)."""


class TangentFeatures(NamedTuple):
    """Parts of a linearized model for fixed images: features are affine in alpha.

    >>> features = TangentFeatures(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    >>> features.at(0.5)
    tensor([[1., 1.]])
    """

    f0: Float[Tensor, "N D"]
    jtau: Float[Tensor, "N D"]

    def at(self, alpha: float) -> Float[Tensor, "N D"]:
        """Return f_lin(x; theta_0 + alpha tau) = f0 + alpha J tau."""
        return torch.add(self.f0, self.jtau, alpha=alpha)

    def unit(self, alpha: float) -> Float[Tensor, "N D"]:
        """Return the linearization of f / |f| instead, at theta_0 + alpha tau.

        >>> features = TangentFeatures(torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 2.0]]))
        >>> features.unit(0.5)
        tensor([[1.0000, 0.5000]])
        """
        length = self.f0.norm(dim=1, keepdim=True)
        n = self.f0 / length
        across = self.jtau - n * (n * self.jtau).sum(1, keepdim=True)
        return torch.add(n, across / length, alpha=alpha)


@differentiable
def jvp(encoder: Model, params: Params, tau: Params, x: Tensor) -> TangentFeatures:
    """Return f(x; theta_0) and J(x) tau from one forward-mode pass, without a graph.

    They are at least float32, also where autocast computed them in bfloat16: sums need the digits.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        params: theta_0 by name.
        tau: The direction, by the names of some parameters.
        x: Preprocessed images (B, 3, H, W).
    """
    with torch.no_grad():
        return TangentFeatures(*map(_precise, _dual_pass(encoder, params, tau, x)))


@differentiable
def value_and_grad(
    encoder: Model, params: Params, tau: Params, x: Tensor, loss: Loss
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return L = loss(f_lin(x; theta_0 + tau)) and dL/dtau, from one forward and one backward pass.

    With c = dL/df_lin at f0 + J tau, the gradient is J' c: the backward pass of <f(x; theta), c> at
    theta_0. The forward pass is shared by the values, the tangents and that backward pass; an
    encoder that records less (`memory.Recomputed`) gets one of its own for the backward pass.

    Args:
        encoder: The network that is linearized.
        params: Its parameters theta_0 by name.
        tau: The task vector; its names are those that train.
        x: Preprocessed images (B, 3, H, W).
        loss: Features (B, D) -> scalar.

    Returns:
        The loss, and gradients with the names, shapes and types of `tau`.
    """
    return lesson(encoder, params, tau, x, loss)[1:]


@differentiable
def lesson(
    encoder: Model,
    params: Params,
    tau: Params,
    x: Tensor,
    loss: Loss,
    form: Callable[[TangentFeatures], Tensor] = lambda known: known.at(1.0),
) -> tuple[TangentFeatures, Float[Tensor, ""], dict[str, Tensor]]:
    """Return the tangent features, and the results of `value_and_grad` for a `loss`.

    Args:
        encoder: The network that is linearized.
        params: Its parameters theta_0, by name.
        tau: The task vector; its names are those that train.
        x: Preprocessed images (B, 3, H, W).
        loss: Features (B, D) -> scalar.
        form: Tangent features -> features (B, D); by default those of f_lin(x; theta_0 + tau).
    """
    with torch.enable_grad():
        f0, jtau, leaves = _recorded_pass(encoder, params, tau, x)
        known = TangentFeatures(_precise(f0.detach()), _precise(jtau))
        change = known.jtau.detach().requires_grad_()
        value = loss(form(known._replace(jtau=change)))
        (cotangent,) = torch.autograd.grad(value, change)
        return known, value.detach(), pullback(f0, leaves, cotangent)


@differentiable
def normal(
    encoder: Model,
    params: Params,
    tau: Params,
    x: Tensor,
    metric: Callable[[Tensor], Tensor] = lambda v: v,
) -> tuple[Float[Tensor, "B D"], dict[str, Tensor]]:
    """Return J tau and J' G J tau, summed over images, from one forward and one backward pass.

    Args:
        encoder: The network that is linearized.
        params: Its parameters theta_0 by name.
        tau: The direction; J' is of the parameters that it names.
        x: Preprocessed images (B, 3, H, W).
        metric: G, J tau (B, D) -> (B, D); by default the identity.
    """
    with torch.enable_grad():
        f0, jtau, leaves = _recorded_pass(encoder, params, tau, x)
        return _precise(jtau), pullback(f0, leaves, metric(_precise(jtau)))


def features(
    encoder: Model, params: Params, tau: Params, images: Tensor, batch_size: int = 256
) -> TangentFeatures:
    """Return the tangent features of a whole data set, to cache.

    Args:
        encoder: The model to linearize; its `preprocess`, if it has one, is applied to each batch.
        params: Its parameters theta_0 by name.
        tau: The task vector.
        images: Images (N, 3, H, W), before preprocessing.
        batch_size: Images in one pass; fewer where memory does not suffice.
    """
    prepare = getattr(encoder, "preprocess", lambda x: x)
    parts = memory.Parts(batch_size)
    passes = parts(lambda x: jvp(encoder, params, tau, prepare(x)), images, "tangent features")
    return TangentFeatures(*(torch.cat(column) for column in zip(*passes, strict=True)))


def _recorded_pass(
    encoder: Model, params: Params, tau: Params, x: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return f0, recorded for a backward pass to the parameters of tau, J tau, and these leaves."""
    leaves = {name: params[name].detach().requires_grad_() for name in tau if name in params}
    if not isinstance(encoder, memory.Recomputed):
        return *_dual_pass(encoder, {**params, **leaves}, tau, x), leaves
    with torch.no_grad():
        _, jtau = _dual_pass(encoder.encoder, params, tau, x)
    return encoder({**params, **leaves}, x), jtau, leaves


def _dual_pass(encoder: Model, params: Params, tau: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return f0, recorded if gradients are enabled, and J tau, which never is."""
    _check(params, tau)
    if isinstance(encoder, tuning.dual.Plain):
        f0, jtau = encoder.pair(params, tau, x)
        return f0, torch.zeros_like(f0) if jtau is None else jtau
    forward = tuning.forward_mode
    with math_attention(), forward.dual_numbers():
        changes = {name: tau[name].detach().to(params[name]) for name in tau}
        duals = {name: forward.join(params[name], change) for name, change in changes.items()}
        with forward.Tangents():
            features = encoder({**params, **duals}, x)
        f0, jtau = forward.split(features)
    # A tau of no use to the features (or an empty one) leaves them without a tangent.
    return f0, torch.zeros_like(f0) if jtau is None else jtau.detach()


def pullback(f0: Tensor, leaves: Params, cotangent: Tensor) -> dict[str, Tensor]:
    """Return J' c of recorded features by the leaves' names.

    Args:
        f0: Recorded features (B, D).
        leaves: The parameters that they were recorded with, by name.
        cotangent: c, in the shape of `f0`.
    """
    reached = f0.requires_grad  # not if tau has only parameters of no use to the features
    grads = torch.autograd.grad(
        [f0] if reached else [],
        list(leaves.values()),
        [cotangent.to(f0.dtype)] if reached else [],
        materialize_grads=True,
    )
    return dict(zip(leaves, grads, strict=True))


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check(params: Params, tau: Params) -> None:
    absent = [name for name in tau if name not in params]
    if absent:
        raise TasklabError(
            f"the task vector has parameters that the model has not: {', '.join(absent[:5])}"
            f"{', ...' if len(absent) > 5 else ''}. It belongs to another model."
        )
    for name in tau:
        if tau[name].shape != params[name].shape:
            raise TasklabError(
                f"{name} has shape {tuple(tau[name].shape)} in the task vector and "
                f"{tuple(params[name].shape)} in the model: it belongs to another model."
            )
