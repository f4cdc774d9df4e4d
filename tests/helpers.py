"""What tests of many rooms use."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tasklab.__main__ import main
from tasklab.errors import TasklabError


def refuses(match: str, call: Callable, /, *args: object, **named: object) -> str:
    """Check that a call raises a `TasklabError` that matches; return its sentence."""
    with pytest.raises(TasklabError, match=match or None) as caught:
        call(*args, **named)
    return str(caught.value)


def mistaken(words: Sequence[str], capsys: pytest.CaptureFixture) -> str:
    """Check that a command ends with one line on the standard error alone; return it."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tasklab: ") and err.count("\n") == 1, err
    return err


def flip(file: Path, at: int, bits: int = 4) -> None:
    """Change bits of one byte of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= bits
    file.write_bytes(content)


def in_bfloat16(call: Callable) -> object:
    """Return a call's result with matrix products in bfloat16, as within a run of fine-tuning."""
    import torch  # most tests of records need none

    from tasklab.isolation import isolated

    @isolated  # the caller's autocast ends at a door
    def within() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return call()

    return within()


@functools.cache
def parsed(path: Path) -> object:
    """Return a page of the site, parsed."""
    from bs4 import BeautifulSoup  # most tests read no page

    return BeautifulSoup(path.read_text("utf-8"), "html.parser")
