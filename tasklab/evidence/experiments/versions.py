"""Versions of stored results, which follow from the code that makes them.

`versions.json` locks, for every module of experiments, a hash of its code and of the analyses that
it imports (`storage.code`: neither comments, docstrings nor formatting), with the name that keys of
its results have. While the code is the locked one, results are found under that name; once it
changes they are measured again, and kept under the hash.

`make same` locks changed code under the same names, if the frozen numbers of its experiments come
out (`tests/frozen.py`); `make new OF=... WHY=...` gives the results of some modules a new name and
keeps the reason. A test reminds of either.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError, choose
from tasklab.evidence.experiments.registry import REGISTRY
from tasklab.storage.code import bare, code_of, file_of

LOCK = Path(__file__).with_name("versions.json")
_ROOM = __name__.rpartition(".")[0]
#: The room's name in keys and in the lock: it stays, wherever the room is.
_FROZEN = "tasklab.experiments"
_BENCHES = ("tasklab.bench.merges",)  # of the library, and measures


def version(function: Callable) -> dict[str, str]:
    """Return a key's entry for the code of a measurement; empty for the locked first edition.

    Of a notebook's function it is that function's own code.
    """
    home = getattr(function, "func", function).__module__
    if not home.startswith("tasklab."):
        return {"code": _of_notebook(getattr(function, "func", function))}
    locked, now = _locked().get(frozen(home), {}), code(home)
    name = locked["name"] if locked.get("code") == now else now
    return {"code": name} if name else {}


def _of_notebook(function: Callable) -> str:
    try:
        told = bare(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, SyntaxError):  # of an interpreter that keeps no source, or a lambda in a call
        told = repr((function.__code__.co_code, function.__code__.co_consts))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@functools.cache
def code(home: str) -> str:
    """Return the hash of a module of experiments and of its imports from analyses."""
    return code_of([home], _measures, frozen)


def frozen(home: str) -> str:
    """Return the name of a module in keys and in the lock.

    >>> frozen("tasklab.evidence.experiments.editing"), frozen("tasklab.analyses.editing")
    ('tasklab.experiments.editing', 'tasklab.analyses.editing')
    """
    return f"{_FROZEN}{home.removeprefix(_ROOM)}" if home.startswith(f"{_ROOM}.") else home


def _measures(name: str) -> bool:
    """Return whether a module measures; the others of this room only run measurements."""
    if name.startswith("tasklab.analyses.") or name in _BENCHES:
        return True
    file = file_of(name) if name.startswith(f"{_ROOM}.") else None
    return file is not None and "\n@experiment(" in file.read_text("utf-8")


def changed() -> list[str]:
    """Return the modules of experiments whose code is not the locked one."""
    return [home for home in _homes() if _locked().get(frozen(home), {}).get("code") != code(home)]


def lock(new: Iterable[str] = (), why: str = "") -> None:
    """Write the lock of today's code.

    Args:
        new: Modules of experiments, without the room, whose results get a new name.
        why: The reason, which is kept beside the new names.

    Raises:
        TasklabError: If there is no module of that name, or no reason for a new name.
    """
    fresh, before, entries = {f"{_ROOM}.{one}" for one in new}, _locked(), {}
    if fresh and not why.strip():
        raise TasklabError('say why the numbers are new: make new OF=... WHY="...".')
    for home in fresh:
        choose("module", home.rpartition(".")[2], [one.rpartition(".")[2] for one in _homes()])
    for home in _homes():
        now, entry = code(home), before.get(frozen(home), {"name": ""})
        entries[frozen(home)] = {**entry, "code": now}
        if home in fresh:
            day = datetime.datetime.now(datetime.UTC).date().isoformat()
            reason = {"name": now, "day": day, "why": why.strip()}
            entries[frozen(home)] |= {"name": now, "reasons": [*entry.get("reasons", ()), reason]}
    LOCK.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", "utf-8")
    _locked.cache_clear()


def _homes() -> list[str]:
    return [home for home in sorted({*REGISTRY.homes()}) if home.startswith(_ROOM)]


@functools.cache
def _locked() -> dict[str, dict[str, Any]]:
    return json.loads(LOCK.read_text("utf-8")) if LOCK.exists() else {}
