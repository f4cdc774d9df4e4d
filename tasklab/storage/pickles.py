"""Objects of pickles, made without executing their content (`instructions` reads these).

Tensors and plain containers come out as they are, and any other object as an `Inert` record of its
class's name and its state.

Hostile files are expected. Nothing is hashed but short text and numbers, no tensor reaches beyond
its storage, and copies of an object that the file refers to again are charged to a `Budget`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tasklab.errors import shown
from tasklab.storage import arrays
from tasklab.storage.arrays import Arrays

MOST_CODE = 2 << 20  # bytes of instructions; a pickled ViT-bigG/14 has 0.4 MB
MOST_COPIES = 2_000_000  # elements and characters that instructions copy
LONGEST_NAME = 1000  # characters of a class, an entry or a storage
_MOST_AXES = 16
_MOST_ARGS = 10  # of the functions that make tensors

_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "Int": torch.int32,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Short": torch.int16, "Char": torch.int8,
    "Byte": torch.uint8, "Bool": torch.bool, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}  # fmt: skip
_STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}
_STORAGES["torch.storage.UntypedStorage"] = torch.uint8  # of the types below
_NEWER = {
    f"torch.{name}": getattr(torch, name)
    for name in (
        "uint16", "uint32", "uint64",
        "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    )
}  # fmt: skip
_REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_REBUILD_NEWER = "torch._utils._rebuild_tensor_v3"
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_EMBEDDED = "torch.storage._load_from_bytes"
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_ORDERED = "collections.OrderedDict"
_SETS = tuple(
    f"{where}.{what}set" for where in ("builtins", "__builtin__") for what in ("", "frozen")
)
_NEW = ("copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__")


class UnreadError(ValueError):
    """A file is whole, but of a kind that is not read."""


@dataclasses.dataclass(eq=False, slots=True, repr=False)
class Inert:
    """Record of an object, class or function that is neither tensor nor container."""

    name: str  #: Of the class or function, with its module
    args: Any = None  #: What it would have been called with; `None` for the bare name
    state: Any = None  #: What its attributes would have been set to
    items: list = dataclasses.field(default_factory=list)  #: What would have been appended to it
    pairs: dict = dataclasses.field(default_factory=dict)  #: What would have been set in it by key

    def __repr__(self) -> str:
        return f"Inert({self.name!r})"


class Storage(NamedTuple):
    """Memory of tensors: all its numbers in a row."""

    numbers: Tensor


class Budget:
    """Limits of time and memory for one file with all its pickles.

    Attributes:
        code: Bytes of instructions that are left.
        copies: Elements and characters that instructions may still copy.
    """

    def __init__(self) -> None:
        self.code, self.copies = MOST_CODE, MOST_COPIES

    def check(self, code: int) -> None:
        """Raise an `UnreadError` for more instructions than any network needs."""
        if code > self.code:
            raise UnreadError(f"its list of instructions is longer than {MOST_CODE >> 20} MB")

    def copy(self, count: int) -> None:
        """Pay for copying so many elements or characters."""
        self.copies -= count
        if self.copies < 0:
            raise ValueError("its instructions copy more than any network needs")


def element_type(kind: Any) -> torch.dtype:
    """Return the type of a storage's numbers.

    Raises:
        ValueError: If that is no storage, or of a type that is not read (`UnreadError`).
    """
    if not isinstance(kind, Inert):
        raise ValueError("a storage has no type")
    if kind.name not in _STORAGES and kind.name.startswith("torch.") and "Storage" in kind.name:
        few = " (quantised): give the checkpoint from before that" if ".Q" in kind.name else ""
        raise UnreadError(f"it holds numbers of a type that is not read, {shown(kind.name)}{few}")
    return _STORAGES[kind.name]


class Objects:
    """Tensors, containers and records of one pickle.

    Args:
        budget: That of the file.
        embedded: Bytes of a file of `torch.save` within the pickle -> the storage in there; without
            it such bytes are recorded as any other object.
    """

    def __init__(self, budget: Budget, embedded: Callable[[bytes], Storage] | None = None) -> None:
        self._budget, self._embedded, self._arrays = budget, embedded, Arrays()

    def named(self, module: Any, attribute: Any) -> Inert:
        """Return the record of a class or function."""
        if not is_short(module) or not is_short(attribute):
            raise ValueError("the name of a class or function is none")
        self._budget.copy(len(module) + len(attribute))
        return Inert(f"{module}.{attribute}")

    def called(self, what: Any, args: Any) -> Any:
        """Return the tensor, container or record that a call stands for."""
        if isinstance(what, Inert) and what.name == _WITH_ATTRIBUTES:
            what, args = args[0], args[2]  # the rest are the type and the attributes
        if not isinstance(what, Inert) or type(args) is not tuple:
            raise ValueError("it calls something that has no name")
        name, copy = what.name, self._budget.copy
        if name in _REBUILD or name == _REBUILD_NEWER:
            copy(20)  # about what a tensor takes without its numbers
            if len(args) > _MOST_ARGS:
                raise ValueError(f"a tensor is made of {len(args)} things")
            make = _tensor if name in _REBUILD else _newer_tensor
            return make(self._budget, *args)
        if name == arrays.BYTES[0] or (name in arrays.BYTES and not args):
            return self._arrays.encoded(args)
        if name in arrays.OF_BUFFER:
            copy(20)
            tensor = self._arrays.of_buffer(args)
            return Inert(name, args) if tensor is None else tensor
        if name in _PARAMETER:
            if not isinstance(args[0], Tensor | Inert):  # a sparse or quantised one is a record
                raise ValueError("a parameter is no tensor")
            return args[0]
        if name == _EMBEDDED and self._embedded is not None:
            if len(args) != 1 or type(args[0]) is not bytes:
                raise ValueError("a storage within it is no bytes")
            return self._embedded(args[0])
        if name in _NEW and isinstance(args[0], Inert):
            copy(len(args))
            return Inert(args[0].name, args[1:])
        return self._container(name, args)

    def _container(self, name: str, args: tuple) -> Any:
        if name == _ORDERED:
            made: dict = {}
            for pair in self._listed(args):
                if type(pair) not in (list, tuple) or len(pair) != 2:
                    raise ValueError("an entry is no pair of key and value")
                self.put(made, list(pair))
            return made
        if name == "torch.Size":
            return tuple(self._listed(args))
        if name in _SETS:  # a list: nothing need be hashed
            return list(self._listed(args))
        return Inert(name, args)

    def _listed(self, args: tuple) -> list | tuple:
        """Return the list or tuple that is the only argument; it is about to be copied."""
        if not args:
            return ()
        if type(args[0]) not in (list, tuple):
            raise ValueError(f"it makes a list of a {type(args[0]).__name__}")
        self._budget.copy(len(args[0]))
        return args[0]

    def built(self, record: Inert, state: Any) -> Tensor | Inert:
        """Return a record with its attributes, or the tensor of an array.

        Attributes may come as those of `__dict__` and of slots.
        """
        record.state = state
        if type(state) is tuple and len(state) == 2:
            parts = [part for part in state if part is not None]
            if all(isinstance(part, dict) for part in parts):
                self._budget.copy(sum(len(part) for part in parts))
                record.state = {key: value for part in parts for key, value in part.items()}
        if record.name not in arrays.EMPTY:
            return record
        tensor = self._arrays.of_state(state)
        self._budget.copy(20)
        return record if tensor is None else tensor

    def put(self, target: Any, items: list[Any]) -> None:
        """Set keys and values, given in turn. Keys that are not `_plain` are left out."""
        pairs = target.pairs if isinstance(target, Inert) else target
        if type(pairs) is not dict or len(items) % 2:
            raise ValueError(f"it sets entries of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if _plain(key):
                if type(key) is not str:  # numbers can be chosen so that they collide
                    self._budget.copy(40)
                pairs[key] = value


def is_short(name: Any) -> bool:
    """Return whether a name is a text that is not too long."""
    return type(name) is str and len(name) <= LONGEST_NAME


def _tensor(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any):
    if not isinstance(storage, Storage) or type(size) is not tuple or type(stride) is not tuple:
        raise ValueError("a tensor lacks its storage, size or strides")
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or len(size) > _MOST_AXES:
        raise ValueError(f"a tensor has {len(size)} axes and {len(stride)} strides")
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise ValueError("a tensor's offset, size or strides are impossible")
    if len(rest) > 2 and rest[2]:
        raise UnreadError("one of its tensors is stored conjugated or negated")
    count, room = math.prod(size), storage.numbers.numel()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if count and last >= room:
        raise ValueError(f"a tensor of size {size} is larger than its storage of {room} elements")
    if not count:
        return storage.numbers.new_empty(size)
    view = storage.numbers.as_strided(size, stride, offset)
    if count <= room:
        return view
    if count > MOST_COPIES:  # by expand(): little in the file, perhaps more than any memory
        raise UnreadError(f"a tensor of size {size} repeats its {room} stored numbers (expand)")
    budget.copy(count)
    return view.clone()


def _newer_tensor(budget: Budget, storage: Any, *args: Any) -> Tensor:
    """Return a view of a storage whose numbers are of a type that came after typed storages."""
    *layout, hooks, kind = args[:6]
    if not isinstance(storage, Storage) or not isinstance(kind, Inert):
        raise ValueError("a tensor lacks its storage or type")
    if kind.name not in _NEWER:
        raise UnreadError(f"it holds numbers of a type that is not read, {shown(kind.name)}")
    dtype = _NEWER[kind.name]
    if storage.numbers.dtype != torch.uint8 or storage.numbers.numel() % dtype.itemsize:
        raise ValueError(f"a storage does not hold numbers of type {dtype}")
    return _tensor(budget, Storage(storage.numbers.view(dtype)), *layout, hooks, *args[6:])


def _plain(key: Any) -> bool:
    """Is it a short text or number? Hashing a deep tuple could end Python, a long number lasts."""
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 63
    return type(key) in (bool, float) or (type(key) in (str, bytes) and len(key) <= LONGEST_NAME)
