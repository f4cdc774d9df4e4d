"""Checkpoints of a fine-tuning run, from which it ends where an uninterrupted one does."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from tasklab.storage.store import load_checkpoint, save_checkpoint
from tasklab.tuning.journal import Journal

_REST = 9  # train at least this many times as long as the last checkpoint took to write


class Saver:
    """Writes and reads delta, the optimiser's moments and the losses so far."""

    def __init__(
        self, path: Path, delta: dict[str, Tensor], optimiser: torch.optim.Optimizer, every: int
    ) -> None:
        self.path, self.delta, self.optimiser, self.every = path, delta, optimiser, every
        self.threads = torch.get_num_threads()
        self.rest = 0.0  # not before this moment

    def maybe(self, journal: Journal, seconds: float) -> None:
        """Write if a checkpoint is due and the last one did not take too long just before."""
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
        """Return losses, seconds and threads of the checkpoint, whose state is now in place."""
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
