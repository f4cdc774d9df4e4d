"""Merges of the vectors of a lab's tasks, recorded (`bench.merges`). Test images only report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tasklab.bench.merges import MERGES, Bench
from tasklab.bench.minima import MINIMA
from tasklab.errors import texts
from tasklab.evidence.declared import merging as declared
from tasklab.evidence.experiments.editing import groups_of, shares
from tasklab.evidence.experiments.kit import (
    Lab,
    experiment,
    several,
    tidy,
)
from tasklab.evidence.experiments.runner import Trial, busy, grid, kept
from tasklab.evidence.records.schema import LEADING as LEADING
from tasklab.progress import track
from tasklab.storage.store import free_first


def benches(
    lab: Lab, methods: Sequence[str] | str, n_tasks: Sequence[int] | None, experiment: str
) -> Iterator[Bench]:
    """Yield the bench of every method, seed and group of tasks.

    Args:
        lab: Has at least two tasks.
        methods: How the vectors are fine-tuned and edited, any of `EDITS`.
        n_tasks: Sizes of groups; by default those of the preset (`groups_of`).
        experiment: Name of the experiment, for the bar.

    Raises:
        TasklabError: If the lab has one task alone.
    """
    several(lab.suite)
    for trial in grid(lab, experiment, methods, over=groups_of(lab, n_tasks, least=2)):
        yield Bench(trial)


def known_merges(merges: Sequence[str] | str | None) -> Sequence[str]:
    """Return the merges as a list, by default all, or raise with the nearest name."""
    return MERGES if merges is None else texts("merges", merges, (*MERGES, *MINIMA))


@experiment(declared.MERGING)
def merging(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = MERGES,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Merge task vectors by every rule; return accuracies at the choice of validation images.

    `objective` is E(tau) / E(0) on validation images, at the coefficient that is best in the
    tangent model.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: How the vectors are fine-tuned and edited, any of `EDITS`.
        merges: Any of `MERGES`, by default all, and of `MINIMA`. Each is stored by itself.
        n_tasks: Sizes of groups of tasks; by default the preset's.
    """
    chosen, rows = known_merges(merges), []
    for bench in benches(lab, methods, n_tasks, "merging"):
        order = free_first(chosen, functools.partial(_busy, bench))
        seen = track(order, len(chosen), "merging", unit="method", on=lab.progress)
        found = {name: merging_of(bench, name) for name in seen}
        rows += [row for name in chosen for row in found[name]]
    return tidy(rows)


def merging_of(bench: Bench, name: str) -> list[dict]:
    """Return the records of one merge from the store, or choose, measure and store them."""

    def measure(trial: Trial) -> list[dict]:
        choice = bench.choose(name)
        labels: dict[str, Any] = {"merge": name, "trials": choice.trials}
        if choice.option is not None:
            labels["option"] = choice.option
        at: dict[str, Any] = {"linear": trial.linear, "alphas": [choice.alpha]}
        absolute = bench.trial.evaluator.sweep(choice.vector, bench.tasks, "test", **at)[0]
        rows = shares(
            trial, bench.tasks, absolute, bench.alone("test"), alpha=choice.alpha, **labels
        )
        whole = {"task": "all", "split": "validation", "n": sum(map(len, bench.own)), **labels}
        objective = {"metric": "objective", "alpha": choice.scale, "value": choice.objective}
        return [*rows, trial.row(**whole, **objective)]

    return kept(_trial(bench), measure, grouped=True, **bench.key(name))


def _busy(bench: Bench, name: str) -> bool:
    return busy(_trial(bench), merging_of, **bench.key(name))


def _trial(bench: Bench) -> Trial:
    return dataclasses.replace(bench.trial, experiment="merging")
