"""The losses of a run, read from the device every few dozen steps, and whether it diverges.

Reading a number from a GPU waits for all that was launched before. Losses and gradient norms stay
there until `EVERY` of them are read at once; on a processor each is read at its step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import DivergedError

EVERY = 32  # steps between two readings from a device


class Journal:
    """Collects losses and gradient norms; stops a run that has gone wrong."""

    def __init__(
        self, config: FineTune, losses: list[float], classes: int, device: torch.device
    ) -> None:
        self.config, self.classes = config, classes
        self._losses, self._left = losses, list[tuple[Tensor, Tensor]]()
        self.every = 1 if device.type == "cpu" else EVERY

    def __len__(self) -> int:
        return len(self._losses) + len(self._left)

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Add a step's loss and gradient norm, before the step changes delta.

        Raises:
            DivergedError: If the steps are read now, and one of them has diverged.
        """
        self._left.append((loss, norm))
        if len(self._left) >= self.every:
            self.losses()

    def losses(self) -> list[float]:
        """Return the losses of all steps, read from the device.

        Raises:
            DivergedError: If a step has diverged; delta is spoiled from that step on.
        """
        if self._left:
            values, norms = (
                torch.stack(column).tolist() for column in zip(*self._left, strict=True)
            )
            self._left = []
            for loss, norm in zip(values, norms, strict=True):
                self._losses.append(loss)
                self._check(norm)
        return self._losses

    @property
    def note(self) -> str:
        """The last loss that was read, for a line of progress."""
        return f"loss {self._losses[-1]:.3f}" if self._losses else ""

    def _check(self, norm: float) -> None:
        config, losses, guessing = self.config, self._losses, math.log(self.classes)
        loss, step = losses[-1], len(losses) - 1
        broken = "" if math.isfinite(loss) and math.isfinite(norm) else "is not finite"
        if len(losses) >= 40:  # over 20 steps, far worse than guessing and than at the beginning
            recent, early = sum(losses[-20:]) / 20, sum(losses[:20]) / 20
            if recent > 5 * guessing and recent > 3 * early:
                broken = "diverges"
        if broken:
            raise DivergedError(
                f"fine-tuning on {config.task} by {config.method!r} {broken} at step {step} of "
                f"{config.steps}: loss {loss:.4g}, gradient norm {norm:.4g}, lr {config.lr:g}. "
                "Lower lr, or raise warmup.",
                step,
            )
