"""Merges without an image, at the coefficients that vectors recommend (`merging.defaults`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pandas as pd

from tasklab.analyses.merging import METHODS, defaults, merge
from tasklab.bench.merges import Bench
from tasklab.errors import texts
from tasklab.evidence.declared import recommended as declared
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, kept, tidy
from tasklab.evidence.experiments.merging import benches
from tasklab.evidence.records.recommended import NONE
from tasklab.taskvector import TaskVector

ALONE = tuple(
    name for name, rule in METHODS.items() if not rule.needs and defaults.known(name)
)  # rules that read vectors alone and have a recommended coefficient


@experiment(declared.RECOMMENDED)
def recommended(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = ALONE,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Merge vectors as `tasklab merge` does by itself; return test accuracies.

    Nothing is chosen on images: coefficient and option follow from the number of vectors, their
    lengths, the size of the model and the kind of fine-tuning (`merging.defaults`).

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: How the vectors are fine-tuned and edited, any of `EDITS`.
        merges: Rules that read vectors alone, by default all that have a recommended coefficient.
        n_tasks: Numbers of vectors that are merged; by default those of the preset.
    """
    names = ALONE if merges is None else texts("merges", merges, ALONE)
    every = benches(lab, methods, n_tasks, "recommended")
    return tidy([row for bench in every for name in (NONE, *names) for row in _of(bench, name)])


def _of(bench: Bench, name: str) -> list[dict]:
    """Return the records of one merge, from the store or measured."""
    chosen = {"alpha": 0.0} if name == NONE else METHODS[name].recommended(_known(bench))

    def measure(trial: Trial) -> list[dict]:
        vector = TaskVector({}) if name == NONE else merge(name, trial.vectors, **chosen)
        edit = functools.partial(trial.evaluator.answers, vector, linear=trial.linear)
        labels = {"merge": name, "alpha": chosen["alpha"]}
        if name != NONE and METHODS[name].searched in chosen:
            labels["option"] = chosen[METHODS[name].searched]
        return [
            trial.answered(task, "absolute", edit(task, "test", 1.0), **labels)
            for task in trial.tasks
        ]

    return kept(bench.trial, measure, grouped=True, merge=name, chosen=chosen)


def _known(bench: Bench) -> defaults.Known:
    theta0, method = bench.trial.lab.clip.encoder.params, bench.trial.method
    return defaults.Known.of(bench.trial.vectors.values(), theta0, method)
