"""Results of a fine-tuning run."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.errors.advice import Advised
from tasklab.models.heads import Head
from tasklab.models.loading import Clip
from tasklab.storage.placement import resident
from tasklab.storage.store import Artifact
from tasklab.taskvector import Base, TaskVector

TRAINED = ("trained", "zero_shot_trained")  # kinds of heads that train with the encoder
_WEIGHT, _BIAS = "classifier.weight", "classifier.bias"


class DivergedError(TasklabError):
    """The loss of a run stopped being a finite number, or grew far beyond guessing.

    Attributes:
        step: At which step.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Run(Advised):
    """A finished run."""

    _advice = MappingProxyType(
        {
            "accuracy acc evaluate score": "lab.evaluate(run.vector)",
            "loss losses seconds steps time": 'run.record["losses"], run.record["seconds"]',
            "model params weights state_dict": "run.vector.apply(lab.clip.encoder.params)",
        }
    )
    #: Its task vector, on the model's device while it fits (`placement.resident`).
    vector: TaskVector
    #: `losses` of all steps, `seconds` of training, `parameters` trained, where, how many images at
    #: a time (`micro_batch`) and whether blocks were computed twice (`recomputed`).
    record: dict[str, Any]
    #: The head that was trained with the encoder, or the probe that came before, if any.
    head: Head | None = None

    def __repr__(self) -> str:
        return f"Run({self.vector!r}, {len(self.record.get('losses', ()))} steps)"


def of_head(head: Head) -> dict[str, Tensor]:
    """Return the tensors of a trained head, by their names in a stored run."""
    return {_WEIGHT: head.weight} | ({} if head.bias is None else {_BIAS: head.bias})


def read_run(artifact: Artifact, clip: Clip, base: Base, probe: Head | None = None) -> Run:
    """Return the run of an artifact.

    Args:
        artifact: Tensors, settings and record in the store.
        clip: The pre-trained model, which gives the device.
        base: The weights that the vector starts from.
        probe: The head of a run that trained none; `None` for zero-shot.
    """
    tensors = dict(resident(artifact.version, clip.encoder.device, artifact.tensors))
    weight, bias = tensors.pop(_WEIGHT, None), tensors.pop(_BIAS, None)
    head = probe
    if weight is not None:
        head = Head(weight, bias, normalise=artifact.config["head"] != "trained" and clip.cosine)
    file = artifact.file if artifact.written else None
    return Run(TaskVector.of_file(tensors, file, base), artifact.record, head)
