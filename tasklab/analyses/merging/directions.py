"""Essential Subspace Merging: directions of a matrix, ranked by changes of its outputs.

*Essential Subspace Merging for Multi-Task Learning*, arXiv:2606.19164 (CVPR 2026: *Model Merging in
the Essential Subspace*, arXiv:2602.20208). The formulas are those of the published code (ESM-ViT),
which adds the weights w and the factors m to the paper's.

Letters: T tasks, O outputs, I inputs, k = O // T directions of a task.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tasklab.analyses.finite import as_coefficient, finite
from tasklab.analyses.merging.pooled import GRAMS, PerTask, gram_of, matched
from tasklab.analyses.merging.singular import orthogonal, orthogonalised
from tasklab.analyses.merging.vectors import Vectors, decomposed, is_matrix, listed, turned
from tasklab.errors import TasklabError
from tasklab.storage.placement import decomposes, placed
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import BLOCK, PARTS

_KINDS = [BLOCK + PARTS[part] for part in PARTS if part.endswith("weights")]
_PLAIN = BLOCK + PARTS["attention output weights"]  # whose inputs the published code does not read
_POWER = 0.15  # of the published code


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Directions:
    """All tasks' weighted directions and coordinates of each matrix, in float64."""

    bases: Mapping[str, Tensor]  #: (O, T k)
    coordinates: Mapping[str, Tensor]  #: (T k, I)


def essential(
    vectors: Vectors, grams: PerTask | Directions | None = None, *, alpha: float = 1.0
) -> TaskVector:
    """Concatenate each task's essential directions, scale them, and orthogonalise.

    *Essential Subspace Merging*, arXiv:2606.19164. A task's update moves a layer's outputs by
    X_t tau_t'; its essential directions P_t are the k leading principal ones of that, of
    eigenvalues l_t:

        w_t     (l_t / mean l_t)^0.15, divided by its mean
        P       [P_1 w_1 ... P_T w_T]
        A       [w_1 P_1' tau_1 s_1; ...; w_T P_T' tau_T s_T],     s_t = (|tau_t| / mean |tau_t|)^2
        A       each column times (its norm / the mean of these norms)^2
        merged  alpha b 2 m(P) m(A) polar(P) polar(A)

    where m(A) is the mean singular value, and b = (norm / mean norm)^2 of the merged matrices of
    one kind over all blocks. Attention's output weights, and matrices outside of blocks, are
    merged as by `tsv_m`; the first are scaled by b too. Other parameters are averaged.

    Args:
        vectors: Task vectors of one model.
        grams: X_t' X_t of each, as of `regmean`; or `pooled_directions`.
        alpha: Coefficient of the result.
    """
    found, each = pooled_directions(vectors, grams), listed(vectors, 2)
    alpha = as_coefficient(alpha, "alpha")

    def rule(name: str, matrices: list[Tensor]) -> Tensor:
        if name not in found.bases:
            return orthogonalised(name, matrices)
        P, A = (x[name].to(matrices[0].device) for x in (found.bases, found.coordinates))
        norms = A.norm(dim=0)
        A = A * (norms / norms.mean().clamp_min(1e-38)).square()
        first, second = orthogonal(P), orthogonal(A)
        sizes = [(x * one).sum() / min(x.shape) for x, one in ((P, first), (A, second))]
        return (2 * sizes[0] * sizes[1]) * first @ second

    merged = dict(decomposed(each, rule))
    for kind in _KINDS:
        norms = {name: float(x.norm()) for name, x in merged.items() if re.search(kind, name)}
        mean = sum(norms.values()) / max(1, len(norms))
        for name, norm in norms.items():
            merged[name] = merged[name] * (norm / mean) ** 2 if mean else merged[name]
    return alpha * TaskVector(merged, next(iter(each)).base)


def pooled_directions(vectors: Vectors, grams: PerTask | Directions | None) -> Directions:
    """Collect all tasks' essential directions, from Gram matrices of one task at a time."""
    each = listed(vectors, 2)
    if isinstance(grams, Directions):
        return Directions(**placed(vars(grams), each[0].device))
    chosen = [
        name
        for name, x in each[0].items()
        if is_matrix(name, x)
        and any(re.search(kind, name) for kind in _KINDS)
        and not re.search(_PLAIN, name)
    ]
    bases: dict[str, list[Tensor]] = {name: [] for name in chosen}
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    norms: dict[str, list[float]] = {name: [] for name in chosen}
    for vector, one in matched(vectors, each, grams, GRAMS):
        for name in [name for name in chosen if name not in one]:
            chosen.remove(name)
            del bases[name], rows[name], norms[name]
        for name in chosen:
            tau = turned(name, vector[name]).double()
            k = len(tau) // len(each)
            if not k:
                raise TasklabError(f"{name} has {len(tau)} outputs, too few for {len(each)} tasks.")
            moved = tau @ finite(gram_of(name, one, tau), f"Grams of {name}") @ tau.T
            place = decomposes(moved.device)
            values, P = (x.to(moved.device) for x in torch.linalg.eigh(moved.to(place)))
            values, P = values[-k:].flip(0).clamp_min(0), P[:, -k:].flip(1)
            weights = (values / values.mean().clamp_min(1e-300)) ** _POWER
            weights = weights / weights.mean().clamp_min(1e-300)
            size = float(tau.norm())
            bases[name].append(P * weights)
            rows[name].append((P.T @ tau) * (weights * size**2)[:, None])
            norms[name].append(size)
        del one  # before the next task's are made
    squares = {name: max(sum(sizes) / len(sizes), 1e-38) ** 2 for name, sizes in norms.items()}
    return Directions(
        bases={name: torch.cat(parts, 1) for name, parts in bases.items()},
        coordinates={name: torch.cat(parts) / squares[name] for name, parts in rows.items()},
    )
