"""Words of a command line → a call of the command's function, by tyro.

tyro makes the options of a function's arguments. Its errors become one sentence, as all
user errors do; values that may be text are passed on unchanged, so that the
functions and `Parameters` check it, in one place for every door.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import operator
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import docstring_parser
import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tasklab import machine
from tasklab.bench.parameters import Parameters
from tasklab.cli import COMMANDS
from tasklab.errors import TasklabError, shown, unknown
from tasklab.progress import begin
from tasklab.storage import termination

CONFIG = (
    tyro.conf.DisallowNone,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.UseAppendAction,
)
Given = dict[str, Any]  # notebook parameters, those that are given
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}
OF_RUNS = ("head", "preset", "seeds", "steps", "lr", "precision")  # apart in help
_RUNS = "runs"
_REGISTRY = ConstructorRegistry()
_TYRO: dict[str, Any] = {"config": CONFIG, "registry": _REGISTRY}
_LIGHT = ("list", "doctor", "store")  # commands without a model
_ADDRESSES = 7 * 2**29  # bytes: 3.0 GiB when PyTorch is loaded, and what a small model takes
_COMPLETION = "--tyro-print-completion"


def settings(*without: str, live: bool = False, **defaults: str) -> Any:
    """Return the type by which tyro parses notebook parameters.

    Args:
        *without: Names that are no options of this command.
        live: Whether `--live` is one: of commands that execute chapters.
        **defaults: Of the command, where it has others than `Parameters`; only shown.
    """
    fields = inspect.signature(Parameters).parameters
    hints = typing.get_type_hints(Parameters)
    texts = _texts(Parameters)
    options: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    for name, field in fields.items():
        if name not in without and (live or name != "live"):
            usual = defaults.get(name, field.default)
            hint = "" if usual is None else f"(default: {usual})"
            text = texts.get(name, "")
            option = tyro.conf.arg(help=text, help_behavior_hint=hint)
            options[name in OF_RUNS][name] = Annotated[_some(hints[name]), option]
    runs = typing.TypedDict("runs", options[True], total=False)  # type: ignore[misc]
    titled = Annotated[runs, tyro.conf.arg(name="fine-tuning and stored runs,")]
    own = {**options[False], _RUNS: titled}
    given = typing.TypedDict("given", own, total=False)  # type: ignore[misc]
    return Annotated[given, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")]


def _texts(documented: Callable[..., Any]) -> dict[str, str]:
    """Return the text of each argument in a docstring; empty if Python removed it (-OO)."""
    described = docstring_parser.parse(documented.__doc__ or "").params
    return {one.arg_name: " ".join((one.description or "").split()) for one in described}


def _some(hint: Any) -> Any:
    """Return a type without `None`, which leaves an option out and is no word for it."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = (one for one in typing.get_args(hint) if one is not type(None))
    return functools.reduce(operator.or_, members)


def _asked(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """Return the function that tyro parses: grouped parameters, no empty default shown."""
    signature, hints = inspect.signature(function), _hints(function)
    texts = _texts(function)

    def bound(*given: Any, **more: Any) -> Callable[[], Any]:
        for one in (*given, *more.values()):
            if isinstance(one, dict):
                one |= one.pop(_RUNS, {})
        return functools.partial(function, *given, **more)

    def shown(name: str, default: object) -> Any:
        about: dict[str, Any] = {"help": texts.get(name, "")}
        if default in (None, (), False, "", inspect.Parameter.empty):
            about["help_behavior_hint"] = ""
        return Annotated[hints[name], tyro.conf.arg(**about)]

    own = signature.parameters.items()
    listed = [one.replace(annotation=shown(name, one.default)) for name, one in own]
    bound.__annotations__ = {one.name: one.annotation for one in listed}
    bound.__signature__ = signature.replace(parameters=listed)  # type: ignore[attr-defined]
    return bound


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's arguments, notebook parameters as tyro parses them."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: next((one for one in _extras(hint) if typing.get_origin(one) is Annotated), hint)
        for name, hint in hints.items()
        if name != "return"
    }


