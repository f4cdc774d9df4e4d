"""Answers to wrong guesses at names: the right call, or the nearest name."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tasklab.errors import nearest


class _AdvisedType(ABCMeta):
    """Answers guesses at attributes of a class as its instances do."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name):
            raise _no_attribute(cls.__name__, name, lambda: dir(cls), cls._advice)


class Advised(metaclass=_AdvisedType):
    """A class that answers guesses at its attributes with the right call."""

    __slots__ = ()
    _advice: ClassVar[Mapping[str, str]] = {}  # guesses, with spaces between -> what to write

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Raise, with the right call or the nearest public name."""
            raise _no_attribute(type(self).__name__, name, lambda: dir(self), self._advice)


def advising(
    package: str, attached: tuple[Any, Any, list[str]], advice: Mapping[str, str] | None = None
) -> tuple[Any, Any, list[str]]:
    """Return a package's lazy attributes, with the nearest name in the error of a wrong guess.

    Args:
        package: Name of the package.
        attached: Its `__getattr__`, `__dir__` and `__all__`.
        advice: Guesses, separated by spaces -> the right name.
    """
    get, listed, public = attached

    def __getattr__(name: str) -> Any:  # noqa: N807 - a module's hook
        if name in public:
            return get(name)
        folder = Path(sys.modules[package].__path__[0], name)
        if folder.with_suffix(".py").exists() or folder.is_dir():  # `from package import module`
            raise AttributeError(f"{package} has no {name!r}: import {package}.{name}", name=name)
        raise _no_attribute(package, name, lambda: public, advice or {})

    return __getattr__, listed, public


def _no_attribute(
    owner: str, name: str, public: Callable[[], Iterable[str]], advice: Mapping[str, str]
) -> AttributeError:
    if name.startswith("_"):  # Python, numpy and IPython ask for many
        return AttributeError(f"{owner} has no {name!r}", name=name)
    told = [told for guesses, told in advice.items() if name in guesses.split()]
    near = nearest(name, [one for one in public() if not one.startswith("_")])
    hint = told[0].format(name=name) if told else f"did you mean {near!r}?" if near else ""
    return AttributeError(f"{owner} has no {name!r}{': ' * bool(hint)}{hint}", name=name)
