"""DELTA: fine-tuning whose features follow those of a linearized teacher that trains along.

T. Sommariva et al., *Distilling Linearized Behavior into Non-Linear Fine-Tuning for Effective Task
Arithmetic*, arXiv:2605.18993, ICML 2026. Student S and teacher T both start at theta_0 and see the
same images; only the student's vector is kept:

    L_T = CE(f_lin(x; theta_0 + tau_T)) + lambda tau_T' G tau_T
    L_S = CE(f(x; theta_0 + tau_S)) + lambda tau_S' G tau_S + b E_a mean_x
          |f(x; theta_0 + a tau_S) - f_lin(x; theta_0 + a tau_T)|^2 / |f(x; theta_0)|^2

with no gradient from the last term to the teacher, a drawn from U(1/2, 1) in each step, and f the
features before the head. G says what a change does to images that are none of the tasks': the
EK-FAC factors (`kronecker.corrected`) of a reference data set.

Differences: the paper's distance is not relative to the size of the features, which in our models
differs by a factor of six; its reference is a part of ImageNet-21k, ours the validation images of
the control task, which has ImageNet's place here; weight decay pulls theta, as in all our methods;
teacher and student have one learning rate, that of non-linear fine-tuning; b and lambda were
chosen by the sum of four vectors of `mini_xs` on validation images. The published code
(apanariello4/merge-and-rebase) takes both cross-entropies at a too, and weighs the parts of G by
factors of its own.

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
from tasklab.tuning.steps import Gradients, Model, Problem, Step, gradient, precision

PREFIX = "teacher:"  # of the names of a teacher's change
LEAST = 0.5  # where the path of coefficients begins


def coefficient(seed: int, step: int) -> float:
    """Return a of a step, a function of seed and step alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return LEAST + (1 - LEAST) * float(torch.rand((), generator=generator))


class Distilled(Step):
    """Computes the loss and the gradients of a student's steps, and the gradients of its teacher.

    Args:
        teacher: The teacher's change, by `PREFIX` and a parameter's name.
        first: The first step that is left.
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
        value, gradients = super()._attempt(images, labels, others, plan)
        a = coefficient(self.config.seed, self._next)
        taught = memory.Recomputed(self.encoder) if plan.recompute else self.encoder
        models = self._models[plan.recompute], taught
        part = functools.partial(distance, self._problem, *models, self._teacher, a)
        far, more = memory.accumulated(
            lambda x, y: part(self.encoder.preprocess(x), y), images, labels, plan.size
        )
        if self.config.penalty and self._known is not None:
            drift = penalties.curved(self._teacher, self._known).gradients
            for name, tensor in drift.items():
                more[PREFIX + name] = more[PREFIX + name].add(tensor, alpha=self.config.penalty)
        for name, tensor in gradients.items():
            more[name] = more[name] + tensor if name in more else tensor
        return value + far, more


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
        taught: The teacher's network, of which `teacher` is the change.
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
