"""Weighted sums of task vectors: average, task arithmetic, and coefficients by depth."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from tasklab.analyses.finite import as_coefficient, as_coefficients, is_several
from tasklab.analyses.merging.vectors import Vectors, by_tensor, listed, mean, total
from tasklab.analyses.projections import natural
from tasklab.errors import TasklabError
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import BLOCK

# T5's blocks have other names than `tuning.methods` looks for: it is fine-tuned as a whole.
_BLOCKS = re.compile(rf"^.*?(?:{BLOCK}|(?:^|\.)(?:block|layer|h)\.(\d+)\.)")


def average(vectors: Vectors, *, alpha: float = 1.0) -> TaskVector:
    """Return the mean of the vectors, alpha / T sum_t tau_t.

    With alpha = 1 this is the mean of the models (*Model soups*, arXiv:2203.05482).
    """
    return by_tensor(listed(vectors, 2), lambda _, tensors: mean(tensors), alpha)


def arithmetic(vectors: Vectors, *, alpha: float | Sequence[float] = 1.0) -> TaskVector:
    """Return the sum of the vectors, alpha sum_t tau_t (*Task Arithmetic*, arXiv:2212.04089)."""
    each = listed(vectors)
    if not is_several(alpha):
        return by_tensor(each, lambda _, tensors: total(tensors), as_coefficient(alpha, "alpha"))
    alphas = as_coefficients(alpha, "alpha")
    if len(alphas) != len(each):
        raise TasklabError(f"{len(each)} task vectors cannot have {len(alphas)} coefficients.")

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        result = tensors[0] * alphas[0]
        for tensor, weight in zip(tensors[1:], alphas[1:], strict=True):
            result.add_(tensor, alpha=weight)
        return result

    return by_tensor(each, rule)


def lines(vectors: Vectors, *, alpha: float = 1.0, beta: float = 0.0) -> TaskVector:
    """Return the sum of the vectors, scaled linearly with depth (*LiNeS*, arXiv:2410.17146).

        alpha (1 + beta l / (L - 1)) sum_t tau_t      in block l = 0, ..., L - 1

    Parameters outside of blocks (embeddings, projection) get alpha, as in the published code. With
    beta = 0 this is task arithmetic.

    Args:
        vectors: Task vectors of one model.
        alpha: Coefficient of the result.
        beta: Relative to alpha: the published alpha + beta l / (L - 1) has alpha times this beta.
    """
    each = listed(vectors)
    beta = as_coefficient(beta, "beta")
    depth = depths(each[0])
    last = max(depth.values(), default=0)
    if not last:
        raise TasklabError("coefficients by depth need the parameters of at least two blocks.")

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        return total(tensors).mul_(1 + beta * depth.get(name, 0) / last)

    return by_tensor(each, rule, alpha)


def depths(names: Sequence[str] | TaskVector) -> dict[str, int]:
    """Return the number of its block, from 0, of each parameter that is in one.

    The blocks of an encoder come before those of its decoder.

    >>> depths(["resblocks.3.ln.bias", "resblocks.12.ln.bias", "proj"])
    {'resblocks.3.ln.bias': 0, 'resblocks.12.ln.bias': 1}
    """
    prefixes = {name: m.group() for name in names if (m := _BLOCKS.match(name))}
    order = sorted(
        set(prefixes.values()), key=lambda one: (one.startswith("decoder."), natural(one))
    )
    number = {prefix: i for i, prefix in enumerate(order)}
    return {name: number[prefix] for name, prefix in prefixes.items()}
