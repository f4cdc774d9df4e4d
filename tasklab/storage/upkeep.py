"""Upkeep of a store: damaged artifacts, unused ones, and use of space.

Nothing that a living process holds is touched: who writes an artifact holds the lock of its key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path

from tasklab.machine import size as bytes_in
from tasklab.progress import track
from tasklab.storage import atomic, folders
from tasklab.storage.store import RESERVED, Store
from tasklab.storage.tensors import explained

_HEX, _KIND = "[0-9a-f]", "[a-z][a-z0-9_-]*"
_OWN = rf"{_KIND}-{_HEX}{{20}}"  # begins the names that a store gives in its own folders
_DRAFT = rf"{_OWN}(-discarded|-{_HEX}{{8}}|\.{_HEX}{{8}}-\d+-{_HEX}{{8}})"
_DAY = 86_400.0  # seconds
DAYS = 7.0  # after which a computation that was not gone on with counts as given up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file or folder that can be removed."""

    path: Path
    why: str
    size: int  # bytes


def verify(store: Store, *, progress: bool = True) -> tuple[int, dict[Path, str]]:
    """Count the artifacts, and return the damaged ones, each with its first damaged file.

    A damaged artifact stays in place: the store sets it aside at the next access.
    """
    kinds = [path for path in _folders(store.root) if path.name not in RESERVED]
    paths = [path for kind in kinds for path in _entries(kind)]
    steps = track(paths, len(paths), "verifying", unit="artifact", on=progress)
    damaged = {path: store.damage(path.parent.name, path.name) for path in steps}
    return len(paths), {path: what for path, what in damaged.items() if what}


def leftovers(store: Store, *, days: float = DAYS) -> Iterator[Leftover]:
    """Yield removable entries, each locked while yielded.

    These are drafts of killed writers, also of images and pre-trained models, artifacts set aside
    as damaged, checkpoints of runs that are finished or idle for so many days, and locks. All have
    names that this program gives: other files in these folders stay.
    """
    for path in _entries(store.root / "damaged", rf"{_OWN}-{_HEX}{{8}}"):
        yield _leftover(path, "set aside as damaged")
    for path in _entries(store.root / "tmp", _DRAFT):
        with _held(_lock(store, re.findall(_OWN, path.name)[0])) as free:
            if free and (not atomic.is_marked(path) or atomic.is_left(path, rest=_DAY)):
                yield _leftover(path, "of a process that was killed")
    for path in (
        one
        for kind in _folders(store.root / "partial", _KIND)
        for one in _folders(kind, rf"{_HEX}{{20}}")
    ):
        kind, key = path.parent.name, path.name
        with _held(_lock(store, f"{kind}-{key}")) as free:
            if free and (store.root / kind / key).is_dir():
                yield _leftover(path, "checkpoints of what is finished")
            elif free and atomic.age(path) > _DAY * days:
                yield _leftover(path, f"not gone on with for {days:g} days")
    for path in _drafts(folders.data()):
        if atomic.is_left(path, rest=_DAY):
            yield _leftover(path, "a draft of a process that was killed")
    for task in _folders(folders.data() / "pictures"):
        for work in _folders(task, rf"\w+-[a-z]+\d+-{_HEX}{{12}}\{atomic.PARTIAL}"):
            with _held(work.with_suffix(".lock")) as free:
                if free and atomic.age(work) > _DAY * days:
                    yield _leftover(work, f"a decoding, not gone on with for {days:g} days")
    for path in _entries(store.root / "locks", rf"{_OWN}\.(lock|owner)"):
        with _held(path.with_suffix(".lock")) as free:
            if free:
                yield _leftover(path, "a lock that nobody holds")


def collect(store: Store, *, days: float = DAYS, dry_run: bool = False) -> list[Leftover]:
    """Remove leftovers of a store, and return them (`leftovers`).

    Args:
        store: The store.
        days: Age from which unfinished work counts as left over.
        dry_run: Whether to remove nothing.
    """
    removed = []
    for one in leftovers(store, days=days):
        if not dry_run:
            atomic.remove(one.path)
        removed.append(one)
    return removed


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Return the entries of each folder in a folder, and their bytes, largest first."""
    counted = {}
    for path in _entries(root):
        counted[path.name] = len(_entries(path)) if path.is_dir() else 1, _size(path)
    return dict(sorted(counted.items(), key=lambda item: -item[1][1]))


def _drafts(root: Path) -> Iterator[Path]:
    for path in _entries(root):
        if path.name.startswith(".") and atomic.is_marked(path):
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _drafts(path)


def _entries(folder: Path, name: str = ".*") -> list[Path]:
    """List the entries of a folder whose names match a pattern of this program's."""
    with explained(folder, "read"), contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if re.fullmatch(name, path.name, re.DOTALL))
    return []


def _folders(folder: Path, name: str = ".*") -> list[Path]:
    return [path for path in _entries(folder, name) if path.is_dir() and not path.is_symlink()]


def _size(path: Path) -> int:
    return bytes_in(path, math.inf)[0] if path.is_dir() else path.lstat().st_size


def _lock(store: Store, name: str) -> Path:
    return store.root / "locks" / f"{name}.lock"


@contextlib.contextmanager
def _held(file: Path) -> Iterator[bool]:
    if not file.is_file():  # whoever works has made it before
        yield True
        return
    with contextlib.ExitStack() as stack, explained(file.parent):
        try:
            free = stack.enter_context(atomic.tried(file))
        except (OSError, NotImplementedError) as error:
            if not atomic.is_refused(error):
                raise
            free = False  # without locks nobody knows
        yield free


def _leftover(path: Path, why: str) -> Leftover:
    return Leftover(path=path, why=why, size=_size(path))
