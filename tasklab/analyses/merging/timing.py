"""How long merges take on this machine, from one corner of a matrix."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping

from tasklab.analyses.merging.registry import merge, method
from tasklab.analyses.merging.vectors import is_matrix
from tasklab.taskvector import TaskVector

_SIDE = 256  # of the corner
_ENOUGH = 0.5  # seconds
_DECOMPOSED = ("tsv_m", "boosting", "iso_c", "iso_cts", "wudi", "wudi_exact", "wudi_descent")


def seconds(vectors: Mapping[Hashable, TaskVector], name: str) -> float:
    """Return about how long a merge is made with each value of its option, without images.

    A corner of a matrix of every vector is merged, as two blocks' since some rules go by depth, and
    its time scaled: by the products that a decomposition takes, or else by the count of numbers.
    """
    rule, first = method(name), next(iter(vectors.values()))
    matrices = {n: x.shape for n, x in first.items() if is_matrix(n, x)}
    if rule.needs or not matrices:
        return 0.0
    largest = max(matrices, key=lambda n: min(matrices[n]))
    side = min(_SIDE, *matrices[largest])
    parts = ((v[largest][:side, :side] for _ in range(2)) for v in vectors.values())
    corner = [TaskVector({f"blocks.{i}.weight": x for i, x in enumerate(two)}) for two in parts]
    spent: list[float] = []
    while len(spent) < 2 and sum(spent) < _ENOUGH:  # the first imports
        began = time.perf_counter()
        merge(name, corner, **rule.fixed)
        spent.append(time.perf_counter() - began)
    products = sum(min(shape) * shape.numel() for shape in matrices.values()) / (2 * side**3)
    numbers = sum(x.numel() for x in first.values()) / (2 * side**2)
    return min(spent) * (products if name in _DECOMPOSED else numbers) * max(1, len(rule.values))
