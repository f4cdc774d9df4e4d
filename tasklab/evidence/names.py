"""Public names of a room, read from the decorators in its sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path


def declared(
    folder: Path, decorator: str, more: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
    """Return the public names of a folder by module; importing its modules would take seconds.

    Args:
        folder: Of the modules.
        decorator: Name of the decorator whose functions are public.
        more: Module -> its other public names.
    """
    pattern, names = re.compile(rf"^@{decorator}\b.*?^def (\w+)", re.S | re.M), {}
    for file in sorted(folder.glob("*.py")):
        found = pattern.findall(file.read_text("utf-8"))
        if listed := sorted({*found, *more.get(file.stem, ())}):
            names[file.stem] = listed
    return names


def stub(names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()) -> str:
    """Return the text of `__init__.pyi`, which type checkers read.

    Args:
        names: Module -> its public names.
        modules: Modules that are public themselves.
    """
    lines = [f"from . import {name} as {name}\n" for name in modules]
    every = [(module, name) for module, own in names.items() for name in own]
    return "".join(lines + [f"from .{module} import {name} as {name}\n" for module, name in every])
