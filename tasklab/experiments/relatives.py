"""What a chapter takes with the models that it compares with its own, told before it starts.

Nothing of a relative is loaded for it: its runs follow from the parameters, those that the store
has are recognised by their recipe, and its time is the chapter's own model's by the ratio of their
matrix products (`zoo`). Networks that are trained from scratch are timed by a few steps of each.
What a reader's own tasks take is not counted.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tasklab import chapters
from tasklab.experiments import estimate
from tasklab.experiments.estimate import Plan
from tasklab.models.zoo import REGISTRY
from tasklab.progress import duration
from tasklab.storage.tensors import canonical
from tasklab.tasks.suites import Suite
from tasklab.tuning.methods import JOINT, LINEAR
from tasklab.tuning.probes import searched_task
from tasklab.tuning.recipe import FineTune

if TYPE_CHECKING:
    from tasklab.experiments.lab import Lab
    from tasklab.experiments.parameters import Parameters

_FIELDS = {field.name for field in dataclasses.fields(FineTune)} - {"others", "probe"}
_RANDOM = " (random)"  # after the name of a model
_SCHEMES = "closed_vocab"  # it compares relatives with each other, and not with its own model


class _Asked(NamedTuple):
    """What a chapter asks of a relative: methods, what passes images, and further runs."""

    role: str
    methods: tuple[str, ...]
    passes: tuple[estimate.Count, ...]
    averaged: bool = False


_MAPS, _MERGES, _PAIRS = (estimate.maps,), (estimate.merging,), (estimate.linearity,)
_TRAINED = ("nonlinear", "linearized", "attention")
_ASKED = {
    "tangent": (
        *(_Asked(size, ("nonlinear", "posthoc"), _MAPS) for size in ("small", "medium", "large")),
        _Asked("random", ("nonlinear",), _MAPS),
        _Asked("convnext", ("nonlinear", "linearized"), _MAPS),
        _Asked("closed", ("nonlinear", "posthoc"), _MAPS),
        _Asked("text", ("nonlinear",), _MAPS),
    ),
    "ctl": (
        _Asked("small", _TRAINED, _PAIRS, averaged=True),
        _Asked("text", ("nonlinear",), _PAIRS * 2),
        _Asked("sup_few", ("nonlinear",), _PAIRS),
    ),
    "merging": (
        _Asked("small", _TRAINED, _MERGES),
        _Asked("closed", ("nonlinear",), _MERGES),
    ),
}


class Networks(NamedTuple):
    """Small networks that are trained from scratch.

    Attributes:
        trainings: To do.
        kept: Those that are in the store.
        steps: Of the trainings to do, all together.
        seconds: That these take on this machine.
    """

    trainings: int = 0
    kept: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return it as a sentence tells it."""
        more = f" ({self.kept} more are in the store)" if self.kept else ""
        return f"{self.trainings} trainings of small networks{more}, {self.steps:,} steps"


class Outlook(NamedTuple):
    """What a chapter takes.

    Attributes:
        own: With its own model.
        others: With each of its relatives, by name.
        networks: That it trains from scratch.
    """

    own: Plan
    others: dict[str, Plan]
    networks: Networks = Networks()

    def seconds(self, pace: estimate.Pace, model: str) -> float:
        """Return how long all of it takes.

        Args:
            pace: Of the chapter's own model.
            model: Its name.
        """
        other = (_ratio(name, model) * pace.seconds(work) for name, work in self.others.items())
        return pace.seconds(self.own) + sum(other) + self.networks.seconds


def describe(lab: Lab, chapter: str) -> str:
    """Return the sentence with which a chapter begins.

    Args:
        lab: Its model, tasks, parameters and store.
        chapter: One of `chapters.CHAPTERS`.
    """
    model, work = lab.parameters.model, outlook(lab, chapter)
    about = duration(work.seconds(estimate.pace(lab), model))
    own = f" {work.own}." if work.own != Plan() else ""
    own += f" {work.networks}." if work.networks != Networks() else ""
    if not work.others:
        return f"{model}:{own} On this machine about {about}, at this moment's speed."
    every = sum(work.others.values(), Plan())
    return (
        f"{model}:{own} In comparisons ({', '.join(work.others)}): {every}. On this machine about "
        f"{about}, at this moment's speed; of other models, by the size of their matrix products."
    )


