"""Measures of single weight tensors: kind, stable rank, steps of a floating-point type."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tasklab.analyses.merging.names import is_statistic, single
from tasklab.analyses.merging.vectors import is_matrix

#: Kinds of tensors, see `kind_of`
KINDS = ("matrix", "table", "kernel", "norm", "bias", "other", "state")
_BIAS, _GAIN = re.compile(r"(?:bias|beta)$"), re.compile(r"(?:weight|gamma|scale)$")
_SMALL = 384  # shorter side of matrices whose largest singular value is computed exactly
_BLOCK, _ROUNDS = 8, 8  # of the subspace iteration for larger ones


def kind_of(name: str, like: Tensor) -> str:
    """Return the kind of a tensor by name and shape.

    Returns:
        `matrix` (of a linear layer), `table` (two axes: embeddings, positions), `kernel` (more
        axes), `norm` (gains of normalisation), `bias`, `state` (whole numbers, masks, running
        statistics), or `other`.

    >>> [kind_of(n, torch.ones(2)) for n in ("ln.weight", "in_proj_bias", "bn.running_mean")]
    ['norm', 'bias', 'state']
    """
    if not like.is_floating_point() or is_statistic(name):
        return "state"
    if is_matrix(name, like):
        return "matrix"
    if like.dim() >= 2:
        return "table" if like.dim() == 2 else "kernel"
    if like.dim() == 1 and _BIAS.search(name):
        return "bias"
    return "norm" if like.dim() == 1 and _GAIN.search(name) else "other"


def stable_rank(matrix: Tensor) -> float:
    """Return |W|_F^2 / |W|_2^2 of a matrix: 1 at rank 1, at most the rank; 0 for zeros.

    Where the shorter side is longer than 384, the largest singular value comes from a subspace
    iteration, which is too small by a few per cent for matrices of noise.
    """
    W = matrix.float() if matrix.element_size() < 4 else matrix
    scale = float(W.abs().max()) if W.numel() else 0.0
    if not scale:
        return 0.0
    W = W / scale
    if min(W.shape) <= _SMALL:
        gram = W.double() @ W.double().T if len(W) <= W.shape[1] else W.double().T @ W.double()
        return float(gram.trace() / torch.linalg.eigvalsh(gram)[-1])
    draw = torch.Generator().manual_seed(0)
    block = torch.randn(W.shape[1], _BLOCK, generator=draw, dtype=W.dtype)
    for _ in range(_ROUNDS):
        Q = torch.linalg.qr(W @ block).Q
        block = W.T @ Q
    largest = torch.linalg.matrix_norm(block.double(), 2)
    return float(torch.linalg.vector_norm(W, dtype=torch.float64).square() / largest.square())


def steps(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return the distance between neighbouring numbers of a type, at each number of a tensor."""
    about = torch.finfo(kind)
    exponents = torch.frexp(x.float().abs().clamp_min(about.tiny)).exponent
    return torch.ldexp(torch.full_like(x, about.eps), exponents - 1)


def square_norm(x: Tensor) -> float:
    """Return the squared norm of a tensor, summed in float64."""
    return float(torch.linalg.vector_norm(single(x), dtype=torch.float64)) ** 2
