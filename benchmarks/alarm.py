"""An alarm that ends a measurement, whatever it does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Late(BaseException):  # noqa: N818 - no error, so that nothing that falls back catches it
    """The time of a part is over."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Late` where a block takes longer; on Windows and in threads it does not."""
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return

    def over(*about: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
