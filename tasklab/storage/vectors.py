"""Files of task vectors: safetensors with the base that a vector starts from, and a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors

from tasklab.errors import TasklabError, abridged
from tasklab.errors import path as checked_path
from tasklab.storage.atomic import check_suffix
from tasklab.storage.tensors import (
    canonical,
    load_checkpoint,
    read_tensors,
    safe_open,
    save_checkpoint,
    write_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

_T = TypeVar("_T")
_FORMAT = {"format": "tasklab task vector", "version": 1}
_HEADER = "tasklab"  # entry of the header that has the record of `export`
_EXPORT = "task_vector.safetensors"  # in the folder of an export
HEAD = "classifier"  # begins the names of a head's tensors: classifier.weight, classifier/Cars.bias


def named(heads: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return heads by task as tensors that lie beside those of a vector; `""` is its own task."""
    return {
        f"{HEAD}/{task}.{part}" if task else f"{HEAD}.{part}": x
        for task, head in heads.items()
        for part, x in head.items()
    }


def parted(tensors: Mapping[str, _T]) -> tuple[dict[str, _T], dict[str, dict[str, _T]]]:
    """Return the tensors of a vector, and the heads that lie beside it, as `named` names them.

    >>> parted({"proj": 1, "classifier/Cars.bias": 2})
    ({'proj': 1}, {'Cars': {'bias': 2}})
    """
    vector: dict[str, _T] = {}
    heads: dict[str, dict[str, _T]] = {}
    for name, x in tensors.items():
        front, _, part = name.rpartition(".")
        head, slash, task = front.partition("/")
        if head == HEAD and part in ("weight", "bias") and bool(slash) == bool(task):
            heads.setdefault(task, {})[part] = x
        else:
            vector[name] = x
    return vector, heads


def load(
    path: Path | str, fields: Sequence[str], optional: Sequence[str] = ()
) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    """Return the tensors of a vector's file, and the base that it names or `None`.

    Args:
        path: A file of `save`, `tasklab merge` or `tasklab export`, or the folder of an export.
        fields: Names of all that a base has.
        optional: Those that an older file may lack.

    Raises:
        TasklabError: If there is no such file, it is damaged, or it is of another format.
    """
    what = "the file of a task vector"
    folder = checked_path(what, path)
    path = checked_path(what, folder / _EXPORT if folder.is_dir() else folder, "file")
    if (base := _exported(path, fields)) is not None:
        return parted(read_tensors(path))[0], base
    tensors, meta = load_checkpoint(path, quiet=True) or ({}, {})
    base = _saved(meta, fields, optional)
    if meta != _FORMAT:
        raise TasklabError(
            f"{str(path)!r} is damaged, or no task vector of tasklab: "
            "Lab(model).vector(path) and `tasklab import` read published checkpoints."
        )
    if wrong := [name for name, x in tensors.items() if not x.is_floating_point()]:
        raise TasklabError(f"{abridged(wrong)} in {str(path)!r} are no floating-point numbers.")
    return tensors, base


def save(path: Path | str, tensors: Mapping[str, Tensor], base: Mapping[str, str] | None) -> Path:
    """Write tensors, base and checksum to a safetensors file in one step; return its path.

    Args:
        path: Of the file; `.safetensors` is its suffix.
        tensors: By the name of each parameter.
        base: Record of the weights that the vector starts from.
    """
    path = checked_path("the file of a task vector", path)
    check_suffix("a saved task vector", path, ".safetensors")
    known = {} if base is None else {"base": dict(base)}
    save_checkpoint(path, tensors, _FORMAT | known, "write to", "path")
    return path


def export(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a vector with its record in the header, as `tasklab export` and `merge` do.

    Args:
        path: Of the file.
        tensors: By the name of each parameter.
        about: Record with model, init and weights (the hash of theta_0), and what else is known.
    """
    write_tensors(tensors, path, {"format": "pt", _HEADER: canonical(about)})


def _exported(path: Path, fields: Sequence[str]) -> dict[str, str] | None:
    """Return the base in the header of `tasklab merge` and `tasklab export`."""
    try:
        with safe_open(path) as file:
            about = json.loads((file.metadata() or {})[_HEADER])
        return {name: str(about[name]) for name in fields}
    except (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError):
        return None


def _saved(
    meta: dict[str, Any], fields: Sequence[str], optional: Sequence[str]
) -> dict[str, str] | None:
    """Pop the base from the meta of `save`; return `None`, without popping, if it is no base."""
    base = meta.get("base")
    if not isinstance(base, dict) or not {*fields} - {*optional} <= base.keys() <= {*fields}:
        return None
    if not all(isinstance(text, str) for text in base.values()):
        return None
    return dict(meta.pop("base"))
