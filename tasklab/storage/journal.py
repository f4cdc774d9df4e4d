"""Numbers of a long computation, kept one by one, so that one that was killed goes on.

A line of a file is one number or list with its name, as JSON. A line that is only half there was
being written when the process was killed: it counts as absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """A file of values by name. One process has it at a time, as `Store.get` sees to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._kept: dict[str, Any] = {}
        whole = 0
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
            try:
                name, value = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            self._kept[name] = value
            whole += len(line)
        if file.exists() and file.stat().st_size > whole:
            os.truncate(file, whole)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value of a name, by `make`, as JSON can hold it, if it is not kept."""
        if name not in self._kept:
            line = json.dumps([name, make()]) + "\n"
            with self.file.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            self._kept[name] = json.loads(line)[1]
        return self._kept[name]
