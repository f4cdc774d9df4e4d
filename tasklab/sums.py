"""Sums of tensors by name: checked first, then added in the order of their terms."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from tasklab.errors import TasklabError, shown
from tasklab.storage.lazy import like

_LARGEST = 1e30  # of a coefficient: float32 ends at 3e38
_FUSED = ("cuda",)  # devices on which one kernel goes over all tensors; elsewhere each by itself
_COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # float8 has no sums


def merged(
    terms: Sequence[Mapping[str, Tensor]],
    weights: Iterable[float],
    theta0: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return theta_0 + sum_i w_i tau_i of task vectors, or sum_i w_i theta_i of whole models.

    Terms are added in their order: tensor by tensor, or on a GPU that has all of them in one kernel
    a term. A parameter that no term names stays the same tensor.

    Args:
        terms: Task vectors tau_i; without `theta0`, models with the same parameters.
        weights: One coefficient w_i per term.
        theta0: Parameters that the vectors start from; `None` for whole models, whose counters and
            masks (no floating-point numbers) stay those of the first one.

    Raises:
        TasklabError: If names, shapes or types do not fit, or a result is not finite.

    >>> merged([{"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}], [0.5, 0.5])
    {'w': tensor(2.)}
    """
    weights = [coefficient(weight) for weight in weights]
    if len(weights) != len(terms):
        raise TasklabError(f"{len(terms)} terms cannot have {len(weights)} weights.")
    start = theta0
    if start is None:
        if not terms:
            raise TasklabError("there is nothing to merge: give at least one model.")
        start = terms[0]
        if any(term.keys() != start.keys() for term in terms):
            raise TasklabError("models with different parameters cannot be merged.")
    vectors = hasattr(start, "held")  # have weights alone, and may be on the disk
    fixed = set() if vectors else {n for n in start if _kind(like(start, n)) not in _COMPUTED}
    for term in terms:
        check_fits(term, start)
        if theta0 is not None:
            check_types({n: start[n] for n in fixed if n in term})
            check_types({} if hasattr(term, "held") else term)
        elif odd := [n for n in fixed if start[n].numel() > 1 and (term[n] != start[n]).any()]:
            raise TasklabError(f"{listed(sorted(odd))} differ, and are no weights to be averaged.")
    total: dict[str, Tensor] = {}  # of what some term names
    for term, weight in zip(terms, weights, strict=True):
        if not fixed and _fused(term, start):
            _add_at_once(total, term, weight, theta0)
            continue
        for name, tensor in term.items():
            if name in fixed:
                continue
            if name in total:
                total[name].add_(tensor.to(total[name]), alpha=weight)
            elif theta0 is None:
                total[name] = tensor * weight
            else:
                total[name] = torch.add(theta0[name], tensor.to(theta0[name]), alpha=weight)
    check_finite(total, f"the model merged with {listed([f'{weight:g}' for weight in weights])}")
    return {name: total[name] if name in total else start[name] for name in start}


def check_fits(vector: Mapping[str, Tensor], theta: Mapping[str, Tensor]) -> None:
    """Raise if a vector names a parameter that theta lacks, or one of another shape."""
    check_present(vector, theta, "the parameters to edit")
    check_shapes(vector, theta, vector)


def coefficient(value: object) -> float:
    """Return a coefficient, or raise if it is no finite number that weights can be scaled by."""
    given = value if isinstance(value, str) else number(value)
    try:
        if given is not None and abs(found := float(given)) <= _LARGEST:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise TasklabError(
        f"a coefficient must be a finite number, of at most {_LARGEST:g}, not {shown(value)}."
    )


def number(value: object) -> numbers.Real | None:
    """Return a real number, also out of an array or tensor without axes; `None` for all else.

    numpy's masked number is no number, although its item is 0.
    """
    if getattr(value, "is_meta", False) or np.ma.is_masked(value):
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, numbers.Real) else None


def whole(tensor: Tensor) -> bool:
    """Return whether a tensor is of whole numbers or truth values."""
    plain = isinstance(tensor, Tensor)  # `check_types` refuses what is none
    return plain and not (tensor.is_floating_point() or tensor.is_complex())


def check_types(tensors: Mapping[str, Tensor]) -> None:
    """Raise for non-float or meta tensors."""
    kinds = {name: kind for name, x in tensors.items() if (kind := _kind(x)) not in _COMPUTED}
    if kinds:
        wrong = [f"{name} ({str(kind).removeprefix('torch.')})" for name, kind in kinds.items()]
        raise TasklabError(
            f"{listed(wrong)}: task vectors are of floating-point numbers of 16 to 64 bits. Leave "
            "counters and masks out; convert 8-bit numbers by .float()."
        )


