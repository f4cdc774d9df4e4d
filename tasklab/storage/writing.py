"""Large artifacts are written by a thread, while the process goes on.

Until an artifact is on the disk, its tensors are served from memory and its key stays locked. A
failure, such as a full disk, is raised once: in a call that waits for that artifact, in the next
request to a store, or in `finish`. A script that ends without any of these ends with status 1.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError

if TYPE_CHECKING:
    from torch import Tensor

Checksum = tuple[str, str]  # name, hex digits

LARGE = 1 << 26  # bytes of tensors, from which on a thread writes them
_MOST = 2  # artifacts on their way at once: each holds its tensors in memory


class Writing:
    """An artifact being written; `tensors` are `None` when its file is complete.

    Args:
        tensors: By name; they must not change until they are written.
        write: Writes them and returns the file's checksum.
        done: Called after writing.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        write: Callable[[Mapping[str, Tensor]], Checksum],
        done: Callable[[], None],
    ) -> None:
        self.tensors: Mapping[str, Tensor] | None = tensors
        self._write, self._done = write, done
        self._found: Checksum | BaseException = TasklabError(
            "this result is being written by the process that this one was forked from: ask the "
            "store for it again, which waits until it is there."
        )  # until the thread replaces it, which it never does in a fork
        self._thread = threading.Thread(target=self._run)  # no daemon: Python waits for it

    def start(self) -> None:
        """Begin as soon as fewer than two others are on their way."""
        while len(_ON_THEIR_WAY) >= _MOST:
            for oldest in _ON_THEIR_WAY[:1]:
                oldest._thread.join()
        _ON_THEIR_WAY.append(self)
        self._thread.start()

    def wait(self) -> Checksum:
        """Return the file's checksum as soon as it is written; raise an error of writing."""
        self._thread.join()
        if self in _FAILED:
            _FAILED.remove(self)
        if isinstance(self._found, tuple):
            return self._found
        raise self._found

    def _run(self) -> None:
        try:
            self._found = self._write(self.tensors or {})
        except BaseException as error:  # raised where somebody asks
            self._found = error
            _FAILED.append(self)
        finally:
            self._done()
            self.tensors = None
            _ON_THEIR_WAY.remove(self)


_ON_THEIR_WAY: list[Writing] = []
_FAILED: list[Writing] = []


def check() -> None:
    """Raise the error of an artifact that could not be written, once."""
    if _FAILED:
        _FAILED[0].wait()


def finish() -> None:
    """Wait until all artifacts are written; raise the errors of writing."""
    for writing in [*_ON_THEIR_WAY]:
        writing._thread.join()
    check()


def _last_words() -> None:
    """Print errors of writing and exit with status 1: an exception here would not do that."""
    for failed in _FAILED:
        print(f"tasklab: {failed._found}", file=sys.stderr)
    if _FAILED:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(1)


def _forget() -> None:
    _ON_THEIR_WAY.clear()
    _FAILED.clear()


atexit.register(_last_words)
if hasattr(os, "register_at_fork"):  # a child has the entries, and not the threads
    os.register_at_fork(after_in_child=_forget)
