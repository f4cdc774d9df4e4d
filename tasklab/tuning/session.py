"""What a run's loop has around it: progress, losses, checkpoints, threads, SIGTERM.

    with Session(config, ...) as session:
        for step in session:
            ...
            session.add(loss, norm)

A resumed run gets the steps that are left.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tasklab.progress import bar
from tasklab.storage import termination
from tasklab.tuning.journal import Journal
from tasklab.tuning.recipe import FineTune
from tasklab.tuning.saver import Saver

_log = logging.getLogger(__name__)


class Session(contextlib.ExitStack):
    """The steps of a run that are left, from its last checkpoint on.

    Args:
        title: What it trains on, in a few words.
        moving: What trains, by name; a checkpoint's numbers are written into it.

    Attributes:
        left: The steps that are left.
        losses: Of all steps, at the end.
        what: The present step, for messages.
    """

    def __init__(
        self,
        config: FineTune,
        title: str,
        classes: int,
        moving: dict[str, Tensor],
        optimiser: torch.optim.Optimizer,
        checkpoint: Path,
        show: bool,
    ) -> None:
        super().__init__()
        self.device = next(iter(moving.values())).device
        self._saver = Saver(checkpoint, moving, optimiser, config.checkpoint_every)
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
        if count != usual:
            torch.set_num_threads(usual)
