"""What a fine-tuning run ends with."""

from __future__ import annotations

import dataclasses
from typing import Any

from tasklab.errors import TasklabError
from tasklab.models import heads
from tasklab.taskvector import TaskVector


class DivergedError(TasklabError):
    """The loss of a run stopped being a finite number, or grew far beyond guessing.

    Attributes:
        step: At which step.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        vector: Its task vector, on the model's device while it fits (`placement.resident`).
        head: The head that was trained with the encoder, or the probe that came before, if any.
        record: `losses` of all steps, `seconds` of training, `parameters` trained, where, how many
            images at a time (`micro_batch`) and whether blocks were computed twice (`recomputed`).
    """

    vector: TaskVector
    record: dict[str, Any]
    head: heads.Head | None = None
