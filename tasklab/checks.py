"""Checks of numbers that come from outside, as numbers or as text."""

from __future__ import annotations

import math
import operator
import re

from tasklab.errors import TasklabError


def whole(name: str, value: object, least: int) -> int:
    """Return `value` as an integer of at least `least`, or raise a `TasklabError` with its name."""
    number = value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        number = int(value)
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(number)
    except TypeError:
        raise TasklabError(f"{name} must be a whole number, not {value!r}.") from None
    if number < least:
        raise TasklabError(f"{name} must be at least {least}, not {number}.")
    return number


def real(name: str, value: object) -> float:
    """Return `value` as a finite number of at least 0, or raise a `TasklabError` with its name."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
        raise TasklabError(f"{name} must be a finite number of at least 0, not {value!r}.")
    return number