@_REGISTRY.primitive_rule
def _text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    members = typing.get_args(info.type) if info.type_origin is not None else (info.type,)
    union = info.type_origin in (typing.Union, types.UnionType)
    if str not in members or not (union or info.type is str):
        return None
    metavar = next((METAVARS[one] for one in members if one in (int, float)), "TEXT")
    if any(isinstance(one, type) and issubclass(one, Path) for one in members):
        metavar = "PATH"
    return PrimitiveConstructorSpec(
        nargs=1, metavar=metavar, instance_from_str=lambda words: words[0],
        is_instance=lambda value: True, str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def function_of(command: str) -> Callable[..., int | None]:
    """Return the function that runs a command."""
    module, _, name = COMMANDS[command].function.partition(":")
    return getattr(importlib.import_module(f"tasklab.cli.{module}"), name)


def call(command: str, words: Sequence[str]) -> int | None:
    """Run a command and return its exit status.

    Raises:
        TasklabError: If the words are no arguments of it.
        SystemExit: After its help.
    """
    function, prog = function_of(command), f"tasklab {command}"
    about = COMMANDS[command]
    _check_once(function, words)
    words = _joined(function, words)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # tyro's own account of a mistake
            told = f"{about.summary}\n\nExample: {prog} {about.example}"
            run = tyro.cli(_asked(function), prog=prog, description=told, args=[*words], **_TYRO)
    except SystemExit as end:
        if not end.code or isinstance(end, termination.Terminated):
            raise
        raise _mistake(command, function, words) from None
    if "torch" not in sys.modules and command not in _LIGHT:
        _check_addresses()
        if getattr(function, "isolated", False):
            begin("loading PyTorch.")  # for seconds
    return run()


def _check_addresses() -> None:
    """Raise where PyTorch would run out of addresses: its libraries then end the process."""
    left = machine.address_space()
    if left is not None and left < _ADDRESSES:
        raise TasklabError(
            f"this process may take {machine.gib(left)} of addresses (ulimit -v), and PyTorch "
            f"needs {machine.gib(_ADDRESSES)} of them, most of which it never uses: lift that "
            "limit (ulimit -v unlimited)."
        )


def completion(shell: str) -> int:
    """Print a shell's completion script for all commands."""
    shells = ("bash", "zsh", "fish", "tcsh")
    if shell not in shells:
        raise unknown("shell", shell, shells)
    commands, words = {name: _asked(function_of(name)) for name in COMMANDS}, [_COMPLETION, shell]
    tyro.extras.subcommand_cli_from_dict(commands, prog="tasklab", args=words, **_TYRO)
    return 0


def _declared(function: Callable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types of a command's options, by their names with dashes, and of its words."""
    hints: dict[str, Any] = {}
    for name, hint in _hints(function).items():
        hints |= getattr(_plain(hint), "__annotations__", {name: hint})  # settings: each an option
    hints |= getattr(_plain(hints.pop(_RUNS, None)), "__annotations__", {})
    positional = {n: h for n, h in hints.items() if tyro.conf.Positional in _extras(h)}
    return {f"--{_written(n, h)}": h for n, h in hints.items() if n not in positional}, positional


def _check_once(function: Callable, words: Sequence[str]) -> None:
    """Raise if an option that takes one value is given twice: tyro would take the last."""
    options, _ = _declared(function)
    named = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for option in dict.fromkeys(named):
        single = option in options and typing.get_origin(_plain(options[option])) is not tuple
        if single and named.count(option) > 1:
            raise TasklabError(f"{option} is given {named.count(option)} times: give it once.")


def _joined(function: Callable, words: Sequence[str]) -> list[str]:
    """Join an option that takes other programs' OPTIONS with them: they begin with dashes, too."""
    options, joined = _declared(function)[0], list[str]()
    takes = {name for name, hint in options.items() if _metavar(hint) == "OPTIONS"}
    for word in words:
        if joined and joined[-1] in takes and word.partition("=")[0] not in options:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _metavar(hint: Any) -> str | None:
    return next(filter(None, (getattr(one, "metavar", None) for one in _extras(hint))), None)


def _mistake(command: str, function: Callable, words: Sequence[str]) -> TasklabError:
    """Return the error for words that tyro rejected: the first one that no argument takes."""
    more = f"see `tasklab {command} --help`."
    options, positional = _declared(function)
    remaining, expected, taken, last = list(words), list(positional.items()), False, ""
    while remaining:
        word = remaining.pop(0)
        if word.startswith("-"):
            option, given, value = word.partition("=")
            option = option.replace("_", "-")
            if (name := option.lstrip("-")) in positional:
                return TasklabError(f"{command} takes its {name.upper()} without {option}: {more}")
            if option not in options:
                return unknown("option", option, [*options])
            hint = options[option]
            if _plain(hint) is bool:
                if given:
                    return TasklabError(f"{option} takes no value: {more}")
                continue
            if not given and (not remaining or remaining[0].startswith("--")):
                return TasklabError(f"{option} needs a value: {more}")
            value = value if given else remaining.pop(0)
            last = option if typing.get_origin(_plain(hint)) is tuple else ""
        elif not expected:
            if last:
                return TasklabError(f"{last} takes one value: repeat it, {last} {shown(word)}.")
            return TasklabError(f"{command} does not take {shown(word)}: {more}")
        else:
            (_, hint), name, value = expected[0], "word", word
            taken = typing.get_origin(_plain(hint)) is tuple
            if not taken:
                del expected[0]
        if value not in (choices := _choices(hint) or [value]):
            return unknown(name, value, choices)
    if taken:
        name = expected[0][0].upper()
        return TasklabError(f"{command} takes each {name} before its options: {more}")
    if expected:
        return TasklabError(f"{command} takes a {expected[0][0].upper()}: {more}")
    return TasklabError(f"{command} does not take these words together: {more}")


def _extras(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


def _plain(hint: Any) -> Any:
    return hint.__origin__ if _extras(hint) else hint


def _written(name: str, hint: Any) -> str:
    """Return an option's name on the command line, without its dashes."""
    renamed = (getattr(one, "name", None) for one in _extras(hint))
    return next(filter(None, renamed), name).replace("_", "-")


def _choices(hint: Any) -> list[str]:
    """Return the words that a Literal allows; `None` leaves an option out."""
    members = typing.get_args(_plain(hint))
    if typing.get_origin(_plain(hint)) is typing.Literal:
        return [one for one in members if one is not None]
    return [choice for one in members for choice in _choices(one)]
