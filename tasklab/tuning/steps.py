"""Loss and gradients of one step, by the quickest way that fits into memory.

    step = Step(Problem(config, head, theta0, delta, own), encoder)
    value, gradients = step(what, images, labels, others)

The gradient is that of the loss in theta, or for a linearized model in delta (`tangent`), and in a
head that trains along; a method's penalty is added. A step is computed in parts where memory does
not suffice (`memory`), by compiled blocks or a recorded step on a GPU (`compiled`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.models import heads, training
from tasklab.models.encoder import Encoder
from tasklab.tuning import compiled, dual, footprint, kronecker, memory, penalties, tangent
from tasklab.tuning.compiled import Compute, Replayed
from tasklab.tuning.memory import Plan
from tasklab.tuning.methods import LINEAR
from tasklab.tuning.recipe import FineTune

Gradients = dict[str, Tensor]
Loss = Callable[[Tensor], Tensor]  # features (B, D) -> scalar
Model = Encoder | memory.Recomputed
_compiled: set[tuple[Any, ...]] = set()  # what was compiled in this process


class Problem(NamedTuple):
    """A run, its head, and its trained parameters."""

    config: FineTune
    head: heads.Head
    theta0: Mapping[str, Tensor]
    delta: dict[str, Tensor]  #: Their change, which is written to between steps
    own: dict[str, Tensor]  #: Tensors of a head that trains along


class Step:
    """Computes the loss and the gradients of a run's steps.

    Args:
        problem: The run with its trained parameters.
        encoder: The pre-trained encoder.
        known: Kronecker factors of other tasks, for penalties that use them.
        shared: Gradients of recorded steps on the same parameters, which take turns (`Replayed`).

    Attributes:
        plan: The present plan of steps.
    """

    def __init__(
        self,
        problem: Problem,
        encoder: Encoder,
        known: kronecker.Factors | None = None,
        shared: Gradients | None = None,
    ) -> None:
        self._problem, config = problem, problem.config
        self.config, self.encoder, self._known = config, encoder, known
        self._plans = footprint.plans(config, encoder)
        plain = encoder if config.method in LINEAR else training.passes(encoder)
        self._models: dict[bool, Model] = {False: plain, True: memory.Recomputed(plain)}
        self._parts: dict[bool, Compute] = {
            again: functools.partial(_part, self._problem, model)
            for again, model in self._models.items()
        }
        self.compiling = compiled.compiles(config, encoder) and self._compile()
        if compiled.records(config, encoder):
            said = f"the step of {encoder.name} could not be recorded as a CUDA graph"
            usual = self._parts[False]
            self._whole: Compute = compiled.Quick(Replayed(usual, shared), usual, said)
        else:
            self._whole = self._parts[False]

    def __call__(
        self, what: str, images: Tensor, labels: Tensor, others: Tensor | None
    ) -> tuple[Tensor, Gradients]:
        """Return the loss and its gradients by the names of delta and of a head that trains.

        Raises:
            TasklabError: If not even one image at a time fits into memory.
        """
        attempt = functools.partial(self._attempt, images, labels, others)
        found, self._plans = memory.first_that_fits(attempt, self._plans, what, memory.LESS)
        return found

    @property
    def plan(self) -> Plan:
        """The present plan of steps."""
        return self._plans[0]

    def note(self) -> str:
        """Return a note to show before a step that compiles; empty otherwise."""
        key = (self.encoder.name, self.config.method, self.config.precision, self.config.batch_size)
        if not self.compiling or key in _compiled:
            return ""
        _compiled.add(key)
        return compiled.NOTE

    def _attempt(
        self, images: Tensor, labels: Tensor, others: Tensor | None, plan: Plan
    ) -> tuple[Tensor, Gradients]:
        config, part = self.config, self._parts[plan.recompute]
        whole = plan.size >= len(labels) and not plan.recompute

        def compute(images: Tensor, labels: Tensor) -> tuple[Tensor, Gradients]:
            return (self._whole if whole else part)(self.encoder.preprocess(images), labels)

        value, gradients = memory.accumulated(compute, images, labels, plan.size)
        if config.penalty:
            with precision(config, images):
                model = self._models[plan.recompute]
                extra = penalties.measure(
                    config.method, model, self._problem.delta, others, plan.size, self._known
                )
            value = value + config.penalty * extra.value
            for name, more in extra.gradients.items():
                gradients[name] = gradients[name].add(more, alpha=config.penalty)
        return value, gradients

    def _compile(self) -> bool:
        if (once := dual.passes(self.encoder, compiled.block)) is None:
            return False
        said = f"the blocks of {self.encoder.name} could not be compiled"
        for again, usual in self._parts.items():
            model = dataclasses.replace(once, recompute=again)
            quick = functools.partial(_part, self._problem, model)
            self._parts[again] = compiled.Quick(quick, usual, said)
        return True


def _part(problem: Problem, model: Model, x: Tensor, y: Tensor) -> tuple[Tensor, Gradients]:
    config, head, theta0, delta, own = problem
    how, last = tangent_gradient if config.method in LINEAR else gradient, {}

    def loss(features: Tensor) -> Tensor:
        last["features"] = features.detach()
        with torch.autocast(features.device.type, enabled=False):  # logits need the digits
            return F.cross_entropy(head(features), y)

    with precision(config, x):
        value, gradients = how(model, theta0, delta, x, loss)
    if own:
        gradients |= head_gradient(own, head.normalise, last["features"], y)
    return value, gradients


def gradient(
    model: Model, theta0: Mapping[str, Tensor], delta: Mapping[str, Tensor], x: Tensor, loss: Loss
) -> tuple[Tensor, Gradients]:
    """Return the loss of f(x; theta_0 + delta), and its gradient in theta.

    Args:
        model: The network f with its frozen parameters.
        theta0: Start of the trained parameters by name.
        delta: Their change by name.
        x: Preprocessed images (B, 3, H, W).
        loss: Features -> a scalar.
    """
    sums = torch._foreach_add([theta0[name] for name in delta], list(delta.values()))
    theta = {name: tensor.requires_grad_() for name, tensor in zip(delta, sums, strict=True)}
    value = loss(model({**model.params, **theta}, x))
    return value.detach(), dict(zip(theta, torch.autograd.grad(value, sums), strict=True))


def tangent_gradient(
    model: Model, theta0: Mapping[str, Tensor], delta: Mapping[str, Tensor], x: Tensor, loss: Loss
) -> tuple[Tensor, Gradients]:
    """Return the loss of f(x; theta_0) + J(x; theta_0) delta, and its gradient in delta.

    Args:
        model: The network f with all parameters theta_0.
        theta0: Unused, as `model` has it.
        delta: The change of parameters by name.
        x: Preprocessed images (B, 3, H, W).
        loss: Features -> a scalar.
    """
    return tangent.value_and_grad(model, model.params, delta, x, loss)


def head_gradient(
    own: Mapping[str, Tensor], normalise: bool, features: Tensor, y: Tensor
) -> Gradients:
    """Return the gradient of the cross-entropy in the head's weight and bias.

    Args:
        own: `weight` (C, D) and, of a probe, `bias` (C,).
        normalise: Whether features are scaled to length 1.
        features: (B, D).
        y: Classes (B,).
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
    weight, *bias = leaves.values()  # no `Head`: that would check for finite numbers
    features = features.to(weight.dtype)
    scores = (F.normalize(features, dim=-1) if normalise else features) @ weight.T
    value = F.cross_entropy(scores + bias[0] if bias else scores, y)
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def precision(config: FineTune, x: Tensor) -> contextlib.AbstractContextManager:
    """Return a context in which matrix products have a run's precision."""
    if config.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, torch.bfloat16)
