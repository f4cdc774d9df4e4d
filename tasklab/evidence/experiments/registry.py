"""Experiments, declared beside the code that measures them.

    @experiment(Rows("norms", "a task vector's length", "norm", figure="norms"))
    def norms(lab, methods):
        ...

A declaration is all that the rest of the package knows of an experiment: its metrics
and columns, the figure that draws them, the sides of claims, and its fine-tuning runs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tasklab.errors import choose
from tasklab.evidence.records.schema import Comparison, Declared, Rows, declare
from tasklab.isolation import isolated
from tasklab.tuning.methods import POSTHOC

if TYPE_CHECKING:
    import pandas as pd

    from tasklab.bench.lab import Lab
    from tasklab.evidence.experiments.small_networks import Setting
    from tasklab.tuning.recipe import FineTune

    Function = TypeVar("Function", bound=Callable[..., pd.DataFrame])


@dataclasses.dataclass(frozen=True)
class Run:
    """A fine-tuning run, and the lab that asks for it."""

    lab: Lab
    recipe: FineTune

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines its result: its key in the store."""
        return self.lab.trainer.identity(self.recipe)

    @property
    def kept(self) -> bool:
        """Whether its result is in the store."""
        return self.lab.store.has("finetune", self.identity)


def usual_runs(lab: Lab, methods: Iterable[str], **_options: Any) -> Iterator[Run]:
    """Yield the fine-tuning runs behind the methods' vectors on all tasks and seeds, each once.

    Args:
        lab: Gives tasks, seeds and recipes.
        methods: Any of `EDITS`, or `"probe"`, which trains no vector; a post-hoc method uses the
            vectors of another.
        _options: Options of the experiment, which change none of these runs.
    """
    every = itertools.product(trained(methods), lab.seeds, lab.suite.names)
    for method, seed, task in every:
        yield Run(lab, lab.run(task, method, seed))


def trained(methods: Iterable[str]) -> list[str]:
    """Return the methods behind some methods' vectors, each once, without probes."""
    return [m for m in dict.fromkeys(POSTHOC.get(one, one) for one in methods) if m != "probe"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A measurement with its declaration."""

    name: str  #: Under which it is called: `experiments.NAME(lab, ...)`
    call: Callable[..., pd.DataFrame]  #: The function that measures
    records: Mapping[str, Rows]  #: The sorts of records that it makes, by name
    #: Lab, methods and the call's options -> the fine-tuning runs that it needs.
    runs: Callable[..., Iterator[Run]] = usual_runs
    #: Lab and options -> small networks that it trains, with their number of tasks.
    networks: Callable[..., Iterable[tuple[Setting, int]]] = lambda lab, **_: ()  # noqa: E731

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return (self.call.__doc__ or "").partition("\n")[0]


@functools.cache
def discover() -> None:
    """Import every module of this room, which declares its experiments then."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


REGISTRY: Declared[Experiment] = Declared(discover)  # by the name of the function


def experiment(
    *records: Rows, sides: Mapping[str, Comparison] | None = None, **more: Any
) -> Callable[[Function], Function]:
    """Return a decorator that declares a function as an experiment, and describes its records.

    Args:
        *records: The sorts of records that it makes.
        sides: Functions from records to sides of claims, where `records` are declared here.
        **more: `runs` and `networks` of an `Experiment`.
    """

    def made(measure: Function) -> Function:
        function = cast("Function", isolated(measure))
        home, name = function.__module__, function.__name__
        entry = Experiment(
            name=name, call=function, records={rows.name: rows for rows in records}, **more
        )
        REGISTRY.declare(name, entry, home)
        for rows in records:
            declare(rows, sides, home=home)
        told = (f"Records of the experiment `{rows.name}`: {rows}" for rows in records)
        paragraphs = (textwrap.fill(one, 96) for one in told)
        function.__doc__ = "\n\n".join((inspect.cleandoc(function.__doc__ or ""), *paragraphs))
        return function

    return made


def find(name: str) -> Experiment:
    """Return the experiment of that name, or raise a `TasklabError` with the nearest one."""
    choose("experiment", name, REGISTRY)
    return REGISTRY[name]
