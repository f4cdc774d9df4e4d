"""Locks of code, data and stubs; `make same`, `make new`, `make locks` and pre-commit call it.

python -m tests.locks same              lock changed code of experiments, if its numbers come out
python -m tests.locks new OF WHY        measure the results of some modules anew, with the reason
python -m tests.locks stubs             list experiments and figures for type checkers
python -m tests.locks all               data files, stubs and what chapters found, too
python -m tests.locks check             say what is not locked, without measuring
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tasklab.errors import TasklabError, choose
from tasklab.storage import shipped

# The evidence reads data files when it is imported, and refuses changed ones: it is imported late.


def same(new: Sequence[str] = (), why: str = "") -> None:
    """Lock the code of experiments whose frozen numbers come out.

    Args:
        new: Modules of experiments, without the room, whose numbers are frozen anew and whose
            results get a new name.
        why: The reason for new names.

    Raises:
        TasklabError: If a number of another changed module differs; nothing is locked then.
    """
    from tasklab.evidence.experiments import versions
    from tasklab.evidence.experiments.registry import discover
    from tests import frozen  # here: `check` shall take seconds

    discover()
    if new and not why.strip():
        raise TasklabError('say why the numbers are new: make new OF=... WHY="...".')
    fresh = [f"{versions.__name__.rpartition('.')[0]}.{one}" for one in new]
    apart, now = frozen.differences(frozen.of([*{*versions.changed(), *fresh}]))
    wrong = {name: told for name, told in apart.items() if name not in frozen.of(fresh)}
    if wrong:
        told = "; ".join(f"{name} ({what})" for name, what in wrong.items())
        raise TasklabError(
            f"numbers differ from the frozen ones: {told}. Where that is meant: "
            'make new OF="MODULE ..." WHY="REASON".'
        )
    versions.lock(new, why)
    if now:
        frozen.freeze(now, anew=frozen.of(fresh))


def unlocked() -> list[str]:
    """Return a sentence for every lock that is not of what is there."""
    data = [f"data file {name} has changed: make locks" for name in shipped.changed()]
    if data:
        return data
    from tasklab.evidence.experiments import versions
    from tasklab.evidence.experiments.registry import discover

    discover()
    told = [f"{home} has changed: make same, or make new" for home in versions.changed()]
    for room, file in _stubs().items():
        if file.read_text("utf-8") != room._stub():
            told.append(f"{file.parent.name}/{file.name} lacks public names: make locks")
    return told


def _stubs() -> dict[ModuleType, Path]:
    from tasklab.evidence import experiments, figures

    return {room: Path(room.__file__).with_suffix(".pyi") for room in (experiments, figures)}


def stubs() -> None:
    """List the public names of experiments and figures for type checkers."""
    for room, file in _stubs().items():
        file.write_text(room._stub(), "utf-8")


def _found() -> None:
    from tests import found

    found.write()


def main(arguments: Sequence[str]) -> None:
    """Run a command of this module's description."""
    command, *rest = arguments or ["none"]
    choose("command of tests.locks", command, ("same", "new", "stubs", "all", "check"))
    if command == "check":
        if told := unlocked():
            raise TasklabError(". ".join(told) + ".")
        return
    if command == "stubs":
        stubs()
        return
    if command == "all":
        shipped.lock()
        stubs()
        _found()
    if command == "new":
        of, why = rest
        same(of.split(), why)
    else:
        same()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TasklabError as error:
        sys.exit(str(error))
