"""Checksums of files and tensors, at the speed of the disk, each computed once a process.

Published files have their plain SHA-256; in the store, and in files of vectors, tensors
larger than `PART` bytes have a tree: the SHA-256 of its parts' checksums, which threads compute.

A file that was read is not read again while its inode, size and times of change are the same.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tasklab import machine

Item = TypeVar("Item")

PART = 1 << 23  # bytes that a thread takes at a time
PLAIN, TREE = "sha256", "sha256-8m"  # names of the two, in records
_THREADS = 16
_AT_REST = 50_000_000  # ns: clocks of file systems are this coarse, so a later change has its time
_SEEN: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {}  # by path: its state, checksums


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hex digits; it is read once a process."""
    return once(file, PLAIN, _plain)


def of_file(file: Path, kind: str | None = None) -> tuple[str, str]:
    """Return the name of a checksum and the checksum of a file; it is read once a process.

    The kind is `PLAIN` or `TREE`, by default the one for a file of this size.
    """
    kind = kind or (TREE if file.stat().st_size > PART else PLAIN)
    return kind, once(file, kind, {PLAIN: _plain, TREE: _tree}[kind])


def of_parts(text: str, contents: Iterable[tuple[str, memoryview]]) -> str:
    """Return the checksum of a text and of named contents, in hex digits.

    It is the SHA-256 of the text, and of each content its name, and the checksums of its parts.
    """
    pieces = [
        (name, content[start : start + PART])
        for name, content in contents
        for start in range(0, max(1, len(content)), PART)
    ]
    digests = _each(lambda piece: hashlib.sha256(piece[1]).digest(), pieces)
    whole = hashlib.sha256(f"{len(text)} {text}".encode())
    for (name, _), digest in zip(pieces, digests, strict=True):
        whole.update(f"{name}\n".encode() + digest)
    return whole.hexdigest()


def once(file: Path, what: str, compute: Callable[[Path], str]) -> str:
    """Return the text that `compute` makes of a file; it is made again if the file has changed.

    Args:
        file: The file.
        what: Name of the text; each file may have several.
        compute: The file's path -> the text.
    """
    place, now, began = os.path.abspath(file), state(file), time.time_ns()
    known = _SEEN.get(place)
    if known is not None and known[0] == now and what in known[1]:
        return known[1][what]
    found = compute(file)
    if state(file) == now and began - max(now[-2:]) > _AT_REST:
        note(file, what, found)
    return found


def note(file: Path, what: str, found: str) -> None:
    """Record a text of a file that was just written, for `once`.

    Args:
        file: The file.
        what: Name of the text.
        found: The text.
    """
    place, now = os.path.abspath(file), state(file)
    known = _SEEN.get(place)
    more = known[1] if known is not None and known[0] == now else {}
    _SEEN[place] = now, {**more, what: found}


def state(file: Path) -> tuple[int, ...]:
    """Return a file's inode, size and times of change."""
    stat = os.stat(file)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _plain(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _tree(file: Path) -> str:
    own = threading.local()

    def digest(start: int) -> bytes:
        if not hasattr(own, "memory"):  # of each thread: new memory for each part would be cleared
            own.memory = memoryview(bytearray(PART))
        with file.open("rb", buffering=0) as stream:  # a map would end the process if it is cut off
            stream.seek(start)
            length = 0
            while count := stream.readinto(own.memory[length:]):
                length += count
        return hashlib.sha256(own.memory[:length]).digest()

    starts = range(0, max(1, file.stat().st_size), PART)
    return hashlib.sha256(b"".join(_each(digest, starts))).hexdigest()


def _each(function: Callable[[Item], bytes], items: Iterable[Item]) -> list[bytes]:
    """Return a function's results; threads compute those of more than a few.

    A writing thread starts no others: at the end of the process none can start.
    """
    items = list(items)
    threads = min(_THREADS, len(items), int(machine.cores()))
    if threads < 2 or threading.current_thread() is not threading.main_thread():
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
