"""Disks and the size of folders."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Disk:
    """A folder and the disk that it is on, or would be on; sizes in bytes."""

    path: str
    free: int
    total: int
    writable: bool
    used: int | None = None  # what the folder holds, if it was counted
    whole: bool = True  # all of it was counted in the time there was


def disk(path: Path, seconds: float = 0) -> Disk:
    """Describe a folder and its disk.

    Args:
        seconds: Time limit for counting its bytes; 0 does not count.
    """
    path = Path(path).expanduser().absolute()
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    space = shutil.disk_usage(there)
    writable = os.access(there, os.W_OK | os.X_OK) and not (path.exists() and not path.is_dir())
    used, whole = size(path, seconds) if seconds else (None, True)
    return Disk(str(path), space.free, space.total, writable, used, whole)


def size(path: Path, seconds: float) -> tuple[int, bool]:
    """Return the bytes of the files in a folder, and whether time sufficed to count all."""
    until, total, waiting = time.monotonic() + seconds, 0, [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if time.monotonic() > until:
                        return total, False
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # removed meanwhile, or not ours to read
            continue
    return total, True
