"""The folder that all machines of a grid share, and the store whose lost locks can be broken.

While work is going on, the store has a folder of its own:

    STORE/tmp/grid-<id>/token   written at the start; a machine that sees it shares the store
                       /lock    held by the leading process alone
                       /<attempt>.lost
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import filelock

from tasklab.storage import atomic
from tasklab.storage.store import Store
from tasklab.storage.tensors import explained

_log = logging.getLogger(__name__)
_POLL = 1.0  # seconds
_CUT_OFF = 120.0  # seconds


@contextlib.contextmanager
def shared_folder(root: Path) -> Iterator[Path]:
    """Yield the folder of a grid in the store, with its token and its lock held."""
    folder = Path(root) / "tmp" / f"grid-{uuid.uuid4().hex[:12]}"
    try:
        with explained(Path(root)):
            folder.mkdir(parents=True)
            (folder / "token").write_text(folder.name)
        with filelock.FileLock(folder / "lock"):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sees_store(folder: Path) -> tuple[bool, bool]:
    """Return whether the folder is seen here, and whether its lock could be had, as it must not."""
    with contextlib.suppress(OSError):
        if (folder / "token").read_text() == folder.name:
            try:
                with atomic.tried(folder / "lock") as free:
                    return True, free
            except (OSError, NotImplementedError):  # filelock's, of a disk that has no locks
                return True, True
    return False, False


class ClaimedStore(Store):
    """A store whose locks say which attempt holds them, so that a lost one's can be broken.

    A server of a network disk may keep the lock of a machine that died: until its lease ends (NFS
    4), or for ever (NFS 3). Where Ray lost the attempt that holds a lock, the lock is taken from it
    after `patience` seconds, in which a machine that was only cut off has stopped by itself.

    Args:
        folder: Folder of the run within the store, where attempts are noted.
        attempt: Name of this attempt.
        patience: Seconds before a lost attempt's lock is broken.
    """

    def __init__(self, folder: Path, attempt: str, patience: float = _CUT_OFF) -> None:
        super().__init__(folder.parents[1])
        self.folder, self.attempt, self.patience = folder, attempt, patience

    @contextlib.contextmanager
    def _lock(self, kind: str, key: str) -> Iterator[None]:
        file = self.root / "locks" / f"{kind}-{key}.lock"
        owner = file.with_suffix(".owner")
        with explained(self.root):
            file.parent.mkdir(parents=True, exist_ok=True)
            while True:
                lock, lost = filelock.FileLock(file), self._lost(owner)
                try:
                    lock.acquire(timeout=max(self.patience, _POLL) if lost else _POLL)
                    break
                except filelock.Timeout:
                    if lost and self._lost(owner):
                        _log.warning("%s is taken from a lost attempt", file)
                        file.unlink(missing_ok=True)  # the next lock is on another file
            owner.write_text(f"{self.folder.name}/{self.attempt}")
        try:
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    def _lost(self, owner: Path) -> bool:
        """Return whether Ray lost the attempt that holds a lock, or its grid has ended."""
        try:
            grid, _, attempt = owner.read_text().partition("/")
        except OSError:
            return False  # not one of a grid's
        folder = self.root / "tmp" / grid
        return bool(attempt) and (not folder.is_dir() or (folder / f"{attempt}.lost").exists())
