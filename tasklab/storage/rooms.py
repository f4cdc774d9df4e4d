"""Working folders beside what is written, which the next one removes if their process was killed.

    with room(folder, ".merge-", [folder / "merged.safetensors"]) as place: ...

A room has a lock that its process holds as long as it lives, and a list of the files that are
written meanwhile. One whose lock is free goes, with the drafts of its files that nobody writes.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import filelock

from tasklab.storage import atomic

_LOCK, _FILES = ".lock", ".files.json"
_NEW, _GONE = ".new", ".gone"  # before the name of a room that is made, or removed
_OLD = 3600  # seconds after which a room without a lock counts as left: older versions made such


@contextlib.contextmanager
def room(parent: Path, prefix: str, files: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a new folder in a folder; what killed processes left there is removed first.

    The files are what is written while it is there, beside it or elsewhere.
    """
    sweep(parent, prefix)
    listed = json.dumps([str(file.absolute()) for file in files])
    with contextlib.ExitStack() as stack:
        while (place := _made(parent, prefix, listed, stack)) is None:
            pass
        yield place


def _made(parent: Path, prefix: str, listed: str, stack: contextlib.ExitStack) -> Path | None:
    """Return a new room, or `None` if a sweep took it for a dead one's before its lock was held."""
    place = parent / f"{prefix}{uuid.uuid4().hex[:8]}"
    draft = place.with_name(f"{_NEW}{place.name}")  # no room before its lock is held
    lock = filelock.FileLock(draft / _LOCK)
    stack.callback(lock.release)
    for one in (draft, place):
        stack.callback(_remove, one)
    draft.mkdir(mode=0o700)
    with contextlib.suppress(FileNotFoundError, filelock.Timeout):
        lock.acquire(timeout=0)
        (draft / _FILES).write_text(listed, "utf-8")
        return draft.rename(place)
    return None


def sweep(parent: Path, prefix: str) -> list[Path]:
    """Remove rooms that no living process has, with the drafts of their files; return all of it."""
    left, busy = {}, set()
    patterns = (f"{before}{glob.escape(prefix)}*" for before in ("", _NEW, _GONE))
    for place in itertools.chain.from_iterable(map(parent.glob, patterns)):
        if place.is_dir() and not place.is_symlink():
            files = _files_of(place)
            if place.name.startswith(_GONE) or _is_left(place):
                left[place] = files
            else:
                busy |= files
    removed = []
    for place, files in left.items():
        written = map(Path, files - busy)
        named = ((one.parent, f".{glob.escape(one.name)}.*{atomic.PARTIAL}") for one in written)
        drafts = [draft for folder, pattern in named for draft in folder.glob(pattern)]
        for draft in drafts:
            atomic.remove(draft)
        _remove(place)
        removed += [*drafts, place]
    return removed


def _remove(place: Path) -> None:
    """Remove a room, which is none from the first moment on: a kill leaves no room without lock."""
    gone = place.with_name(f"{_GONE}{place.name.removeprefix(_GONE).removeprefix(_NEW)}")
    with contextlib.suppress(OSError):  # another process has just removed it
        shutil.rmtree(place.rename(gone), ignore_errors=True)


def _files_of(place: Path) -> set[str]:
    try:
        return {str(file) for file in json.loads((place / _FILES).read_text("utf-8"))}
    except (OSError, ValueError, TypeError):
        return set()


def _is_left(place: Path) -> bool:
    with contextlib.suppress(OSError):  # removed meanwhile
        if not (place / _LOCK).is_file():
            old = time.time() - place.stat().st_mtime > _OLD
            return old or place.name.startswith(_NEW)
        with atomic.tried(place / _LOCK) as free:
            return free
    return False
