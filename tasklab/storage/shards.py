"""Weights that are split over several files: which files a folder's network consists of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError, abridged

INDEX = ".index.json"  # ends the name of what names the files of a large checkpoint
PATTERN = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_PART = re.compile(r"\w[\w.-]*")
_MOST_TEXT = 16 << 20  # bytes of a file of settings or of an index


def settings_in(file: Path) -> Any:
    """Return the content of a file of JSON; one that is none, or too long, is a `ValueError`."""
    if file.stat().st_size > _MOST_TEXT:
        raise ValueError(f"{file.name} is longer than {_MOST_TEXT >> 20} MB")
    try:
        return json.loads(file.read_text("utf-8-sig"))  # Windows' editors write a mark first
    except RecursionError:
        raise ValueError(f"{file.name} is nested too deeply") from None


def named(index: Path) -> list[str]:
    """Return the names of the files that an index names: plain ones, in the index's folder."""
    try:
        names = sorted(set(settings_in(index)["weight_map"].values()))
        if names and all(_PART.fullmatch(name) for name in names):
            return names
    except (ValueError, LookupError, AttributeError, TypeError):
        pass
    raise TasklabError(f"{index} does not say which files it is the index of: fetch it again.")


def parts(index: Path) -> list[Path]:
    """Return the files that an index names, or raise if one is not beside it."""
    files = [index.parent / name for name in named(index)]
    if missing := [one.name for one in files if not one.is_file()]:
        raise TasklabError(
            f"{index} names {len(files)} files, of which {len(missing)} are not beside it: "
            f"{abridged(missing)}. Fetch it again."
        )
    return files


def in_folder(folder: Path) -> list[Path]:
    """Return the files of safetensors that a folder's network consists of.

    They are those that its index names, or without one all but hidden files.

    Raises:
        TasklabError: If a part of several is not there, or there are several indexes.
    """
    files = sorted(one for one in folder.glob("*.safetensors") if one.name[0] != ".")
    indexes = sorted(one for one in folder.glob(f"*.safetensors{INDEX}") if one.name[0] != ".")
    if len(indexes) > 1:
        raise TasklabError(
            f"{str(folder)!r} has {len(indexes)} indexes, {abridged(x.name for x in indexes)}: "
            "give a folder with one of them and its files."
        )
    if indexes and folder / indexes[0].name.removesuffix(INDEX) not in files:
        return parts(indexes[0])
    _check_numbers(folder, files)
    return files


def _check_numbers(folder: Path, files: Iterable[Path]) -> None:
    there = {one.name for one in files}
    for name in sorted(there):
        if match := PATTERN.fullmatch(name):
            count = int(match[3])
            wanted = [f"{match[1]}-{i:05}-of-{match[3]}{match[4]}" for i in range(1, count + 1)]
            if missing := [one for one in wanted if one not in there]:
                raise TasklabError(
                    f"{str(folder)!r} has {count - len(missing)} of {count} parts of a network, "
                    f"without {abridged(missing)}: fetch it again."
                )
