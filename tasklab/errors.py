"""Errors a user can act on, and the checks of names and numbers that raise them."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable


class TasklabError(Exception):
    """A problem that the user can solve; its message says what is wrong and what to do."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> TasklabError:
    """Return the error for a name that is not one of `choices`, with the nearest one suggested.

    Args:
        kind: What the name stands for, e.g. `"model"`.
        name: What the user wrote.
        choices: The valid names, in the order in which to list them.

    >>> print(unknown("model", "vitb23", ["mini", "vitb32"]))
    unknown model 'vitb23': did you mean 'vitb32'? Choices: mini, vitb32.
    >>> print(unknown("model", "ViT-B-32", ["mini", "vitb32"]))
    unknown model 'ViT-B-32': did you mean 'vitb32'? Choices: mini, vitb32.
    """
    choices = list(choices)
    near = [choice for choice in choices if _folded(choice) == _folded(str(name))]
    near = near or difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return TasklabError(f"unknown {kind} {name!r}: {hint}Choices: {', '.join(choices)}.")


def choose(kind: str, name: object, choices: tuple[str, ...]) -> None:
    """Raise if a name is none of the choices."""
    if name not in choices:
        raise unknown(kind, name, choices)


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


def shown(text: str) -> str:
    r"""Return a text from a file or a command line for a message: quoted, escaped, cut.

    >>> print(shown("a\nb"), len(shown("x" * 1_000_000)))
    'a\nb' 80
    """
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}..."


def some(names: Iterable[str], most: int = 6) -> str:
    """Return the first of some names in a row; odd ones, which files can have, are escaped."""
    names = list(names)
    plain = [x if x.isprintable() and len(x) <= 80 else shown(x) for x in names[:most]]
    return ", ".join(plain) + (", ..." if len(names) > most else "")


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
