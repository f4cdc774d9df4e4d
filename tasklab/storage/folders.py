"""Folders of results and of drawn or decoded images."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from tasklab import errors

STORE, DATA = "TASKLAB_STORE", "TASKLAB_DATA"  # environment variables


def store(root: Path | str | None = None) -> Path:
    """Return the folder of results: `root`, or `$TASKLAB_STORE`, or one in the user's cache."""
    return _folder("store_root", root, STORE, "store")


def data(root: Path | str | None = None) -> Path:
    """Return the folder of images that were drawn or decoded: `root`, or `$TASKLAB_DATA`, or one in
    the user's cache.
    """  # noqa: D205
    return _folder("cache", root, DATA, "data")


def _folder(name: str, given: Path | str | None, variable: str, own: str) -> Path:
    if given is None and (setting := os.environ.get(variable)):
        name, given = variable, setting
    if given is None:
        return platformdirs.user_cache_path("tasklab") / own
    return errors.path(name, given).absolute()


def check_working() -> None:
    """Check that the process's working folder exists: libraries ask for it when imported.

    Raises:
        TasklabError: It was removed.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        text = "the working folder was removed: change to one that is there."
        raise errors.TasklabError(text) from None
