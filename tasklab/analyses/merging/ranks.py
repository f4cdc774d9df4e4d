"""The number of a given rank among very many, exactly, without a copy of them.

Floating-point numbers are in the order of their bits, read as whole numbers. The k-th smallest is
found 16 bits at a time, from the highest, by counting how often each value of these bits comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tasklab.errors import TasklabError

_DIGIT = 16  # bits that are found in one pass
_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def kth_smallest(parts: Callable[[], Iterable[Tensor]], k: int) -> float:
    """Return the number that k others are below, or equal to: `sorted(numbers)[k]`.

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
