"""Files of `torch.save`, also of whole modules, read without executing anything that is in them.

    weights = tensors(read("finetuned.pt"))

`tasklab.pickles` reads the instructions; here are the two formats of the file around them, and the
way from a pickled module to its state dict.

PyTorch's own restricted reader, `torch.load(weights_only=True)`, refuses pickled modules. It would
do for plain state dicts, but two of its holes were closed only in PyTorch 2.6 and 2.10
(CVE-2025-32434, CVE-2026-24747), and a dictionary with a deeply nested key still ends the program
in 2.15. So nothing is given to it; the tests compare what both read.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.pickles import STORAGES, Inert, Storage, check_length, interpret

MOST_MODULES = 20_000  # in one file: branches that are shared could stand for 2^depth
_MOST_DEPTH = 100
_CONTAINERS = ("state_dict", "model_state_dict", "model", "image_encoder")

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the format before PyTorch 1.6
_WRONG = (  # what a malformed file raises in the code below
    AttributeError, EOFError, LookupError, MemoryError, OverflowError, RecursionError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def read(path: Path | str) -> Any:
    """Return what is in a file of `torch.save`: containers, numbers, texts, tensors, `Inert`.

    Args:
        path: In the format of PyTorch 1.6 and later (zip), or in the earlier one.

    Raises:
        TasklabError: If the file is of another format, not whole, or not what it claims to be.
    """
    path = Path(path)
    if not path.is_file():
        raise TasklabError(f"there is no file {str(path)!r}.")
    with path.open("rb") as stream:
        start = stream.read(512)
    try:
        if start[:4] == b"PK\x03\x04":
            return _read_zip(path)
        if start[:1] == b"\x80":
            return _read_stream(path)
    except _WRONG as error:
        what = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise TasklabError(
            f"{str(path)!r} is not a whole file of torch.save: {what}. Nothing in it was executed. "
            "Fetch it again, or ask for its weights as safetensors."
        ) from error
    old = " It is in the format of PyTorch before 0.4." if start[257:262] == b"ustar" else ""
    raise TasklabError(
        f"{str(path)!r} is not a file of torch.save.{old} Save its weights as safetensors, or by "
        "torch.save(model.state_dict(), ...)."
    )


def tensors(found: Any) -> dict[str, Tensor]:
    """Return the tensors of what `read` returns, by name: a state dict.

    Of a module these are parameters and persistent buffers, named as `module.state_dict()` names
    them. Of a dictionary that has a module or a dictionary as its entry `state_dict`, `model` or
    `image_encoder`, those in there.

    Raises:
        TasklabError: If there are none, or one of them is no plain tensor.
    """
    found = _opened(found)
    if isinstance(found, Inert):
        named = dict(_stored(found))
    else:
        named = {str(k): x for k, x in found.items() if isinstance(x, Tensor)}
    if not named:
        raise TasklabError(f"there are no tensors by name in it, but a {_kind(found)}.")
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            raise TasklabError(f"{name} is no plain tensor but a {_kind(tensor)}.")
        # one that repeats a few numbers in memory could be too large for any memory when copied
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise TasklabError(f"{name} has more elements than are stored in the file.")
    return named


def modules(found: Any) -> Iterator[tuple[str, Inert]]:
    """Yield the names and records of a pickled module and of those in it, outermost first.

    Nothing is yielded for anything else.

    Raises:
        TasklabError: If there are more than `MOST_MODULES`: no network has as many.
    """
    todo, count = [("", 0, _opened(found))], 0
    while todo:
        name, depth, module = todo.pop()
        if not isinstance(module, Inert) or not isinstance(module.state, Mapping):
            continue
        count += 1
        if count > MOST_MODULES or depth > _MOST_DEPTH:
            raise TasklabError(f"it has over {MOST_MODULES} modules, or endlessly nested ones.")
        yield name, module
        for key, child in reversed(_entries(module, "_modules").items()):
            todo.append((f"{name}.{key}" if name else str(key), depth + 1, child))


def _opened(found: Any) -> Any:
    """Return the module or dictionary of weights that dictionaries around it hold."""
    for _ in range(4):
        if not isinstance(found, Mapping):
            break
        inner = (found[entry] for entry in _CONTAINERS if entry in found)
        inner = next((one for one in inner if isinstance(one, Inert | Mapping)), None)
        if inner is None:
            break
        found = inner
    if not isinstance(found, Inert | Mapping):
        raise TasklabError(f"there are no tensors by name in it, but a {_kind(found)}.")
    return found


def _stored(found: Inert) -> Iterator[tuple[str, Any]]:
    """Yield parameters and persistent buffers, whatever they are."""
    for prefix, module in modules(found):
        passing = module.state.get("_non_persistent_buffers_set")
        passing = passing if isinstance(passing, list) else []
        own = dict(_entries(module, "_parameters"))
        own |= {k: x for k, x in _entries(module, "_buffers").items() if k not in passing}
        for key, value in own.items():
            if value is not None:
                yield f"{prefix}.{key}" if prefix else str(key), value


def _entries(module: Inert, part: str) -> Mapping:
    found = module.state.get(part)
    return found if isinstance(found, Mapping) else {}


def _kind(found: Any) -> str:
    return found.name if isinstance(found, Inert) else type(found).__name__


def _read_zip(path: Path) -> Any:
    """Read the format since PyTorch 1.6: `<folder>/data.pkl`, and `<folder>/data/<key>` each."""
    with zipfile.ZipFile(path) as archive:
        listed = archive.infolist()
        entries = {entry.filename: entry for entry in listed}
        if len(entries) < len(listed):
            raise ValueError("two of its entries have the same name")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in listed):
            raise ValueError("its entries are compressed, which torch.save never does")
        if sum(entry.file_size for entry in listed) > path.stat().st_size:
            raise ValueError("its entries are larger than the file")
        roots = {name.partition("/")[0] for name in entries}
        root = f"{roots.pop()}/" if len(roots) == 1 else ""
        if f"{root}data.pkl" not in entries:
            raise ValueError("it is a zip file of something else: unpack it first")
        if f"{root}constants.pkl" in entries:
            raise ValueError("it is a TorchScript program: save its state_dict() instead")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        check_length(entries[f"{root}data.pkl"].file_size)
        code = archive.read(f"{root}data.pkl")
        known: dict[str, Storage] = {}

        def storage(identity: tuple) -> Storage:
            _, kind, key, _, count = identity
            dtype, entry = STORAGES[kind.name], entries[f"{root}data/{key}"]
            if type(count) is not int or count * dtype.itemsize != entry.file_size:
                raise ValueError(f"storage {key} should have {count} elements of {dtype}")
            if key not in known:
                memory = bytearray(entry.file_size)
                with archive.open(entry) as stream:
                    if stream.readinto(memory) != len(memory):
                        raise ValueError(f"storage {key} is cut off")
                known[key] = Storage(_numbers(memory, dtype))
            if known[key].numbers.dtype != dtype:
                raise ValueError(f"storage {key} has two types")
            return known[key]

        return interpret(io.BytesIO(code), storage)


def _read_stream(path: Path) -> Any:
    """Read the format before PyTorch 1.6: five pickles in a row, then the storages' numbers."""
    known: dict[str, Storage] = {}

    def storage(identity: tuple) -> Any:
        if identity[0] == "module":  # a class with its source code
            return identity[1]
        _, kind, key, _, count, view = identity
        dtype = STORAGES[kind.name]
        if view is not None:
            raise ValueError("its storages are parts of each other: save it again")
        if type(count) is not int or count < 0:
            raise ValueError(f"storage {key} should have {count} elements")
        if key not in known:
            taken = sum(part.numbers.nbytes for part in known.values())
            if taken + count * dtype.itemsize > path.stat().st_size:
                raise ValueError(f"storage {key} is larger than the file")
            known[key] = Storage(torch.zeros(count, dtype=dtype))
        if known[key].numbers.dtype != dtype or known[key].numbers.numel() != count:
            raise ValueError(f"storage {key} has two types or sizes")
        return known[key]

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        if interpret(stream, storage) != _MAGIC or interpret(stream, storage) != _PROTOCOL:
            raise ValueError("it is a pickle of something else")
        if interpret(stream, storage)["little_endian"] is not True:
            raise ValueError("its numbers are big-endian")
        found, keys = interpret(stream, storage), interpret(stream, storage)
        if not all(type(key) is str for key in keys) or sorted(keys) != sorted(known):
            raise ValueError("its list of storages is not that of its tensors")
        for key in keys:
            numbers = known[key].numbers
            (count,) = struct.unpack("<q", stream.read(8))
            content = stream.read(numbers.nbytes)
            if count != numbers.numel() or len(content) != numbers.nbytes:
                raise ValueError(f"storage {key} is cut off")
            numbers.copy_(_numbers(bytearray(content), numbers.dtype))
    return found


def _numbers(memory: bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype) if memory else torch.empty(0, dtype=dtype)
