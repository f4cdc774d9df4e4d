"""Go through the instructions of a pickle without executing them.

A pickle is a program: it names functions and calls them. Here no name is looked up and nothing is
called: `pickles` makes the objects that calls stand for.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from tasklab.storage.pickles import (
    LONGEST_NAME,
    Budget,
    Inert,
    Objects,
    Storage,
    UnreadError,
    is_short,
)

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
        embedded: As `Objects` takes it.
    """
    machine = _Machine(storage, Objects(budget, embedded))
    begin = stream.tell()  # of the instructions, moved on by the bytes that are among them
    for opcode, arg, position in pickletools.genops(stream):
        budget.check(position - begin)
        name = opcode.name
        if name == "STOP":
            budget.code -= position - begin
            (result,) = machine.stack
            return result
        if name in _LITERALS:
            machine.stack.append(arg)
            if isinstance(arg, bytes | bytearray):
                begin += len(arg)
            elif type(arg) is str and len(arg) > LONGEST_NAME and name in _TEXTS:
                begin += len(arg.encode("utf-8", "surrogatepass"))  # bytes of an array
        else:
            machine.move(name, arg)
    raise ValueError("it ends before its last instruction")


class _Machine:
    """The stack of a pickle, which three groups of instructions change."""

    def __init__(self, storage: Callable[[tuple], Any], objects: Objects) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[Any, Any] = {}
        self._places: dict[int, Any] = {}  # where things are in it, by their ids
        self._storage, self._objects = storage, objects

    def move(self, name: str, arg: Any) -> None:
        """Put constants and remembered things on the stack, remember or remove its last."""
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "MARK":
                self._marks.append(len(stack))
            case "POP_MARK":
                self._marked()
            case "POP":
                stack.pop()
            case "DUP":
                stack.append(stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                place = len(self._memo) if name == "MEMOIZE" else arg
                self._memo[place] = stack[-1]
                self._places[id(stack[-1])] = place
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[arg])
            case _:
                self._collect(name, arg)

    def _collect(self, name: str, arg: Any) -> None:
        """Build and fill containers."""
        stack = self.stack
        match name:
            case "EMPTY_LIST" | "EMPTY_SET":  # a set becomes a list: nothing need be hashed
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "LIST":
                stack.append(self._marked())
            case "TUPLE" | "FROZENSET":
                stack.append(tuple(self._marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                if len(stack) < count:
                    raise IndexError("an instruction lacks its operands")
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND":
                item = stack.pop()
                _extend(stack[-1], [item])
            case "APPENDS" | "ADDITEMS":
                items = self._marked()
                _extend(stack[-1], items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._objects.put(stack[-1], [key, value])
            case "SETITEMS" | "DICT":
                items = self._marked()
                stack += [{}] if name == "DICT" else []
                self._objects.put(stack[-1], items)
            case _:
                self._call(name, arg)

    def _call(self, name: str, arg: Any) -> None:
        """Record names, calls and attributes; take storages."""
        stack, objects = self.stack, self._objects
        match name:
            case "GLOBAL":
                module, attribute = str(arg).split(" ", 1)
                stack.append(objects.named(module, attribute))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(objects.named(module, attribute))
            case "OBJ":
                first, *args = self._marked()
                stack.append(objects.called(first, tuple(args)))
            case "NEWOBJ_EX":
                _, args, what = stack.pop(), stack.pop(), stack.pop()
                stack.append(objects.called(what, args))
            case "NEWOBJ" | "REDUCE":
                args, what = stack.pop(), stack.pop()
                stack.append(objects.called(what, args))
            case "BUILD":
                state = stack.pop()
                if isinstance(record := stack[-1], Inert):
                    stack[-1] = objects.built(record, state)
                    place = self._places.get(id(record))
                    if self._memo.get(place) is record:
                        self._memo[place] = stack[-1]
            case "BINPERSID":
                identity = stack.pop()
                if type(identity) is not tuple or identity[0] not in ("storage", "module"):
                    raise ValueError("it refers to something that is not in it")
                if identity[0] == "storage" and not is_short(identity[2]):
                    raise ValueError("a storage has no name")
                stack.append(self._storage(identity))
            case "PERSID":
                raise UnreadError("its pickle_protocol is 0, which PyTorch cannot read either")
            case _:
                raise ValueError(f"it has the instruction {name}, which torch.save never writes")

    def _marked(self) -> list[Any]:
        start = self._marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, Inert):
        target.items.extend(items)
    elif type(target) is list:
        target.extend(items)
    else:
        raise ValueError(f"it appends to a {type(target).__name__}")
