"""What a chapter takes before it starts: its experiments are asked (`registry.Experiment`).

Counted are the fine-tuning runs that are not in the store, and the images that pass through models
as if no record was in the store. Models that a chapter compares with its own are not loaded: their
runs follow from the parameters, those in the store are recognised by their recipe, and their time is
that of the chapter's own model by the ratio of matrix products. Networks that are trained from
scratch are timed by a few steps. A reader's own tasks are not counted.
"""  # noqa: E501

from __future__ import annotations

import collections
import copy
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from tasklab import chapters
from tasklab.chapters import Work, page_of
from tasklab.experiments import estimate, small_networks
from tasklab.experiments.estimate import Plan
from tasklab.experiments.registry import Run, find
from tasklab.models.zoo import REGISTRY
from tasklab.progress import duration
from tasklab.storage.tensors import canonical
from tasklab.tasks.suites import pairs_of
from tasklab.tuning.methods import LINEAR
from tasklab.tuning.recipe import FineTune

if TYPE_CHECKING:
    from tasklab.experiments.lab import Lab

_FIELDS = {field.name for field in dataclasses.fields(FineTune)} - {"others", "probe"}
_RANDOM = " (random)"  # after the name of a model
PAGE = 25.0  # seconds of a core: recorded results, figures and tables of a chapter, as measured


class Networks(NamedTuple):
    """Small networks that are trained from scratch."""

    trainings: int = 0  #: To do
    kept: int = 0  #: Those that are in the store
    steps: int = 0  #: Of the trainings to do, all together
    seconds: float = 0.0  #: That these take on this machine

    def __str__(self) -> str:
        kept = f" ({self.kept} found in the store)" if self.kept else ""
        return f"{self.trainings} trainings of small networks, {self.steps:,} steps{kept}"


class Outlook(NamedTuple):
    """What a chapter takes."""

    own: Plan  #: With its own model
    others: dict[str, Plan]  #: With each model that it compares, by name
    networks: Networks = Networks()  #: That it trains from scratch

    def seconds(self, pace: estimate.Pace, model: str) -> float:
        """Return the seconds of all of it."""
        other = (_ratio(name, model) * pace.seconds(work) for name, work in self.others.items())
        return pace.seconds(self.own) + sum(other) + self.networks.seconds


def describe(lab: Lab, chapter: str) -> str:
    """Return the sentence with which a chapter begins."""
    model, work = lab.parameters.model, outlook(lab, chapter)
    if work == Outlook(Plan(), {}):
        return "Nothing is fine-tuned here: results are recorded ones."
    told = [f"{model}: {work.own}"] if work.own != Plan() else []
    if work.networks != Networks():
        told.append(str(work.networks))
    if work.others:
        told.append(f"{', '.join(work.others)}: {sum(work.others.values(), Plan())}")
    about = duration(work.seconds(estimate.pace(lab), model) + PAGE)
    return f"About {about} on this machine. {'. '.join(told)}."


def outlook(lab: Lab, chapter: str) -> Outlook:
    """Count the pending runs of a chapter, other models' included; shared runs count once."""
    entry, own, seen = chapters.chapter(chapter), Plan(), set[str]()
    works = entry.runs(lab.parameters.preset, str(lab.parameters.live), page_of(chapter))
    if lab.published is not None:
        works = [work for work in works if not work.role]
    for work in works:
        if not work.role and not (entry.apart and lab.family):
            here = _on_a_pair(lab) if work.pair else lab
            fresh = {_key(run): run for run in runs_of(here, work)}
            told = [(run.recipe, run.kept) for key, run in fresh.items() if key not in seen]
            own += estimate.work(told, images_of(here, work))
            seen |= fresh.keys()
    known = {canonical(_fields_of(config)) for config in lab.store.configs("finetune")}
    others: dict[str, Plan] = {}
    for work in works:
        if work.role not in ("random", *lab.family):
            continue
        other = _unloaded(lab, work)
        fresh = {_key(run): run for run in runs_of(other, work)}
        new = [run.recipe for key, run in fresh.items() if key not in seen]
        waiting = [(recipe, _recipe(recipe) in known) for recipe in new]
        if not waiting:  # the chapter's own model is one of its family
            continue
        seen |= fresh.keys()
        name = other.parameters.model
        name += _RANDOM if other.parameters.init == "random" else ""
        more = estimate.work(waiting, images_of(other, work))
        others[name] = others.get(name, Plan()) + more
    return Outlook(own, others, _networks(lab, works))


def runs_of(lab: Lab, work: Work) -> list[Run]:
    """Return the fine-tuning runs that some work needs, and those that choose its rates."""
    if lab.published is not None:
        return []
    asked = [find(name).runs(lab, work.methods, **more) for name, more in work.names.items()]
    searched = (Run(lab, recipe) for recipe in estimate.searched(lab, work.methods))
    return [*(run for runs in asked for run in runs), *searched]


def images_of(lab: Lab, work: Work) -> int:
    """Count the images that pass; those of a linearized model once for every vector."""
    once = sum(find(name).passes(lab) for name in work.names)
    linear = sum(method in LINEAR for method in work.methods)
    images: float = once * (len(work.methods) - linear if work.methods else 1)
    images += estimate.tangent_images(lab) * linear if once else 0
    return round(images * len(lab.seeds))


def _networks(lab: Lab, works: list[Work]) -> Networks:
    if lab.published is not None:
        return Networks()
    every = {
        canonical(small_networks.key_of(chosen, index)): (chosen, index)
        for work in works
        for name, options in work.names.items()
        for chosen, n_tasks in find(name).networks(lab, **options)
        for index in range(n_tasks + 1)
    }
    kept = {canonical(config) for config in lab.store.configs("scratch")}
    waiting = [one for key, one in every.items() if key not in kept]
    steps = collections.Counter[str]()
    for chosen, index in waiting:
        steps[chosen.network] += small_networks.steps_of(chosen, index)
    first = {chosen.network: chosen for chosen, _ in waiting}
    taken = sum(count * small_networks.seconds_a_step(first[n]) for n, count in steps.items())
    return Networks(len(waiting), len(every) - len(waiting), steps.total(), taken)


def _on_a_pair(lab: Lab) -> Lab:
    """Return a planning copy of the lab with the first pair of tasks that maps are drawn of."""
    other = copy.copy(lab)
    first = tuple(lab.suite[name] for name in pairs_of(lab.suite)[0])
    other.suite = dataclasses.replace(lab.suite, tasks=first)
    return other


def _unloaded(lab: Lab, work: Work) -> Lab:
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


def _ratio(model: str, own: str) -> float:
    names = model.removesuffix(_RANDOM), own
    other, mine = (REGISTRY[name].tower if name in REGISTRY else None for name in names)
    return 1.0 if other is None or mine is None else other.products / mine.products
