"""Files and folders that are there whole or not at all, also after a power cut.

    with replacing(path) as draft:      a file, written by whatever wants a path
        save_file(tensors, draft)
    write(path, text)                   a file of text or bytes
    with folder(path) as draft: ...     a folder
    with room(parent, ".merge") as place: ...   a folder that is there only meanwhile

What is written is called `.NAME.*.partial` until it is on the disk; then it is renamed. The name
has the number of the process, so that the next writer of the file removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import platform
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import filelock

from tasklab.errors import TasklabError, shown

PARTIAL = ".partial"  # ends the names of drafts
_FORMATS = """
.safetensors .pt .pth .bin .ckpt .pkl .npz .npy .h5 .onnx .gguf .html .csv .json .md .txt .pdf .png
.svg .xz .gz .zip .parquet .xlsx""".split()


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield the path of a draft; what the block has written there becomes the file `path`.

    If the block raises, the draft is removed and the file stays as it was.

    Of a link, what it leads to is replaced. Drafts that killed processes of this machine left are
    removed first.
    """
    with _draft(path) as (draft, place):
        yield draft
        publish(draft, place)


@contextlib.contextmanager
def folder(path: Path | str, *, order: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield a new folder; with all that the block has put there it becomes the folder `path`.

    A folder that is there already must be empty, or else `order` names files: those that the block
    has written replace the folder's one by one in this order, and all others stay.

    Raises:
        OSError: `ENOTEMPTY` or `EEXIST` if another process was first.
    """
    with _draft(path) as (draft, place):
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        yield draft
        if order is None or not place.exists():
            publish(draft, place)
            return
        for file in (draft / name for name in order if (draft / name).exists()):
            publish(file, place / file.name)


def write(path: Path | str, content: str | bytes) -> None:
    """Write text (in UTF-8) or bytes to a file, replacing it."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def publish(draft: Path, path: Path) -> None:
    """Rename a draft, a file or folder, when all of it is on the disk.

    A file of the new name is replaced, a folder only if it is empty.
    """
    for part in (*draft.rglob("*"), draft):  # a file has nothing in it
        flush(part)
    if draft.is_dir():
        draft.rename(path)
    else:
        draft.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def alone(lock: Path, waiting: Callable[[], None], *, thread_local: bool = True) -> Iterator[None]:
    """Acquire a lock for a block; `waiting` is called once if that takes more than a second.

    If it is `thread_local`, only the thread that acquired it can release it.
    """
    held = filelock.FileLock(lock, thread_local=thread_local)
    try:
        held.acquire(timeout=1)
    except filelock.Timeout:
        waiting()
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def tried(lock: Path) -> Iterator[bool]:
    """Yield whether a lock is free; if so, it is held in the block."""
    held = filelock.FileLock(lock)
    with contextlib.suppress(filelock.Timeout):
        held.acquire(timeout=0)
    try:
        yield held.is_locked
    finally:
        held.release()


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed processes left in a folder: rooms of a name, or else drafts.

    Drafts that grew for the last hour no more go, too.
    """
    for left in folder.glob(f"{glob.escape(name)}.*" if name else f".*{PARTIAL}"):
        with contextlib.suppress(OSError):  # another process has just removed it
            if is_left(left) or (not name and age(left) > 3600):
                remove(left)


@contextlib.contextmanager
def room(parent: Path, name: str, files: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a new working folder in a folder; what killed processes left is removed first.

    That is their rooms of this name, and drafts beside the `files` that are written meanwhile.
    """
    sweep(parent, name)
    for folder in {file.parent for file in files}:
        sweep(folder)
    place = parent / f"{name}.{_mark()}"
    try:
        place.mkdir(mode=0o700)
        yield place
    finally:
        remove(place)


def age(path: Path) -> float:
    """Return the seconds since a file, or anything in a folder, was last written."""
    return time.time() - max(one.lstat().st_mtime for one in (path, *path.rglob("*")))


def is_left(draft: Path) -> bool:
    """Return whether the process that wrote a draft ran on this machine, and is no more."""
    if (found := re.search(rf"\.{_machine()}-(\d+)-", draft.name)) and os.name != "nt":
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            return True
        except OSError:  # another user's
            return False
    return False


@functools.cache
def _machine() -> str:
    """Return a name for where processes have the numbers that they have here."""
    space = ""
    with contextlib.suppress(OSError):  # not Linux
        space = os.readlink("/proc/self/ns/pid")  # a container has numbers of its own
    return f"{zlib.crc32(f'{platform.node()} {space}'.encode()):08x}"


def _mark() -> str:
    return f"{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def check_ordinary(path: Path) -> None:
    """Raise for a device, pipe or socket: `/dev/null` would become a file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise TasklabError(f"{path} is a device or a pipe, and no file: choose another name.")


def check_suffix(option: str, path: Path, suffix: str) -> None:
    """Raise for a name of another format than is written; one of no format is taken."""
    if path.suffix.lower() in set(_FORMATS) - {suffix}:
        raise TasklabError(
            f"{option} is a {suffix} file, which {shown(path.name)} does not say: "
            f"call it {shown(path.stem + suffix)}."
        )


@contextlib.contextmanager
def _draft(path: Path | str) -> Iterator[tuple[Path, Path]]:
    """Yield the path of a draft and that of what it is of; remove what is left of it."""
    place = Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
    check_ordinary(place)
    draft = place.with_name(f".{place.name}.{_mark()}{PARTIAL}")
    try:
        for stale in place.parent.glob(f".{glob.escape(place.name)}.*{PARTIAL}"):
            if is_left(stale):
                remove(stale)
        yield draft, place
    finally:
        remove(draft)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # an error before this one is the one to show
            path.unlink(missing_ok=True)
