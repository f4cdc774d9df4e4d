"""The parameters of a notebook (`Parameters`), checked before all other work."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from tasklab import exchange, machine
from tasklab.errors import (
    LeftOutError,
    TasklabError,
    choose,
    path,
    positive,
    seeds,
    shown,
    unknown,
    whole,
)
from tasklab.models.zoo import INITS, REGISTRY, Init, choose_model, closed, small, text_suite
from tasklab.tasks.suites import OWN, SUITES, SuiteName, inputs
from tasklab.tuning.recipe import (
    PRECISIONS,
    REHEARSAL_STEPS,
    USUAL_HEADS,
    FineTune,
    Precision,
    UsualHead,
    recipe,
)

Preset = Literal["quick", "full"]
PRESETS = get_args(Preset)
Live = Literal["example", "all"]
_OF_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")  # that it injects if asked
RECORDED = {"model": "mini", "suite": "mini", "init": "pretrained"}  # what chapters have on record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters that every notebook takes, checked.

    They are declared here and nowhere else: the first cell of a notebook, the options of the
    command line and the arguments of `Lab` follow from these fields. Numbers may come as strings,
    as a command line and some callers of papermill pass them.

    Attributes:
        model: Short name (`tasklab list models`), or one of a library's:
            timm/resnet50.a1_in1k, st/all-MiniLM-L12-v2.
        suite: The tasks: the drawn world, its texts, the papers' data sets, real drawings
            (`icons`), or real texts (`wordnet`). By default by the model.
        init: Whether to start from pre-trained or from random weights.
        head: The classifier: made of prompts, trained along, or probed first. By default by the
            model.
        preset: Minutes on a laptop, or the paper's protocol.
        live: Computations of a chapter: its example, beside recorded results, or all. By default
            all for a model without records.
        seeds: How many, or which, e.g. 0,1,2. By default one (quick) or three (full).
        steps: Of fine-tuning. By default the recipe's; below 10 it is a rehearsal of the code path,
            in which a full-size model has two blocks in each tower, four tasks and batches of one.
        lr: Learning rate of fine-tuning, for every method. By default the recipe's.
        vectors: Published vectors in place of fine-tuning, `published:` and a source of
            `tasklab import --from`: published:orthoreg. By default every run fine-tunes.
        precision: Of fine-tuning; evaluation is in float32. By default bfloat16 where the device,
            GPU or processor, is fast at it, else float32.
        data_root: Folder of data sets that are not embedded.
        store_root: Folder of results. By default $TASKLAB_STORE or the user's cache.
        device: cpu, cuda, cuda:1, ... By default CUDA if there.
    """

    model: str = "mini"
    suite: SuiteName | None = None
    init: Init = "pretrained"
    head: UsualHead | None = None
    preset: Preset = "quick"
    live: Live | None = None
    seeds: int | str | Iterable[int] | None = None
    steps: int | str | None = None
    lr: float | str | None = None
    vectors: str | None = None
    precision: Precision | None = None
    data_root: Path | str | None = None
    store_root: Path | str | None = None
    device: str | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all parameters."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def of(cls, namespace: Mapping[str, Any]) -> Parameters:
        """Return the parameters that a notebook's first cell assigned: `Parameters.of(globals())`.

        papermill replaces variables of that cell, so that they cannot be arguments. A misspelt one
        is noticed on either side: in the cell a name is missing; what papermill was given stands in
        a cell of its own, whatever its name; and what another program assigned instead is a plain
        variable with nearly the name of a parameter.
        """
        names = cls.names()
        missing = [name for name in names if name not in namespace]
        if missing:
            raise TasklabError(
                f"the cell of parameters lacks {', '.join(missing)}: assign all of "
                f"{', '.join(names)}."
            )
        for name in _injected(namespace.get("In", ())):
            choose("parameter", name, (*names, *_OF_PAPERMILL))
        for name, value in namespace.items():
            plain = value is None or isinstance(value, str | int | float)
            if plain and name not in names and difflib.get_close_matches(name, names, cutoff=0.8):
                raise unknown("parameter", name, names)
        return cls(**{name: namespace[name] for name in names})

    @classmethod
    def read(cls, given: object, more: Mapping[str, Any]) -> Parameters:
        """Return parameters from arguments of `Lab`: an object or a model, and single ones."""
        for name in more:
            if name not in cls.names():
                raise unknown("parameter", name, (*cls.names(), "tasks", "own", "base"))
        if isinstance(given, cls):
            if more:
                raise TasklabError(
                    f"{', '.join(more)} beside Parameters: give them to Parameters(...), or all "
                    "of them to Lab(...)."
                )
            return given
        if isinstance(given, str):
            if "model" in more:
                raise TasklabError(f"two models, {shown(given)} and {shown(more['model'])}.")
            more = {"model": given, **more}
        elif given is not None:
            raise TasklabError(
                f"a lab takes Parameters or the name of a model, not {shown(given)}: "
                "Lab('mini'), Lab(model='mini', steps=60)."
            )
        return cls(**more)

    def __post_init__(self) -> None:
        choose_model(self.model)
        choose("init", self.init, INITS)
        choose("preset", self.preset, PRESETS)
        if self.live is not None:
            choose("live", self.live, get_args(Live))
        if self.head is not None:
            choose("head", self.head, USUAL_HEADS)
        if self.precision is not None:
            choose("precision", self.precision, PRECISIONS)
        if self.head == "zero_shot" and closed(self.model):
            raise TasklabError(
                f"model {self.model!r} has no text tower to make a zero-shot head: take "
                "head='probe'."
            )
        fitting = suites_of(self.model)
        if self.vectors is not None:
            self._check_vectors()
            fitting = ("paper",)
        suite = fitting[0] if self.suite is None else self.suite
        choose("suite", suite, SUITES if suite != OWN else (OWN,))
        if suite == OWN and suite not in fitting:
            raise TasklabError(
                f"model {self.model!r} reads {inputs(fitting[0])}, and tasks of your own have "
                "images: take a model of images (`tasklab list models`)."
            )
        if suite not in fitting:
            raise TasklabError(
                f"model {self.model!r} does not read suite {suite!r}, which has {inputs(suite)}: "
                f"leave it out, or give {fitting[0]!r}."
            )
        terms = {"model": self.model, "suite": suite, "init": self.init}
        recorded = terms == RECORDED and self.head is None
        settled = {
            "suite": suite,
            "live": self.live or ("example" if recorded else "all"),
            "seeds": _seeds(1 if self.vectors and self.seeds is None else self.seeds, self.preset),
            "steps": None if self.steps is None else whole("steps", self.steps, 1),
            "lr": None if self.lr is None else positive("lr", self.lr),
            "data_root": folder("data_root", self.data_root),
            "store_root": folder("store_root", self.store_root),
            "device": _device(self.device),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def _check_vectors(self) -> None:
        source = exchange.catalogue.source_of(self.vectors)
        if self.model not in exchange.catalogue.entry(source)["models"]:
            raise LeftOutError(f"{source} has no vectors of {self.model}")
        if self.head not in (None, "zero_shot"):
            raise LeftOutError(f"published vectors do not fit head={self.head!r}")
        if self.lr is not None:
            raise TasklabError("vectors are published: nothing trains, so leave out lr.")
        if len(_seeds(1 if self.seeds is None else self.seeds, self.preset)) > 1:
            raise TasklabError("published vectors have one seed: leave out seeds.")

    @property
    def vocabulary(self) -> str:
        """`"open"` where heads are made of prompts, else `"closed"`."""
        own_heads = closed(self.model) if self.head is None else self.head != "zero_shot"
        return "closed" if own_heads else "open"

    @property
    def rehearsal(self) -> bool:
        """Whether the steps are so few that a run only tests the code."""
        return self.steps is not None and int(self.steps) < REHEARSAL_STEPS

    @property
    def light(self) -> bool:
        """Whether a full-size model is rehearsed."""
        return self.rehearsal and not small(self.model)

    def recipe(
        self, task: str, method: str, seed: int, others: Sequence[str] | None = None
    ) -> FineTune:
        """Return the run of one task by one method that these parameters ask for.

        `others` are the tasks whose images a penalty looks at; `None` is all others of the suite.

        Args:
            task: Name of a task.
            method: Name of the fine-tuning method.
            seed: Of the run.
            others: Tasks whose images a penalty looks at.
        """
        same = ("suite", "init", "head", "steps", "lr", "precision", "device")
        settled: dict[str, Any] = {name: getattr(self, name) for name in same}
        preset = "rehearsal" if self.rehearsal else self.preset
        return recipe(self.model, task, method, seed=seed, preset=preset, others=others, **settled)


def suites_of(model: str) -> tuple[str, ...]:
    """Return the suites that a model reads, its usual one first."""
    if texts := text_suite(model):
        return (texts,)
    usual = REGISTRY[model].world if model in REGISTRY else "mini"
    return tuple(dict.fromkeys((usual, "mini", "icons", "paper", OWN)))


def with_parameters(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with the parameters in place of its `**given`.

    Editors that ask a running Python, as Jupyter does, then complete them.
    """
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = inspect.signature(Parameters).parameters.values()
    return signature.replace(parameters=[*own, *more])


def _injected(history: Iterable[object]) -> Iterator[str]:
    for cell in history:
        if isinstance(cell, str) and cell.startswith("# Parameters\n"):
            for node in _parsed(cell).body:
                if isinstance(node, ast.Assign):
                    yield from (name.id for name in node.targets if isinstance(name, ast.Name))


def _parsed(cell: str) -> ast.Module:
    """Return a cell's code without the lines that IPython reads: magics, shell, help."""
    lines = [line for line in cell.splitlines() if not re.match(r"\s*[%!?]|.*\?\s*$", line)]
    for code in (cell, "\n".join(lines)):
        with contextlib.suppress(SyntaxError):
            return ast.parse(code)
    return ast.Module(body=[], type_ignores=[])


def _seeds(value: object, preset: str) -> tuple[int, ...]:
    if value is None:
        value = {"quick": 1, "full": 3}[preset]
    # A command line and papermill pass a list as text.
    if isinstance(value, str) and ("," in value or re.fullmatch(r"\s*[\[(].*[\])]\s*", value)):
        listed = value.strip("[]() ").removesuffix(",")
        value = listed.split(",") if listed else ()
    return seeds("seeds", value)


def folder(name: str, value: object) -> Path | None:
    """Return the path of a folder, which need not exist; `None` for `None`."""
    if value is None:
        return None
    place = path(name, value)
    if place.exists() and not place.is_dir():
        raise TasklabError(f"{name} is {shown(str(place), 500)}, which is not a folder.")
    return place


def _device(value: object) -> str:
    if value is not None and not (
        isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d{1,3})?", value)
    ):
        raise unknown("device", value, ("cpu", "cuda", "cuda:0", "cuda:1"))
    if value == "cpu":
        return "cpu"
    import torch  # here, so that reading a configuration does not cost seconds

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if value is None and not count:
        return "cpu"
    value = value or "cuda"
    machine.check_device(value)
    return value
