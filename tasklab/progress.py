"""Progress: one line for all that a call does, where its reader looks.

Bars inside others (the steps of a run, the runs of an experiment) are part of the outermost line:
`train: run 3 of 24, Signs: step 12 of 45, about 9 min left`. A terminal overwrites the line, a
notebook replaces its output and keeps one sentence, a log gets a few lines.
"""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]

# Who runs a kernel and reads its stderr, as `tasklab.book` does, sets this to "lines".
FORM = "TASKLAB_PROGRESS"
SOON = 1.0  # seconds until anything is shown
LATER = 4.0  # the same, where most calls are done before
WORTH = 10.0  # seconds of work that are worth a sentence when all is done
_open: list[Bar] = []  # outermost first


class Screen(Protocol):
    """Where a line of progress goes; `every` is the least number of seconds between two."""

    every: float

    def show(self, text: str, share: float) -> None:
        """Show the line in the place of the last one; `share` of the work is done."""

    def end(self, text: str, seconds: float) -> None:
        """Show the final state."""


class Log:
    """Plain lines, one in `every` seconds and one at the end, on stderr or in a file."""

    def __init__(self, file: TextIO | None = None, every: float = 10.0) -> None:
        self.file, self.every = file, every

    def show(self, text: str, share: float) -> None:
        """Write a line; nowhere without a stderr, where `print` would take stdout."""
        if file := self.file or sys.stderr:
            print(text, file=file, flush=True)

    def end(self, text: str, seconds: float) -> None:
        """Write the last line, unless the work took less than `SOON`."""
        if seconds >= SOON:
            self.show(text, 1.0)


class Terminal:
    """One line on stderr that is written over, and gone in the end."""

    every = 0.2

    def show(self, text: str, share: float) -> None:
        """Write over the line."""
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width), end="", file=sys.stderr, flush=True)

    def end(self, text: str, seconds: float) -> None:
        """Wipe the line."""
        self.show("", 1.0)
        print("\r", end="", file=sys.stderr, flush=True)


