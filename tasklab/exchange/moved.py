"""By which method a vector was fine-tuned, as far as the parameters that moved tell.

A change by at most one step of the type that a checkpoint's numbers are rounded to is none.
"""

from __future__ import annotations

import contextlib

import torch

from tasklab.errors import TasklabError
from tasklab.exchange import precision, reading
from tasklab.exchange.reading import Checkpoint
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune
from tasklab.tuning.methods import TABLE

_PARTIAL = tuple(name for name, one in TABLE.items() if one.parts and not one.vectors)


def method_of(vector: TaskVector, model: str, checkpoint: Checkpoint) -> str:
    """Return the method that trains all parameters that moved, and the fewest others."""
    for method in _PARTIAL:
        with contextlib.suppress(TasklabError):  # a model without attention
            if not _others(vector, _trained(method, model), checkpoint):
                return method
    return "nonlinear"


def by_method(vector: TaskVector, method: str, model: str, checkpoint: Checkpoint) -> TaskVector:
    """Return a vector of those parameters alone that a method trains.

    Raises:
        TasklabError: If another one moved.
    """
    trained = _trained(method, model)
    if changed := _others(vector, trained, checkpoint):
        more = " by more than rounding" if checkpoint.kinds else ""
        raise TasklabError(
            f"{checkpoint.path} has changed {len(changed)} parameters that {method!r} does not "
            f"train{more}, such as {changed[0]}: give the method that it was fine-tuned by."
        )
    return TaskVector({name: x for name, x in vector.items() if name in trained}, vector.base)


def _trained(method: str, model: str) -> set[str]:
    own = {name: torch.empty(shape, device="meta") for name, shape in reading.shapes(model).items()}
    return set(finetune.trainable(own, method, model))


def _others(vector: TaskVector, trained: set[str], checkpoint: Checkpoint) -> list[str]:
    theta, kinds = checkpoint.theta or {}, checkpoint.kinds
    return [
        name
        for name, x in vector.items()
        if name not in trained
        and x.any()
        and not (name in kinds and precision.within_a_step(x, theta[name], kinds[name]))
    ]
