"""Files and folders that are written as a whole or not at all, even after a power cut.

    with replacing(path) as draft:      a file, written by whatever wants a path
        save_file(tensors, draft)
    write(path, text)                   a file of text or bytes
    with folder(path) as draft: ...     a folder
    with room(parent, ".merge") as place: ...   a folder that is there only meanwhile

A draft is called `.NAME.MARK.partial` until it is on the disk; then it is renamed. The mark has the
machine and the process number, by which the next writer of the file removes drafts of killed
processes. Names without a full mark belong to others and are never removed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import logging
import math
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
_MARKED = re.compile(r"\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}((?:\.partial)*)")  # ends own names
_REFUSED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_log = logging.getLogger(__name__)
_FORMATS = """
.safetensors .pt .pth .bin .ckpt .pkl .npz .npy .h5 .onnx .gguf .html .csv .json .md .txt .pdf .png
.svg .xz .gz .zip .parquet .xlsx""".split()


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield the path of a draft, which becomes the file `path` at the end of the block.

    If the block raises, the draft is removed and the file stays as it was.

    Of a link, its target is replaced. Drafts that killed processes of this machine left are
    removed first.
    """
    with _draft(path) as (draft, place):
        yield draft
        publish(draft, place)


@contextlib.contextmanager
def folder(path: Path | str, *, order: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield a new folder, which becomes the folder `path` at the end of the block.

    An existing folder must be empty unless `order` names files: of these, the ones that the block
    has written replace the folder's one by one in this order, and all other files stay.

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
        fill(draft, content)


def fill(draft: Path, content: str | bytes) -> None:
    """Write text (in UTF-8) or bytes to a draft."""
    # names of files that the locale cannot read are in a text as their bytes were
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    draft.write_bytes(content)


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
    """Wait until a file, or a folder's list of files, is on the disk, where systems report it."""
    folder = path.is_dir()
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        if folder:  # some network disks open none
            return
        raise
    try:
        sync(number, folder=folder)
    finally:
        os.close(number)


def sync(number: int, *, folder: bool = False) -> None:
    """Wait until an open file is on the disk; some network disks refuse that, most for folders."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _REFUSED | ({errno.EACCES, errno.EPERM} if folder else set()):
            raise


@contextlib.contextmanager
def alone(
    lock: Path, waiting: Callable[[], None], *, patience: float | None = None
) -> Iterator[None]:
    """Run a block under a lock; without one, after a warning, on a disk that has no locks.

    Args:
        lock: Its file.
        waiting: Called once if another process holds the lock for more than a second.
        patience: Seconds after which the block runs without the lock; `None` waits for it.
    """
    held = filelock.FileLock(lock, thread_local=False)  # another thread may release it
    try:
        try:
            held.acquire(timeout=1)
        except filelock.Timeout:
            waiting()
            with contextlib.suppress(filelock.Timeout):
                held.acquire(timeout=-1 if patience is None else patience)
    except (OSError, NotImplementedError) as error:
        if not is_refused(error):
            raise
        _warn_of_no_locks(lock.parent)
    try:
        yield
    finally:
        held.release()


@functools.cache
def _warn_of_no_locks(folder: Path) -> None:
    _log.warning(
        "the disk of %s has no locks: processes that work here at once may compute the same results"
        " twice. Set TASKLAB_STORE and TASKLAB_DATA to folders on another disk to avoid that",
        folder,
    )


def is_refused(error: BaseException) -> bool:
    """Return whether an error means that a file system lacks a feature: locks, flushes."""
    return isinstance(error, NotImplementedError) or getattr(error, "errno", None) in _REFUSED


@contextlib.contextmanager
def tried(lock: Path) -> Iterator[bool]:
    """Yield whether a lock is free; if so, it is held in the block.

    Raises:
        OSError: If the disk has no locks (`is_refused`).
    """
    held = filelock.FileLock(lock)
    with contextlib.suppress(filelock.Timeout):
        held.acquire(timeout=0)
    try:
        yield held.is_locked
    finally:
        held.release()


def sweep(folder: Path, name: str = "") -> None:
    """Remove remains of this machine's killed processes in a folder: rooms of a name, or drafts."""
    for left in folder.glob(f"{glob.escape(name)}.*" if name else f".*{PARTIAL}"):
        if is_left(left):
            remove(left)


@contextlib.contextmanager
def room(parent: Path, name: str, files: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a new working folder, which is removed at the end.

    Remains of killed processes are removed first: folders of this name, and drafts beside `files`.

    Args:
        parent: Folder that it is made in.
        name: Of the folder, before a mark of the process.
        files: Files that are written meanwhile.
    """
    sweep(parent, name)
    for folder in {file.parent for file in files}:
        sweep(folder)
    place = marked(parent / name)
    try:
        place.mkdir(mode=0o700)
        yield place
    finally:
        remove(place)


def age(path: Path) -> float:
    """Return the seconds since a file, or any file in a folder, was last written."""
    return time.time() - max(one.lstat().st_mtime for one in (path, *path.rglob("*")))


def is_marked(path: Path) -> bool:
    """Return whether a name has the full mark of a draft or room that this program makes."""
    return _mark_of(path) is not None


def is_left(path: Path, *, rest: float = math.inf) -> bool:
    """Return whether a draft or room is of a process of this machine that is no more.

    A draft of another machine, whose processes are not visible here, counts after `rest` seconds
    without a write.
    """
    found = _mark_of(path)
    if found is None:
        return False
    if found[1] != _machine() or os.name == "nt":
        return rest < math.inf and age(path) > rest
    try:
        os.kill(int(found[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, or no number of a process
        return False
    return False


def marked(path: Path) -> Path:
    """Return the path with a mark of this process, which no other path has."""
    return path.with_name(f"{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _mark_of(path: Path) -> re.Match[str] | None:
    found = re.search(f"{_MARKED.pattern}$", path.name)
    return found if found and (path.name.startswith(".") or not found[3]) else None


@functools.cache
def _machine() -> str:
    """Return a name for where processes have the numbers that they have here."""
    space = ""
    with contextlib.suppress(OSError):  # not Linux
        space = os.readlink("/proc/self/ns/pid")  # a container has numbers of its own
    return f"{zlib.crc32(f'{platform.node()} {space}'.encode()):08x}"


def check_ordinary(path: Path) -> None:
    """Raise for a device, pipe or socket: `/dev/null` would become a file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise TasklabError(f"{path} is a device or a pipe, and no file: choose another name.")


def check_new_folder(option: str, path: Path) -> None:
    """Raise a `TasklabError` if a file or a folder with files has this path."""
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise TasklabError(f"{path} is there already: choose another folder with {option}.")


def check_suffix(option: str, path: Path, suffix: str) -> None:
    """Check that a path does not have the suffix of another format.

    Args:
        option: Which gives the path, for the message.
        path: Without a suffix, or with that of the format.
        suffix: Of the format, `".safetensors"`.

    Raises:
        TasklabError: If it has another known suffix.
    """
    if path.suffix.lower() in set(_FORMATS) - {suffix}:
        raise TasklabError(
            f"{option} is a {suffix} file, which {shown(path.name)} does not say: "
            f"call it {shown(path.stem + suffix)}."
        )


@contextlib.contextmanager
def _draft(path: Path | str) -> Iterator[tuple[Path, Path]]:
    """Yield (draft, target); delete the draft on exit."""
    place = Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
    check_ordinary(place)
    draft = marked(place.with_name(f".{place.name}"))
    draft = draft.with_name(f"{draft.name}{PARTIAL}")
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
