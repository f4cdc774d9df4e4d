"""A content-addressed store of tensors: atomic, locked, checksummed, resumable, without pickle.

    STORE/<kind>/<key>/config.json          the configuration (the key is its hash)
                       tensors.safetensors  the result
                       record.json          its record, with the checksums
    STORE/partial/<kind>/<key>/             checkpoints of a computation that is not finished
    STORE/damaged/                          artifacts whose checksums did not match
    STORE/locks/, STORE/tmp/                one lock per key; artifacts being written

An artifact is written in `tmp`, flushed to the disk and renamed: it exists whole or not at all.
A thread writes large ones (`storage.writing`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tasklab import isolation
from tasklab.errors import TasklabError
from tasklab.storage import atomic, checksums, folders, writing
from tasklab.storage.tensors import (
    canonical,
    explained,
    load_checkpoint,
    read_tensors,
    save_checkpoint,
    text_sha256,
    write_tensors,
)

__all__ = ["Artifact", "Store", "load_checkpoint", "noting", "read_tensors", "save_checkpoint"]

if TYPE_CHECKING:  # start-up: stores are read before torch is loaded
    from torch import Tensor

Make = Callable[[Path], tuple[Mapping[str, "Tensor"], Mapping[str, Any]]]
T = TypeVar("T")

_log = logging.getLogger(__name__)
RESERVED = {"partial", "damaged", "locks", "tmp"}
_ASKED: ContextVar[dict[tuple[str, str], Artifact] | None] = ContextVar("asked", default=None)
_WITHIN: ContextVar[list[float] | None] = ContextVar("within", default=None)  # seconds, each
_DISORDER = (ValueError, LookupError, AttributeError, TypeError, RecursionError, StopIteration)
_TENSORS, _CONFIG, _RECORD = "tensors.safetensors", "config.json", "record.json"
_WRITING: dict[tuple[str, str, str], Artifact] = {}  # by root, kind, key: not on the disk yet
if hasattr(os, "register_at_fork"):  # a child waits for the key's lock, which its parent holds
    os.register_at_fork(after_in_child=_WRITING.clear)


class _DamagedError(Exception):
    """An artifact differs from its checksums; the message names the file."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A finished result in the store."""

    path: Path  # its folder
    kind: str  # sort of result, e.g. "finetune"
    key: str  # hash of `config`
    config: dict[str, Any]  # what was asked for
    record: dict[str, Any]  # what its maker wrote down beside the tensors
    checksum: writing.Checksum | None  # of its file; `None` while that is being written
    seconds: float | None = None  # that making took, without what was made for it; `None` if older
    writing: writing.Writing | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def file(self) -> Path:
        """The safetensors file of its tensors; waited for while it is being written."""
        if self.writing is not None:
            self.writing.wait()
        return self.path / _TENSORS

    @property
    def written(self) -> bool:
        """Whether its file is on the disk."""
        return self.writing is None or self.writing.tensors is None

    @property
    def version(self) -> tuple[str, str]:
        """Its folder and the checksum of its record, which change if it is computed again."""
        return str(self.path), text_sha256(self.record)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file of its tensors, for publication."""
        return checksums.file_sha256(self.file)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, on the CPU; the checksum is compared again if the file has changed.

        While the file is being written they are copies of those in memory.

        Raises:
            TasklabError: If the file was damaged or removed since the artifact was opened.
        """
        if self.writing is not None and (held := self.writing.tensors) is not None:
            return {name: tensor.clone() for name, tensor in held.items()}
        try:
            checksum = self.checksum if self.writing is None else self.writing.wait()
            if checksum and checksums.of_file(self.file, checksum[0]) == checksum:
                return read_tensors(self.file)
        except FileNotFoundError:
            pass
        raise TasklabError(f"{self.file} changed after it was opened. Ask the store for it again.")


@contextlib.contextmanager
def noting() -> Iterator[dict[tuple[str, str], Artifact]]:
    """Collect the artifacts requested during a block, by kind and key."""
    asked: dict[tuple[str, str], Artifact] = {}
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


