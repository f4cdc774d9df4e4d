"""Pre-trained weights: find them on this machine, fetch them, check and load them.

Files are safetensors, or checkpoints of PyTorch (`.pt`, `.pth`, `.bin`), whose tensors are read
without executing code (`tasklab.storage.torch_files`).

Changed files are refused: shipped ones have their checksum in their card, and of
fetched ones commit and checksum are noted beside the file at the first load.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasklab import storage
from tasklab.errors import TasklabError, abridged
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256
from tasklab.storage.store import read_tensors

if TYPE_CHECKING:  # places of files are known without torch
    from torch import Tensor, nn

FILE = "open_clip_model.safetensors"
FOLDER = "TASKLAB_WEIGHTS"  # environment variable: a folder of <model>.safetensors
_NOTE = ".tasklab.json"  # after a file's name: what it was when it was first loaded
_log = logging.getLogger(__name__)


def find(
    name: str,
    repository: str,
    path: Path | str | None = None,
    *,
    file: str = FILE,
    revision: str | None = None,
    fetch: bool = True,
    reachable: bool | None = None,
) -> Path | None:
    """Return the checkpoint of a model, fetched if it is not on this machine.

    Args:
        name: Of the model.
        repository: On the hub.
        path: A file of the user's, in place of all other sources.
        file: In the repository.
        revision: Commit of the repository; `None` is its newest.
        fetch: Whether to fetch it now; otherwise `None` is returned for one that can be fetched.
        reachable: Whether the hub answers, where that is known; `None` asks it.
    """
    if path is not None:
        path = Path(path).expanduser()
        if not path.is_file():
            raise TasklabError(f"there is no weights file {str(path)!r} for model {name!r}.")
        return path
    if present := local(name, repository, file, revision):
        return present
    problem = unreachable(repository, file, reachable)
    if problem is None and not fetch:
        return None
    if problem is None:
        try:
            return storage.fetching.fetch(repository, file, revision=revision)
        except storage.fetching.UnreachableError as error:
            problem = error.problem
    folder, own = os.environ.get(FOLDER), name + Path(file).suffix
    placed = Path(folder).expanduser() / own if folder else f"{own}, {FOLDER} set to its folder"
    raise TasklabError(
        f"the pre-trained weights of model {name!r} are not on this machine and could not be "
        f"fetched ({problem}). With a network, `hf download {repository} {file}` fetches them; "
        f"without one, put that file here as {placed}. init='random' runs without."
    )


def unreachable(repository: str, file: str, reachable: bool | None = None) -> str | None:
    """Return why a file cannot be fetched, or `None` if it can.

    Args:
        repository: `owner/name` on the hub.
        file: Its path in the repository.
        reachable: Whether the hub answers, where that is known; `None` asks it.
    """
    if reachable is None:
        return storage.fetching.unreachable(repository, file)
    return None if reachable else "the hub does not answer"


def local(name: str, repository: str, file: str, revision: str | None = None) -> Path | None:
    """Return the path of a checkpoint on this machine, or `None`.

    Args:
        name: Of the model; a file in the folder of weights (`$TASKLAB_WEIGHTS`) has this name.
        repository, file: Place on the hub, whose cache is looked up next.
        revision: Commit of the repository; by default any.
    """
    if folder := os.environ.get(FOLDER):
        for own in dict.fromkeys((f"{name}.safetensors", name + Path(file).suffix)):
            if (placed := Path(folder).expanduser() / own).is_file():
                return placed
    return storage.fetching.cached(repository, file, revision)


class DamagedError(TasklabError):
    """A file of weights has changed since its checksum was taken."""


def compare(path: Path, expected: str, advice: str) -> None:
    """Check a file's SHA-256; a file is read once a process.

    Args:
        path: The weights.
        expected: Their checksum.
        advice: The remedy in the message.

    Raises:
        TasklabError: If the checksum differs.
    """
    if file_sha256(path) != expected:
        raise DamagedError(f"the weights {path} are not what they were (their checksum). {advice}")


def remember(path: Path, repository: str) -> None:
    """Compare a fetched file with the note of its first load, or write that note."""
    inside = [folder for folder in path.parents if folder.name == "snapshots"]
    commit = path.relative_to(inside[0]).parts[0] if inside else ""
    note = (inside[0].parent if inside else path.parent) / f"{path.name}{_NOTE}"
    sha256 = file_sha256(path)
    now = {"repository": repository, "commit": commit, "sha256": sha256}
    try:
        first = json.loads(note.read_text("utf-8"))
        if not re.fullmatch(r"[0-9a-f]{64}", first["sha256"]):
            raise ValueError
    except FileNotFoundError:
        try:
            atomic.write(note, json.dumps(now, indent=1))
        except OSError as error:
            _log.info("no note of %s is kept: %s", path, error.strerror)
        return
    except (OSError, ValueError, KeyError, TypeError):
        raise TasklabError(f"the note {note} of weights is damaged: remove it.") from None
    if first["sha256"] != sha256:
        raise TasklabError(
            f"the weights {path} are not those that were first loaded from {repository} "
            f"(commit {first.get('commit') or 'unknown'}, now {commit or 'unknown'}): fetch them "
            f"again if they are damaged, or remove {note} if they are to be others."
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name.

    A checkpoint of a training run, as open_clip writes it, has them under `state_dict` and with the
    prefix `module.`; both are removed.
    """
    if path.suffix not in {".pt", ".pth", ".bin"}:
        return read_tensors(path)
    try:
        tensors = storage.state_dicts.tensors(storage.torch_files.read(path))
    except TasklabError as error:
        raise TasklabError(f"{str(path)!r} is not a checkpoint of tensors: {error}") from error
    return {name.removeprefix("module."): x for name, x in tensors.items()}


def fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load a checkpoint into a model.

    Args:
        model: It is changed.
        tensors: Parameters and buffers by name.
        source: Name of the checkpoint, in the message.

    Raises:
        TasklabError: If names are missing or unexpected, or shapes differ.
    """
    own = model.state_dict()
    problems = []
    for what, names in (
        ("missing", [name for name in own if name not in tensors]),
        ("unexpected", [name for name in tensors if name not in own]),
        ("of another shape", [_both(n, own, tensors) for n in _misshapen(own, tensors)]),
    ):
        if names:
            problems.append(f"{len(names)} {what}: {abridged(names)}")
    if problems:
        raise TasklabError(
            f"the checkpoint {source} does not fit the model ({'; '.join(problems)})."
            f"{_of_another_size(own, tensors)} Choose the model that it belongs to, or another "
            "checkpoint."
        )
    model.load_state_dict(dict(tensors))


def _misshapen(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name in own if name in tensors and own[name].shape != tensors[name].shape]


def _both(name: str, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    theirs, ours = ("x".join(map(str, x[name].shape)) or "one number" for x in (tensors, own))
    return f"{name} {theirs} for {ours}"


def _of_another_size(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    wrong = _misshapen(own, tensors)
    if len(wrong) != 1 or not re.search(r"pos(itional)?_embed", wrong[0]):
        return ""
    counts = [x[wrong[0]].shape[-2] if x[wrong[0]].ndim > 1 else 0 for x in (tensors, own)]
    text = f" It has {counts[0]} positions, and the model {counts[1]}"
    kernels = [name for name in own if re.search(r"conv1\.|patch_embed\.proj\.", name)]
    patch = [own[name].shape[-1] for name in kernels if own[name].ndim == 4]
    sides = [math.isqrt(max(count - 1, 0)) for count in counts]
    square = all(side and side**2 + 1 == n for side, n in zip(sides, counts, strict=True))
    if not patch or not square:
        return f"{text}: it was made at another image size."
    theirs, ours = (f"{side * patch[0]} x {side * patch[0]}" for side in sides)
    return f"{text}: images of {theirs} pixels for {ours}."
