"""Weights of any architecture in any file that is read, under their names without wrappers.

    found = opening.opened("run/model.pt")
    found.tensors["layers.0.weight"]

`reading` compares a checkpoint with a model of ours; here its names and shapes may be any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tasklab.errors import TasklabError, abridged
from tasklab.exchange import findings, naming, sources
from tasklab.storage import shards, state_dicts, torch_files, vectors
from tasklab.storage.lazy import Lazy, Renamed, like


class Opened(NamedTuple):
    """A checkpoint's tensors, with further content of its files."""

    tensors: Mapping[str, Tensor]
    is_vector: bool  #: Whether the tensors are a change instead of weights
    notes: tuple[str, ...]


def opened(place: Path | str, lazily: Callable[[Path], Lazy]) -> Opened:
    """Return the tensors of a checkpoint; pickles are read without executing them.

    Args:
        place: A file of safetensors or of `torch.save`, a folder with one of the usual names or
            with files of safetensors, a repository on the hub, or a task vector.
        lazily: Opens a file of safetensors.

    Raises:
        TasklabError: If the files cannot be read, or hold no plain weights (quantised,
            parametrised or pruned ones).
    """
    parts = _parts(place)
    try:
        lazy = [lazily(part) for part in parts if sources.is_safetensors(part)]
        if len(lazy) == len(parts):
            header = sources.header(parts[0])
            if "tasklab" in header:
                heads = vectors.parted(dict.fromkeys(lazy[0]))[1]
                told = [f"the heads of {abridged(heads)} are beside it"] if heads else []
                left = vectors.named(heads)
                kept = {name: (lazy[0], name) for name in lazy[0] if name not in left}
                return _named([Renamed(kept)], True, told)
            return _named(lazy, sources.is_saved(header))
        held, changes, notes = list[Mapping[str, Tensor]](lazy), False, list[str]()
        for part in parts:
            if not sources.is_safetensors(part):
                stored = torch_files.read(part)
                vector = state_dicts.vector(stored)
                changes |= vector is not None
                held.append(state_dicts.tensors(stored) if vector is None else vector)
                notes += findings.around(stored)
        return _named(held, changes, notes)
    except TasklabError as error:
        if any(str(part) in str(error) for part in parts):
            raise
        raise TasklabError(f"{parts[0]} cannot be read as a checkpoint: {error}") from error


def _plainly(parts: Sequence[Mapping[str, Tensor]]) -> Renamed:
    """Return tensors of several files under their names without wrappers."""
    found: dict[str, tuple[Mapping[str, Tensor], str]] = {}
    for part in parts:
        likes = {name: like(part, name).to("meta") for name in part}
        names = dict(zip(naming.unwrapped(likes), part, strict=True))
        if twice := [name for name in names if name in found]:
            raise TasklabError(f"{abridged(twice)} is in two of its files.")
        found |= {plain: (part, name) for plain, name in names.items()}
    return Renamed(found)


def _parts(place: Path | str) -> list[Path]:
    folder = Path(place).expanduser()
    if folder.is_dir() and not any((folder / name).is_file() for name in sources.FILES):
        if files := shards.in_folder(folder):
            return files
    return sources.parts(sources.locate(place)[0])


def _named(
    parts: Sequence[Mapping[str, Tensor]], is_vector: bool, notes: Sequence[str] = ()
) -> Opened:
    names = [*itertools.chain.from_iterable(parts)]
    told = [*notes]
    if not names:
        raise TasklabError("it holds no tensors.")
    if wrapped := [name for name in names if naming.bare(name) != name]:
        told.append(f"{len(wrapped)} names have words of wrappers ({abridged(wrapped, 1)})")
    if low := naming.adapters(names):
        told.append(f"{len(low)} tensors are of adapters ({abridged(low, 1)})")
    if all(isinstance(part, Lazy) for part in parts):
        return Opened(_plainly(parts), is_vector, tuple(told))
    plain = {name: x for part in parts for name, x in naming.unwrapped(part).items()}
    if len(plain) < len(names):
        raise TasklabError("two of its files have the same names.")
    return Opened(plain, is_vector, tuple(told))
