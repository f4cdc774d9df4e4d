"""DELTA: fine-tuning whose features follow those of a linearized teacher that trains along.

T. Sommariva et al., *Distilling Linearized Behavior into Non-Linear Fine-Tuning for Effective Task
Arithmetic*, arXiv:2605.18993, ICML 2026. Student S and teacher T both start at theta_0 and see the
same images; only the student's vector is kept. Method `delta` follows the eighteen configurations
of the published code (apanariello4/merge-and-rebase):

    L_T = CE(u_lin(x; theta_0 + a tau_T)) + lambda tau_T' G tau_T
    L_S = CE(u(x; theta_0 + a tau_S)) + lambda tau_S' G tau_S
          + b mean_x |u(x; theta_0 + a tau_S) - u_lin(x; theta_0 + a tau_T)|^2

with u = f / |f| and its linearization u_lin, no gradient from the last term to the teacher, and a
drawn in each step from a range that grows from [1, 1] to [1/2, 2] with the square root of the share
of the run. lambda is 500, b is 1. G measures a change on images of no task:
the EK-FAC factors (`kronecker.corrected`) of a reference data set, with the published weights
(`methods.Published`, which also has the trained parts, decay, warm-up and clipping).

Method `delta_even` has cross-entropies at the whole vectors, a from U(1/2, 1), features that are
not normalised, |f(x; theta_0)|^2 under the distance, all parts of G alike, and strengths that were
chosen by the sum of four vectors of `mini_xs` on validation images.

In both the reference is the validation images of the control task, which has here the place of
ImageNet-21k, and teacher and student have the learning rate of non-linear fine-tuning.

Letters: B images, D features.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.models.encoder import Encoder
from tasklab.tuning import kronecker, memory, penalties, tangent
from tasklab.tuning.methods import TABLE
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.steps import (
    Gradients,
    Model,
    Problem,
    Step,
    gradient,
    head_gradient,
    precision,
)

PREFIX = "teacher:"  # of the names of a teacher's change
LEAST = 0.5  # where the path of coefficients begins


def coefficient(config: FineTune, step: int) -> float:
    """Return a of a step, a function of the configuration's seed, length and method alone."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    low, high = LEAST, 1.0
    if own := TABLE[config.method].published:
        grown = min(step / config.steps, 1.0) ** own.power
        low, high = (1 + (end - 1) * grown for end in own.path)
    return low + (high - low) * float(torch.rand((), generator=generator))


class Distilled(Step):
    """Computes the loss and the gradients of a student's steps, and the gradients of its teacher.

    Args:
        problem: The run with its trained parameters.
        encoder: The pre-trained encoder.
        known: Kronecker factors of the reference data set.
        teacher: The teacher's change, by `PREFIX` and a parameter's name.
        first: The first remaining step.
    """

    def __init__(
        self,
        problem: Problem,
        encoder: Encoder,
        known: kronecker.Factors | None,
        teacher: Mapping[str, Tensor],
        first: int,
    ) -> None:
        super().__init__(problem, encoder, known)
        self._teacher = {name.removeprefix(PREFIX): tensor for name, tensor in teacher.items()}
        self._next = first

    def __call__(
        self, what: str, images: Tensor, labels: Tensor, others: Tensor | None
    ) -> tuple[Tensor, Gradients]:
        """Return the student's loss, and the gradients of both (`Step`)."""
        found = super().__call__(what, images, labels, others)
        self._next += 1
        return found

    def _attempt(
        self, images: Tensor, labels: Tensor, others: Tensor | None, plan: memory.Plan
    ) -> tuple[Tensor, Gradients]:
        whole = TABLE[self.config.method].published is None
        if whole:
            value, gradients = super()._attempt(images, labels, others, plan)
        a = coefficient(self.config, self._next)
        taught = memory.Recomputed(self.encoder) if plan.recompute else self.encoder
        models = self._models[plan.recompute], taught
        losses = distance if whole else along
        part = functools.partial(losses, self._problem, *models, self._teacher, a)
        far, more = memory.accumulated(
            lambda x, y: part(self.encoder.preprocess(x), y), images, labels, plan.size
        )
        if whole:
            self._add_drift(more, self._teacher, PREFIX)
            for name, tensor in gradients.items():
                more[name] = more[name] + tensor if name in more else tensor
            return value + far, more
        self._add_drift(more, self._teacher, PREFIX)
        return far + self._add_drift(more, self._problem.delta, ""), more

    def _add_drift(
        self, gradients: Gradients, change: Mapping[str, Tensor], prefix: str
    ) -> Tensor | float:
        """Add a change's penalty to its gradients; return its part of the loss."""
        if not self.config.penalty or self._known is None:
            return 0.0
        drift = penalties.curved(change, self._known)
        for name, tensor in drift.gradients.items():
            gradients[prefix + name] = gradients[prefix + name].add(
                tensor, alpha=self.config.penalty
            )
        return self.config.penalty * drift.value


