"""Data files of the package, compared with their checksums when they are first read.

Weights, recorded results and the icons' drawings have checksums beside them; of the rest
`shipped_sha256.json` has one, with line ends as they are in git. After a change of one of them:

    python -c "from tasklab.storage import shipped; shipped.lock()"
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from tasklab.errors import TasklabError
from tasklab.storage import atomic

ROOT = Path(__file__).resolve().parents[1]
SUMS = Path(__file__).with_name("shipped_sha256.json")
LOCK = 'python -c "from tasklab.storage import shipped; shipped.lock()"'


def content(file: Path) -> bytes:
    """Return a file's bytes; raise if it differs from the one that the package ships."""
    file = file.resolve()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TasklabError(
            f"{file} cannot be read ({error.strerror}): reinstall tasklab."
        ) from error
    if not file.is_relative_to(ROOT):
        return data
    if _sums().get(file.relative_to(ROOT).as_posix()) != _sha256(data):
        raise TasklabError(
            f"{file} is damaged: its checksum does not match. Reinstall tasklab. After an edit of "
            f"your own: {LOCK}"
        )
    return data


def changed() -> list[str]:
    """Return the files whose checksum is another one than here."""
    return [name for name, known in _sums().items() if _sha256((ROOT / name).read_bytes()) != known]


def lock() -> None:
    """Write the checksums of the files that have one anew."""
    sums = {name: _sha256((ROOT / name).read_bytes()) for name in _sums()}
    atomic.write(SUMS, json.dumps(sums, indent=1) + "\n")
    _sums.cache_clear()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


@functools.cache
def _sums() -> dict[str, str]:
    try:
        return dict(json.loads(SUMS.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TasklabError(f"{SUMS} cannot be read: reinstall tasklab.") from error
