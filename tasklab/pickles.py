"""Pickles read without executing anything that is in them.

A pickle is a program: it names functions and calls them. `interpret` goes through its instructions
itself and neither looks up a name nor calls anything. Tensors and plain containers come out as they
are, and any other object as an `Inert` record of its class's name and its state.

Hostile files are expected. Nothing is hashed but text and numbers, no tensor reaches beyond its
storage, and nothing is allocated that the file does not hold.
"""

from __future__ import annotations

import dataclasses
import math
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_CODE = 8 << 20  # bytes of instructions; those of ViT-L/14 are below 1 MB
_MOST_AXES = 16

_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}
_REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_ORDERED = "collections.OrderedDict"
_SETS = tuple(
    f"{where}.{what}set" for where in ("builtins", "__builtin__") for what in ("", "frozen")
)
_NEW = ("copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__")


@dataclasses.dataclass(eq=False, slots=True, repr=False)
class Inert:
    """What is recorded of an object, class or function that is neither tensor nor container.

    Attributes:
        name: Of the class or function, with its module.
        args: What it would have been called with; `None` for the bare name.
        state: What its attributes would have been set to.
        items: What would have been appended to it.
        pairs: What would have been set in it by key.
    """

    name: str
    args: Any = None
    state: Any = None
    items: list = dataclasses.field(default_factory=list)
    pairs: dict = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the name alone: what is recorded may be deep."""
        return f"Inert({self.name!r})"


class Storage(NamedTuple):
    """Memory of tensors: all its numbers in a row."""

    numbers: Tensor


def check_length(size: int) -> None:
    """Raise a `ValueError` for more instructions than any network needs."""
    if size > MOST_CODE:
        raise ValueError(f"its list of instructions is longer than {MOST_CODE >> 20} MB")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip


def interpret(stream: Any, storage: Callable[[tuple], Any]) -> Any:
    """Return what one pickle describes, leaving the stream behind it.

    Args:
        stream: Of bytes, with `read`, `readline` and `tell`.
        storage: Identity that the file gives a storage -> the storage.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    begin = stream.tell()

    def marked() -> list[Any]:
        """Take everything above the last mark off the stack."""
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, arg, position in pickletools.genops(stream):
        check_length(position - begin)
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                (found,) = stack
                return found
            case name if name in _LITERALS:
                stack.append(arg)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "MARK":
                marks.append(len(stack))
            case "POP_MARK":
                marked()
            case "POP":
                stack.pop()
            case "DUP":
                stack.append(stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "EMPTY_LIST" | "EMPTY_SET":  # a set becomes a list: nothing need be hashed
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "LIST":
                stack.append(marked())
            case "TUPLE" | "FROZENSET":
                stack.append(tuple(marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[-count:])] if len(stack) >= count else _missing()
            case "DICT":
                items = marked()
                stack.append({})
                _set(stack[-1], items)
            case "APPEND":
                item = stack.pop()
                _extend(stack[-1], [item])
            case "APPENDS" | "ADDITEMS":
                items = marked()
                _extend(stack[-1], items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case "SETITEMS":
                items = marked()
                _set(stack[-1], items)
            case "GLOBAL":
                stack.append(Inert(arg.replace(" ", ".")))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                if type(attribute) is not str or type(module) is not str:
                    raise ValueError("a name is no text")
                stack.append(Inert(f"{module}.{attribute}"))
            case "INST":
                stack.append(Inert(arg.replace(" ", "."), tuple(marked())))
            case "OBJ":
                first, *args = marked()
                stack.append(_record(first, tuple(args)))
            case "NEWOBJ":
                args, what = stack.pop(), stack.pop()
                stack.append(_record(what, args))
            case "NEWOBJ_EX":
                _, args, what = stack.pop(), stack.pop(), stack.pop()
                stack.append(_record(what, args))
            case "REDUCE":
                args, what = stack.pop(), stack.pop()
                stack.append(_record(what, args))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], Inert):
                    stack[-1].state = _attributes(state)
            case "BINPERSID":
                identity = stack.pop()
                if type(identity) is not tuple or identity[0] not in ("storage", "module"):
                    raise ValueError("it refers to something that is not in it")
                if identity[0] == "storage" and type(identity[2]) is not str:
                    raise ValueError("a storage has no name")
                stack.append(storage(identity))
            case other:
                raise ValueError(f"it has the instruction {other}, which torch.save never writes")
    raise ValueError("it ends before its last instruction")


def _missing() -> Any:
    raise IndexError("an instruction lacks its operands")


def _record(what: Any, args: Any) -> Any:
    """Return what a call stands for: a tensor, a dictionary, or a record that there was one."""
    if not isinstance(what, Inert) or type(args) is not tuple:
        raise ValueError("it calls something that has no name")
    if what.name in _REBUILD:
        return _tensor(*args)
    if what.name in _PARAMETER:
        if not isinstance(args[0], Tensor | Inert):  # a sparse or quantised one is a record
            raise ValueError("a parameter is no tensor")
        return args[0]
    if what.name == "torch._tensor._rebuild_from_type_v2":  # a tensor with attributes
        return _record(args[0], args[2])
    if what.name == _ORDERED:
        made: dict = {}
        for pair in args[0] if args else ():
            _set(made, list(pair))
        return made
    if what.name == "torch.Size":
        return tuple(args[0])
    if what.name in _SETS:  # a list, as above
        return list(args[0]) if args else []
    if what.name in _NEW and isinstance(args[0], Inert):
        return Inert(args[0].name, args[1:])
    return Inert(what.name, args)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    """Return a view of a storage, after checking that it lies within."""
    if not isinstance(storage, Storage) or type(size) is not tuple or type(stride) is not tuple:
        raise ValueError("a tensor lacks its storage, size or strides")
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or len(size) > _MOST_AXES:
        raise ValueError(f"a tensor has {len(size)} axes and {len(stride)} strides")
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise ValueError("a tensor's offset, size or strides are no possible numbers")
    if len(rest) > 2 and rest[2]:
        raise ValueError("a tensor is stored conjugated or negated")
    count, room = math.prod(size), storage.numbers.numel()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if count > room or (count and last >= room):
        raise ValueError(f"a tensor of size {size} is larger than its storage of {room} elements")
    if not count:
        return storage.numbers.new_empty(size)
    return storage.numbers.as_strided(size, stride, offset)


def _attributes(state: Any) -> Any:
    """Return attributes as one dictionary, where they come as those of `__dict__` and of slots."""
    if type(state) is tuple and len(state) == 2:
        parts = [part for part in state if part is not None]
        if all(isinstance(part, dict) for part in parts):
            return {key: value for part in parts for key, value in part.items()}
    return state


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, Inert):
        target.items.extend(items)
    elif type(target) is list:
        target.extend(items)
    else:
        raise ValueError(f"it appends to a {type(target).__name__}")


def _set(target: Any, items: list[Any]) -> None:
    """Set keys and values, given in turn. Keys that are neither text nor number are left out."""
    pairs = target.pairs if isinstance(target, Inert) else target
    if type(pairs) is not dict or len(items) % 2:
        raise ValueError(f"it sets entries of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str | bytes | int | float):  # hashing a deep tuple could end Python
            pairs[key] = value
