"""Errors a user can act on, and the checks of names, numbers and paths that raise them.

Each check takes the `name` of an option, for its message, and the `value` that was given. It
returns the converted value or raises; `least` and `most` are possible values.
"""

from __future__ import annotations

import difflib
import errno
import math
import operator
import os
import re
import reprlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

LONGEST = 10_000  # characters of a message
MOST_WHOLE = 2**63 - 1  # what a tensor's integers and the seeds of torch's generators can hold
MOST_SEEDS = 1000
LONG_PATH = 500  # characters of a path in a message
_TOO_LONG = 80  # of a name or value
_NO_MEMORY = (  # in errors that have no class of their own, in lower case
    "out of memory",  # CUDA, its driver, ROCm, MPS
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cannot allocate memory",  # of the system, for a map of a file
    "failed to map segment",  # of a library that is loaded
    "os error 12)",  # of safetensors
)


class TasklabError(Exception):
    """A problem that the user can solve; its message names the cause and the remedy."""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        if len(text) > LONGEST:  # whatever a file or a command line put into it
            text = f"{text[: LONGEST - 300]} [...] {text[-200:]}"
        super().__init__(text)

    def _render_traceback_(self) -> list[str]:
        """Return IPython's traceback: the sentence alone, which is all that a reader can act on."""
        return [f"{type(self).__name__}: {self}"]


class LeftOutError(TasklabError):
    """Something needs training or files that `vectors="published:..."` does without; names it."""


def first_line(error: BaseException, typed: bool = False) -> str:
    r"""Return the first line of an error's message, or its type; or both.

    >>> first_line(ValueError("no such file.\nSee above")), first_line(KeyError())
    ('no such file', 'KeyError')
    >>> first_line(ValueError("no such file"), typed=True)
    'ValueError: no such file'
    """
    kind, line = type(error).__name__, next(iter(str(error).strip().splitlines()), "")
    return (f"{kind}: {line}" if typed and line else line or kind)[:200].rstrip(".")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice, on any device.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    True
    """
    if isinstance(error, MemoryError):
        return True
    told = str(error).lower()
    return not isinstance(error, TasklabError | ValueError) and any(
        text in told for text in _NO_MEMORY
    )


def make_room(number: int | None) -> str:
    """Return advice to make room after a system's error of that number; empty for other errors.

    >>> make_room(errno.ENOSPC), make_room(errno.ENOENT)
    ('Free some space', '')
    """
    if number == errno.EFBIG:
        return "Raise the largest size of files (ulimit -f)"
    return "Free some space" if number in (errno.ENOSPC, errno.EDQUOT) else ""


def unknown(kind: str, name: object, choices: Iterable[str]) -> TasklabError:
    """Return the error for a name that is not one of `choices`, with the nearest one suggested.

    Args:
        kind: What the name stands for, in the message.
        name, choices: The wrong name (any object is printed), and all valid names.

    >>> print(unknown("model", "ViT-B-32", ["mini", "vitb32"]))
    unknown model 'ViT-B-32': did you mean 'vitb32'? Choices: mini, vitb32.
    >>> print(unknown("method", "linear", ["nonlinear", "linearized"]))
    unknown method 'linear': did you mean 'linearized'? Choices: nonlinear, linearized.
    """
    choices = list(choices)
    near = nearest(name[:_TOO_LONG] if isinstance(name, str) else shown(name), choices)
    hint = f"did you mean {near!r}? " if near else ""
    return TasklabError(f"unknown {kind} {shown(name)}: {hint}Choices: {', '.join(choices)}.")


def nearest(text: str, choices: Iterable[str]) -> str:
    """Return the choice that is spelled most like a text, or "".

    >>> nearest("TSV-M", ["ties", "tsv_m"]), nearest("load", ["ties", "tsv_m"])
    ('tsv_m', '')
    """
    choices = list(choices)
    near = [choice for choice in choices if folded(choice) == folded(text)]
    near = near or [one for one in choices if len(text) > 2 and one.startswith(text)]
    near = near or difflib.get_close_matches(text, choices, n=1, cutoff=0.5)
    near = near or [one for one in choices if len(one) > 2 and text.startswith(one)]
    return near[0] if near else ""


def choose(kind: str, name: object, choices: Collection[str]) -> None:
    """Check that a name is one of the choices.

    Args:
        kind: What the name stands for, in the message.
        name, choices: The name, and all valid names.

    Raises:
        TasklabError: If it is none of them; it suggests the nearest one.
    """
    if not isinstance(name, str) or name not in choices:
        raise unknown(kind, name, choices)


def whole(name: str, value: object, least: int, most: int = MOST_WHOLE) -> int:
    """Return an integer, which may come as a float or a text, as papermill passes them.

    Args:
        name: Of the argument, in the message.
        value: 12, 12.0 or "12".
        least, most: Bounds, inclusive.

    Raises:
        TasklabError: If it is no whole number within the bounds.

    >>> whole("steps", "12", 1), whole("steps", 3.0, 1)
    (12, 3)
    """
    number: Any = value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,100}\s*", value):
        number = int(value)
    if getattr(value, "is_integer", bool)():  # a float, also of numpy
        number = int(number)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(number)
    except TypeError:
        raise TasklabError(f"{name} must be a whole number, not {shown(value)}.") from None
    if number < least:
        raise TasklabError(f"{name} must be at least {least}, not {shown(number)}.")
    if number > most:
        raise TasklabError(f"{name} must be at most {most}, not {shown(number)}.")
    return number


def real(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """Return a finite number, which may come as a text.

    Args:
        name: Of the argument, in the message.
        value: 0.1 or "0.1".
        least, most: Bounds, inclusive.

    Raises:
        TasklabError: If it is no finite number within the bounds.

    >>> real("lr", "1e-5"), real("alpha", -0.3, -math.inf)
    (1e-05, -0.3)
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and least <= number <= most):
        bounds = [f"at least {least:g}"] if least > -math.inf else []
        bounds += [f"at most {most:g}"] if most < math.inf else []
        between = f" of {' and '.join(bounds)}" if bounds else ""
        raise TasklabError(f"{name} must be a finite number{between}, not {shown(value)}.")
    return number


