"""One model fine-tuned on all tasks together: the upper bound of adding or merging vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tasklab.bench.published_vectors import leave_out
from tasklab.errors import TasklabError
from tasklab.evidence.declared import joint as declared
from tasklab.evidence.experiments.kit import Lab, Run, experiment, several, usual_runs
from tasklab.evidence.experiments.runner import Trial, known_methods, run
from tasklab.evidence.records.table import COLUMNS, Records
from tasklab.tuning import multitask
from tasklab.tuning.methods import JOINT, POSTHOC
from tasklab.tuning.recipe import FineTune


def _runs(lab: Lab, method: str, seed: int) -> list[FineTune]:
    return [lab.run(task, method, seed) for task in lab.suite.names]


class _Share(Run):
    """One task's steps in a run on all tasks."""

    @property
    def identity(self) -> dict[str, Any]:
        runs = _runs(self.lab, self.recipe.method, self.recipe.seed)
        whole = multitask.identity(runs, self.lab.clip, self.lab.suite)
        return whole | {"share": self.recipe.task}

    @property
    def kept(self) -> bool:
        whole = {name: value for name, value in self.identity.items() if name != "share"}
        return self.lab.store.has(multitask.KIND, whole)


def _shares(lab: Lab, methods: Sequence[str]) -> Iterator[Run]:
    for usual in usual_runs(lab, methods):
        yield _Share(usual.lab, usual.recipe)


@experiment(declared.JOINT, runs=_shares)
def joint(lab: Lab, methods: Sequence[str] = ("nonlinear",)) -> pd.DataFrame:
    """Fine-tune one model on all tasks of the suite together and measure it on each.

    It takes as many steps on every task as a run on that task alone, at the same learning rate
    (`tuning.multitask`). Heads are frozen: of prompts, or probes in a closed vocabulary.
    """
    several(lab.suite)
    if lab.published is not None:  # nothing, for tables that merges are in as well
        leave_out("`joint`, needs training")
        return Records(columns=list(COLUMNS))
    for method in known_methods(methods):
        if method in POSTHOC or method == JOINT:
            raise TasklabError(f"{method!r} trains no vector with frozen heads: take another.")

    def measure(trial: Trial) -> list[dict]:
        names, runs = lab.suite.names, _runs(lab, trial.method, trial.seed)
        made = multitask.multitask(runs, lab.clip, lab.store, lab.suite, progress=lab.progress)
        answers = [
            trial.evaluator.answers(made.vector, task, "test", 1.0, linear=trial.linear)
            for task in names
        ]
        return [
            trial.answered(task, "absolute", right, alpha=1.0)
            for task, right in zip(names, answers, strict=True)
        ]

    title, version = "one model of all tasks", multitask.CACHE_VERSION
    return run(lab, "joint", methods, measure, title=title, grouped=True, multitask=version)
