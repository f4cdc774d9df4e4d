"""Where a published checkpoint is: a file, a folder, or a repository on the hub."""

from __future__ import annotations

import re
from pathlib import Path

import safetensors

from tasklab import weights
from tasklab.errors import TasklabError

VECTOR_FILE = "task_vector.safetensors"  # as `tasklab export` writes it
_FILES = (VECTOR_FILE, "model.safetensors", "pytorch_model.bin")  # in a folder, first comes first
_SETTINGS = "config.json"
_REPOSITORY = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/\w[\w.-]*(?<![.-])")


def locate(path: Path | str) -> tuple[Path, Path | None]:
    """Return a checkpoint's file, fetched if it is on the hub, and its `config.json` if it has one.

    Raises:
        TasklabError: If there is no such file, or it cannot be fetched (within five seconds).
    """
    local = Path(path).expanduser()
    if local.is_dir():
        names = [name for name in _FILES if (local / name).is_file()]
        if not names:
            raise TasklabError(f"the folder {local} has none of {', '.join(_FILES)}.")
        local = local / names[0]
    if local.is_file():
        beside = local.parent / _SETTINGS
        own = local.name in _FILES[1:] and beside.is_file()
        return local, beside if own else None
    if not _REPOSITORY.fullmatch(str(path)):
        raise TasklabError(f"there is no checkpoint {str(path)!r}.")
    return _fetch(str(path))


def is_safetensors(file: Path) -> bool:
    """Return whether a file begins as safetensors files do."""
    with file.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def header(file: Path) -> dict[str, str]:
    """Return the texts that a safetensors file has beside its tensors; none for other files."""
    if not is_safetensors(file):
        return {}
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            return opened.metadata() or {}
    except safetensors.SafetensorError:
        return {}  # `read_tensors` says what is wrong


def _fetch(repository: str) -> tuple[Path, Path | None]:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    problem = ""
    for name in _FILES:
        cached = try_to_load_from_cache(repository, name)
        if isinstance(cached, str):
            settings = try_to_load_from_cache(repository, _SETTINGS)
            return Path(cached), Path(settings) if isinstance(settings, str) else None
    for name in _FILES:
        problem = weights.unreachable(repository, name)
        if problem is None:
            try:
                file = Path(hf_hub_download(repository, name))
                return file, _settings_of(repository)
            except Exception as error:  # the client's errors have no common base
                problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if not problem.startswith("HTTPError: HTTP Error 404"):
            break  # no network: the next file would not be had either
    raise TasklabError(
        f"there is no file {repository!r} here, and the hub repository of that name could not be "
        f"fetched ({problem}). With a network, `hf download {repository}` fetches it; without one, "
        "copy its folder here and give the folder's path."
    )


def _settings_of(repository: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, _SETTINGS))
    except Exception:  # it is only a further check
        return None
