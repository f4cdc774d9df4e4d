"""Read pickles without executing their content.

A pickle is a program: it names functions and calls them. `interpret` goes through its instructions
itself and neither looks up a name nor calls anything. Tensors and plain containers come out as they
are, and any other object as an `Inert` record of its class's name and its state.

Hostile files are expected. Nothing is hashed but short text and numbers, no tensor reaches beyond
its storage, and copies of an object that the file refers to again are charged to a `Budget`.
"""

from __future__ import annotations

import dataclasses
import math
import pickletools
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
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
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
        raise UnreadError(f"it holds numbers of a type that is not read, {shown(kind.name)}")
    return _STORAGES[kind.name]


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TEXTS = {"BINUNICODE", "BINUNICODE8"}
_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip


def interpret(
    stream: Any,
    storage: Callable[[tuple], Any],
    budget: Budget,
    embedded: Callable[[bytes], Storage] | None = None,
) -> Any:
    """Interpret one pickle, and leave the stream behind it.

    Args:
        stream: Open file, at the start of the pickle.
        storage: Identity that the file gives a storage -> the storage.
        budget: That of the file, which this pickle reduces.
        embedded: Bytes of a file of `torch.save` within the pickle -> the storage in there; without
            it such bytes are recorded as any other object.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    places: dict[int, Any] = {}  # where things are in it, by their ids
    found = Arrays()
    begin = stream.tell()  # of the instructions, moved on by the bytes that are among them

    def marked() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, arg, position in pickletools.genops(stream):
        budget.check(position - begin)
        match opcode.name:
            case "STOP":
                budget.code -= position - begin
                (result,) = stack
                return result
            case name if name in _LITERALS:
                stack.append(arg)
                if isinstance(arg, bytes | bytearray):
                    begin += len(arg)
                elif type(arg) is str and len(arg) > LONGEST_NAME and name in _TEXTS:
                    begin += len(arg.encode("utf-8", "surrogatepass"))  # bytes of an array
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
                places[id(stack[-1])] = arg
            case "MEMOIZE":
                places[id(stack[-1])] = len(memo)
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
                if len(stack) < count:
                    raise IndexError("an instruction lacks its operands")
                stack[-count:] = [tuple(stack[-count:])]
            case "DICT":
                items = marked()
                stack.append({})
                _set(stack[-1], items, budget)
            case "APPEND":
                item = stack.pop()
                _extend(stack[-1], [item])
            case "APPENDS" | "ADDITEMS":
                items = marked()
                _extend(stack[-1], items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value], budget)
            case "SETITEMS":
                items = marked()
                _set(stack[-1], items, budget)
            case "GLOBAL":
                module, attribute = str(arg).split(" ", 1)
                stack.append(_named(module, attribute, budget))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_named(module, attribute, budget))
            case "OBJ":
                first, *args = marked()
                stack.append(_record(first, tuple(args), budget, embedded, found))
            case "NEWOBJ_EX":
                _, args, what = stack.pop(), stack.pop(), stack.pop()
                stack.append(_record(what, args, budget, embedded, found))
            case "NEWOBJ" | "REDUCE":
                args, what = stack.pop(), stack.pop()
                stack.append(_record(what, args, budget, embedded, found))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], Inert):
                    stack[-1].state = _attributes(state, budget)
                    if stack[-1].name in arrays.EMPTY:
                        place, empty = places.get(id(stack[-1])), stack[-1]
                        stack[-1] = _array(found.of_state(state), empty, budget)
                        if memo.get(place) is empty:
                            memo[place] = stack[-1]
            case "BINPERSID":
                identity = stack.pop()
                if type(identity) is not tuple or identity[0] not in ("storage", "module"):
                    raise ValueError("it refers to something that is not in it")
                if identity[0] == "storage" and not _short(identity[2]):
                    raise ValueError("a storage has no name")
                stack.append(storage(identity))
            case "PERSID":
                raise UnreadError("its pickle_protocol is 0, which PyTorch cannot read either")
            case other if other not in ("PROTO", "FRAME"):
                raise ValueError(f"it has the instruction {other}, which torch.save never writes")
    raise ValueError("it ends before its last instruction")


def _short(name: Any) -> bool:
    return type(name) is str and len(name) <= LONGEST_NAME


def _named(module: Any, attribute: Any, budget: Budget) -> Inert:
    if not _short(module) or not _short(attribute):
        raise ValueError("the name of a class or function is none")
    budget.copy(len(module) + len(attribute))
    return Inert(f"{module}.{attribute}")


def _record(
    what: Any,
    args: Any,
    budget: Budget,
    embedded: Callable[[bytes], Storage] | None,
    found: Arrays,
) -> Any:
    """Return the tensor, dictionary or record that a call stands for."""
    if isinstance(what, Inert) and what.name == _WITH_ATTRIBUTES:
        what, args = args[0], args[2]  # the rest are the type and the attributes
    if not isinstance(what, Inert) or type(args) is not tuple:
        raise ValueError("it calls something that has no name")
    if what.name in _REBUILD or what.name == _REBUILD_NEWER:
        budget.copy(20)  # about what a tensor takes without its numbers
        if len(args) > _MOST_ARGS:
            raise ValueError(f"a tensor is made of {len(args)} things")
        make = _tensor if what.name in _REBUILD else _newer_tensor
        return make(budget, *args)
    if what.name == arrays.BYTES[0] or (what.name in arrays.BYTES and not args):
        return found.encoded(args)
    if what.name in arrays.OF_BUFFER:
        return _array(found.of_buffer(args), Inert(what.name, args), budget)
    if what.name in _PARAMETER:
        if not isinstance(args[0], Tensor | Inert):  # a sparse or quantised one is a record
            raise ValueError("a parameter is no tensor")
        return args[0]
    if what.name == _EMBEDDED and embedded is not None:
        if len(args) != 1 or type(args[0]) is not bytes:
            raise ValueError("a storage within it is no bytes")
        return embedded(args[0])
    if what.name == _ORDERED:
        made: dict = {}
        for pair in _listed(args, budget):
            if type(pair) not in (list, tuple) or len(pair) != 2:
                raise ValueError("an entry is no pair of key and value")
            _set(made, list(pair), budget)
        return made
    if what.name == "torch.Size":
        return tuple(_listed(args, budget))
    if what.name in _SETS:  # a list, as above
        return list(_listed(args, budget))
    if what.name in _NEW and isinstance(args[0], Inert):
        budget.copy(len(args))
        return Inert(args[0].name, args[1:])
    return Inert(what.name, args)


def _array(tensor: Tensor | None, record: Inert, budget: Budget) -> Tensor | Inert:
    """Return the tensor of an array; for unsupported ones their record."""
    budget.copy(20)
    return record if tensor is None else tensor


def _listed(args: tuple, budget: Budget) -> list | tuple:
    """Return the list or tuple that is the only argument; it is about to be copied."""
    if not args:
        return ()
    if type(args[0]) not in (list, tuple):
        raise ValueError(f"it makes a list of a {type(args[0]).__name__}")
    budget.copy(len(args[0]))
    return args[0]


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


def _attributes(state: Any, budget: Budget) -> Any:
    """Return attributes as one dictionary, where they come as those of `__dict__` and of slots."""
    if type(state) is tuple and len(state) == 2:
        parts = [part for part in state if part is not None]
        if all(isinstance(part, dict) for part in parts):
            budget.copy(sum(len(part) for part in parts))
            return {key: value for part in parts for key, value in part.items()}
    return state


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, Inert):
        target.items.extend(items)
    elif type(target) is list:
        target.extend(items)
    else:
        raise ValueError(f"it appends to a {type(target).__name__}")


def _set(target: Any, items: list[Any], budget: Budget) -> None:
    """Set keys and values, given in turn. Keys that are not `_plain` are left out."""
    pairs = target.pairs if isinstance(target, Inert) else target
    if type(pairs) is not dict or len(items) % 2:
        raise ValueError(f"it sets entries of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if _plain(key):
            if type(key) is not str:
                budget.copy(40)  # numbers, unlike text, can be chosen so that they collide
            pairs[key] = value


def _plain(key: Any) -> bool:
    """Is it a short text or number? Hashing a deep tuple could end Python, a long number lasts."""
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 63
    return type(key) in (bool, float) or (type(key) in (str, bytes) and len(key) <= LONGEST_NAME)
