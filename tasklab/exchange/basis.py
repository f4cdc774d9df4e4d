"""Task vectors that were compressed to a basis: `basis_vectors.pt`, with W in `AWB.pt` beside it.

Each of T vectors is recovered from M sums, tau_t = sum_m W[m, t] s_m: an approximation, as M < T.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError, choose
from tasklab.storage import torch_files
from tasklab.storage.pickles import Inert

_WEIGHTS = "AWB.pt"


def recovered(file: Path, stored: Any, task: str | None) -> dict[str, Tensor] | None:
    """Return a task's vector from a basis; `None` if the file is no basis.

    Args:
        file: Path of `basis_vectors.pt`.
        stored: Its content.
        task: Which vector of the basis.

    Returns:
        Tensors under the names of the file, in float32.

    Raises:
        TasklabError: If W is missing or does not fit, or there is no such task.
    """
    basis = stored.get("basis_vectors") if isinstance(stored, Mapping) else None
    if not isinstance(basis, list | tuple) or not basis:
        return None
    beside = file.with_name(_WEIGHTS)
    if not beside.is_file():
        raise TasklabError(f"it is a basis of task vectors, and {_WEIGHTS} is not beside it.")
    told = torch_files.read(beside)
    weights, about = told["W"], told["metadata"]
    names = [str(name).removesuffix("Val") for name in about["datasets"]]
    vectors = [one.state.get("vector") if isinstance(one, Inert) else one for one in basis]
    plain = isinstance(weights, Tensor) and weights.shape == (len(vectors), len(names))
    if not plain or any(one.keys() != vectors[0].keys() for one in vectors):
        raise TasklabError(f"its {len(vectors)} vectors and {_WEIGHTS} do not belong together.")
    if task is None:
        raise TasklabError(f"it is a basis of task vectors: say which of {', '.join(names)}.")
    choose("task of the basis,", task, names)
    column = weights[:, names.index(task)].float().unbind()
    return {
        name: torch.stack(
            [w * one[name].float() for w, one in zip(column, vectors, strict=True)]
        ).sum(0)
        for name, x in vectors[0].items()
        if isinstance(x, Tensor) and x.is_floating_point()
    }