class Store:
    """A folder of artifacts that several processes may use at once.

    Args:
        root: The folder; `None` is `$TASKLAB_STORE`, or else the user's cache folder. It is made
            at the first result, so a store that is only read may lie on a read-only disk.
        patience: Seconds to wait while another process computes an artifact; `None`: to its end.
    """

    def __init__(self, root: Path | str | None = None, *, patience: float | None = None) -> None:
        self.root, self.patience = folders.store(root), patience

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def key(self, config: Mapping[str, Any]) -> str:
        """Return the first 20 hex digits of SHA-256 of `config` as canonical JSON."""
        return hashlib.sha256(canonical(config).encode()).hexdigest()[:20]

    def find(self, kind: str, config: Mapping[str, Any]) -> Artifact | None:
        """Return the artifact, or `None` if it is missing or damaged.

        A damaged one is moved to `STORE/damaged`, with a warning in the log, and counts as absent.
        """
        key = self.key(config)
        writing.check()
        if (made := _WRITING.get(self._place(kind, key))) is not None:
            return made
        try:
            return self._open(kind, key, config)
        except _DamagedError:
            # Another process may be rebuilding it right now: judge again when nobody is.
            with self._lock(kind, key):
                return self._find_locked(kind, key, config)

    def get(self, kind: str, config: Mapping[str, Any], make: Make) -> Artifact:
        """Return the artifact; if missing, compute and store it.

        Of several processes that ask for the same one, the first computes and the others wait.

        Args:
            kind: Sort of result, e.g. "finetune".
            config: All that determines the result: choices, hash of the base weights, versions.
            make: Folder for checkpoints, which stays after a crash -> tensors, a JSON record.

        Raises:
            TasklabError: If the store cannot be written, now or by a thread since the last call.
        """
        start = time.perf_counter()
        artifact = self.find(kind, config) or self._made(kind, config, make)
        if (others := _WITHIN.get()) is not None:
            others.append(time.perf_counter() - start)
        if (asked := _ASKED.get()) is not None:
            asked[kind, artifact.key] = artifact
        return artifact

    def _made(self, kind: str, config: Mapping[str, Any], make: Make) -> Artifact:
        key, config = self.key(config), json.loads(canonical(config))
        with isolation.alone(), contextlib.ExitStack() as held:  # before the lock of the key
            held.enter_context(self._lock(kind, key))
            if artifact := self._find_locked(kind, key, config):
                return artifact
            with explained(self.root):
                atomic.sweep(self.root / "tmp", f"{kind}-{key}")
                work = self.root / "partial" / kind / key
                work.mkdir(parents=True, exist_ok=True)
            try:
                seconds, tensors, record = _timed(make, work)
            except (OSError, TasklabError):
                # Where locks do not hold, another machine was first, and removed the checkpoints.
                if work.exists() or not (artifact := self._find_locked(kind, key, config)):
                    raise
                return artifact
            note = {
                "record": json.loads(canonical(record, "record")),
                "seconds": round(seconds, 3),
                "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }

            def write(tensors: Mapping[str, Tensor]) -> tuple[str, str]:
                checksum = self._publish(kind, key, config, tensors, note)
                shutil.rmtree(work, ignore_errors=True)
                return checksum

            if sum(tensor.nbytes for tensor in tensors.values()) >= writing.LARGE:
                place = self._place(kind, key)
                held.callback(_WRITING.pop, place, None)  # before the lock is free
                # Copies: whoever made them, or is given them, may change them meanwhile.
                kept = {name: x.detach().to("cpu", copy=True) for name, x in tensors.items()}
                asked, record = json.loads(json.dumps([config, note["record"]]))
                way = writing.Writing(kept, write, held.pop_all().close)
                known = asked, record, None, note["seconds"], way
                made = _WRITING[place] = Artifact(self._folder(kind, key), kind, key, *known)
                way.start()
                return made
            write(tensors)
            if artifact := self._find_locked(kind, key, config):
                return artifact
        raise TasklabError(f"{kind}/{key} was damaged while it was written to {self.root}.")

    def discard(self, kind: str, config: Mapping[str, Any]) -> None:
        """Remove an artifact, after writing of it has ended."""
        writing.finish()
        key = self.key(config)
        with self._lock(kind, key), explained(self.root), contextlib.suppress(FileNotFoundError):
            aside = atomic.marked(self.root / "tmp" / f"{kind}-{key}")
            aside.parent.mkdir(exist_ok=True)
            self._folder(kind, key).rename(aside)  # none half there
            shutil.rmtree(aside)

    def has(self, kind: str, config: Mapping[str, Any]) -> bool:
        """Return whether an artifact exists; damage shows when it is read."""
        key = self.key(config)
        return self._place(kind, key) in _WRITING or self._is_there(kind, key)

    def making(self, kind: str, config: Mapping[str, Any]) -> bool:
        """Return whether another process computes an artifact now, so that `get` would wait."""
        file = self.root / "locks" / f"{kind}-{self.key(config)}.lock"
        if self.has(kind, config) or not file.exists():
            return False
        with contextlib.suppress(OSError), atomic.tried(file) as free:
            return not free
        return False  # a store that is only read

    def configs(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the configuration of each readable artifact of a kind."""
        writing.finish()
        with explained(self.root, "read the store"):
            files = sorted((self.root / kind).glob(f"*/{_CONFIG}"))
        yield from (config for file in files if (config := self._asked(file)) is not None)

    def damage(self, kind: str, key: str) -> str | None:
        """Return the file of an artifact that differs from its checksum; `None` if all match."""
        config = self._asked(self.root / kind / key / _CONFIG)
        if config is None:
            return _CONFIG
        try:
            self._open(kind, key, config)
        except _DamagedError as damage:
            return str(damage)
        return None

    def _asked(self, file: Path) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, TasklabError):
            if file.is_file():  # a pipe would be waited for
                config = json.loads(file.read_text())
                return config if self.key(config) == file.parent.name else None
        return None

    def _place(self, kind: str, key: str) -> tuple[str, str, str]:
        return os.path.realpath(self.root), kind, key

    def _folder(self, kind: str, key: str) -> Path:
        if kind in RESERVED or not re.fullmatch(r"[a-z][a-z0-9_-]*", kind):
            raise TasklabError(f"{kind!r} cannot be a kind of artifact.")
        return self.root / kind / key

    def _is_there(self, kind: str, key: str) -> bool:
        there = self._folder(kind, key).is_dir()
        if there:  # a process that was killed at its end left checkpoints
            shutil.rmtree(self.root / "partial" / kind / key, ignore_errors=True)
        return there

    def _open(self, kind: str, key: str, config: Mapping[str, Any]) -> Artifact | None:
        path = self._folder(kind, key)
        try:
            if not self._is_there(kind, key):
                return None
            for name in (_CONFIG, _RECORD, _TENSORS):
                if not (path / name).is_file():  # a pipe would be waited for
                    raise _DamagedError(f"{name} (missing)")
            stored = json.loads((path / _CONFIG).read_text())
            note = json.loads((path / _RECORD).read_text())
            record, seconds = note["record"], note.get("seconds")
            name = next(n for n in (checksums.PLAIN, checksums.TREE) if f"tensors_{n}" in note)
            if canonical(stored) != canonical(config):
                raise _DamagedError(_CONFIG)
            if note["record_sha256"] != text_sha256(record):
                raise _DamagedError(_RECORD)
            checksum = name, note[f"tensors_{name}"]
            if checksums.of_file(path / _TENSORS, name) != checksum:
                raise _DamagedError(_TENSORS)
        except FileNotFoundError as error:  # taken away meanwhile
            raise _DamagedError(f"{Path(error.filename).name} (missing)") from None
        except (*_DISORDER, TasklabError):
            raise _DamagedError(f"{_CONFIG} or {_RECORD}") from None
        except OSError as error:
            raise TasklabError(f"cannot read {path}: {error.strerror}.") from error
        return Artifact(path, kind, key, stored, record, checksum, seconds)

    def _find_locked(self, kind: str, key: str, config: Mapping[str, Any]) -> Artifact | None:
        try:
            return self._open(kind, key, config)
        except _DamagedError as damage:
            path = self._folder(kind, key)
            aside = self.root / "damaged" / f"{kind}-{key}-{uuid.uuid4().hex[:8]}"
            with explained(self.root):
                aside.parent.mkdir(parents=True, exist_ok=True)
                path.rename(aside)
            _log.warning("%s was damaged (%s): moved to %s", path, damage, aside)
            return None

    def _publish(
        self,
        kind: str,
        key: str,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        note: Mapping[str, Any],
    ) -> tuple[str, str]:
        final = self._folder(kind, key)
        draft = atomic.marked(self.root / "tmp" / f"{kind}-{key}")
        try:
            with explained(self.root):
                draft.mkdir(parents=True)
                write_tensors(tensors, draft / _TENSORS)
                name, checksum = checksums.of_file(draft / _TENSORS)
                sums = {"record_sha256": text_sha256(note["record"]), f"tensors_{name}": checksum}
                (draft / _CONFIG).write_text(canonical(config, indent=1))
                (draft / _RECORD).write_text(canonical({**note, **sums}, "record", indent=1))
                final.parent.mkdir(parents=True, exist_ok=True)
                try:
                    atomic.publish(draft, final)
                    if name == checksums.TREE:  # large: not to be read again at once
                        checksums.note(final / _TENSORS, name, checksum)
                except OSError:  # where locks do not hold, another machine was first
                    there = self._find_locked(kind, key, config) if draft.exists() else None
                    if there is None or there.checksum is None:
                        raise
                    return there.checksum
                return name, checksum
        finally:
            atomic.remove(draft)  # there only if something failed

    @contextlib.contextmanager
    def _lock(self, kind: str, key: str) -> Iterator[None]:
        file = self.root / "locks" / f"{kind}-{key}.lock"
        told = functools.partial(_log.info, "waiting for the process that makes %s/%s", kind, key)
        with contextlib.ExitStack() as held:
            with explained(self.root):
                file.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(atomic.alone(file, told, patience=self.patience))
            yield


def _timed(make: Make, work: Path) -> tuple[float, Mapping[str, Tensor], Mapping[str, Any]]:
    """Return a maker's own seconds, without nested artifacts, and its tensors and record."""
    others: list[float] = []
    token, start = _WITHIN.set(others), time.perf_counter()
    try:
        tensors, record = make(work)
    finally:
        _WITHIN.reset(token)
    return time.perf_counter() - start - sum(others), tensors, record


def free_first(items: Iterable[T], busy: Callable[[T], bool]) -> Iterator[T]:
    """Yield items in order, those that other processes compute last.

    Several processes with the same items thus share the work.

    >>> list(free_first("abc", lambda item: item == "a"))
    ['b', 'c', 'a']
    """
    waiting = list(items)
    while waiting:
        place = next((i for i, item in enumerate(waiting) if not busy(item)), 0)
        yield waiting.pop(place)
