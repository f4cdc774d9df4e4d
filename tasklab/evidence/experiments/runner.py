"""Execution of every experiment: its grid, the keys of its results, and the table of records.

An experiment measures one `Trial`. `run` iterates over all methods and seeds (and groups of tasks),
reads each trial from the store or measures it, and concatenates the records.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from tasklab.analyses import evaluation
from tasklab.bench.lab import Lab
from tasklab.bench.trial import Trial as Vectors
from tasklab.errors import TasklabError, choose, texts
from tasklab.evidence.experiments.versions import version
from tasklab.evidence.records.images import packed
from tasklab.evidence.records.table import filled, provenance, tidy
from tasklab.isolation import isolated
from tasklab.progress import track
from tasklab.storage.store import free_first
from tasklab.tasks import drawn
from tasklab.tasks.suites import SUITES, suite
from tasklab.tuning import memory
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.methods import EDITS, LINEAR

KIND = "records"  # of artifact


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trial(Vectors):
    """One method with one seed, on some of a lab's tasks, and the records of an experiment."""

    experiment: str

    @property
    def group(self) -> dict[str, Any]:
        """How records name the group of tasks: all of the lab's have no `subset`.

        Labs of other tasks share stored records, so that it is set on these, too.
        """
        names = self.lab.suite.names
        tasks = self.tasks or names
        whole = len(tasks) == len(names)
        return {"n_tasks": len(tasks), "subset": "" if whole else "+".join(tasks)}

    def row(self, **more: Any) -> dict[str, Any]:
        """Return a record with the columns of its trial."""
        p = self.lab.parameters
        common = {"experiment": self.experiment, "method": self.method, "seed": self.seed}
        return {**common, "model": p.model, "suite": p.suite, "init": p.init, **more}

    def rows(self, table: pd.DataFrame | Iterable[Mapping[str, Any]], **more: Any) -> list[dict]:
        """Return a table's rows as records, without missing values."""
        rows = filled(table) if isinstance(table, pd.DataFrame) else table
        return [{**self.row(**more), **row} for row in rows]

    def accuracy(
        self, task: str, metric: str, value: float, split: str = "test", **more: Any
    ) -> dict[str, Any]:
        """Return the record of an accuracy, with the number of images.

        Args:
            task: Name of a task.
            metric: Its name.
            value: The accuracy in %.
            split: On which images: `"validation"` or `"test"`.
            **more: Further columns.
        """
        n = self.lab.evaluator.count(task, "val" if split == "validation" else split)
        named = {"task": task, "metric": metric, "split": split, "value": float(value), "n": n}
        return self.row(**{**named, **more})

    def answered(self, task: str, metric: str, answers: np.ndarray, **more: Any) -> dict[str, Any]:
        """Return the record of an accuracy on test images, with which of them were right.

        Args:
            task: Name of a task.
            metric: Its name.
            answers: Which of the N test images are right.
            **more: Further columns.
        """
        columns = {"n": len(answers), "hits": packed(answers), **more}
        return self.accuracy(task, metric, 100 * float(answers.mean()), **columns)

    def diverged(self, task: str, error: DivergedError, **more: Any) -> dict[str, Any]:
        """Return the record of the step at which a run was stopped.

        Args:
            task: Name of a task.
            error: It has the step.
            **more: Further columns.
        """
        named = {"metric": "diverged_at", "split": "validation", "value": float(error.step)}
        return self.row(task=task, **named, **more)


Measure = Callable[[Trial], list[dict]]


def grid(
    lab: Lab,
    experiment: str,
    methods: Sequence[str] | str,
    *,
    over: Iterable[Sequence[str]] | None = None,
    title: str | None = None,
) -> Iterator[Trial]:
    """Yield a trial for every method, seed and group of tasks, showing progress.

    `over` lists the groups; by default one of all tasks.

    Args:
        lab: Model, tasks, seeds, scale and store.
        experiment: Its name.
        methods: Fine-tuning methods, any of `EDITS`.
        over: Groups of tasks; by default one of all tasks.
        title: For the progress bar.
    """
    trials, title = _trials(lab, experiment, methods, over), title or experiment.replace("_", " ")
    for trial in track(trials, len(trials), title, unit="run", on=lab.progress):
        yield dataclasses.replace(trial)  # its vectors go when it does


