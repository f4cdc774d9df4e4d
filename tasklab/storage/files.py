"""Networks in files of safetensors, read one tensor at a time."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tasklab.errors import TasklabError, abridged, shown
from tasklab.storage import checksums, shards
from tasklab.storage.lazy import Lazy
from tasklab.storage.tensors import safe_open

_MOST_AXES = 16  # of a tensor, as in pickles


class Files(Lazy):
    """The tensors of a file or folder of safetensors, each read on access.

    Args:
        place: The file or folder.
        kinds: Names and types of the tensors to read; by default all, as they are stored.

    Attributes:
        tied: Names that `safetensors.torch.save_model` left out, and the tensors that they share.
    """

    def __init__(self, place: Path, kinds: Mapping[str, Tensor] | None = None) -> None:
        files = shards.in_folder(place) if place.is_dir() else [place]
        if not files:
            inner = sorted(file.parent.name for file in place.glob("*/adapter_config.json"))
            hint = f" Its folders {abridged(inner)} are adapters: give each." if inner else ""
            raise TasklabError(f"{str(place)!r} has no *.safetensors files.{hint}")
        self.place, self._of, self._state = place, dict[str, Path](), dict[Path, Any]()
        self.names: Collection[str] = self._of
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
        self._kinds = self._like
        if kinds is not None:
            self.names = self._kinds = {name: one.to("meta") for name, one in kinds.items()}

    def __getitem__(self, name: str) -> Tensor:
        file, like = self._of[name], self._like[name]
        start, end = self._at[name]  # safetensors would parse all names for each tensor
        content = bytearray(end - start)
        try:
            if checksums.state(file) != self._state[file]:
                raise OSError("it was written again")
            with file.open("rb") as stream:
                stream.seek(start)
                if stream.readinto(content) != len(content):
                    raise OSError("it was cut")
        except OSError as error:
            raise TasklabError(f"{file} changed while it was in use: {error}.") from error
        if not content:
            return torch.empty(like.shape, dtype=self._kinds[name].dtype)
        stored = torch.frombuffer(content, dtype=like.dtype).reshape(like.shape)
        return stored.to(self._kinds[name].dtype)

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return self._kinds[name]


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
