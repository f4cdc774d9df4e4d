"""Numbers of a long computation, stored one by one, so that a killed one resumes.

A line of a file is one number or list with its name and a checksum, as JSON. A line that is only
half there was being written when the process was killed: it counts as absent, as a damaged one and
all after it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasklab.storage import atomic


class Journal:
    """A file of values by name. One process has it at a time, as `Store.get` sees to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._kept: dict[str, Any] = {}
        whole = 0
        for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else ():
            try:
                name, value, check = json.loads(line)
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n") or check != _check(name, value):
                break
            self._kept[name] = value
            whole += len(line)
        if file.is_file() and file.stat().st_size > whole:
            os.truncate(file, whole)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the stored value of a name, or compute it by `make`, as JSON holds it."""
        if name not in self._kept:
            value = make()
            line = json.dumps([name, value, _check(name, value)]) + "\n"
            with self.file.open("ab") as file:
                file.write(line.encode())
                file.flush()
                atomic.sync(file.fileno())
            self._kept[name] = json.loads(line)[1]
        return self._kept[name]


def _check(name: str, value: Any) -> int:
    return zlib.crc32(json.dumps([name, value]).encode())
