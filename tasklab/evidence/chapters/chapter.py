"""A chapter's declaration (`Chapter`), and its experiments on one model (`Work`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tasklab.errors import TasklabError, choose
from tasklab.evidence.records.schema import LEADING as LEADING
from tasklab.models.zoo import FAMILIES, SCHEMES, replicas
from tasklab.models.zoo import SORTS as SORTS
from tasklab.tuning.methods import EDITS

Names = Mapping[str, Mapping[str, Any]]  # of experiments, each with its options
HEADLINE = 5  # seeds of what a headline compares; three of all else
TRAINED = ("nonlinear", "linearized", "attention")
PENALISED = ("tau_jp", "tak_even", "ortho_reg", "off_diagonal")
TEXT = {"model": "mini_t5"}
RANDOM = {"init": "random"}
ICONS = {"model": "icons_s"}  # of the second world
WORDNET = {"model": "minilm"}  # of the third world
BLIND = {"model": "icons"}  # predicted before it was recorded (`study.blind`)
TABLES: Names = {"single": {}, "addition": {}}
ONE_PAIR: Names = {"disentanglement": {"n_pairs": 1}}
THREE_PAIRS: Names = {"search_box": {"n_pairs": 3}}
XI = ("xi_classifier",)
XI_BOX = ("xi_classifier_box",)
ALL_PAIRS = (
    "merging",
    ("matrix", "pairs", "wordnet_pairs"),
    ("crossing",),
)  # errors of all pairs, at one coefficient
# Models that differ in their seed of pre-training, of each world; icons_s is of seed 0
REPLICAS = tuple({"model": name} for name in replicas("mini"))
ICON_REPLICAS = tuple({"model": name} for name in replicas("icons_s")[1:])
PROBED = {role: {"model": FAMILIES[0][role], "head": "probe"} for role in SCHEMES}


@dataclasses.dataclass(frozen=True)
class Work:
    """Experiments on one model.

    Attributes:
        methods: The compared methods; none for an experiment that fine-tunes nothing.
        names: Of the experiments in `tasklab.evidence.experiments`, each with its options.
        changes: Of the parameters, e.g. another model.
        seeds: The first so many of the seeds.
        metrics: Only these metrics are recorded; `None` for all.
        role: Of a model that the notebook compares with its own (`zoo.family`, or `"random"`), on
            the first pair of tasks.
        probed: Whether that model has probed heads, and all of the chapter's tasks.
        pair: Whether it is on the first pair of tasks alone, as what a relative runs.
        full: Whether the notebook has it in the preset `full` alone.
        tasks: `"all"` where it is on every task of a suite of which a lab takes some by default.
        page: Where the notebooks run it: `"example"`, with every model, in *Run it yourself*; in
            the chapter or its appendix (`"more"`), only with `live="all"`.
    """

    methods: Sequence[str]
    names: Names
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    metrics: Sequence[str] | None = None
    role: str = ""
    probed: bool = False
    pair: bool = False
    full: bool = False
    tasks: Literal["all"] | None = None
    page: Literal["example", "chapter", "more"] = "chapter"

    def applied(self, parameters: Any, seeds: Sequence[int]) -> Any:
        """Return the parameters of this work."""
        changes = {"suite": None, **self.changes} if "model" in self.changes else self.changes
        return dataclasses.replace(parameters, **{**changes, "seeds": tuple(seeds)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chapter:
    """One notebook with its methods, experiments and recorded parts.

    Attributes:
        name: Of its notebook and of the module that declares it.
        number: Its place in the book.
        title: Its first heading.
        label: Its name in figures.
        methods: Those it compares.
        live: Experiments of its notebook: with its own model, and with others (`Work.role`).
        parts: Its recorded parts, each a file; the first, `editing`, holds its tables.
        attention: Whether its model must have attention.
        apart: Whether its notebook compares others, and not its own model, where there are others.
        elsewhere: Parts of other chapters by which its claims are judged as well: chapter, parts,
            and names of sorts of records.
        boxes: Least and largest coefficients of areas over which errors of pairs are averaged, as
            its paper draws them, by the end of the metric's name.
        full_size: Differences with the papers' models, in a sentence or two.
    """

    name: str
    number: int
    title: str
    label: str
    methods: tuple[str, ...]
    live: tuple[Work, ...]
    parts: Mapping[str, tuple[Work, ...]]
    attention: bool = False
    apart: bool = False
    elsewhere: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    boxes: Mapping[str, tuple[float, float]] = dataclasses.field(
        default_factory=lambda: {"box": (0.0, 1.0)}
    )
    full_size: str = ""

    def __post_init__(self) -> None:
        """Check the declaration."""
        if next(iter(self.parts), None) != "editing":
            raise TasklabError(f"the first part of chapter {self.name!r} must be 'editing'.")
        every = (*self.live, *(work for works in self.parts.values() for work in works))
        for method in (*self.methods, *(method for work in every for method in work.methods)):
            choose(f"method in chapter {self.name!r},", method, ("probe", *EDITS))
        for work in self.live:
            if work.role:
                choose(f"role in chapter {self.name!r},", work.role, ("random", *FAMILIES[0]))

    def runs(self, preset: str, live: str = "all", page: str = "") -> list[Work]:
        """List the works of a notebook.

        Args:
            preset: `"quick"` or `"full"`.
            live: `"all"`, or `"example"` for *Run it yourself* alone.
            page: `"chapter"` or `"more"`; by default both.
        """
        pages = {"": ("example", "chapter", "more"), "chapter": ("example", "chapter")}
        shown = pages.get(page, (page,)) if live == "all" else ("example",)
        if page == "more" and live != "all":
            shown = ()
        return [
            work for work in self.live if work.page in shown and (preset == "full" or not work.full)
        ]

    def needs(self, preset: str, live: str = "all", page: str = "") -> tuple[str, ...]:
        """Return the roles of the models that a notebook compares with its own.

        Args:
            preset: `"quick"` or `"full"`; some works run in `full` alone.
            live: `"all"`, or `"example"` for *Run it yourself* alone.
            page: `"chapter"` or `"more"` (the appendix); by default both.

        Returns:
            Roles (`Work.role`) in the notebook's order, each once; `"random"` needs no weights and
            is left out.
        """
        roles = (work.role for work in self.runs(preset, live, page))
        return tuple(dict.fromkeys(role for role in roles if role not in ("", "random")))

    def works(self, part: str) -> tuple[Work, ...]:
        """Return the records of a part, or raise a `TasklabError` with the nearest name."""
        choose(f"part of chapter {self.name!r},", part, self.parts)
        return self.parts[part]


def on(model: Mapping[str, Any], *works: Work) -> tuple[Work, ...]:
    """Return works of the first world's model as works of another world's."""
    return tuple(dataclasses.replace(work, changes=model) for work in works if not work.changes)