def along(
    problem: Problem,
    model: Model,
    taught: Model,
    teacher: Mapping[str, Tensor],
    a: float,
    x: Tensor,
    y: Tensor,
) -> tuple[Tensor, Gradients]:
    """Return the published losses at a but for the penalty, and the gradients of both.

    Args:
        problem: The run; its delta is the student's change.
        model: The student's network.
        taught: The teacher's network; `teacher` is its change.
        teacher: The teacher's change, by name.
        a: The coefficient of both changes.
        x: Preprocessed images (B, 3, H, W).
        y: Their classes (B,).
    """
    config, head, theta0, delta, trained = problem
    weight, last = TABLE[config.method].teacher, {}

    def entropy(features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return F.cross_entropy(head(features), y)

    with precision(config, x):
        known, _, own = tangent.lesson(
            taught, taught.params, teacher, x, entropy, lambda known: known.unit(a)
        )
        aim = known.unit(a)

        def loss(features: Tensor) -> Tensor:
            last["features"] = features.detach()
            far = (F.normalize(features.to(aim), dim=1) - aim).square().sum(1).mean()
            return entropy(features) + weight * far

        partway = {name: a * tensor for name, tensor in delta.items()}
        value, slopes = gradient(model, theta0, partway, x, loss)
    gradients = {name: a * slope for name, slope in slopes.items()}
    if trained:
        gradients |= head_gradient(trained, head.normalise, last["features"], y)
    return value, gradients | {PREFIX + name: slope for name, slope in own.items()}


def distance(
    problem: Problem,
    model: Model,
    taught: Model,
    teacher: Mapping[str, Tensor],
    a: float,
    x: Tensor,
    y: Tensor,
) -> tuple[Tensor, Gradients]:
    """Return b times the student's distance from its teacher at a, and the gradients of both.

    The student's gradients are those of the distance alone, the teacher's those of its own loss.

    Args:
        problem: The run with its trained parameters.
        model: The student's network.
        taught: The teacher's network; `teacher` is its change.
        teacher: The teacher's change by name.
        a: Coefficient of both changes.
        x: Preprocessed images (B, 3, H, W).
        y: Their classes (B,).
    """
    config, head, theta0, delta, _ = problem
    weight = TABLE[config.method].teacher

    def loss(features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return F.cross_entropy(head(features), y)

    with precision(config, x):
        known, _, own = tangent.lesson(taught, taught.params, teacher, x, loss)
        aim = known.at(a)

        def far(features: Tensor) -> Tensor:
            away = (features.float() - aim).square().sum(1)
            return weight * (away / known.f0.square().sum(1)).mean()

        partway = {name: a * tensor for name, tensor in delta.items()}
        value, slopes = gradient(model, theta0, partway, x, far)
    gradients = {name: a * slope for name, slope in slopes.items()}
    return value, gradients | {PREFIX + name: slope for name, slope in own.items()}