def _trials(
    lab: Lab, experiment: str, methods: Sequence[str] | str, over: Iterable[Sequence[str]] | None
) -> list[Trial]:
    groups = [()] if over is None else list(over)
    return [
        Trial(lab=lab, experiment=experiment, method=method, seed=seed, tasks=tasks)
        for method in lab.able(known_methods(methods))
        for seed in lab.seeds
        for tasks in groups
    ]


@isolated
def kept(trial: Trial, measure: Measure, *, grouped: bool = False, **key: Any) -> list[dict]:
    """Return a trial's records from the store, or measure and store them.

    Args:
        trial: Method, seed and tasks. The runs behind its vectors, their data, the model and
            the number of images are part of the key.
        measure: Trial -> records.
        grouped: Whether the records name the group of tasks (`Trial.group`).
        **key: Further entries of the records' key.
    """
    config, tasks = _config(trial, measure, **key), list(trial.tasks or trial.lab.suite.names)
    rows = _stored(trial.lab, config, lambda: measure(trial))
    if _other_order(rows, tasks):  # kept before keys had the order
        rows = _stored(trial.lab, config | {"order": tasks}, lambda: measure(trial))
    return [{**row, **trial.group} for row in rows] if grouped else rows


def _other_order(rows: Iterable[Mapping[str, Any]], tasks: Sequence[str]) -> bool:
    named = (name for row in rows for name in re.split(r"[+|]", str(row.get("task"))))
    order = [name for name in dict.fromkeys(named) if name in tasks]
    return order != [name for name in tasks if name in order]


def _config(trial: Trial, measure: Callable, **key: Any) -> dict[str, Any]:
    """Return all that determines a trial's records; the code by its version, if it changed."""
    lab, method = trial.lab, trial.method
    tasks = list(trial.tasks or lab.suite.names)
    tuned = () if method == "pretrained" else tasks
    data = drawn.images_of(lab.suite)
    return {
        "experiment": trial.experiment,
        "method": method,
        "suite": lab.suite.name,
        **lab.clip.identity,
        "runs": {t: lab.identity(t, method, trial.seed) for t in tuned},
        "data": {
            t: [data.version(t, s) for s in ("val", "test")]
            for t in (*tasks, lab.suite.control.name)
        },
        "counts": dict(lab.scale.counts),
        "algorithms": [1, evaluation.CACHE_VERSION],
        **_told_apart(trial, tasks),
        **order_of(lab, tasks),
        **version(measure),
        **key,
    }


