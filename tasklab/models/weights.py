"""Pre-trained weights: where they are on this machine, how to get them, and whether they fit.

Files are safetensors, or checkpoints of PyTorch (`.pt`, `.pth`, `.bin`), of which tensors are read
and nothing is executed (`torchfiles`).
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError, some
from tasklab.storage import hub

if TYPE_CHECKING:  # where a file is can be told without torch
    from torch import Tensor, nn

FILE = "open_clip_model.safetensors"
FOLDER = "TASKLAB_WEIGHTS"  # environment variable: a folder of <model>.safetensors
PATIENCE = 2.5  # seconds to wait for an answer of the hub; its own client retries far longer


def find(
    name: str,
    repository: str,
    path: Path | str | None = None,
    *,
    file: str = FILE,
    fetch: bool = True,
) -> Path | None:
    """Return the checkpoint of a model, fetched if it is not on this machine.

    Args:
        name: Short name of the model.
        repository: Of the weights on the Hugging Face hub, `owner/name`.
        path: A file given by the user; nothing else is then looked for.
        file: Its name in the repository.
        fetch: Whether to fetch it now; if not, and it can be fetched, the answer is `None`.

    Raises:
        TasklabError: If there is none and it cannot be fetched.
    """
    if path is not None:
        path = Path(path).expanduser()
        if not path.is_file():
            raise TasklabError(f"there is no weights file {str(path)!r} for model {name!r}.")
        return path
    from huggingface_hub import hf_hub_download

    if found := local(name, repository, file):
        return found
    problem = unreachable(repository, file)
    if problem is None and not fetch:
        return None
    if problem is None:
        try:
            return Path(hf_hub_download(repository, file))
        except Exception as error:  # the client's errors have no common base
            problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    folder, own = os.environ.get(FOLDER), name + Path(file).suffix
    placed = Path(folder).expanduser() / own if folder else f"{own}, {FOLDER} set to its folder"
    raise TasklabError(
        f"the pre-trained weights of model {name!r} are not on this machine and could not be "
        f"fetched ({problem}). With a network, `hf download {repository} {file}` fetches them; "
        f"without one, put that file here as {placed}. init='random' runs without."
    )


def local(name: str, repository: str, file: str) -> Path | None:
    """Return the checkpoint if it is on this machine: in the folder of weights, or the hub's cache.

    Args:
        name: Short name of the model.
        repository: Of the weights on the hub.
        file: Its name in the repository.
    """
    from huggingface_hub import try_to_load_from_cache

    if folder := os.environ.get(FOLDER):
        for own in dict.fromkeys((f"{name}.safetensors", name + Path(file).suffix)):
            if (placed := Path(folder).expanduser() / own).is_file():
                return placed
    cached = try_to_load_from_cache(repository, file)
    return Path(cached) if isinstance(cached, str) else None


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name.

    A checkpoint of a training run, as open_clip writes it, has them under `state_dict` and with
    the prefix `module.`; both are taken off.

    Raises:
        TasklabError: If the file is damaged, or holds other things than tensors by name.
    """
    from tasklab.storage import torch_files
    from tasklab.storage.store import read_tensors

    if path.suffix not in {".pt", ".pth", ".bin"}:
        return read_tensors(path)
    try:
        found = torch_files.tensors(torch_files.read(path))
    except TasklabError as error:
        raise TasklabError(f"{str(path)!r} is not a checkpoint of tensors: {error}") from error
    return {name.removeprefix("module."): x for name, x in found.items()}


def fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load a checkpoint into a model, whose names and shapes it must have exactly.

    Raises:
        TasklabError: If a parameter is missing, unexpected or of another shape; it names them.
    """
    own = model.state_dict()
    problems = []
    for what, names in (
        ("missing", [name for name in own if name not in tensors]),
        ("unexpected", [name for name in tensors if name not in own]),
        (
            "of another shape",
            [n for n in own if n in tensors and own[n].shape != tensors[n].shape],
        ),
    ):
        if names:
            problems.append(f"{len(names)} {what}: {some(names)}")
    if problems:
        raise TasklabError(
            f"the checkpoint {source} does not fit the model ({'; '.join(problems)}). "
            "It was made for another architecture: choose the model it belongs to."
        )
    model.load_state_dict(dict(tensors))


def unreachable(repository: str, file: str) -> str | None:
    """Return why the hub cannot be asked for the file, or `None` if it answers."""
    from huggingface_hub import hf_hub_url

    request = urllib.request.Request(hf_hub_url(repository, file), method="HEAD")
    return hub.unreachable(request, PATIENCE)
