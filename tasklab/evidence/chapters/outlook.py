"""Count the fine-tuning runs of a chapter before it starts: how many, and how many are stored.

Models that a chapter compares with its own are not loaded: their runs follow from the parameters,
and those in the store are recognised by their recipe. A reader's own tasks are not counted.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tasklab.evidence import chapters
from tasklab.evidence.chapters import Work, page_of
from tasklab.evidence.experiments import small_networks
from tasklab.evidence.experiments.registry import Run, find, trained
from tasklab.storage.tensors import canonical
from tasklab.tasks.suites import pairs_of
from tasklab.tuning import rates
from tasklab.tuning.recipe import FineTune

if TYPE_CHECKING:
    from tasklab.bench.lab import Lab

_FIELDS = {field.name for field in dataclasses.fields(FineTune)} - {"others", "probe"}
_RANDOM = " (random)"  # after the name of a model


@dataclasses.dataclass(frozen=True)
class Count:
    """Runs, and how many of them are in the store."""

    runs: int = 0
    stored: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.runs + other.runs, self.stored + other.stored)

    def __str__(self) -> str:
        return f"{self.runs} run{'' if self.runs == 1 else 's'}, {self.stored} of them in the store"


@dataclasses.dataclass(frozen=True)
class Outlook:
    """The runs of a chapter."""

    own: Count  #: Fine-tuning of its own model
    others: dict[str, Count]  #: Fine-tuning of each model that it compares, by name
    networks: Count = Count()  #: Trainings of small networks from scratch


def describe(lab: Lab, chapter: str) -> str:
    """Return the sentence with which a chapter begins."""
    work = outlook(lab, chapter)
    counts, model = {**work.others, "small networks": work.networks}, lab.parameters.model
    counts = {model: work.own + counts.pop(model, Count()), **counts}
    shown = [f"{name} {count}" for name, count in counts.items() if count.runs]
    if not shown:
        return "Nothing is fine-tuned here: results are recorded ones."
    return f"Fine-tuning: {'; '.join(shown)}."


def outlook(lab: Lab, chapter: str) -> Outlook:
    """Count the runs of a chapter, other models' included; shared runs count once."""
    entry, own, seen = chapters.chapter(chapter), Count(), set[str]()
    works = entry.runs(lab.parameters.preset, str(lab.parameters.live), page_of(chapter))
    if lab.published is not None:
        works = [work for work in works if not work.role]
    for work in works:
        if not work.role and not (entry.apart and lab.family):
            fresh = {_key(run): run for run in runs_of(_on_a_pair(lab) if work.pair else lab, work)}
            told = [run.kept for key, run in fresh.items() if key not in seen]
            own += Count(len(told), sum(told))
            seen |= fresh.keys()
    known = {canonical(_fields_of(config)) for config in lab.store.configs("finetune")}
    others: dict[str, Count] = {}
    for work in works:
        if work.role not in ("random", *lab.family):
            continue
        other = _unloaded(lab, work)
        fresh = {_key(run): run for run in runs_of(other, work)}
        new = [_recipe(run.recipe) in known for key, run in fresh.items() if key not in seen]
        if not new:  # the chapter's own model is one of its family
            continue
        seen |= fresh.keys()
        name = other.parameters.model
        name += _RANDOM if other.parameters.init == "random" else ""
        others[name] = others.get(name, Count()) + Count(len(new), sum(new))
    return Outlook(own, others, _networks(lab, works))


def runs_of(lab: Lab, work: Work) -> list[Run]:
    """Return the fine-tuning runs that some work needs, and those that choose its rates."""
    if lab.published is not None:
        return []
    asked = [find(name).runs(lab, work.methods, **more) for name, more in work.names.items()]
    searched = (Run(lab, recipe) for recipe in _searched(lab, work.methods))
    return [*(run for runs in asked for run in runs), *searched]


def _searched(lab: Lab, methods: Sequence[str]) -> Iterator[FineTune]:
    """Yield the runs of the searches for learning rates that some methods ask for (`rates`)."""
    for method in trained(methods):
        yield from rates.runs(lab.run(lab.suite.names[0], method, lab.seeds[0]), lab.suite)


def _networks(lab: Lab, works: list[Work]) -> Count:
    if lab.published is not None:
        return Count()
    every = {
        canonical(small_networks.key_of(chosen, index))
        for work in works
        for name, options in work.names.items()
        for chosen, n_tasks in find(name).networks(lab, **options)
        for index in range(n_tasks + 1)
    }
    kept = {canonical(config) for config in lab.store.configs("scratch")}
    return Count(len(every), len(every & kept))


def _on_a_pair(lab: Lab) -> Lab:
    """Return a planning copy of the lab with the first pair of tasks that maps are drawn of."""
    other = copy.copy(lab)
    first = tuple(lab.suite[name] for name in pairs_of(lab.suite)[0])
    other.suite = dataclasses.replace(lab.suite, tasks=first)
    return other


def _unloaded(lab: Lab, work: Work) -> Lab:
    """Return a planning copy of the lab for another model, whose weights are not loaded."""
    other = copy.copy(lab)
    if work.probed:
        changes = {"model": lab.family[work.role], "head": "probe"}
        other.parameters, suite = lab.changed(changes)[0], lab.suite
    else:
        other.parameters, suite = lab.relative_terms(work.role)
    data = lab.suite.data if suite.name == lab.suite.name else suite.data
    other.suite = dataclasses.replace(suite, data=data)
    return other


def _fields_of(config: dict) -> dict:
    return {name: value for name, value in config.items() if name in _FIELDS}


def _recipe(run: FineTune) -> str:
    return canonical(_fields_of(run.identity()))


def _key(run: Run) -> str:
    return f"{type(run).__name__} {_recipe(run.recipe)}"  # a share of joint training is no own run
