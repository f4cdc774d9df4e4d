"""Merge adapters, or whole networks, in the spaces that their changes span.

A rule is applied to coordinates of the tasks' matrices in a common basis, and its result is mapped
back. Sums are the same in any basis; rules that trim, elect signs or drop entries,
and rules of singular values, are not.

- *KnOTS*, arXiv:2410.19735: [tau_1 ... tau_T] = U S [V_1' ... V_T']. The rule works on S V_t', as
  the authors' code does, and merged = U rule(S V_1', ..., S V_T').
- *Core Space*, arXiv:2509.17786, of adapters tau_t = B_t A_t: U holds the left singular vectors of
  [B_1 ... B_T], V those of [A_1' ... A_T']. The rule works on M_t = U' B_t A_t V, which has as
  many rows and columns as all ranks together, and merged = U rule(M_1, ..., M_T) V'.

Both are exact: U U' tau_t = tau_t, and U M_t V' = tau_t. In Core Space TSV-M takes r directions
of each adapter; of whole matrices it also takes directions that only rounding errors have. Other
parameters are merged by the same rule in their own space.

Letters: T tasks, O outputs, I inputs, r rank of an adapter, R of all together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.merging.vectors import is_matrix
from tasklab.errors import TasklabError, abridged, choose
from tasklab.progress import LATER, bar
from tasklab.storage.lazy import Lazy
from tasklab.storage.placement import decomposes, placed
from tasklab.taskvector import TaskVector

SPACES = ("knots", "core")
#: Rules that the papers use there; the mean is a sum.
RULES = ("average", "arithmetic", "ties", "dare", "tsv_m", "iso_c", "iso_cts")
_NULL = 1e-5  # relative singular value below which a direction is rounding error in float32


class Factors(NamedTuple):
    """A matrix as a product B A."""

    B: Float[Tensor, "O r"]
    A: Float[Tensor, "r I"]

    def to(self, device: torch.device) -> Factors:
        """Return both on a device.

        Args:
            device: Where they go.
        """
        return Factors(self.B.to(device), self.A.to(device))


Product = Callable[[str], Factors | None]  # a parameter's name -> its factors, if it has some


class Shared(NamedTuple):
    """Coordinates of each task's matrix in a shared basis, and the basis."""

    parts: list[Tensor]
    back: Callable[[Tensor], Tensor]


def merge(
    space: str,
    rule: Callable[..., TaskVector],
    changes: Sequence[TaskVector],
    products: Sequence[Product],
    **options: Any,
) -> TaskVector:
    """Merge changes in a space.

    Args:
        space: One of `SPACES`.
        rule: A function of task vectors, as of `registry.Method.function`.
        changes: theta - theta_0 of each task.
        products: For each task a function that returns the factors of an adapter's matrix.
        **options: Of the rule.

    Raises:
        TasklabError: If there is no such space, or a matrix is no product in Core Space.
    """
    choose("space", space, SPACES)
    first = changes[0]
    names = [n for n in first if is_matrix(n, first.like(n))]
    held, backs = [dict[str, Tensor]() for _ in changes], dict[str, Callable[[Tensor], Tensor]]()
    with bar(len(first), f"into {space}", unit="tensor", soon=LATER) as shown:
        for name in first:
            parts = [change[name] for change in changes]
            if name in names:
                place = decomposes(parts[0].device)
                factors = [placed(of(name), place) for of in products]
                shared = (knots if space == "knots" else core)(name, placed(parts, place), factors)
                parts, backs[name] = [x.to(parts[0]) for x in shared.parts], shared.back
            for own, part in zip(held, parts, strict=True):
                own[name] = part
            shown.update()
    made = rule([TaskVector(own) for own in held], **options)
    return TaskVector.lazy(_Back(made, backs, first))


def knots(
    name: str, matrices: Sequence[Tensor], factors: Sequence[Factors | None]
) -> Shared:  # fmt: skip
    """Return S V_t' of each task, with [tau_1 ... tau_T] = U S [V_1' ... V_T'].

    Args:
        name: Of the parameter, for messages.
        matrices: tau_t, each (O, I).
        factors: Of each, where it is a product: then only matrices of R rows are decomposed.
    """
    known = [one for one in factors if one is not None]
    inputs, Q = matrices[0].shape[1], None
    if len(known) == len(factors):
        Q, upper = torch.linalg.qr(torch.cat([one.B.double() for one in known], 1))
        widths = [one.B.shape[1] for one in known]
        rows = [
            part @ one.A.double()
            for part, one in zip(upper.split(widths, 1), known, strict=True)
        ]  # fmt: skip
    else:
        rows = [x.double() for x in matrices]
    u, s, vh = torch.linalg.svd(torch.cat(rows, 1), full_matrices=False)
    kept = s > _NULL * s[0] if bool(s[0]) else s >= 0
    U = u[:, kept] if Q is None else Q @ u[:, kept]
    return Shared(list((s[kept, None] * vh[kept]).split(inputs, 1)), lambda part: U @ part.to(U))


def core(name: str, matrices: Sequence[Tensor], factors: Sequence[Factors | None]) -> Shared:
    """Return M_t = U' B_t A_t V of each task, (R, R) or smaller.

    Args:
        name: Of the parameter, for messages.
        matrices: tau_t; a task that does not change this one has zeros, and no factors.
        factors: B_t and A_t of each.
    """
    if wrong := [x for x, one in zip(matrices, factors, strict=True) if one is None and x.any()]:
        raise TasklabError(
            f"Core Space merges adapters (LoRA), and {abridged([name])} of {len(wrong)} networks "
            "is no product of two matrices: merge whole networks in the space knots."
        )
    known = [one for one in factors if one is not None]
    if not known:
        return Shared(list(matrices), lambda part: part.double())
    U = torch.linalg.svd(torch.cat([one.B.double() for one in known], 1), full_matrices=False).U
    V = torch.linalg.svd(torch.cat([one.A.double() for one in known]), full_matrices=False).Vh.T
    nothing = U.new_zeros(U.shape[1], V.shape[1])
    parts = [
        nothing if one is None else (U.T @ one.B.double()) @ (one.A.double() @ V) for one in factors
    ]
    return Shared(parts, lambda part: U @ part.to(U) @ V.T)


class _Back(Lazy):
    """A merge in shared bases, taken back a parameter at a time."""

    def __init__(
        self,
        made: Mapping[str, Tensor],
        backs: Mapping[str, Callable[[Tensor], Tensor]],
        first: TaskVector,
    ) -> None:
        self.made, self.backs, self.first = made, backs, first
        self.names = dict.fromkeys(first)

    def __getitem__(self, name: str) -> Tensor:
        found = self.made[name]
        return self.backs[name](found).to(found) if name in self.backs else found

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return self.first.like(name).to("meta")
