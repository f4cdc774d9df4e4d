"""Find the network in the content of a `torch.save` file: its tensors by name, as a state dict.

    weights = tensors(torch_files.read("finetuned.pt"))

A training run keeps more beside the weights: an optimiser's state, averaged weights, a task vector.
Which entry is the network is decided here, and the other ones that hold weights are named.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError, first_line, shown
from tasklab.storage.pickles import LONGEST_NAME, Inert

MOST_WORK = 4_000_000  # entries gone through, and characters of names made of them
SAVE = "Save its weights as safetensors, or by torch.save(model.state_dict(), ...)."
_PER_NAME = 50  # what a name costs beside its characters
_MOST_DEPTH = 100
_MOST_LOOKED_AT = 1000  # entries of a container in which there might be weights
_MOST_AROUND = 4  # containers within each other, around the weights
_CONTAINERS = ("state_dict", "model_state_dict", "model", "image_encoder")
_TRAINING = re.compile(  # entries of a training run that have tensors and are no network
    r"(optim|opt$|lr_?sched|sched|scaler|grad|rng|random|loop|callback|loss|criterion|hyper|amp$)",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_AVERAGED = {"ema", "swa", "polyak", "avg", "average", "averaged", "shadow"}
_SCRIPT = "__torch__."  # begins the classes of TorchScript, whose attributes are their parts
_WRONG = (  # what a malformed file raises in the code below
    AttributeError, EOFError, LookupError, MemoryError, OSError, OverflowError, RecursionError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def tensors(stored: Any) -> dict[str, Tensor]:
    """Return the state dict in the result of `torch_files.read`.

    Of a module these are parameters and persistent buffers, named as `module.state_dict()` names
    them. Of a dictionary that has a module or a dictionary as its entry `state_dict`, `model` or
    `image_encoder`, those in there.
    """
    with one_error("its contents are not those of a network", SAVE):
        stored, _ = _opened(stored)
        if isinstance(stored, Inert):
            named = dict(_stored(stored))
        else:
            named = {str(k): x for k, x in stored.items() if _is_tensor(x)}
        if not any(isinstance(x, Tensor) for x in named.values()):
            raise TasklabError(_nothing(stored))
        return _plain(named)


def vector(stored: Any) -> dict[str, Tensor] | None:
    """Return the task vector that others' code saved: tensors by name under an entry `vector`.

    It is an entry of a dictionary or an attribute of a pickled object; `None` for anything else.
    """
    with one_error("its contents are not those of a task vector", SAVE):
        for _ in range(_MOST_AROUND):
            inside = stored.state if isinstance(stored, Inert) else stored
            if not isinstance(inside, Mapping) or _is_network(stored):
                return None
            entries = islice(inside.items(), _MOST_LOOKED_AT)
            named = [x for key, x in entries if type(key) is str and "vector" in key.lower()]
            found = [x for x in named if isinstance(x, Mapping | Inert)]
            if len(found) != 1:
                return None
            stored = found[0]
            if _has_tensors(stored) and isinstance(stored, Mapping):
                return _plain({str(k): x for k, x in stored.items() if isinstance(x, Tensor)})
        return None


def beside(stored: Any) -> list[str]:
    """Return the entries that hold weights beside the network's, such as averaged ones."""
    with one_error("its contents are not those of a network", SAVE):
        _, levels = _opened(stored)
        names: list[str] = []
        for around, taken in levels:
            if isinstance(around, Mapping):
                entries = islice(around.items(), _MOST_LOOKED_AT)
                names += [str(key) for key, x in entries if key != taken and _holds(str(key), x)]
        return names


def place(stored: Any) -> str:
    """Return the names of the entries that lead to the network; empty for none."""
    _, levels = _opened(stored)
    return ".".join(str(taken) for _, taken in levels if taken is not None)