def outlook(lab: Lab, chapter: str) -> Outlook:
    """Return what a chapter asks of a lab and of its relatives; no run is counted twice.

    Args:
        lab: Its model, tasks, parameters and store.
        chapter: One of `chapters.CHAPTERS`.
    """
    alone = chapter != _SCHEMES or not lab.family
    own = estimate.plan(lab, chapter) if alone else Plan()
    methods = chapters.chapter(chapter).methods if alone else ()
    seen = {_recipe(run) for run in _runs(lab, methods)}
    known = {canonical(_fields_of(config)) for config in lab.store.configs("finetune")}
    others: dict[str, Plan] = {}
    for other, runs, passed in _compared(lab, chapter):
        fresh = {_recipe(run): run for run in runs if _recipe(run) not in seen}
        if not fresh:  # the chapter's own model is one of its family
            continue
        seen |= fresh.keys()
        work = estimate.work([(run, key in known) for key, run in fresh.items()], passed)
        name = other.parameters.model
        name += _RANDOM if other.parameters.init == "random" else ""
        others[name] = others.get(name, Plan()) + work
    return Outlook(own, others, networks(lab) if chapter == "ctl" else Networks())


def networks(lab: Lab) -> Networks:
    """Return what networks the chapter on cross-task linearity trains from scratch.

    Args:
        lab: Its preset, seeds and store.
    """
    from tasklab.experiments import curvature, scratch  # they import `Lab`
    from tasklab.experiments.small_networks import key_of, seconds_a_step, steps_of

    every = {
        canonical(key_of(chosen, index)): (chosen, index)
        for chosen, n_tasks in itertools.chain(scratch.settings(lab), curvature.settings(lab))
        for index in range(n_tasks + 1)
    }
    kept = {canonical(config) for config in lab.store.configs("scratch")}
    waiting = [one for key, one in every.items() if key not in kept]
    steps = collections.Counter()
    for chosen, index in waiting:
        steps[chosen.network] += steps_of(chosen, index)
    first = {chosen.network: chosen for chosen, _ in waiting}
    taken = sum(count * seconds_a_step(first[name]) for name, count in steps.items())
    return Networks(len(waiting), len(every) - len(waiting), steps.total(), taken)


def _compared(lab: Lab, chapter: str) -> Iterator[tuple[Lab, list[FineTune], int]]:
    """Yield each relative, its runs, and how many images pass through it."""
    if chapter == _SCHEMES:
        yield from _schemes(lab)
    for asked in _ASKED.get(chapter, ()):
        if asked.role in ("random", *lab.family):
            other = _like(lab, *lab.relative_terms(asked.role))
            runs = [*_runs(other, asked.methods)]
            if asked.averaged:
                from tasklab.experiments.stitching import variants  # it imports `Lab`

                for seed in other.parameters.seeds:
                    runs += variants(other, other.suite.names[0], seed).values()
            yield other, runs, _passed(other, asked.methods, asked.passes)


def _schemes(lab: Lab) -> Iterator[tuple[Lab, list[FineTune], int]]:
    """Yield what `experiments.schemes` compares; the first also trains heads, at several rates."""
    from tasklab.experiments.learning_rates import LIVE  # it imports `Lab`

    roles = chapters.chapter(_SCHEMES).needs(lab.parameters.preset)
    models = [lab.family[role] for role in roles if role in lab.family]
    for number, model in enumerate(models):
        parameters, _ = lab.changed({"model": model, "head": "probe"})
        other = _like(lab, parameters, lab.suite)
        methods = ("nonlinear",) if number else ("nonlinear", JOINT)
        runs = [*_runs(other, methods)]
        if not number:
            task = searched_task(other.suite)
            for seed, lr in itertools.product(parameters.seeds, LIVE):
                runs.append(dataclasses.replace(other.run(task, "nonlinear", seed), lr=lr))
        passes = (*estimate.PASSES[_SCHEMES], estimate.linearity)
        yield other, runs, _passed(other, methods, passes)


def _like(lab: Lab, parameters: Parameters, suite: Suite) -> Lab:
    """Return a lab that knows what there is to do, and has another one's model."""
    other = copy.copy(lab)
    data = lab.suite.data if suite.name == lab.suite.name else suite.data
    other.parameters, other.suite = parameters, dataclasses.replace(suite, data=data)
    return other


def _runs(lab: Lab, methods: Sequence[str]) -> Iterator[FineTune]:
    yield from (run.recipe for run in estimate.planned(lab, methods))
    yield from estimate.searched(lab, methods)


def _passed(lab: Lab, methods: Sequence[str], passes: Iterable[estimate.Count]) -> int:
    """Return how many images pass; those of a linearized model once for every vector."""
    images = estimate.tangent_images(lab) * sum(method in LINEAR for method in methods)
    images += sum(count(lab) for count in passes) * sum(m not in LINEAR for m in methods)
    return round(images * len(lab.parameters.seeds))


def _fields_of(config: dict) -> dict:
    return {name: value for name, value in config.items() if name in _FIELDS}


def _recipe(run: FineTune) -> str:
    return canonical(_fields_of(run.identity()))


def _ratio(model: str, own: str) -> float:
    """Return how many times the matrix products of another model a model's pass has."""
    names = model.removesuffix(_RANDOM), own
    towers = [REGISTRY[name].tower if name in REGISTRY else None for name in names]
    return 1.0 if None in towers else towers[0].products / towers[1].products
