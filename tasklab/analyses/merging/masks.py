"""Merges that drop entries: by size, by sign, at random, or by comparison with other tasks.

Letters: T tasks, N all numbers of a task vector.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from tasklab.analyses.finite import as_coefficient, as_coefficients, is_several
from tasklab.analyses.merging.vectors import Vectors, by_tensor, listed, total
from tasklab.errors import TasklabError, real, whole
from tasklab.errors import seed as checked_seed
from tasklab.taskvector import TaskVector

_DIGIT = 16  # bits of a number that are found in one pass
_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def ties(vectors: Vectors, *, keep: float = 0.2, alpha: float = 1.0) -> TaskVector:
    """Trim, elect signs, average agreeing entries (*TIES-Merging*, arXiv:2306.01708, section 4).

        tau^_t    the share `keep` of tau_t that is largest in absolute value, over all parameters
        gamma     sign(sum_t tau^_t)
        merged    alpha times the mean of those tau^_t that are not 0 and have the sign gamma

    Where the sum is exactly 0 no sign is elected, and the result is 0. The published code takes the
    sign of most parameters there.

    Args:
        vectors: Task vectors of one model.
        keep: Share of unmasked numbers; 0.2 is the paper's.
        alpha: Coefficient of the result.
    """
    each, keep = listed(vectors), real("keep", keep, 0, 1)
    floors = [_largest(vector, keep) for vector in each]

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        kept = [torch.where(x.abs() >= f, x, 0) for x, f in zip(tensors, floors, strict=True)]
        elected = total(kept).sign_()
        agreeing = [x.mul_(x.sign() == elected) for x in kept]
        count = sum((x != 0).to(torch.int32) for x in agreeing)
        return total(agreeing).div_(count.clamp_min_(1))

    return by_tensor(each, rule, alpha)


def dare(
    vectors: Vectors,
    *,
    drop: float = 0.9,
    seed: int = 0,
    by_place: bool = False,
    alpha: float = 1.0,
) -> TaskVector:
    """Drop at random, rescale, and add (*DARE*, arXiv:2311.03099).

        merged = alpha sum_t m_t tau_t / (1 - drop),      m_t = 1 with probability 1 - drop, or 0

    Over seeds its mean is task arithmetic.

    Args:
        vectors: Task vectors of one model.
        drop: Probability that a number is dropped; 0.9 is usual.
        seed: Of the dropped entries.
        by_place: Draw for vectors in the given order, as the recorded experiments do; by default
            they are sorted by their checksums, so that their order does not matter.
        alpha: Coefficient of the result.
    """
    each, drop = listed(vectors), real("drop", drop, 0, 1)
    if not by_place:
        each = sorted(each, key=TaskVector.fingerprint)
    if drop == 1:
        raise TasklabError("drop must be less than 1: nothing would be left to rescale.")
    places = {name: i for i, name in enumerate(sorted(each[0]))}
    first = checked_seed("seed", seed)

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        # a generator for each tensor: the draws do not depend on the order of the parameters.
        # Its seed is a step of a linear congruential generator
        own = first * 6364136223846793005 + places[name] * 1442695040888963407 + 1
        numbers = torch.Generator().manual_seed(own % 2**63)
        masks = (torch.rand(x.shape, generator=numbers) >= drop for x in tensors)
        kept = [x * mask.to(x) for x, mask in zip(tensors, masks, strict=True)]
        return total(kept).div_(1 - drop)

    return by_tensor(each, rule, alpha)


def breadcrumbs(
    vectors: Vectors, *, small: float = 0.85, large: float = 0.007, alpha: float = 1.0
) -> TaskVector:
    """Drop the smallest and the largest entries of every row, and add.

    *Model Breadcrumbs*, arXiv:2312.06795, as its published code does it, along the last axis of
    every tensor, of n numbers:

        merged = alpha sum_t m_t tau_t

    where m_t leaves out the int(n large) largest of |tau_t|, keeps the int(n (1 - small)) next ones
    and leaves out the rest. A tensor of one axis is one row, and a number alone stays. Short
    rows have no large entry: 0.007 of fewer than 143 is none.

    Args:
        vectors: Task vectors of one model.
        small: Share of masked numbers in a row; 0.85 is the published code's.
        large: Share that is dropped from above; the published code's search has 0.001 to 0.01.
        alpha: Coefficient of the result.
    """
    small, large = real("small", small, 0, 1), real("large", large, 0, 1)
    if small + large >= 1:
        raise TasklabError(f"dropping shares of {small:g} and {large:g} leaves nothing.")
    return by_tensor(
        listed(vectors),
        lambda _, tensors: total([_between_of_rows(x, small, large) for x in tensors]),
        alpha,
    )


def consensus(
    vectors: Vectors,
    *,
    threshold: float | Sequence[float] = 0.4,
    agree: int = 2,
    alpha: float = 1.0,
) -> TaskVector:
    """Mask the sum to entries that several tasks need (*Consensus*, arXiv:2405.07813).

        m_t = |tau_t| >= lambda_t |S - tau_t|,      S = sum_t tau_t
        merged = alpha S where sum_t m_t >= agree, or 0

    With lambda = 0 this is task arithmetic. (The masks alone, TALL, give each task a model of its
    own: they are no merge.)

    Args:
        vectors: Task vectors of one model.
        threshold: lambda, of all tasks or of each, to be chosen on validation images.
        agree: Of how many tasks a number must pass the threshold.
        alpha: Coefficient of the result.
    """
    agree, each = whole("agree", agree, 1), listed(vectors, 2)
    if agree > len(each):
        raise TasklabError(f"agree must be {len(each)} at most, as many as there are vectors.")
    if is_several(threshold):
        thresholds = as_coefficients(threshold, "threshold")
    else:
        thresholds = (as_coefficient(threshold, "threshold"),) * len(each)
    if len(thresholds) != len(each):
        raise TasklabError(f"{len(each)} task vectors cannot have {len(thresholds)} thresholds.")
    if min(thresholds) < 0:
        raise TasklabError(f"a threshold must be at least 0, not {min(thresholds):g}.")

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        S = total(tensors)
        count = torch.zeros(S.shape, dtype=torch.int32, device=S.device)
        for x, scale in zip(tensors, thresholds, strict=True):
            count += x.abs() >= (S - x).abs_().mul_(scale)
        return S.mul_(count >= agree)

    return by_tensor(each, rule, alpha)


def pcb(vectors: Vectors, *, keep: float = 0.05, alpha: float = 1.0) -> TaskVector:
    """Weigh entries by their competition within and between tasks (*PCB*, arXiv:2410.02396).

    As in the published code, over all parameters of a task at once (in place of the product with
    the sum, the paper's text has that with the sum of normalised sizes, which have signs):

        a_t      |tau_t|, clamped to its quantiles of 0.0001 and 0.9999
        beta_t   exp(T norm(a_t)^2) tanh(tau_t sum_s tau_s)
        w_t      norm(beta_t, raised to its quantile of 1 - keep)
        merged   alpha sum_t w_t sign(tau_t) a_t / sum_t w_t

    where norm(x) = (x - min) / (max - min). So a share `keep` of each task has a weight at all.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        keep: Share of the entries of each task that get a weight, above 0 and at most 1.
        alpha: Coefficient of the merge.
    """
    each, keep = listed(vectors, 2), real("keep", keep, 0, 1)
    if not keep:
        raise TasklabError("keep must be more than 0: nothing would be left.")
    many = sum(x.numel() for x in each[0].values())
    low_rank, high_rank = int(many * 0.0001), max(int(many * 0.9999 - 1), 0)
    floor_rank = min(int(many * (1 - keep)), many - 1)
    bounds = [
        [kth_smallest(functools.partial(_sizes, v), k) for k in (low_rank, high_rank)] for v in each
    ]

    S = by_tensor(each, lambda _, tensors: total(tensors))  # it is read 4 times for each task

    def scores(name: str, t: int) -> Tensor:
        x, (low, high) = each[t][name], bounds[t]
        share = (x.abs().clamp_(low, high) - low).div_(max(high - low, 1e-38))
        return share.square_().mul_(len(each)).exp_().mul_((x * S[name]).tanh_())

    def all_scores(t: int) -> Iterator[Tensor]:
        return (scores(name, t) for name in each[0])

    ends = []
    for t in range(len(each)):
        floor = kth_smallest(functools.partial(all_scores, t), floor_rank)
        ends.append((floor, max(float(x.max()) for x in all_scores(t) if x.numel())))

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        weighted, weights = torch.zeros_like(tensors[0]), torch.zeros_like(tensors[0])
        for t, x in enumerate(tensors):
            (floor, top), (low, high) = ends[t], bounds[t]
            w = (scores(name, t).clamp_min_(floor) - floor).div_(max(top - floor, 1e-38))
            weights += w
            weighted += w.mul_(x.abs().clamp_(low, high)).mul_(x.sign())
        return weighted.div_(weights.clamp_min_(1e-12))

    return by_tensor(each, rule, alpha)


def kth_smallest(parts: Callable[[], Iterable[Tensor]], k: int) -> float:
    """Return the number that k others are below, or equal to: `sorted(numbers)[k]`.

    It is exact, without a copy of the numbers: these are in the order of their bits, read as whole
    numbers, of which 16 are found at a time by counting how often each value comes.

    Args:
        parts: Returns all numbers, a tensor at a time, of one type; it is called 2 times for
            float32 (and for shorter types, which are read as float32), 4 times for float64.
        k: From 0.

    >>> kth_smallest(lambda: [torch.tensor([3.0, -1.0]), torch.tensor([0.5])], 1)
    0.5
    """
    prefix, shift = 0, -1  # the highest bits of the answer, and how many bits are below them
    dtype = torch.float32
    while shift:
        counts = torch.zeros(2**_DIGIT, dtype=torch.int64)
        for part in parts():
            x = part if part.dtype in _WHOLE else part.float()
            dtype, keys = x.dtype, _turn(x.reshape(-1).contiguous().view(_WHOLE[x.dtype]))
            size = 8 * keys.element_size()
            if shift < 0:  # the sign makes the first 16 bits a number from -2^15
                digits = (keys >> (size - _DIGIT)) + 2 ** (_DIGIT - 1)
            else:
                keys = keys[keys >> shift == prefix]
                digits = (keys >> (shift - _DIGIT)) & (2**_DIGIT - 1)
            counts += torch.bincount(digits, minlength=2**_DIGIT).cpu()
        running = counts.cumsum(0)
        if not 0 <= k < running[-1]:
            raise TasklabError(f"there is no number of rank {k} among {int(running[-1])}.")
        digit = int(torch.searchsorted(running, k, right=True))
        k -= int(running[digit - 1]) if digit else 0
        if shift < 0:
            prefix, shift = digit - 2 ** (_DIGIT - 1), size - _DIGIT
        else:
            prefix, shift = (prefix << _DIGIT) | digit, shift - _DIGIT
    bits = torch.tensor([prefix], dtype=_WHOLE[dtype])
    return float(_turn(bits).view(dtype))


def _turn(bits: Tensor) -> Tensor:
    """Turn the bits of negative numbers around, which undoes itself."""
    info = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (info.bits - 1)) & info.max)


def _sizes(vector: TaskVector) -> Iterator[Tensor]:
    return (x.abs() for x in vector.values())


def _largest(vector: TaskVector, keep: float) -> float:
    """Return the smallest of the share of numbers that is largest in absolute value."""
    many = sum(x.numel() for x in vector.values())
    count = round(keep * many)
    if count == 0:
        raise TasklabError(f"keeping {keep:g} of {many} numbers leaves nothing.")
    return 0.0 if count == many else kth_smallest(lambda: _sizes(vector), many - count)


def _between_of_rows(x: Tensor, small: float, large: float) -> Tensor:
    if x.dim() == 0:
        return x
    many = x.shape[-1]
    first, kept = int(many * large), int(many * round(1 - small, 12))
    places = x.abs().topk(min(first + kept, many)).indices[..., first:]
    return torch.zeros_like(x).scatter_(-1, places, x.gather(-1, places))
