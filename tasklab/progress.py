"""Progress on stderr: a bar in a terminal, a widget in JupyterLab, a few plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, TypeVar

from tqdm import tqdm as terminal_bar

T = TypeVar("T")
Clock = Callable[[], float]

# Set by the server, the editor or the site that shows a notebook to somebody. A kernel started by
# papermill, nbconvert or a book has none of them: nobody is looking, and widgets end in the page.
_FRONTENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "COLAB_RELEASE_TAG")


class Lines:
    """Progress as plain lines, one in `every` seconds and one at the end.

    Has the part of tqdm's interface that the package uses, and no carriage returns.

    Args:
        total: Number of steps.
        desc: What is going on.
        initial: Steps that were done before.
        unit: Name of a step.
        file: Where to write; stderr by default.
        every: Seconds between lines.
        clock: Seconds since any moment.
    """

    def __init__(
        self,
        *,
        total: int,
        desc: str,
        initial: int = 0,
        unit: str = "step",
        file: TextIO | None = None,
        every: float = 10.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.total, self.desc, self.unit, self.every = total, desc, unit, every
        self.done = self.initial = initial
        self.file, self.clock, self.note = file, clock, ""
        self.start = self.last = clock()
        self.closed = False

    def update(self, n: int = 1) -> None:
        """Count `n` steps."""
        self.done += n
        if self.clock() - self.last >= self.every:
            self._write()

    def set_postfix_str(self, note: str, refresh: bool = True) -> None:
        """Show `note` at the end of later lines."""
        self.note = note

    def close(self) -> None:
        """Write the last line, unless all went so fast that nobody would have asked."""
        if not self.closed and self.clock() - self.start >= 1:
            self._write()
        self.closed = True

    def __enter__(self) -> Lines:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _write(self) -> None:
        self.last = self.clock()
        seconds = self.last - self.start
        text = f"{self.desc}: {self.done}/{self.total} {self.unit}s, {seconds:.0f} s"
        new = self.done - self.initial
        if new and self.done < self.total:
            text += f", about {seconds / new * (self.total - self.done):.0f} s left"
        if self.note:
            text += f", {self.note}"
        print(text, file=self.file or sys.stderr, flush=True)


def bar(total: int, desc: str, *, done: int = 0, unit: str = "step", on: bool = True) -> Any:
    """Return a progress bar that suits where the output goes; use it in a `with` statement.

    Args:
        total: Number of steps.
        desc: What is going on.
        done: Steps that were done before, e.g. by an interrupted run.
        unit: Name of a step.
        on: Whether to show anything. tqdm's variable `TQDM_DISABLE=1` switches all off.
    """
    known = {"total": total, "desc": desc, "initial": done, "unit": unit}
    if not on or os.environ.get("TQDM_DISABLE", "0") not in {"", "0"}:
        return terminal_bar(**known, disable=True)
    kind = output()
    if kind == "notebook":
        from tqdm.auto import tqdm as automatic_bar  # decides when it is imported

        return automatic_bar(**known, leave=False)
    if kind == "terminal":
        return terminal_bar(**known, dynamic_ncols=True, leave=False, file=sys.stderr)
    return Lines(**known)


def track(
    items: Iterable[T], total: int, desc: str, *, unit: str = "step", on: bool = True
) -> Iterator[T]:
    """Yield the items and show how many of `total` there have been.

    Args:
        items: What is gone through.
        total: How many there are.
        desc: What is done with them.
        unit: What one of them is.
        on: Whether to show anything.
    """
    with bar(total, desc, unit=unit, on=on) as shown:
        for item in items:
            yield item
            shown.update()


def output() -> str:
    """Return what shows the output: `"notebook"`, `"terminal"` or `"log"`."""
    if "ipykernel.zmqshell" in sys.modules:
        return "notebook" if any(name in os.environ for name in _FRONTENDS) else "log"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "log"
