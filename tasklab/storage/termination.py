"""SIGTERM, by which a machine is taken back: to end in order, with one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Iterator

STATUS = 128 + signal.SIGTERM  # 143, as a shell tells it
_log = logging.getLogger(__name__)


class Terminated(SystemExit):
    """The process was asked to end; unless this is caught, it does, with status 143.

    The log gets a sentence on what is kept and how to continue.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(STATUS)
        _log.warning("%s", sentence)


@dataclasses.dataclass
class Request:
    """Whether a signal to end has arrived since."""

    asked: bool = False


@contextlib.contextmanager
def deferred() -> Iterator[Request]:
    """Defer SIGTERM: the block sees the request, and raises `Terminated` when all is in order.

    A request that was not looked at is handed on afterwards. Other threads are unaffected.
    """
    request = Request()
    with _handler(lambda number, frame: setattr(request, "asked", True)):
        yield request
    if request.asked:
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def handled(sentence: str) -> Iterator[None]:
    """Raise `Terminated` at SIGTERM wherever the program is, so that open files are closed.

    A library that it passes through may make another error of it, or none.
    """
    ended: list[Terminated] = []

    def end(number: int, frame: object) -> None:
        ended.append(Terminated(sentence))
        raise ended[0]

    with _handler(end):
        try:
            yield
        except Exception as error:
            if ended:
                raise ended[0] from error
            raise
    if ended:
        raise ended[0]


@contextlib.contextmanager
def _handler(handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
