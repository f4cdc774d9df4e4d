"""Read files of `torch.save`, also of whole modules, without executing their content.

    weights = tensors(read("finetuned.pt"))

`instructions` reads a pickle, `state_dicts` finds the network; here are the formats of the file:
the two of `torch.save`, the archive of TorchScript, and the plain pickle of a module.

`torch.load(weights_only=True)` is not used: in PyTorch 2.15 small hostile files end or hang the
program (nested tuples as keys, keys that double, tensors that claim 10^12 elements), and it reads
neither modules pickled before PyTorch 1.6, nor archives of TorchScript (OpenAI's CLIP), nor
protocols above 3.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from tasklab.errors import TasklabError, shown
from tasklab.storage.instructions import interpret
from tasklab.storage.pickles import Budget, Storage, UnreadError, element_type
from tasklab.storage.state_dicts import SAVE, one_error

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the format before PyTorch 1.6
_OTHERS = {  # how other files begin -> what they are and what to do
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself with `git lfs pull`",
    b"<": "a web page, perhaps a question before the download: download it again",
    b"\x1f\x8b": "compressed (gzip): unpack it first, or download it again",
    b"BZh": "compressed (bzip2): unpack it first",
    b"\xfd7zXZ": "compressed (xz): unpack it first",
    b"7z\xbc\xaf": "compressed (7z): unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed (zstd): unpack it first",
    b"Rar!": "compressed (rar): unpack it first",
    b"PK\x05\x06": "an empty zip file: download it again",
    b"\x93NUMPY": "an array of numpy: save the network's weights as safetensors",
    b"GGUF": "of llama.cpp (GGUF): give the checkpoint that it was made from",
    b"\x89HDF": "in HDF5, as Keras writes it: save its weights as safetensors",
}


def read(path: Path | str) -> Any:
    """Read a file of `torch.save`: containers, numbers, texts, tensors, `Inert` records.

    It has the format of PyTorch 1.6 and later (zip), the earlier one, or is a TorchScript archive
    or a plain pickle.
    """
    path = Path(path)
    if not path.is_file():
        raise TasklabError(f"there is no file {str(path)!r}.")
    with path.open("rb") as stream:
        start = stream.read(512)
    again = "Nothing in it was executed. Fetch it again, or ask for its weights as safetensors."
    with one_error(f"{str(path)!r} is not a whole file of torch.save", again):
        try:
            if start[:4] == b"PK\x03\x04":
                return _read_zip(path)
            if start.startswith((b"\x80", b"L%dL" % _MAGIC)):  # the latter in protocols 0 and 1
                return _read_older(path)
        except UnreadError as error:
            raise TasklabError(
                f"{str(path)!r} is not read: {error}. Nothing in it was executed. {SAVE}"
            ) from error
    raise TasklabError(f"{str(path)!r} is not a file of torch.save{_other(start)}")


def _other(start: bytes) -> str:
    """Return the end of a message: the kind of a file by its first bytes, and a remedy."""
    if not start:
        return ": it is empty. Download it again."
    if start[257:262] == b"ustar":
        return f": it is a tar archive, or in the format of PyTorch before 0.4. {SAVE}"
    for begin, what in _OTHERS.items():
        if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(begin):
            return f": it is {what}."
    return f". {SAVE}"


def _read_zip(path: Path) -> Any:
    """Read the format since PyTorch 1.6: `<folder>/data.pkl`, and `<folder>/data/<key>` each.

    Archives of TorchScript have these as well, and compressed code beside them.
    """
    with zipfile.ZipFile(path) as archive:
        listed = archive.infolist()
        entries = {entry.filename: entry for entry in listed}
        if len(entries) < len(listed):
            raise ValueError("two of its entries have the same name")
        roots = {name.partition("/")[0] for name in entries}
        root = f"{roots.pop()}/" if len(roots) == 1 else ""
        code, order, data = f"{root}data.pkl", f"{root}byteorder", f"{root}data/"
        if code not in entries:
            arrays = all(name.endswith(".npy") for name in entries)
            what = "an .npz of numpy" if arrays else "a zip file of something else: unpack it first"
            raise UnreadError(f"it is {what}")
        stored = {n.removeprefix(data): e for n, e in entries.items() if n.startswith(data)}
        taken = [*stored.values(), *(entries[name] for name in (code, order) if name in entries)]
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in taken):
            raise ValueError("its entries are compressed, which torch.save never does")
        if sum(entry.file_size for entry in taken) > path.stat().st_size:
            raise ValueError("its entries are larger than the file")
        if order in entries and archive.read(order) != b"little":
            raise UnreadError("its numbers are big-endian")
        budget = Budget()
        known: dict[str, Storage] = {}

        def storage(identity: tuple) -> Storage:
            _, kind, key, _, count = identity
            dtype, entry = element_type(kind), stored[key]
            if not _possible(count) or count * dtype.itemsize != entry.file_size:
                raise ValueError(f"storage {shown(key)} has not as many elements as it should")
            if key not in known:
                memory = bytearray(entry.file_size)
                with archive.open(entry) as stream:
                    if cast(zipfile.ZipExtFile, stream).readinto(memory) != len(memory):
                        raise ValueError(f"storage {shown(key)} is cut off")
                empty = torch.empty(0, dtype=dtype)
                known[key] = Storage(torch.frombuffer(memory, dtype=dtype) if memory else empty)
            if known[key].numbers.dtype != dtype:
                raise ValueError(f"storage {shown(key)} has two types")
            return known[key]

        return interpret(io.BytesIO(archive.read(code)), storage, budget)


def _read_older(path: Path) -> Any:
    """Read the format before PyTorch 1.6, or a plain pickle with a file in it for each tensor."""
    budget = Budget()
    inner: dict[int, tuple[bytes, Any]] = {}

    def embedded(content: bytes) -> Storage:
        if id(content) not in inner:  # each is read once; kept, it keeps its id
            inner[id(content)] = content, _read_stream(io.BytesIO(content), len(content), budget)
        numbers = inner[id(content)][1]
        if not isinstance(numbers, Storage):
            raise ValueError("what should be the numbers of a tensor in it is something else")
        return numbers

    with path.open("rb") as stream:
        return _read_stream(stream, path.stat().st_size, budget, embedded)


def _read_stream(
    stream: Any, size: int, budget: Budget, embedded: Callable[[bytes], Storage] | None = None
) -> Any:
    """Read five pickles in a row, then the storages' numbers; or one pickle of something else."""
    known: dict[str, Storage] = {}
    taken = 0

    def storage(identity: tuple) -> Any:
        nonlocal taken
        if identity[0] == "module":  # a class with its source code
            return identity[1]
        _, kind, key, _, count, view = identity
        dtype = element_type(kind)
        if view is not None:
            raise UnreadError("its storages are parts of each other")
        if not _possible(count):
            raise ValueError(f"storage {shown(key)} has an impossible number of elements")
        if key not in known:
            taken += count * dtype.itemsize
            if taken > size:
                raise ValueError(f"storage {shown(key)} is larger than the file")
            budget.copy(20)  # as for a tensor
            known[key] = Storage(torch.zeros(count, dtype=dtype))
        if known[key].numbers.dtype != dtype or known[key].numbers.numel() != count:
            raise ValueError(f"storage {shown(key)} has two types or sizes")
        return known[key]

    def following() -> Any:
        return interpret(stream, storage, budget, embedded)

    first = following()
    if type(first) is not int or first != _MAGIC:
        return first
    if following() != _PROTOCOL:
        raise ValueError("it is a pickle of something else")
    if following()["little_endian"] is not True:
        raise UnreadError("its numbers are big-endian")
    tree, keys = following(), following()
    listed = type(keys) is list and all(type(key) is str and key in known for key in keys)
    if not listed or len(set(keys)) != len(keys) or len(keys) != len(known):
        raise ValueError("its list of storages is not that of its tensors")
    for key in keys:
        numbers = known[key].numbers
        (count,) = struct.unpack("<q", stream.read(8))
        memory = numbers.view(torch.uint8).numpy()  # read into, without a copy
        if count != numbers.numel() or stream.readinto(memory) != numbers.nbytes:
            raise ValueError(f"storage {shown(key)} is cut off")
    return tree


def _possible(count: Any) -> bool:
    return type(count) is int and 0 <= count < 1 << 63
