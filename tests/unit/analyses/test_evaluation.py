"""What identifies a task vector in the key of a result."""

from __future__ import annotations

import torch

from tasklab.analyses import evaluation
from tasklab.taskvector import TaskVector


def test_fingerprint_sees_names_and_numbers():
    one = TaskVector({"w": torch.ones(2)})
    assert evaluation.fingerprint(one) == evaluation.fingerprint(TaskVector({"w": torch.ones(2)}))
    assert evaluation.fingerprint(one) != evaluation.fingerprint(TaskVector({"v": torch.ones(2)}))
    assert evaluation.fingerprint(one) != evaluation.fingerprint(one * 1.5)