def _kind(x: object) -> object:
    """Return a tensor's type, or the obstacle to its addition: its device, layout or class."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    return x.device if x.is_meta else x.dtype if x.layout == torch.strided else x.layout


def _fused(term: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> bool:
    """Return whether a term and its sum lie on one GPU, in one type."""
    term = getattr(term, "held", term)
    if not isinstance(term, dict | MappingProxyType):  # made or read when asked for, one by one
        return False
    kinds = {(x.device, x.dtype) for name, tensor in term.items() for x in (tensor, start[name])}
    return len(kinds) == 1 and next(iter(kinds))[0].type in _FUSED


def _add_at_once(
    total: dict[str, Tensor],
    term: Mapping[str, Tensor],
    weight: float,
    theta0: Mapping[str, Tensor] | None,
) -> None:
    if there := [name for name in term if name in total]:
        torch._foreach_add_([total[n] for n in there], [term[n] for n in there], alpha=weight)
    if fresh := [name for name in term if name not in total]:
        tensors = [term[name] for name in fresh]
        if theta0 is None:
            made = torch._foreach_mul(tensors, weight)
        else:
            made = torch._foreach_add([theta0[n] for n in fresh], tensors, alpha=weight)
        total.update(zip(fresh, made, strict=True))


def add_into(
    total: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    vector: Mapping[str, Tensor],
    weight: float,
) -> None:
    """Write start + weight vector over the tensors of `total`.

    Args:
        total: Tensors that are overwritten; both others have their names.
        start: The first term.
        vector: The second term, of the same shapes.
        weight: Its coefficient.
    """
    if not _fused(vector, start):
        for name, out in total.items():
            torch.add(start[name], vector[name].to(start[name]), alpha=weight, out=out)
    elif total:
        torch._foreach_copy_(list(total.values()), [start[name] for name in total])
        torch._foreach_add_(list(total.values()), [vector[name] for name in total], alpha=weight)


def add_to(sums: dict[str, Tensor], name: str, x: Tensor) -> None:
    """Add a tensor to the sum of its name, in place.

    Args:
        sums: Sums by name; the first term of a sum is stored itself, not a copy.
        name: Of the sum.
        x: The term.
    """
    if name in sums:
        sums[name].add_(x)
    else:
        sums[name] = x


def check_finite(tensors: Mapping[str, Tensor], subject: str) -> None:
    """Raise if a number is not finite, which a sum shows in one pass; only then look closer."""
    on_gpus: dict[torch.device, list[str]] = {}
    odd = []
    for name, tensor in tensors.items():
        wide = torch.promote_types(tensor.dtype, torch.float32)
        if tensor.device.type in _FUSED:
            on_gpus.setdefault(tensor.device, []).append(name)
        elif not math.isfinite(float(tensor.detach().sum(dtype=wide))):
            odd.append(name)
    for names in on_gpus.values():  # the host waits for each device once
        lengths = torch._foreach_norm([tensors[name].detach() for name in names], 1)
        if not torch.stack([x.double() for x in lengths]).isfinite().all():
            odd += names
    if broken := [name for name in odd if not tensors[name].isfinite().all()]:
        raise TasklabError(f"{subject} is not finite: NaN or infinity in {listed(broken)}.")


def check_present(names: Iterable[str], params: Mapping[str, Tensor], side: str) -> None:
    """Check that parameters have some names.

    Args:
        names: Names that are needed.
        params: Parameters by name.
        side: Whose they are, in the message.

    Raises:
        TasklabError: If a name is missing.
    """
    if missing := [name for name in names if name not in params]:
        raise TasklabError(f"{side} lack {listed(missing)}: is it a vector of another model?")


def check_shapes(
    names: Iterable[str], one: Mapping[str, Tensor], two: Mapping[str, Tensor]
) -> None:
    """Check that tensors of the same name have the same shape.

    Args:
        names: Names that both sides have.
        one, two: Tensors by name.

    Raises:
        TasklabError: If shapes differ.
    """
    if wrong := [
        f"{name} {tuple(one[name].shape)} and {tuple(two[name].shape)}"
        for name in sorted(names)
        if like(one, name).shape != like(two, name).shape
    ]:
        raise TasklabError(f"shapes differ: {listed(wrong)}.")


def check_apart(
    names: Iterable[str], theta0: Mapping[str, Tensor], theta: Mapping[str, Tensor]
) -> None:
    """Check that both sides are not the same memory: their difference would be zero.

    Args:
        names: Names that both sides have.
        theta0: Parameters before fine-tuning.
        theta: Parameters after it.

    Raises:
        TasklabError: If all tensors of both sides share their memory.
    """
    pairs = [(theta0[name], theta[name]) for name in names]
    if pairs and all(a is b or (a.data_ptr() == b.data_ptr() != 0) for a, b in pairs):
        raise TasklabError(
            "both sides are the same tensors in memory, as of one network that trains: keep a copy "
            "of the pre-trained ones, copy.deepcopy(model.state_dict())."
        )


def listed(names: list[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def cosines(vectors: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the cosine of the angle between each two vectors, (V, V); 0 where one of them is 0.

    Each tensor is read once, so that vectors may be on the disk.
    """
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for name in dict.fromkeys(name for one in vectors for name in one):
        rows = [
            one[name].detach().flatten().float().cpu() if name in one else None for one in vectors
        ]
        size = max(len(row) for row in rows if row is not None)
        x = torch.stack([torch.zeros(size) if row is None else row for row in rows])
        total += (x @ x.T).double()
    norms = total.diag().sqrt()
    return (total / torch.outer(norms, norms)).nan_to_num(0.0)
