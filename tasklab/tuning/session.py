"""Surroundings of a training loop: progress, losses, checkpoints, threads, SIGTERM.

    with Session(config, ...) as session:
        for step in session:
            ...
            session.add(loss, norm)

A resumed run does the remaining steps, and ends where an uninterrupted one does.

Reading a number from a GPU waits for all earlier kernels. Losses and gradient norms therefore stay
on it until `EVERY` of them are read at once; on a processor each is read at its step.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tasklab.progress import bar
from tasklab.storage import termination
from tasklab.storage.store import load_checkpoint, save_checkpoint
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.runs import DivergedError

EVERY = 32  # steps between two readings from a device
_REST = 9  # train at least this many times as long as the last checkpoint took to write
_log = logging.getLogger(__name__)


class Journal:
    """Collect losses and gradient norms; stop a diverging run.

    Args:
        config: The run.
        losses: Of earlier steps; those of later steps are appended.
        classes: Number of classes, whose logarithm is the loss of guessing.
        device: Losses are read from a GPU only every few steps.
    """

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


class Saver:
    """Writes and reads delta, the optimiser's moments and the losses so far.

    Args:
        path: The checkpoint.
        delta: Trained tensors by name.
        optimiser: AdamW of these tensors.
        every: Steps between checkpoints.
    """

    def __init__(
        self, path: Path, delta: dict[str, Tensor], optimiser: torch.optim.Optimizer, every: int
    ) -> None:
        self.path, self.delta, self.optimiser, self.every = path, delta, optimiser, every
        self.threads = torch.get_num_threads()
        self.rest = 0.0  # not before this moment

    def maybe(self, journal: Journal, seconds: float) -> None:
        """Write a checkpoint if one is due and the last one did not take too long."""
        begin = time.perf_counter()
        if len(journal) % self.every or begin < self.rest:
            return
        self.save(journal, seconds)
        end = time.perf_counter()
        self.rest = end + _REST * (end - begin)

    def save(self, journal: Journal, seconds: float) -> None:
        """Write a checkpoint, unless the run has diverged."""
        losses = journal.losses()
        moments = self.optimiser.state_dict()["state"]
        tensors = {f"delta/{name}": tensor for name, tensor in self.delta.items()}
        for number, name in enumerate(self.delta):
            tensors |= {f"{part}/{name}": value for part, value in moments[number].items()}
        meta = {"losses": losses, "seconds": seconds, "threads": self.threads}
        save_checkpoint(self.path, tensors, meta)

    def resume(self) -> tuple[list[float], float, int]:
        """Load the checkpoint's state, and return its losses, seconds and threads."""
        checkpoint = load_checkpoint(self.path)
        if checkpoint is None:
            return [], 0.0, self.threads
        tensors, meta = checkpoint
        state = self.optimiser.state_dict()
        for number, (name, tensor) in enumerate(self.delta.items()):
            tensor.copy_(tensors[f"delta/{name}"])
            state["state"][number] = {
                part: tensors[f"{part}/{name}"] for part in ("step", "exp_avg", "exp_avg_sq")
            }
        self.optimiser.load_state_dict(state)
        self.threads = int(meta.get("threads", self.threads))
        return list(meta["losses"]), float(meta["seconds"]), self.threads


class Session(contextlib.ExitStack):
    """The remaining steps of a run, from its last checkpoint on.

    Args:
        config: The run.
        title: Name of the training data, for the bar.
        classes: Number of classes.
        moving: Trained tensors by name; a checkpoint's numbers are written into them.
        checkpoint: File of the run's checkpoint.
        show: Whether to show a bar.

    Attributes:
        optimiser: AdamW of the trained tensors.
        left: The steps that are left.
        losses: Of all steps, at the end.
        what: Name of the present step, for messages.
    """

    def __init__(
        self,
        config: FineTune,
        title: str,
        classes: int,
        moving: dict[str, Tensor],
        checkpoint: Path,
        show: bool,
    ) -> None:
        super().__init__()
        self.device = next(iter(moving.values())).device
        self.optimiser = torch.optim.AdamW(
            moving.values(),
            lr=config.peak,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            fused=True,  # in place: PyTorch's usual one holds copies of delta, and is slower
        )
        self._saver = Saver(checkpoint, moving, self.optimiser, config.checkpoint_every)
        self.losses, self._before, self.threads = self._saver.resume()
        self.left, self._began = range(len(self.losses), config.steps), time.perf_counter()
        self._journal = Journal(config, self.losses, classes, self.device)
        name = f"{title}, {config.method}"
        self._bar = bar(config.steps, name, done=self.left.start, on=show)
        self.what = f"fine-tuning on {title} by {config.method!r}"

    def __enter__(self) -> Self:
        super().__enter__()
        self.enter_context(self._bar)
        self.enter_context(_with_threads(self.threads))
        self._request = self.enter_context(termination.deferred())
        return self

    def __iter__(self) -> Iterator[int]:
        what = self.what
        for step in self.left:
            self.what = f"{what}, step {step}"
            yield step
            self._bar.set_postfix_str(self._journal.note)
            self._bar.update()
            if self._request.asked:
                self._saver.save(self._journal, self.seconds)
                raise termination.Terminated(
                    f"{self.what}: asked to end (SIGTERM); {step + 1} of {self.left.stop} steps "
                    f"are kept in {self._saver.path}, and the same call goes on from there."
                )
            self._saver.maybe(self._journal, self.seconds)
        self.losses = self._journal.losses()

    def say(self, note: str) -> None:
        """Show a note, if any, beside the progress."""
        if note:
            self._bar.say(note)

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Add a step's loss and gradient norm, before delta changes; raise if the run diverges."""
        self._journal.add(loss, norm)

    @property
    def seconds(self) -> float:
        """Seconds of training, also before an interruption."""
        return self._before + time.perf_counter() - self._began

    def record(self) -> dict[str, Any]:
        """Return the loop's part of a finished run's record."""
        return {
            "losses": self.losses,
            "seconds": self.seconds,
            "device": str(self.device),
            "threads": self.threads,
            "torch": torch.__version__,
        }


@contextlib.contextmanager
def _with_threads(count: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    if count != usual:
        _log.info("the run goes on with %d threads, as it began", count)
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