def order_of(lab: Lab, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the order of tasks for a key, where it is not the suite's own; of own tasks always.

    Random masks, sums of the first k and names of pairs depend on it.
    """
    known = lab.suite.name in SUITES
    usual = [name for name in suite(lab.suite.name).names if name in tasks] if known else None
    return {} if list(tasks) == usual or len(tasks) < 2 else {"order": list(tasks)}


def _told_apart(trial: Trial, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the key of heads that no run determines; empty where a model has its usual.

    They are made of prompts and class names that a user may change, or of a model that shares its
    encoder's weights with another.
    """
    lab, told = trial.lab, dict[str, Any]()
    if trial.method == "pretrained" and (lab.suite.name == "own" or lab.clip.text is None):
        p = lab.parameters
        names = [*tasks, lab.suite.control.name]
        told |= {"model": p.model, "init": p.init, "head": p.vocabulary}
        told |= {"prompts": {name: lab.suite[name].prompts() for name in names}}
    return told


def busy(trial: Trial, measure: Callable, **key: Any) -> bool:
    """Return whether another process is measuring these records.

    Args:
        trial: The trial.
        measure: The function that measures it.
        **key: Further entries of the records' key.
    """
    return trial.lab.store.making(KIND, _config(trial, measure, **key))


@isolated
def stored(lab: Lab, config: Mapping[str, Any], make: Callable[[], list[dict]]) -> list[dict]:
    """Return the records of a configuration from the store, or those that `make` measures.

    Args:
        lab: Model, tasks, seeds, scale and store.
        config: All that determines the records: their key.
        make: Measures them.
    """
    return _stored(lab, {**config, **version(make)}, make)


def _stored(lab: Lab, config: Mapping[str, Any], make: Callable[[], list[dict]]) -> list[dict]:
    def measured(_: object) -> tuple[dict, dict]:
        with memory.given_back(lab.clip.encoder):  # a large model's vectors, and passes with them
            return {}, {"rows": make()}

    return list(lab.store.get(KIND, dict(config), measured).record["rows"])


def records(
    lab: Lab,
    experiment: str,
    methods: Sequence[str] | str,
    measure: Measure,
    *,
    over: Iterable[Sequence[str]] | None = None,
    title: str | None = None,
    grouped: bool = False,
    **key: Any,
) -> list[dict]:
    """Return the records of all trials of an experiment, one a group of tasks in `over`.

    Args:
        lab: Model, tasks, seeds, scale and store.
        experiment: Its name.
        methods: Fine-tuning methods, any of `EDITS`.
        measure: Trial -> its records.
        over: Groups of tasks; by default one of all tasks.
        title: For the progress bar.
        grouped: Whether the records name the group of tasks (`Trial.group`).
        **key: Entries of the records' key beside the trial's (`kept`).
    """
    trials = _trials(lab, experiment, methods, over)
    return in_any_order(trials, measure, lambda _: key, title=title, grouped=grouped)


def in_any_order(
    trials: Sequence[Trial],
    measure: Measure,
    key: Callable[[Trial], Mapping[str, Any]],
    *,
    title: str | None = None,
    grouped: bool = False,
) -> list[dict]:
    """Measure trials, those locked by other processes last; return records in order.

    Args:
        trials: The trials.
        measure: Trial -> its records.
        key: Trial -> entries of its records' key beside its own (`kept`).
        title: For the progress bar.
        grouped: Whether the records name the group of tasks (`Trial.group`).
    """
    if not trials:
        return []
    lab, title = trials[0].lab, title or trials[0].experiment.replace("_", " ")
    order = free_first(range(len(trials)), lambda at: busy(trials[at], measure, **key(trials[at])))
    measured = {}
    for place in track(order, len(trials), title, unit="run", on=lab.progress):
        trial = dataclasses.replace(trials[place])  # its vectors go when it does
        measured[place] = kept(trial, measure, grouped=grouped, **key(trial))
    return [row for place in range(len(trials)) for row in measured[place]]


def run(
    lab: Lab, experiment: str, methods: Sequence[str] | str, measure: Measure, **more: Any
) -> pd.DataFrame:
    """Return `records` as one checked table.

    Args:
        lab: Model, tasks, seeds, scale and store.
        experiment: Its name.
        methods: Fine-tuning methods, any of `EDITS`.
        measure: Trial -> its records.
        **more: Options of `records`.
    """
    return tidy(records(lab, experiment, methods, measure, **more))


def known_methods(methods: Sequence[str] | str) -> Sequence[str]:
    """Return the methods as a list, or raise a `TasklabError`: with none, or the nearest name."""
    names = texts("methods", methods)
    for name in names:
        choose("method", name, EDITS)
    return names


def affine_methods(methods: Sequence[str] | str) -> Sequence[str]:
    """Return the methods as a list, or raise unless each edits the linearized model."""
    if wrong := [method for method in known_methods(methods) if method not in LINEAR]:
        raise TasklabError(f"{wrong[0]!r} is not affine in alpha: its curve has no closed form.")
    return known_methods(methods)


def machine_key(lab: Lab) -> dict[str, Any]:
    """Return the machine and its settings, for keys of measured time and memory."""
    return {
        "machine": provenance()["machine"],
        "torch": torch.__version__,
        "device": lab.parameters.device,
        "threads": torch.get_num_threads(),
    }
