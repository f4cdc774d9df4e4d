"""Notice tensors that were changed in place.

PyTorch has no read-only tensors. Tensors that are cached, or known by a hash, are therefore
sealed: `stamp` differs as soon as a tensor is written to. It has PyTorch's count of in-place
operations, the place in memory and a checksum of the numbers, because `tensor.data` and
`tensor.numpy()` are not counted. Of a large tensor the checksum covers some pieces.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from tasklab import isolation

Value = TypeVar("Value")

_LARGE, _PIECES = 1 << 20, 16  # bytes of a piece, pieces of a tensor
_FIRST = 1 << 12  # bytes


def stamp(what: Any) -> int:
    """Return a number that changes if a tensor or array in nested values is written to.

    >>> kept = {"w": torch.ones(2)}
    >>> before = stamp(kept)
    >>> kept["w"].data.zero_()
    tensor([0., 0.])
    >>> stamp(kept) == before
    False
    """
    return hash(tuple(_marks(x, checked=True) for x in tensors_in(what)))


def count(what: Any) -> int:
    """Return a number as `stamp` does, in microseconds: without the checksums of the numbers."""
    return hash(tuple(_marks(x, checked=False) for x in tensors_in(what)))


def tensors_in(what: Any) -> Iterator[Tensor | np.ndarray]:
    """Yield the tensors and arrays of nested mappings, sequences and dataclasses."""
    if isinstance(what, Tensor | np.ndarray):
        yield what
    elif isinstance(what, Mapping):
        for part in what.values():
            yield from tensors_in(part)
    elif isinstance(what, list | tuple):
        for part in what:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(what):
        yield from tensors_in([getattr(what, field.name) for field in dataclasses.fields(what)])


def _marks(x: Tensor | np.ndarray, *, checked: bool) -> tuple[int, ...]:
    if isinstance(x, np.ndarray):
        values = np.ascontiguousarray(x).reshape(-1)
        return x.ctypes.data, x.size, *(_sums(values.view(np.uint8)) if checked else ())
    counted = 0 if x.is_inference() else x._version
    if x.is_meta:
        return counted, x.numel()
    return counted, x.data_ptr(), x.numel(), *(_checksum(x) if checked else ())


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes and numbers, as float32."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].float()
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(bits(tensor))
    return digest.hexdigest()


def bits(x: Tensor) -> np.ndarray:
    """Return the bytes of a tensor, in the order of its axes."""
    return _flat(x.detach()).cpu().numpy()


def _flat(x: Tensor) -> Tensor:
    """Return the bytes of a tensor as one; the stride of a number alone may be any."""
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def _checksum(x: Tensor) -> tuple[int, ...]:
    if x.device.type != "cpu":
        return (int(_flat(x).sum(dtype=torch.int64)),)
    x = x if x.is_contiguous() else x.contiguous()
    if not x.nbytes:
        return ()
    # by its address: within a transform of functions PyTorch would record operations
    flat = np.frombuffer((ctypes.c_ubyte * x.nbytes).from_address(x.data_ptr()), np.uint8)
    step = max(_LARGE, -(-x.nbytes // _PIECES) // 8 * 8)
    pieces = (flat[start : start + _LARGE] for start in range(0, x.nbytes, step))
    return tuple(part for piece in pieces for part in _sums(piece))


def _sums(values: np.ndarray) -> tuple[int, ...]:
    """Return a sum of all bits, and a checksum of the first ones that knows their order."""
    end = values.size // 8 * 8
    words = values[:end].view(np.uint64)
    return int(np.add.reduce(words)), zlib.crc32(values[end:]), zlib.crc32(values[:_FIRST])


class Kept(Generic[Value]):
    """Values by key, each made once, and again after its tensors were changed in place.

    A value is checked once in each isolated call.

    >>> kept = Kept[Tensor]()
    >>> kept.get("ones", lambda: torch.ones(2)).zero_(), kept.get("ones", lambda: torch.ones(2))
    (tensor([0., 0.]), tensor([1., 1.]))
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[int, Value]] = {}

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a `key`; compute it by `make` if missing or changed."""
        known = self._made.get(key)
        if known is None or (isolation.first((id(self), key)) and stamp(known[1]) != known[0]):
            value = make()
            known = self._made[key] = stamp(value), value
        return known[1]
