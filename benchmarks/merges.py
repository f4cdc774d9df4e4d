"""Merges by singular vectors on the shapes of a large model, for `benchmarks/bench.py`.

    python benchmarks/bench.py --models vitl14 --rounds 1

Random task vectors of one block are merged as often as the model has blocks, so that the time is
the whole model's and the memory a block's. The papers' way decomposes every matrix of every task
wholly, in float32; one block of it is measured and multiplied up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tasklab.analyses.merging import merge
from tasklab.taskvector import TaskVector

TASKS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The matrices of an image encoder, and how many task vectors there are."""

    width: int
    blocks: int
    output: int  # of the projection
    tasks: int = TASKS

    def block(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of a block's matrices, by open_clip's names."""
        w, start = self.width, "transformer.resblocks.0."
        return {
            f"{start}attn.in_proj_weight": (3 * w, w),
            f"{start}attn.out_proj.weight": (w, w),
            f"{start}mlp.c_fc.weight": (4 * w, w),
            f"{start}mlp.c_proj.weight": (w, 4 * w),
        }

    def rest(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of the matrices that are in no block."""
        return {"proj": (self.width, self.output)}


SHAPES = {"vitl14": Shape(width=1024, blocks=24, output=768)}


def drawn(shapes: dict[str, tuple[int, ...]], tasks: int) -> list[TaskVector]:
    """Return random task vectors.

    Args:
        shapes: Of their matrices, by name.
        tasks: How many vectors.
    """
    draw = torch.Generator().manual_seed(0)
    return [
        TaskVector({n: 1e-3 * torch.randn(s, generator=draw) for n, s in shapes.items()})
        for _ in range(tasks)
    ]


def ways(
    method: str, shape: Shape
) -> tuple[Callable[[], TaskVector], Callable[[], dict[str, Tensor]]]:
    """Return both ways of merging: a whole model here, and a block as published.

    Args:
        method: One of `PUBLISHED`.
        shape: Of the model.

    Returns:
        Functions that return the merged block.
    """
    block, rest = (drawn(shapes, shape.tasks) for shapes in (shape.block(), shape.rest()))

    def ours() -> TaskVector:
        merge(method, rest)
        for _ in range(shape.blocks):
            result = merge(method, block)
        return result

    def theirs() -> dict[str, Tensor]:
        return {name: PUBLISHED[method]([one[name] for one in block]) for name in block[0]}

    return ours, theirs


def same(ours: TaskVector, theirs: dict[str, Tensor]) -> bool:
    """Return whether both merged the same, as far as single precision can tell."""
    return all(
        float((ours[name] - x).norm()) <= 1e-2 * float(x.norm()) for name, x in theirs.items()
    )


def tsv_m(matrices: Sequence[Tensor]) -> Tensor:
    """Return TSV-M of a matrix of each task, every one decomposed (arXiv:2412.00081)."""
    k = min(matrices[0].shape) // len(matrices)
    parts = [torch.linalg.svd(x, full_matrices=False) for x in matrices]
    s = torch.cat([s[:k] for _, s, _ in parts])
    sides = torch.cat([u[:, :k] for u, _, _ in parts], 1), torch.cat([v[:k] for _, _, v in parts])
    (u, _, uh), (v, _, vh) = (torch.linalg.svd(x, full_matrices=False) for x in sides)
    return torch.linalg.multi_dot([u, uh, torch.diag(s), v, vh])


def iso_c(matrices: Sequence[Tensor]) -> Tensor:
    """Return Iso-C of a matrix of each task, the sum decomposed (arXiv:2502.04959)."""
    u, s, v = torch.linalg.svd(sum(matrices), full_matrices=False)
    return torch.linalg.multi_dot([u, torch.diag(s.mean().expand_as(s)), v])


def iso_cts(matrices: Sequence[Tensor]) -> Tensor:
    """Return Iso-CTS of a matrix of each task, all decomposed (arXiv:2502.04959)."""
    u, s, v = torch.linalg.svd(sum(matrices), full_matrices=False)
    own = round((len(s) - int(0.8 * len(s))) / len(matrices))
    k = len(s) - own * len(matrices)
    rest = [x - u[:, :k] @ u[:, :k].T @ x for x in matrices]
    parts = [*(torch.linalg.svd(x, full_matrices=False) for x in rest), (u[:, :k], s[:k], v[:k])]
    many = [own] * len(matrices) + [k]
    s = torch.cat([s[:n] for (_, s, _), n in zip(parts, many, strict=True)])
    sides = (
        torch.cat([u[:, :n] for (u, _, _), n in zip(parts, many, strict=True)], 1),
        torch.cat([v[:n] for (_, _, v), n in zip(parts, many, strict=True)]),
    )
    (u, _, uh), (v, _, vh) = (torch.linalg.svd(x, full_matrices=False) for x in sides)
    return torch.linalg.multi_dot([u, uh, torch.diag(s.mean().expand_as(s)), v, vh])


PUBLISHED = {"tsv_m": tsv_m, "iso_c": iso_c, "iso_cts": iso_cts}
