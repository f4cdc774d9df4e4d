"""What tests of many rooms use."""

from collections.abc import Callable

import pytest

from tasklab.errors import TasklabError


def refuses(match: str, call: Callable, /, *args: object, **named: object) -> str:
    """Check that a call raises a `TasklabError` that matches; return its sentence."""
    with pytest.raises(TasklabError, match=match or None) as caught:
        call(*args, **named)
    return str(caught.value)
