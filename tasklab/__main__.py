"""The command line: `python -m tasklab COMMAND`, where `--help` lists the commands.

Anything that a user can put right ends in one line on the error stream and exit status 2.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import tasklab
from tasklab.cli import COMMANDS, FORMER, GROUPS
from tasklab.errors import LONG_PATH, TasklabError, is_out_of_memory, make_room, shown, unknown
from tasklab.storage import termination, writing

LONGEST = 1000  # characters of a line


_ENDED = "tasklab: asked to end; what is finished is kept, the same command goes on"


@termination.handled(_ENDED)
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    _escape()
    try:
        with termination.handled(_ENDED):  # no error is told of what an end became
            status = _run(sys.argv[1:] if argv is None else argv)
        writing.finish()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except TasklabError as error:
        _complain(str(error))
        return 2
    except Exception as error:
        if is_out_of_memory(error):
            _drop_output()
            _complain(
                "there is not enough memory: end other programs, or take a smaller model, fewer "
                "vectors or fewer processes (--jobs). What is finished is kept."
            )
            return 2
        if not isinstance(error, OSError):
            raise
        _drop_output()  # of a file that nothing else looked after
        name = error.filename  # a path, or the number of an open file
        name = os.fsdecode(name) if isinstance(name, bytes) else name
        long = len(str(name)) > LONG_PATH
        named = f"{shown(str(name)) if long else name}: " if name else ""
        reason = error.strerror or next(iter(str(error).splitlines()), "") or type(error).__name__
        advice = make_room(error.errno)
        _complain(f"{named}{reason}" + (f". {advice}." if advice else ""))
        return 2
    except KeyboardInterrupt:
        print(
            "tasklab: stopped; what is finished is kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    return status or 0


def _escape() -> None:
    """Print escapes, not a traceback, for letters that the terminal's encoding does not have.

    Without an error stream, `print` would mix errors into the command's output; without an output,
    what is printed is lost.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _complain(text: str) -> None:
    """Print an error; very long lines are cut."""
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]}..." for line in text.split("\n")]
    text = "\n".join(lines).encode(errors="backslashreplace").decode()
    print(f"tasklab: {text}", file=sys.stderr)


def _drop_output() -> None:
    """Discard buffered output so that exit does not raise again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: Sequence[str]) -> int | None:
    """Run the command that the first word names."""
    first, *rest = words or [""]
    if first in ("-h", "--help"):
        print("usage: tasklab COMMAND [OPTIONS]\n")
        print("Editing pre-trained models by arithmetic on their weights.\n")
        for title, commands in GROUPS.items():
            print(f"{title}:")
            for name, command in commands.items():
                print(f"  {name:<8}  {command.summary}")
            print()
        print("  --help              this page; `tasklab COMMAND --help` has a command's options")
        print("  --version           the version of tasklab")
        print(
            "  --completion SHELL  a script that completes all of this in bash, zsh, fish or tcsh"
        )
        sys.exit(0)
    if first == "--version":
        print(f"tasklab {tasklab.__version__}")
        return 0
    from tasklab.cli import parsing  # start-up: tyro

    if first == "--completion":
        return parsing.completion(*rest[:1] or [""])
    if first in FORMER:
        print(f"`tasklab {first}` is now called `tasklab {FORMER[first]}`", file=sys.stderr)
        first = FORMER[first]
    if first not in COMMANDS:
        if not first:
            raise TasklabError(f"name a command: {', '.join(COMMANDS)} (`tasklab --help`).")
        raise unknown("command", first, (*COMMANDS, "--help", "--version", "--completion"))
    return parsing.call(first, rest)


if __name__ == "__main__":
    sys.exit(main())
