"""What a run's loop has around it: progress, losses, checkpoints, threads, SIGTERM.

    with Session(config, ...) as session:
        for step, images, others in session:
            ...
            session.add(loss, norm)

Whoever resumes a run gets the steps that are left, with their images, and ends where an
uninterrupted run does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.progress import bar
from tasklab.storage import termination
from tasklab.tasks import drawn
from tasklab.tasks.suites import Suite
from tasklab.tuning import penalties
from tasklab.tuning.journal import Journal
from tasklab.tuning.order import batch
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.saver import Saver

_log = logging.getLogger(__name__)


class Session(contextlib.ExitStack):
    """The steps of a run that are left, from its last checkpoint on.

    Args:
        config: The run.
        tasks: Its suite, with the images.
        moving: What trains, by name; a checkpoint's numbers are written into it.
        optimiser: Its optimiser; likewise.
        checkpoint: The file of checkpoints.
        device: Where the run computes.
        show: Whether to show a progress bar.

    Attributes:
        what: The present step, for messages.
        losses: Of all steps, at the end.
    """

    def __init__(
        self,
        config: FineTune,
        tasks: Suite,
        moving: dict[str, Tensor],
        optimiser: torch.optim.Optimizer,
        checkpoint: Path,
        device: torch.device,
        show: bool,
    ) -> None:
        super().__init__()
        self.config, self.data, self.device = config, drawn.images_of(tasks), device
        self._saver = Saver(checkpoint, moving, optimiser, config.checkpoint_every)
        self.losses, self._before, self.threads = self._saver.resume()
        self._left, self._began = range(len(self.losses), config.steps), time.perf_counter()
        self._journal = Journal(config, self.losses, len(tasks[config.task].classes), device)
        title = f"{config.task}, {config.method}"
        self._bar = bar(config.steps, title, done=self._left.start, on=show)
        self.what = f"fine-tuning on {config.task} by {config.method!r}"

    def __enter__(self) -> Session:
        """Show progress, take as many threads as the run began with, and let SIGTERM wait."""
        super().__enter__()
        self.enter_context(self._bar)
        self.enter_context(_with_threads(self.threads))
        self._request = self.enter_context(termination.deferred())
        return self

    def __iter__(self) -> Iterator[tuple[int, drawn.Images, Tensor | None]]:
        """Yield each step that is left, its images, and other tasks' images for a penalty."""
        what = self.what
        for step, images, others in zip(self._left, *self._images(), strict=True):
            self.what = f"{what}, step {step}"
            yield step, images, others
            self._bar.set_postfix_str(self._journal.note)
            self._bar.update()
            if self._request.asked:
                self._saver.save(self._journal, self.seconds)
                raise termination.Terminated(
                    f"{self.what}: asked to end (SIGTERM); {step + 1} of {self.config.steps} steps "
                    f"are kept in {self._saver.path}, and the same call goes on from there."
                )
            self._saver.maybe(self._journal, self.seconds)
        self.losses = self._journal.losses()

    def say(self, note: str) -> None:
        """Show a note, if there is one, beside the progress."""
        if note:
            self._bar.say(note)

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Add a step's loss and gradient norm, before delta changes; raise if the run diverges."""
        self._journal.add(loss, norm)

    @property
    def seconds(self) -> float:
        """Seconds of training, those before an interruption among them."""
        return self._before + time.perf_counter() - self._began

    def record(self) -> dict[str, Any]:
        """Return what the loop knows of a finished run."""
        return {
            "losses": self.losses,
            "seconds": self.seconds,
            "images": self.data.size(self.config.task, "train"),
            "device": str(self.device),
            "threads": self.threads,
            "torch": torch.__version__,
        }

    def _images(self) -> tuple[Iterator[drawn.Images], Iterator[Tensor | None]]:
        config, data, steps, device = self.config, self.data, self._left, self.device
        order = functools.partial(batch, config)
        few = functools.partial(batch, dataclasses.replace(config, batch_size=penalties.IMAGES))
        others = config.others if config.penalty else ()
        return (
            data.batches(config.task, order, steps, seed=config.seed, device=device),
            penalties.turns(others, data, few, steps, config.seed, device),
        )


@contextlib.contextmanager
def _with_threads(count: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    if count != usual:
        _log.info("the run goes on with %d threads, as it began", count)
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != usual:
            torch.set_num_threads(usual)
