"""Arrays of numpy in pickles, as tensors, without calling numpy.

The bytes of each array are used once, however often the pickle names them, so that a small file
cannot claim much memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import shown

_DTYPES = {
    "f2": torch.float16, "f4": torch.float32, "f8": torch.float64, "b1": torch.bool,
    "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64, "u1": torch.uint8,
}  # fmt: skip
_ROOMS = ("numpy.core", "numpy._core")
EMPTY = tuple(f"{room}.multiarray._reconstruct" for room in _ROOMS)  # filled by its state
OF_BUFFER = tuple(f"{room}.numeric._frombuffer" for room in _ROOMS)
# Bytes in protocols 0 to 2: a text that is encoded, or nothing.
BYTES = ("_codecs.encode", "builtins.bytes", "__builtin__.bytes")
_MOST_AXES = 16


class Arrays:
    """Convert the arrays in a pickle to tensors."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[str, bytes]] = {}  # by the text's id; kept, it keeps its id
        self._numbers: dict[int, tuple[bytes | bytearray, Tensor]] = {}

    def encoded(self, args: tuple) -> bytes:
        """Return the bytes that a text stands for, of the arguments of one of `BYTES`."""
        if not args:
            return b""
        text, code = args if len(args) == 2 else (None, None)
        if type(text) is not str or code != "latin1":
            raise ValueError("it encodes something that is no text in latin1")
        if id(text) not in self._bytes:
            self._bytes[id(text)] = text, text.encode("latin1")
        return self._bytes[id(text)][1]

    def of_state(self, state: Any) -> Tensor | None:
        """Return the array that a state describes; `None` for one of objects or texts."""
        if type(state) is not tuple or len(state) != 5:
            return None
        _, shape, dtype, turned, data = state
        return self._made(data, dtype, shape, "F" if turned else "C")

    def of_buffer(self, args: tuple) -> Tensor | None:
        """Return the array in a buffer, of the arguments of `_frombuffer`."""
        if len(args) != 4:
            return None
        data, dtype, shape, order = args
        return self._made(data, dtype, shape, order)

    def _made(self, data: Any, dtype: Any, shape: Any, order: Any) -> Tensor | None:
        args, state = getattr(dtype, "args", None), getattr(dtype, "state", None)
        kind = args[0] if type(args) is tuple and args and type(args[0]) is str else ""
        endian = state[1] if type(state) is tuple and len(state) > 1 else None
        if kind not in _DTYPES or type(data) not in (bytes, bytearray) or endian == ">":
            return None
        if type(shape) is not tuple or len(shape) > _MOST_AXES:
            raise ValueError("an array has no shape")
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise ValueError(f"an array has the shape {shown(shape)}")
        numbers = _DTYPES[kind]
        if math.prod(shape) * numbers.itemsize != len(data):
            raise ValueError(f"an array of shape {shape} has {len(data)} bytes")
        if not data:
            return torch.empty(shape, dtype=numbers)
        if id(data) not in self._numbers:
            memory = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            self._numbers[id(data)] = data, memory
        flat = self._numbers[id(data)][1].view(numbers)
        if order == "F":
            return flat.reshape(shape[::-1]).permute(*reversed(range(len(shape))))
        return flat.reshape(shape)
