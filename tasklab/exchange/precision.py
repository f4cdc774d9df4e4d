"""Rounding of task vectors.

Rounding is a fraction of the weights, 2^-9 at most in bfloat16 and 2^-12 in float16, and a task
vector is a few per cent of them: of the vector it can be most. A number between two of a type's is
off by up to half their distance u, evenly distributed, so that the expected norm of the error is

    |error| = (sum of u(theta_i)^2 / 12)^(1/2)    over all i that changed
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_SOME = 64  # numbers that are looked at first


def kind_of(x: Tensor) -> torch.dtype | None:
    """Return the type of 16 or 8 bits that a tensor's numbers were rounded to; `None` for none.

    Numbers that were stored in 32 bits after they were rounded are found by their values.
    """
    if x.dtype.itemsize < 4:
        return x.dtype
    flat = x.reshape(-1)
    if flat.numel() < _SOME or not flat.is_floating_point():
        return None
    for kind in (torch.bfloat16, torch.float16):
        if all(torch.equal(part.to(kind).to(x.dtype), part) for part in (flat[:_SOME], flat)):
            return None if flat.min() == flat.max() else kind
    return None


def steps(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return the distance between neighbouring numbers of a type, at each number of a tensor."""
    about = torch.finfo(kind)
    x = x.float()
    step = torch.ldexp(torch.full_like(x, about.eps), torch.frexp(x).exponent - 1)
    least = max(about.smallest_normal * about.eps, 2.0**-149)
    return step.masked_fill(x == 0, least).clamp_min(least)


def share(
    vector: Mapping[str, Tensor], sides: list[tuple[Mapping[str, Tensor], Mapping]]
) -> tuple[float, list[torch.dtype]]:
    """Return the expected norm of rounding relative to a vector's, and to which types.

    The sides are theta, and theta_0 if it is from a file, each with the types of its tensors.
    """
    error, kinds = 0.0, []
    for theta, types in sides:
        for name, kind in types.items():
            if name in vector and (changed := vector[name] != 0).any():
                squares = steps(theta[name], kind).double().square() * changed
                error += float(squares.sum()) / 12
                kinds += [kind] if kind not in kinds else []
    norm = math.sqrt(math.fsum(float(x.double().square().sum()) for x in vector.values()))
    return (math.sqrt(error) / norm if norm else 0.0), kinds


def only_rounded(theta0: Tensor, theta: Tensor, kind: torch.dtype) -> bool:
    """Return whether theta is theta_0 rounded to a type.

    Args:
        theta0, theta: One parameter before and after.
        kind: The type.
    """
    return torch.equal(theta0.to(kind).float(), theta.float())


def within_a_step(change: Tensor, theta: Tensor, kind: torch.dtype) -> bool:
    """Return whether no number changed by more than one step of a type.

    Args:
        change: Difference of one parameter.
        theta: The parameter.
        kind: The type, e.g. `torch.bfloat16`.
    """
    return bool((change.abs() <= steps(theta, kind)).all())
