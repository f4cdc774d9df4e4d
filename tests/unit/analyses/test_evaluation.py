"""What an evaluator keeps, and what identifies a task vector in the key of a result."""

from __future__ import annotations

import torch

from tasklab.analyses import evaluation
from tasklab.models import loading
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector


def test_fingerprint_sees_names_and_numbers():
    one = TaskVector({"w": torch.ones(2)})
    assert evaluation.fingerprint(one) == evaluation.fingerprint(TaskVector({"w": torch.ones(2)}))
    assert evaluation.fingerprint(one) != evaluation.fingerprint(TaskVector({"v": torch.ones(2)}))
    assert evaluation.fingerprint(one) != evaluation.fingerprint(one * 1.5)


def test_what_is_kept_serves_training_too():
    """Heads and images that inference asks for first must not be its own kind of tensors."""
    evaluator = evaluation.Evaluator(loading.load("mini"), suite("mini"), None, counts={"val": 2})
    with torch.inference_mode():
        evaluator.head("Signs"), evaluator.images("Signs", "val")
    weight, images = evaluator.head("Signs").weight, evaluator.images("Signs", "val")
    assert not any(kept.is_inference() for kept in (weight, images.x, images.y))