class Notebook:
    """An output of the cell that is replaced, without a widget: it is whole when reopened."""

    every = 0.5

    def __init__(self) -> None:
        self._handle = None

    def show(self, text: str, share: float) -> None:
        """Replace the output."""
        from IPython.display import display

        meter = f'<progress max="1" value="{share:.3f}" style="vertical-align:middle"></progress>'
        data = {"text/html": f"{meter} {html.escape(text)}", "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def end(self, text: str, seconds: float) -> None:
        """Show a small sentence after a long run, none after a short one."""
        if self._handle is not None:
            visible = text if seconds >= WORTH else ""
            small = f"<small>{html.escape(visible)}</small>"
            self._handle.update({"text/html": small, "text/plain": visible}, raw=True)


class Bar:
    """Progress over a number of steps; use it in a `with` statement.

    Args:
        total, done: Number of steps, and of those done before.
        desc, unit: Name of the work, and of one step.
        screen: Where it is shown if it is the outermost one; `None` is nowhere.
        clock: Seconds since any moment.
        soon: Seconds until it appears.
    """

    def __init__(
        self,
        total: int,
        desc: str,
        *,
        done: int = 0,
        unit: str = "step",
        screen: Screen | None = None,
        clock: Clock = time.monotonic,
        soon: float = SOON,
    ) -> None:
        self.total, self.desc, self.unit = total, desc, unit
        self.done = self.initial = done
        self.screen, self.clock, self.note = screen, clock, ""
        self.start = clock()
        self.last, self.soon = self.start + soon - (screen.every if screen else 0), soon
        self.first: tuple[float, float] | None = None  # when a step was done, and the share then
        self.last_share = 0.0
        self.closed, self.cell = screen is None, cell()
        if not self.closed:
            if _open and _open[0].cell != self.cell:  # an error in that cell left them open
                _open.clear()
            _open.append(self)

    def update(self, n: int = 1) -> None:
        """Count `n` steps."""
        self.done += n
        if self in _open:
            _open[0].refresh()

    def set_postfix_str(self, note: str, refresh: bool = True) -> None:
        """Show `note` at the end of later lines."""
        self.note = note

    def say(self, note: str) -> None:
        """Show `note` now: the next step takes long."""
        self.note = note
        if self in _open:
            _open[0]._show()

    def refresh(self) -> None:
        """Show the line, unless it was shown a moment ago."""
        share = self.share()  # which falls where a part ends that its step does not count
        if share > self._before and (self.first is None or share < self.last_share):
            self.first = self.clock(), share
        self.last_share = share
        if self.screen is not None and self.clock() - self.last >= self.screen.every:
            self._show()

    def _show(self) -> None:
        if self.screen is not None:
            self.last = self.clock()
            self.screen.show(self.line(), self.share())

    def share(self) -> float:
        """Return the share of all steps that is done, parts of a step included."""
        inner = _open[_open.index(self) + 1 :] if self in _open else []
        part = inner[0].share() if inner else 0.0
        return min(1.0, (self.done + part) / self.total) if self.total else 1.0

    def line(self) -> str:
        """Return where the work is, of this bar and of those inside it, and how long it takes."""
        parts, note = [], ""
        for bar in _open[_open.index(self) :] if self in _open else [self]:
            parts.append(f"{bar.desc}: {bar.unit} {min(bar.done + 1, bar.total)} of {bar.total}")
            note = bar.note or note
        if (left := self._left()) is not None:  # first: a terminal cuts long lines
            parts.insert(1, f"about {duration(left)} left")
        return ", ".join([*parts, note] if note else parts)

    @property
    def _before(self) -> float:
        return self.initial / self.total if self.total else 0.0

    def _left(self) -> float | None:
        """Return the seconds left at the pace since the first step, which imports and compiles."""
        now, share = self.clock(), self.share()
        began, before = self.first or (self.start, self._before)
        if share <= before:  # only the first step is done: it tells if it is no small one
            began, before = self.start, self._before
            if share - before < 0.05:
                return None
        return (now - began) / (share - before) * (1 - share)

    def close(self, failed: bool = False) -> None:
        """Show how long it took, unless an error ended it: that has its own line."""
        if self.closed or self not in _open:
            return
        self.closed, outermost = True, _open[0] is self
        del _open[_open.index(self) :]  # with those inside it that an error left open
        if outermost and self.screen is not None:
            seconds = self.clock() - self.start
            count = f"{self.done} {self.unit}{'' if self.done == 1 else 's'}"
            if self.done < self.total:
                count = f"{self.done} of {self.total} {self.unit}s"
            line = f"{self.desc}: {count} in {duration(seconds)}"
            text = f"{line}, {self.note}" if self.note else line
            self.screen.end(text, 0.0 if failed or seconds < self.soon else seconds)

    def __enter__(self) -> Bar:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close(failed=any(error))


def duration(seconds: float) -> str:
    """Return seconds in the unit that suits them.

    >>> duration(4.2), duration(125), duration(8000), duration(4e6)
    ('4 s', '2 min', '2 h 13 min', '46 days')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes >= 4 * 24 * 60:
        return f"{minutes / 24 / 60:.0f} days"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def bar(
    total: int, desc: str, *, done: int = 0, unit: str = "step", on: bool = True, soon: float = SOON
) -> Bar:
    """Return a progress bar for a terminal, a notebook or a log; use it in a `with` statement.

    Args:
        total: Number of steps.
        desc: Name of the work, before the bar.
        done: Steps that are done already.
        unit: One step, in the text of the bar.
        on: Whether to show anything. The variable `TQDM_DISABLE=1` switches all off.
        soon: Seconds until anything is shown.
    """
    screen: Screen | None = None
    if on and os.environ.get("TQDM_DISABLE", "0") in {"", "0"}:
        screens: dict[str, Callable[[], Screen]] = {"notebook": Notebook, "terminal": Terminal}
        screen = screens.get(output(), Log)()
    return Bar(total, desc, done=done, unit=unit, screen=screen, soon=soon)


def track(
    items: Iterable[T], total: int, desc: str, *, unit: str = "step", on: bool = True
) -> Iterator[T]:
    """Yield the items behind a progress bar.

    Args:
        items: Items of the loop.
        total: Number of items.
        desc: Name of the work, before the bar.
        unit: One item, in the text of the bar.
        on: Whether to show anything.
    """
    with bar(total, desc, unit=unit, on=on) as shown:
        for item in items:
            yield item
            shown.update()


def columns(rows: Iterable[Sequence[object]], indent: int = 0, *, right: bool = False) -> list[str]:
    """Return rows as lines with aligned columns.

    Args:
        rows: Cells, as many in each; of a row of one cell no column is wide.
        indent: Spaces before each line.
        right: Whether all columns but the first are aligned at their right ends.

    >>> columns([["a", "1"], ["bcd", "10"]], right=True)
    ['a     1', 'bcd  10']
    """
    cells = [[*map(str, row)] for row in rows]
    widths = [max(map(len, one)) for one in zip(*(x for x in cells if len(x) > 1), strict=True)]
    lines = []
    for first, *rest in cells:
        parts = [first.ljust(widths[0]) if rest else first]
        parts += map(str.rjust if right else str.ljust, rest, widths[1:])
        lines.append((" " * indent + "  ".join(parts)).rstrip())
    return lines


def shared(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return notes, each once and behind the names that have it.

    >>> shared({"a": ["x", "y"], "b": ["x"]})
    ['all 2: x', 'a: y']
    """
    of: dict[str, list[str]] = {}
    for name, each in notes.items():
        for note in each:
            of.setdefault(note, []).append(name)
    return [
        f"{f'all {len(names)}' if len(names) == len(notes) > 1 else ', '.join(names)}: {note}"
        for note, names in of.items()
    ]


def tell(text: str) -> None:
    """Print a sentence: in a notebook as ordinary output, as stderr looks like an error.

    Elsewhere it is on stderr: stdout is for a program's results.
    """
    if file := sys.stdout if output() == "notebook" else sys.stderr:
        print(text, file=file, flush=True)


def begin(text: str) -> None:
    """Print a sentence at once for readers at a terminal: imports take seconds."""
    if output() == "terminal":
        tell(text)


def _shell() -> Any:
    """Return the shell of the notebook's kernel that this runs in, or `None`.

    A loaded ipykernel is no sign: a program that runs notebooks loads it, too.
    """
    if "ipykernel.zmqshell" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if hasattr(shell, "kernel") else None


def cell() -> int | None:
    """Return the number of the notebook's cell that runs."""
    shell = _shell()
    return shell and shell.execution_count


def output() -> str:
    """Return the kind of output: `"notebook"`, `"terminal"` or `"log"`."""
    if _shell() is not None:
        return "log" if os.environ.get(FORM) == "lines" else "notebook"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "log"