def wholes(name: str, value: object, least: int, most: int = MOST_WHOLE) -> tuple[int, ...]:
    """Return a list of at least one integer.

    Args:
        name: Of the argument, in the message.
        value: Integers, each as `whole` reads them.
        least, most: Bounds of each, inclusive.

    Raises:
        TasklabError: If it is no list, is empty, or has something else in it.

    >>> wholes("sizes", [2, "4"], 1)
    (2, 4)
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TasklabError(f"{name} must be a list of whole numbers, not {shown(value)}.")
    numbers = tuple(whole(f"each of {name}", one, least, most) for one in value)
    if not numbers:
        raise TasklabError(f"{name} is empty: give at least one whole number.")
    return numbers


def positive(name: str, value: object) -> float:
    """Return a finite number above 0."""
    number = real(name, value)
    if number == 0:
        raise TasklabError(f"{name} must be above 0.")
    return number


def seed(name: str, value: object) -> int:
    """Return `value` as the seed of a random generator, 0 <= seed < 2^63."""
    return whole(name, value, 0)


def seeds(name: str, value: object, most: int = MOST_SEEDS) -> tuple[int, ...]:
    """Return different seeds.

    Args:
        name: Of the argument, in the message.
        value: A list of seeds, or how many, counted from 0.
        most: Largest number of seeds.

    Raises:
        TasklabError: If there are none, too many, or one twice.

    >>> seeds("seeds", 3), seeds("seeds", [5])
    ((0, 1, 2), (5,))
    """
    listed = not isinstance(value, str | bytes) and getattr(value, "ndim", 1) > 0
    if not (isinstance(value, Iterable) and listed):
        return tuple(range(whole(name, value, 1, most)))
    chosen: list[int] = []
    for one in value:  # which may have no end
        if len(chosen) == most:
            raise TasklabError(f"{name} must be at most {most} numbers.")
        chosen.append(seed(f"each of {name}", one))
    if not chosen:
        raise TasklabError(f"{name} is empty: give a number of {name}, or a list such as [0, 1].")
    if len(set(chosen)) < len(chosen):
        raise TasklabError(f"{name} repeat: {shown(chosen)}. A run counted twice shows no spread.")
    return tuple(chosen)


def texts(name: str, value: object, choices: Collection[str] | None = None) -> tuple[str, ...]:
    """Return a tuple of names; a single name is a list of one.

    Args:
        name: Of the argument, in the message.
        value: A name, or a list of names.
        choices: Valid names; `None` for any.

    Raises:
        TasklabError: If there are none, or one is no text or none of the choices.

    >>> texts("tasks", "Textures"), texts("tasks", ["Signs", "Shapes"])
    (('Textures',), ('Signs', 'Shapes'))
    """
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, Iterable) or isinstance(listed, bytes):
        raise TasklabError(f"{name} must be a list of names, not {shown(value)}.")
    listed = tuple(listed)
    if not listed:
        raise TasklabError(f"{name} is empty: give at least one name.")
    for one in listed:
        if not isinstance(one, str) or not one.strip():
            raise TasklabError(f"each of {name} must be a name, not {shown(one)}.")
        if choices is not None:
            kind = name.removesuffix("s") if name.isidentifier() else f"one of {name}"
            choose(kind, one, choices)
    return listed


def path(name: str, value: object, kind: Literal["file", "folder"] | None = None) -> Path:
    """Return a path that the system accepts, with `~` expanded.

    Args:
        name: Of the argument, in the message.
        value: Text or path.
        kind: A readable file or folder that must exist; `None` for any path.

    Raises:
        TasklabError: If it is no path, or no readable one of that kind.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str):
        raise TasklabError(f"{name} must be a path, not {shown(value)}.")
    if not text.strip():
        raise TasklabError(f"{name} is empty: give it a path.")
    wanted = f"{name}: {shown(text, LONG_PATH)}"
    if "\0" in text:
        raise TasklabError(f"{wanted} has a null character, which no path may have.")
    try:
        place = Path(text).expanduser()
        place.stat()
        if kind == "file" and place.is_dir():
            raise TasklabError(f"{wanted} is a folder, and should be a file.")
        if kind == "file" and not place.is_file():  # which would be waited for
            raise TasklabError(f"{wanted} is a device or a pipe, and should be a file.")
        if kind == "folder" and not place.is_dir():
            raise TasklabError(f"{wanted} is not a folder.")
        if kind and not os.access(place, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except RuntimeError:
        raise TasklabError(f"{wanted} begins with the name of a user who is not here.") from None
    except FileNotFoundError:
        if kind:
            raise TasklabError(f"{wanted} is not there: there is no {kind} of that name.") from None
    except OSError as error:
        if kind or error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise TasklabError(f"{wanted} cannot be read: {error.strerror}.") from error
    except ValueError:  # half of a character
        raise TasklabError(f"{wanted} is no text that a path can be.") from None
    return place


def shown(value: Any, most: int = _TOO_LONG) -> str:
    r"""Quote, escape and shorten a value of any kind for a message of `most` characters.

    >>> print(shown("a\nb"), len(shown("x" * 1_000_000)), shown(10**5000))
    'a\nb' 80 a number of more than 80 digits
    """
    if isinstance(value, int) and abs(value) >= 10**_TOO_LONG:  # Python refuses to write it
        return f"a number of more than {_TOO_LONG} digits"
    short = value[:most] if isinstance(value, str | bytes) else value
    try:
        quoted = repr(short) if isinstance(short, str | bytes | os.PathLike) else _REPR.repr(short)
    except Exception:  # whatever an object's own representation raises
        return f"a {type(value).__name__}"
    cut = len(quoted) > most or (isinstance(value, str | bytes) and len(short) < len(value))
    return f"{quoted[: most - 3]}..." if cut else quoted


def abridged(names: Iterable[str], most: int = 6) -> str:
    """Return the first of some names in a row; odd ones, which files can have, are escaped."""
    names = list(names)
    plain = [x if x.isprintable() and len(x) <= _TOO_LONG else shown(x) for x in names[:most]]
    return ", ".join(plain) + (", ..." if len(names) > most else "")


def folded(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 12
_REPR.maxstring = _REPR.maxother = _TOO_LONG
