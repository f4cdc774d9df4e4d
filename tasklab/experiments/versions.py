"""Versions of kept results: they follow from the code that makes them.

`versions.json` locks, for every module of experiments, a hash of its code and of the analyses that
it imports (`storage.code`: neither comments, docstrings nor formatting), with the name that keys of
its results have. While the code is the locked one, results are found under that name; once it
changes they are measured again, and kept under the hash.

`make same` locks changed code whose numbers are the same, under the same names; `make new OF=...`
gives the results of some modules a new name. A test reminds of either.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from tasklab.experiments.registry import REGISTRY
from tasklab.storage.code import bare, code_of, file_of

LOCK = Path(__file__).with_name("versions.json")
_ROOM = __name__.rpartition(".")[0]


def version(function: Callable) -> dict[str, str]:
    """Return a key's entry for the code of a measurement; empty for the locked first edition.

    Of a notebook's function it is that function's own code.
    """
    home = getattr(function, "func", function).__module__
    if not home.startswith("tasklab."):
        return {"code": _of_notebook(getattr(function, "func", function))}
    locked, now = _locked().get(home, {}), code(home)
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
    """Return the hash of a module of experiments and of what it imports from analyses."""
    return code_of([home], _measures)


def _measures(name: str) -> bool:
    """Return whether a module measures; the others of this room only run what does."""
    if name.startswith("tasklab.analyses."):
        return True
    file = file_of(name) if name.startswith(f"{_ROOM}.") else None
    return file is not None and "\n@experiment(" in file.read_text("utf-8")


def lock(new: Iterable[str] = ()) -> None:
    """Write the lock of today's code."""
    homes = {home: code(home) for home in sorted({*REGISTRY.homes()}) if home.startswith(_ROOM)}
    fresh, names = {f"{_ROOM}.{one}" for one in new}, _locked()
    entries = {
        home: {"code": now, "name": now if home in fresh else names.get(home, {}).get("name", "")}
        for home, now in homes.items()
    }
    LOCK.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    _locked.cache_clear()


@functools.cache
def _locked() -> dict[str, dict[str, str]]:
    return json.loads(LOCK.read_text("utf-8")) if LOCK.exists() else {}
