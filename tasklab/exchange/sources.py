"""Where a published checkpoint is: a file, a folder, or a repository on the hub."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors
from huggingface_hub import constants

from tasklab.errors import LONG_PATH, TasklabError, abridged, shown
from tasklab.exchange import naming
from tasklab.storage import fetching, shards
from tasklab.storage.tensors import safe_open

VECTOR_FILE = "task_vector.safetensors"  # as `tasklab export` writes it
HEAD_FILE = "head.safetensors"  # beside it, if a head was trained along
_SAVED = "tasklab task vector"  # what a file of `TaskVector.save` calls itself
_INDEX = shards.INDEX
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")  # `layouts` says what is wrong
FILES = (  # in a folder, first comes first: timm's repositories have both libraries' files
    VECTOR_FILE, "open_clip_model.safetensors", "open_clip_pytorch_model.bin",
    "model.safetensors", f"model.safetensors{_INDEX}", "pytorch_model.bin",
    f"pytorch_model.bin{_INDEX}", *ADAPTERS,
)  # fmt: skip
_SUFFIXES = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"}
_SETTINGS = "config.json"
_OPEN_CLIP = "open_clip_config.json"
_RUN = re.compile(r"(\d+)\D*$")  # a folder's number, as of `checkpoint-500`
_REPOSITORY = re.compile(r"(?!.*(--|\.\.))\w[\w.-]{0,95}/\w[\w.-]{0,95}(?<![.-])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def locate(path: Path | str) -> tuple[Path, Path | None]:
    """Return a checkpoint's file, fetched if it is on the hub, and its `config.json` if it has one.

    Of a checkpoint that is split over several files it is their index; see `parts`. The settings
    are the `config.json` of transformers or of an export, whatever the file is called, or the
    `open_clip_config.json`, which alone describes open_clip's own files.
    """
    try:
        return _locate(str(path))
    except (OSError, RuntimeError, ValueError) as error:  # no such user, too long, not readable
        what = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise TasklabError(f"{shown(str(path), LONG_PATH)} cannot be read: {what}.") from error


def parts(file: Path) -> list[Path]:
    """Return the files that a checkpoint consists of: those that its index names, or itself."""
    return shards.parts(file) if file.name.endswith(_INDEX) else [file]


def check_weights(file: Path) -> None:
    """Raise if a checkpoint holds adapters by the names in its header; no tensor is read.

    Files of `torch.save` have no header: only their names are looked at.
    """
    if file.name in ADAPTERS[1:]:
        raise TasklabError(f"{file}: {naming.refusal([file.name])}")
    for part in filter(is_safetensors, parts(file)):
        with contextlib.suppress(safetensors.SafetensorError):  # `read_tensors` says what is wrong
            with safe_open(part, "numpy") as opened:
                found = naming.adapters(opened.keys())
            if any("lora_" in name for name in found):
                raise TasklabError(f"{file}: {naming.refusal(found)}")


def is_safetensors(file: Path) -> bool:
    """Return whether a file begins as safetensors files do."""
    with file.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def header(file: Path) -> dict[str, str]:
    """Return the texts that a safetensors file has beside its tensors; none for other files."""
    if not is_safetensors(file):
        return {}
    try:
        with safe_open(file, "numpy") as opened:  # "pt" imports torch
            return opened.metadata() or {}
    except safetensors.SafetensorError:
        return {}  # `read_tensors` says what is wrong


def is_saved(header: Mapping[str, str]) -> bool:
    """Return whether a file is one of `TaskVector.save`, from the texts beside its tensors."""
    try:
        return json.loads(header["meta"])["format"] == _SAVED
    except (KeyError, ValueError, TypeError):
        return False


def _locate(text: str) -> tuple[Path, Path | None]:
    local = Path(text).expanduser()
    if not text.strip():
        raise TasklabError("a checkpoint is a file, a folder or a hub repository, not ''.")
    if _CONTROL.search(text):
        raise TasklabError(f"{shown(text)} has control characters in its name: rename it.")
    if local.is_dir():
        local = local / _in_folder(local)
    if local.is_file():
        if (match := shards.PATTERN.fullmatch(local.name)) and int(match[3]) > 1:
            raise TasklabError(
                f"{local} is one part of a checkpoint that is split over several files: give its "
                f"folder, which must have {match[1]}{match[4]}{_INDEX} as well."
            )
        beside = [local.parent / name for name in _describing(local.name)]
        return local, next((one for one in beside if one.is_file()), None)
    if os.path.lexists(local):
        raise TasklabError(f"{str(local)!r} is neither a file nor a folder, or a link to nothing.")
    if "://" in text:
        text = text.removeprefix(f"{constants.ENDPOINT}/").rstrip("/").removesuffix("/tree/main")
    if not _REPOSITORY.fullmatch(text):
        raise TasklabError(f"there is no checkpoint {text!r}.")
    return _fetch(text)


def _in_folder(folder: Path) -> str:
    there = sorted(one.name for one in folder.iterdir() if one.is_file())
    names = [name for name in FILES if name in there]
    if names:
        return names[0]
    usual = ", ".join(name for name in FILES if not name.endswith((_INDEX, *ADAPTERS)))
    others = [name for name in there if Path(name).suffix in _SUFFIXES]
    hint = f" It has {abridged(others)}: name one." if others else ""
    if inner := _runs(folder):
        hint += f" Its folders have checkpoints: {abridged(inner)}. Give one of them."
    if (folder / ".metadata").is_file() or any(name.endswith(".distcp") for name in there):
        hint += " It is a checkpoint of torch.distributed: make one file of it (dcp_to_torch_save)."
    if "zero_to_fp32.py" in there:
        hint += " It is a checkpoint of DeepSpeed: its zero_to_fp32.py makes a state dict of it."
    if not hint and (inside := sorted(x.name + "/" * x.is_dir() for x in folder.iterdir())):
        hint = f" It has {abridged(inside)}: give the file of weights."
    raise TasklabError(f"the folder {folder} has none of {usual}.{hint}")


def _runs(folder: Path) -> list[str]:
    """Return the folders with checkpoints in a folder, the newest of a training run first."""
    found = [
        f"{inner.name}/{name}" if name not in FILES else inner.name
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
        for name in sorted(one.name for one in inner.iterdir() if one.is_file())
        if name in FILES or Path(name).suffix in _SUFFIXES - {".bin", ".pt", ".pth"}
    ]

    def number(name: str) -> int:
        match = _RUN.search(name.partition("/")[0])
        return int(match[1]) if match else -1

    return sorted(dict.fromkeys(found), key=number, reverse=True)


def _describing(name: str) -> tuple[str, ...]:
    """Return the names of settings that describe a file; the first existing one counts."""
    return (_OPEN_CLIP,) if name.startswith("open_clip_") else (_SETTINGS, _OPEN_CLIP)


def _fetch(repository: str) -> tuple[Path, Path | None]:
    for name in FILES:
        if (found := fetching.cached(repository, name)) is not None:
            known = (fetching.cached(repository, one) for one in _describing(name))
            return found, next((one for one in known if one is not None), None)
    problem: str | None = None
    for name in FILES:
        try:
            file = fetching.fetch(repository, name)
            for part in shards.named(file) if name.endswith(_INDEX) else ():
                fetching.fetch(repository, part)
            with contextlib.suppress(TasklabError):  # it is only a further check
                return file, fetching.fetch(repository, _describing(name)[0])
            return file, None
        except fetching.UnreachableError as error:
            problem = error.problem
            if error.code != 404:
                break  # no network: the next file would not be had either
    raise TasklabError(
        f"there is no file {repository!r} here, and the hub repository of that name could not be "
        f"fetched ({problem}). With a network, `hf download {repository}` fetches it; without one, "
        "copy its folder here and give the folder's path."
    )
