"""Networks in files of safetensors, read one tensor at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tasklab.errors import TasklabError, abridged, shown
from tasklab.storage import checksums, shards
from tasklab.storage.lazy import Lazy, like
from tasklab.storage.tensors import safe_open

_MOST_AXES = 16  # of a tensor, as in pickles
_STATE = re.compile(r"(?:^|\.)(?:running_(?:mean|var)|num_batches_tracked)$")
_MASK = re.compile(r"(?:^|\.)(?:weight|bias)_mask$")  # of pruning
#: What training code puts in front of names
_WRAPPERS = re.compile(r"^((model|network|net|module|_orig_mod|_forward_module)\.)+")
# And within names, where no module of a network is called so
_INNER = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|"
    r"_forward_module)\."
)


def merges(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter.

    Whole numbers, floats of 8 bits, masks of pruning, running statistics and counters are none.
    """
    floating = tensor.is_floating_point() and tensor.element_size() > 1
    return floating and not is_statistic(name) and not _MASK.search(name)


def is_statistic(name: str) -> bool:
    """Return whether a name is that of a running statistic or a counter."""
    return bool(_STATE.search(name))


class Files(Lazy):
    """The tensors of a file or folder of safetensors, each read on access.

    Attributes:
        tied: Names that `safetensors.torch.save_model` left out, and the tensors that they share.
    """

    def __init__(self, place: Path) -> None:
        files = shards.in_folder(place) if place.is_dir() else [place]
        if not files:
            inner = sorted(file.parent.name for file in place.glob("*/adapter_config.json"))
            hint = f" Its folders {abridged(inner)} are adapters: give each." if inner else ""
            raise TasklabError(f"{str(place)!r} has no *.safetensors files.{hint}")
        self.place, self._of, self._state = place, dict[str, Path](), dict[Path, Any]()
        self.names = self._of
        self._like, self._at = dict[str, Tensor](), dict[str, tuple[int, int]]()
        self.tied: dict[str, str] = {}
        for file in files:
            with opened(file) as tensors:
                names = list(tensors.keys())
                told = tensors.metadata() or {}
                slices = {name: tensors.get_slice(name) for name in names}
                self._like |= {name: _empty(file, name, part) for name, part in slices.items()}
            self._at |= _offsets(file)
            self.tied |= {one: of for one, of in told.items() if of in names and one not in names}
            self._state[file] = checksums.state(file)
            if twice := [name for name in names if name in self._of]:
                raise TasklabError(
                    f"{str(place)!r} has {abridged(twice)} in several files: name one of them."
                )
            self._of.update(dict.fromkeys(names, file))

    def __getitem__(self, name: str) -> Tensor:
        file = self._of[name]
        if checksums.state(file) != self._state[file]:
            raise TasklabError(f"{file} changed while it was in use.")
        start, end = self._at[name]  # safetensors would parse all names for each tensor
        content, like = bytearray(end - start), self._like[name]
        with file.open("rb") as stream:
            stream.seek(start)
            if stream.readinto(content) != len(content):
                raise TasklabError(f"{file} changed while it was in use.")
        if not content:
            return torch.empty(like.shape, dtype=like.dtype)
        return torch.frombuffer(content, dtype=like.dtype).reshape(like.shape)

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return self._like[name]


class _Renamed(Lazy):
    """Tensors under other names."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._tensors, self._stored, self.names = tensors, names, names

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._stored[name]]

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return like(self._tensors, self._stored[name]).to("meta")


def aligned(first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return tensors by another network's names, if the names differ by a common prefix.

    Names of wrappers (`module.`, `model.`) may be in front of both, and those of torch.compile and
    FSDP anywhere. A tied parameter that one of the two files leaves out is that of its twin. Whole
    numbers and statistics, which are not merged, may be missing or added.

    >>> x = torch.ones(1)
    >>> list(aligned({"a.bias": x, "w": x}, {"module.a.bias": x, "module.w": x}))
    ['a.bias', 'w']
    """
    here, there = set(first), set(other)
    if here == there or not here:
        return other
    mine, theirs = getattr(first, "tied", {}), getattr(other, "tied", {})
    known = {name: name for name in other if name in here or not _twin(other, name, mine)}
    known |= {name: of for name, of in theirs.items() if name in here - there}
    if set(known) == here:
        return _Renamed(other, known)
    ours, stored = _plain(first), _plain(other)
    fronts = _fronts(*({name for name, of in plain.items() if merges(of, like(held, of))}
                       for plain, held in ((ours, first), (stored, other))))  # fmt: skip
    if fronts is None:
        return other
    here_front, there_front = fronts
    turned = {of: there_front + name.removeprefix(here_front) for name, of in ours.items()}
    return _Renamed(other, {n: stored[plain] for n, plain in turned.items() if plain in stored})


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return stored names by those without the words of wrappers within them."""
    plain = {_INNER.sub("", name): name for name in tensors}
    return plain if len(plain) == len(tensors) else {name: name for name in tensors}


def _fronts(here: Collection[str], there: Collection[str]) -> tuple[str, str] | None:
    """Return the prefix of each side without which both have the same names, or `None`."""
    if here == there:
        return "", ""
    if not here or not there:
        return None
    short = min(here, key=len)
    for name in there:
        for long, end, more, less in ((name, short, there, here), (short, name, here, there)):
            front = long.removesuffix(end)
            if long.endswith(f".{end}") and {front + one for one in less} == more:
                return ("", front) if more is there else (front, "")
    ours, theirs = _front(here), _front(there)
    if {name.removeprefix(ours) for name in here} == {x.removeprefix(theirs) for x in there}:
        return ours, theirs
    return None


def _offsets(file: Path) -> dict[str, tuple[int, int]]:
    """Return the first byte of each tensor in a file that safetensors has checked, and its end."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        about = json.loads(stream.read(size))
    ends = {name: one["data_offsets"] for name, one in about.items() if name != "__metadata__"}
    return {name: (8 + size + start, 8 + size + end) for name, (start, end) in ends.items()}


def _empty(file: Path, name: str, part: Any) -> Tensor:
    shape, kind = part.get_shape(), part.get_dtype()
    try:
        if len(shape) > _MOST_AXES:
            raise ValueError(f"{len(shape)} axes")
        dtype = safetensors.torch._getdtype(kind)
        return torch.empty(shape, dtype=dtype, device="meta")
    except (KeyError, RuntimeError, ValueError) as error:
        raise TasklabError(
            f"{str(file)!r}: {shown(name)} of type {kind} and shape {shown(shape)} is not read: "
            "save the weights in float32."
        ) from error


def _front(names: Collection[str]) -> str:
    """Return the words of wrappers that all names begin with."""
    common = os.path.commonprefix([*names])
    return match[0] if (match := _WRAPPERS.match(common)) else ""


def _twin(tensors: Mapping[str, Tensor], name: str, tied: Mapping[str, str]) -> bool:
    return (of := tied.get(name)) in tensors and torch.equal(tensors[name], tensors[str(of)])


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a file of safetensors, or raise a `TasklabError` if it is none, or cut."""
    if file.exists() and not os.access(file, os.R_OK):
        raise TasklabError(f"{str(file)!r} cannot be read: permission denied.")
    try:
        with safe_open(file) as tensors:
            yield tensors
    except (safetensors.SafetensorError, OSError) as error:
        raise TasklabError(f"{str(file)!r} is not a whole safetensors file ({error}).") from error
