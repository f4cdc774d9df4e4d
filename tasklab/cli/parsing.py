"""Words of a command line → a call of the command's function, by tyro.

tyro makes the options of a function's arguments. What it finds wrong becomes one sentence, as all
that a user can put right; and what may be text is passed on as it was written, so that the
functions and `Parameters` check it, in one place for every door.
"""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import docstring_parser
import tyro
from tyro import _errors as events  # unstable, so that pyproject.toml names one version of tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tasklab.cli import COMMANDS
from tasklab.errors import TasklabError, shown, unknown
from tasklab.experiments.parameters import Parameters

CONFIG = (
    tyro.conf.DisallowNone,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.UseAppendAction,
)
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}
_REGISTRY = ConstructorRegistry()


def settings(*without: str, **defaults: str) -> Any:
    """Return the type of an argument that takes notebook parameters, those that are given.

    Args:
        *without: Names that are no options of this command.
        **defaults: Of the command, where it has others than `Parameters`; only told.
    """
    fields = inspect.signature(Parameters).parameters
    hints = typing.get_type_hints(Parameters)
    texts = {p.arg_name: p.description for p in docstring_parser.parse(Parameters.__doc__).params}
    options = {}
    for name, field in fields.items():
        if name not in without:
            usual = defaults.get(name, field.default)
            hint = "" if usual is None else f"(default: {usual})"
            text = " ".join(texts[name].split())
            option = tyro.conf.arg(help=text, help_behavior_hint=hint)
            options[name] = Annotated[hints[name], option]
    given = typing.TypedDict("given", options, total=False)
    return Annotated[given, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")]


@_REGISTRY.primitive_rule
def _text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Take what may be text as it was written."""
    members = typing.get_args(info.type) if info.type_origin is not None else (info.type,)
    union = info.type_origin in (typing.Union, types.UnionType)
    if str not in members or not (union or info.type is str):
        return None
    metavar = next((METAVARS[one] for one in members if one in (int, float)), "TEXT")
    if any(isinstance(one, type) and issubclass(one, Path) for one in members):
        metavar = "PATH"
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


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

    def refuse(event: events.ParseErrorEvent) -> NoReturn:
        raise _sentence(event, command, function)

    with events.on_parse_error(refuse):
        return tyro.cli(
            function,
            prog=prog,
            description=f"{about.summary}\n\nExample: {prog} {about.example}",
            args=list(words),
            config=CONFIG,
            registry=_REGISTRY,
        )


def completion(shell: str) -> None:
    """Print what completes all commands in a shell: to be kept where that shell looks for it."""
    shells = ("bash", "zsh", "fish", "tcsh")
    if shell not in shells:
        raise unknown("shell", shell, shells)
    tyro.extras.subcommand_cli_from_dict(
        {name: function_of(name) for name in COMMANDS},
        prog="tasklab",
        args=["--tyro-print-completion", shell],
        config=CONFIG,
        registry=_REGISTRY,
    )


def _sentence(event: events.ParseErrorEvent, command: str, function: Callable) -> TasklabError:
    """Return what is wrong with the words, in one sentence."""
    options = _options(function)
    more = f"`tasklab {command} --help` tells what it takes."
    if isinstance(event, events.InvalidChoice):
        choices = sorted({*event.choices} - {"None"})  # None leaves the option out
        return unknown(_name(event.argument), event.value, choices)
    if isinstance(event, events.UnrecognizedArgs):
        word = event.tokens[0]
        if word.startswith("-"):
            return unknown("option", word.partition("=")[0], options)
        return TasklabError(f"{command} does not take {shown(word)}: {more}")
    if isinstance(event, events.MissingArgs):
        names = [_name(one.arg).upper() for one in event.missing_arguments]
        return TasklabError(f"{command} takes a {' and a '.join(names)}: {more}")
    if isinstance(event, events.BadValue):
        return TasklabError(f"--{_name(event.argument)} needs a value: {more}")
    if isinstance(event, events.InstantiationFailure):
        return TasklabError(f"{event.message.splitlines()[0].rstrip('.')}: {more}")
    return TasklabError(f"{command} does not take these words together: {more}")


def _name(argument: Any) -> str:
    """Return what an argument is called on a command line, without dashes in front."""
    if argument.is_positional():
        return str(argument.lowered.metavar).strip("[]")
    return argument.lowered.name_or_flags[-1].lstrip("-")


def _options(function: Callable) -> list[str]:
    """Return the options of a command as they are written."""
    names: list[str] = []
    for name, hint in typing.get_type_hints(function).items():
        names += getattr(hint, "__annotations__", [name])  # of the settings each is an option
    return [f"--{name.replace('_', '-')}" for name in names if name != "return"]