def averaged(name: str) -> bool:
    """Return whether an entry's or a tensor's name says that weights are averages over training.

    >>> averaged("state_dict_ema"), averaged("n_averaged"), averaged("exp_avg"), averaged("schema")
    (True, True, False, False)
    """
    words = [word.lower() for word in _WORDS.findall(name[:LONGEST_NAME])]
    return not _AVERAGED.isdisjoint(words) and "exp" not in words


def modules(stored: Any) -> Iterator[tuple[str, Inert]]:
    """Yield the names and records of a pickled module and of those in it, outermost first."""
    with one_error("its contents are not those of a network", SAVE):
        for name, module, _ in _modules(_opened(stored)[0]):
            yield name, module


def _modules(stored: Any) -> Iterator[tuple[str, Inert, Callable[[int], None]]]:
    """Yield (name, module, charge), where charge limits traversal.

    A few that are shared could stand for 2^depth.
    """
    left = MOST_WORK

    def pay(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise TasklabError(f"it has more modules and parameters than any network. {SAVE}")

    todo = [("", 0, stored)]
    while todo:
        name, depth, module = todo.pop()
        if not isinstance(module, Inert) or not isinstance(module.state, Mapping):
            continue
        if depth > _MOST_DEPTH:
            raise TasklabError(f"it has endlessly nested modules. {SAVE}")
        pay(len(module.state))
        yield name, module, pay
        for key, child in reversed([*_entries(module, "_modules", pay).items()]):
            todo.append((_joined(name, key, pay), depth + 1, _inner(child)))


def _stored(stored: Inert) -> Iterator[tuple[str, Any]]:
    for prefix, module, pay in _modules(stored):
        passing = module.state.get("_non_persistent_buffers_set")
        passing = passing if isinstance(passing, list) else []
        pay(len(passing))
        passing = frozenset(name for name in passing if type(name) is str)
        own = dict(_entries(module, "_parameters", pay))
        buffers = _entries(module, "_buffers", pay)
        own |= {key: x for key, x in buffers.items() if key not in passing}
        for key, value in own.items():
            if value is not None:
                yield _joined(prefix, key, pay), value


def _entries(module: Inert, part: str, pay: Callable[[int], None]) -> Mapping:
    if module.name.startswith(_SCRIPT):
        kind = {"_modules": Inert, "_parameters": Tensor}.get(part, ())
        return {key: x for key, x in module.state.items() if isinstance(x, kind)}
    stored = module.state.get(part)
    if not isinstance(stored, Mapping):
        return {}
    pay(len(stored))
    return stored


def _joined(prefix: str, key: Any, pay: Callable[[int], None]) -> str:
    name = f"{prefix}.{key}" if prefix else str(key)
    pay(len(name) + _PER_NAME)
    if len(name) > LONGEST_NAME:
        raise TasklabError(f"it has a name of {len(name)} characters, {shown(name)}.")
    return name


def _opened(stored: Any) -> tuple[Inert | Mapping, list[tuple[Any, Any]]]:
    """Return the network that containers around it hold, and them, each with the entry taken."""
    levels: list[tuple[Any, Any]] = []
    for _ in range(_MOST_AROUND):
        if type(stored) in (list, tuple):
            stored = dict(enumerate(stored[:_MOST_LOOKED_AT]))
        taken = _taken(stored) if isinstance(stored, Mapping) else None
        if taken is None:
            break
        levels.append((stored, taken))
        stored = stored[taken]
    stored = _inner(stored)
    if not isinstance(stored, Inert | Mapping):
        raise TasklabError(_nothing(stored))
    return stored, [*levels, (stored, None)]


def _taken(stored: Mapping) -> Any:
    """Return the entry of a dictionary that has the weights, unless they are in it itself.

    If none has a usual name it is the only one that has tensors, averaged ones and linear heads
    left aside, and is no task vector.
    """
    usual = (key for key in _CONTAINERS if isinstance(stored.get(key), Inert | Mapping))
    if (first := next(usual, None)) is not None:
        return first
    entries = list(islice(stored.items(), _MOST_LOOKED_AT))
    found = [
        key
        for key, value in entries
        if _has_tensors(value) and "vector" not in str(key) and not _TRAINING.match(str(key))
    ]
    if _has_tensors(stored) and not any(_count(stored[key]) > _count(stored) for key in found):
        return None
    plain = [key for key in found if not averaged(str(key))]
    chosen = plain or found
    if len(chosen) > 1:  # a linear head beside an encoder
        chosen = [key for key in chosen if _count(stored[key]) > 2]
    return chosen[0] if len(chosen) == 1 else None


def _holds(key: str, value: Any, depth: int = 0) -> bool:
    """Does an entry hold weights beside the network: any, or averaged ones deeper within?"""
    mean = averaged(key)
    usual = (depth == 0 and not _TRAINING.match(key)) or key in _CONTAINERS
    some = value[:_MOST_LOOKED_AT] if type(value) in (list, tuple) else ()
    listed = len(some) > 1 and all(isinstance(x, Tensor) for x in some)
    if (mean or usual) and (listed or _has_tensors(value)):
        return True
    if depth == 3 or not isinstance(value, Mapping | list | tuple):
        return False
    entries = value.items() if isinstance(value, Mapping) else enumerate(value)
    within = "ema " if mean else ""
    return any(
        _holds(f"{within}{k}", x, depth + 1)
        for k, x in islice(entries, _MOST_DEPTH)
        if not isinstance(x, Tensor)
    )


def _count(value: Any) -> int:
    if _is_network(value):
        return _MOST_LOOKED_AT + 1
    return sum(isinstance(x, Tensor) for x in islice(value.values(), _MOST_LOOKED_AT))


def _inner(value: Any) -> Any:
    """Return the module within a compiled one, which is pickled as a call with it."""
    compiled = isinstance(value, Inert) and value.name.endswith(".OptimizedModule")
    return value.args[0] if compiled and type(value.args) is tuple and value.args else value


def _is_network(value: Any) -> bool:
    value = _inner(value)
    return (
        isinstance(value, Inert)
        and isinstance(value.state, Mapping)
        and ("_modules" in value.state or value.name.startswith(_SCRIPT))
    )


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, or stands for one of a form that is not read."""
    return isinstance(value, Tensor) or (isinstance(value, Inert) and "._rebuild_" in value.name)


def _has_tensors(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return _is_network(value)
    return any(isinstance(x, Tensor) for x in islice(value.values(), _MOST_LOOKED_AT))


def _plain(named: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, tensor in named.items():
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not plain or tensor.is_quantized:
            kind = _kind(tensor)
            hint = " (quantised): give the checkpoint from before that" if "qtensor" in kind else ""
            raise TasklabError(f"{shown(name)} is no plain tensor but a {kind}{hint}.")
    return named


def _nothing(stored: Any) -> str:
    inside = stored.state if isinstance(stored, Inert) else stored
    entries = ""
    if isinstance(inside, Mapping) and inside:
        first = [f"{shown(str(key))} ({_kind(x)})" for key, x in islice(inside.items(), 6)]
        entries = f" with the entries {', '.join(first)}{', ...' if len(inside) > 6 else ''}"
    several = isinstance(inside, Mapping) and sum(map(_has_tensors, inside.values())) > 1
    what = "it has several networks, and" if several else "there are no tensors by name in it, but"
    return (
        f"{what} a {_kind(stored)}{entries}. Save the network's weights alone, by "
        "torch.save(model.state_dict(), ...)."
    )


def _kind(stored: Any) -> str:
    return shown(stored.name) if isinstance(stored, Inert) else type(stored).__name__


@contextlib.contextmanager
def one_error(what: str, todo: str) -> Iterator[None]:
    """Raise one `TasklabError` in place of all that malformed contents raise."""
    try:
        yield
    except _WRONG as error:
        raise TasklabError(f"{what}: {first_line(error)}. {todo}") from error
