"""The same methods at other learning rates and lengths: the rate's search, the fair comparison.

Normalised accuracy, disentanglement and negation all move with how much a run learns. Here each
method is measured over a grid of rates and numbers of steps, so that two of them can be compared at
equal accuracy alone, and at equal length of the task vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tasklab.analyses.editing import single_task
from tasklab.errors import TasklabError, wholes
from tasklab.evidence.declared import budgets as declared
from tasklab.evidence.experiments.disentanglement import search_box
from tasklab.evidence.experiments.editing import addition, negation, single
from tasklab.evidence.experiments.kit import (
    LINEAR,
    Lab,
    Run,
    combine,
    experiment,
    several,
    tidy,
)
from tasklab.evidence.experiments.learning_rates import ascending, validated
from tasklab.evidence.experiments.merging import LEADING, known_merges, merging
from tasklab.evidence.experiments.registry import trained, usual_runs
from tasklab.evidence.experiments.runner import Trial, grid, kept, known_methods
from tasklab.evidence.records.matched import RATES, plateau
from tasklab.taskvector import TaskVector
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.methods import POSTHOC

LENGTHS = (60, 120, 240, 480)  # steps
_EDITED = ("single", "absolute", "target", "control", "xi_classifier_box")
_FACTOR, _FARTHEST = 2.0, 4  # the grid is prolonged by it, so many times at most


def _search_runs(
    lab: Lab, methods: Sequence[str], *, rates: Sequence[float] = RATES, **_: object
) -> Iterator[Run]:
    for lr in rates:  # how far the grid is prolonged nobody knows
        yield from usual_runs(lab.sibling(tasks=lab.suite.names, lr=lr), methods)


def _runs(lab: Lab, methods: Sequence[str], **grid: Any) -> Iterator[Run]:
    for method in trained(methods):
        for lr, steps in around(lab, method, **grid):
            yield from usual_runs(lab.sibling(lr=lr, steps=steps), [method])


def _merged_runs(
    lab: Lab, methods: Sequence[str], *, rates: Sequence[float] = RATES, **_: object
) -> Iterator[Run]:
    for method in trained(methods):
        for lr, steps in below(lab, method, rates):
            yield from usual_runs(lab.sibling(lr=lr, steps=steps), [method])


@experiment(declared.RATE_SEARCH, runs=_search_runs)
def rate_search(
    lab: Lab, methods: Sequence[str], rates: Sequence[float] = RATES, *, prolong: bool = True
) -> pd.DataFrame:
    """Return every task's accuracy alone on validation images, by learning rate.

    Nothing else is looked at: no sums, no negations, no test images.

    `diverged_at` is the step (from 0) at which a run was stopped. `chosen_rate` reads the records.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Methods that train a vector.
        rates: Learning rates.
        prolong: Whether to go on by factors of two while an end of the grid is the best.
    """
    tables, rates = [], ascending(rates)
    for method in known_methods(methods):
        if method in POSTHOC:
            raise TasklabError(f"{method!r} trains no vector: search the rate of another method.")
        tried, table = list(rates), _searched(lab, method, rates)
        for _ in range(_FARTHEST if prolong else 0):
            best = float(_ended(table, method).groupby("lr")["value"].mean().idxmax())
            if best not in (min(tried), max(tried)):
                break
            tried.append(best / _FACTOR if best == min(tried) else best * _FACTOR)
            table = combine(table, _searched(lab, method, tried[-1:]))
        tables.append(table)
    return combine(*tables)


def chosen_rate(table: pd.DataFrame, method: str) -> float:
    """Return the smallest rate within one standard error over seeds of the best accuracy alone.

    Args:
        table: Result of `rate_search`. Of one seed the best rate is chosen, of equal rates the
            lowest, and none at which a run diverged.
    """
    return plateau(_ended(table, method))


def _ended(table: pd.DataFrame, method: str) -> pd.DataFrame:
    rows = table[table["method"] == method]
    failed = set(rows.loc[rows["metric"] == "diverged_at", "lr"])
    rows = rows[~rows["lr"].isin(failed) & (rows["metric"] == "single")]
    if rows.empty:
        raise TasklabError(f"no learning rate of {method!r} was tried to its end.")
    return rows


@experiment(declared.BUDGET, runs=_runs)
def budgets(
    lab: Lab,
    methods: Sequence[str],
    *,
    rates: Sequence[float] | None = RATES,
    lengths: Sequence[int] | None = LENGTHS,
) -> pd.DataFrame:
    """Measure methods at every rate of the usual length, and every length of their rate.

    `single` and `absolute` are on validation images as well; `norm` is |tau| / |theta_0|.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`; a post-hoc one evaluates the vectors that it takes over.
        rates: Learning rates; `None` for the usual one alone.
        lengths: Numbers of steps; `None` for the usual one alone.
    """
    rates = None if rates is None else ascending(rates)
    lengths = None if lengths is None else sorted(set(wholes("lengths", lengths, 1)))
    tables = [
        _budget(lab.sibling(tasks=lab.suite.names, lr=lr, steps=steps), method)
        for method in known_methods(methods)
        for lr, steps in around(lab, method, rates, lengths)
    ]
    return combine(*tables)


def around(
    lab: Lab,
    method: str,
    rates: Sequence[float] | None = RATES,
    lengths: Sequence[int] | None = LENGTHS,
) -> Iterator[tuple[float, int]]:
    """Yield a cross of learning rates and numbers of steps through a method's usual run.

    Args:
        lab: Gives the usual rate and steps of its model.
        method: One of `EDITS`.
        rates: Learning rates, each at the usual number of steps; `None` for the usual one alone.
        lengths: Numbers of steps, each at the usual rate; `None` for the usual one alone.

    Yields:
        Learning rate and number of steps: first the rates in ascending order, then the lengths.
    """
    own, usual = usual_rate(lab, method)
    yield from ((lr, usual) for lr in sorted({*(rates or ()), own}))
    yield from ((own, steps) for steps in lengths or () if steps != usual)


def usual_rate(lab: Lab, method: str) -> tuple[float, int]:
    """Return the learning rate and the number of steps of a method's usual run."""
    run = lab.run(lab.suite.names[0], method, lab.seeds[0])
    return lab.trainer.rate(run), run.steps


def _budget(lab: Lab, method: str) -> pd.DataFrame:
    lr, steps = lab.parameters.lr, lab.parameters.steps

    def lengths_of(trial: Trial) -> list[dict]:
        size = TaskVector(lab.clip.encoder.params).norm()
        return [
            trial.row(task=task, metric="norm", value=vector.norm() / size)
            for task, vector in trial.vectors.items()
        ]

    def alone(trial: Trial) -> list[dict]:
        values = single_task(trial.evaluator, trial.vectors, "val", linear=trial.linear)
        return [
            trial.accuracy(task, "single", value, "validation")
            for task, value in zip(trial.vectors, values, strict=True)
        ]

    rows = []
    for trial in grid(lab, "budget", [method], title=f"{method}, {lr:g}, {steps} steps"):
        rows += kept(trial, alone, what="alone", budget=1)
        rows += kept(trial, lengths_of, what="norm", budget=1)
    tables = [
        single(lab, [method]),
        addition(lab, [method], n_tasks=(len(lab.suite.names),)),
        negation(lab, [method]),
        search_box(lab, [method], n_pairs=1),
    ]
    edited = pd.concat(table[table["method"] == method] for table in tables)
    curve = edited[(edited["experiment"] == "sweep") & (edited["split"] == "validation")]
    edited = edited[edited["experiment"] != "sweep"]
    added = edited[edited["metric"] == "absolute"].drop_duplicates(["seed", "alpha"])
    looked = curve.merge(added[["seed", "alpha"]], on=["seed", "alpha"])  # at the chosen alpha
    edited = pd.concat([edited, looked])
    edited = edited[edited["metric"].isin(_EDITED)]
    both = pd.concat([edited.assign(experiment="budget"), tidy(rows)], ignore_index=True)
    return tidy(both.assign(lr=lr, steps=steps))


def _searched(lab: Lab, method: str, rates: Sequence[float]) -> pd.DataFrame:
    tables = []
    for lr in rates:
        other = lab.sibling(tasks=lab.suite.names, lr=lr)

        def measure(trial: Trial) -> list[dict]:
            (task,) = trial.tasks
            try:
                run = trial.lab.tune(task, method, trial.seed)
            except DivergedError as error:
                return [trial.diverged(task, error)]
            linear = method in LINEAR
            value = validated(trial.lab.evaluator, task, run.vector, run.head, linear=linear)
            return [trial.accuracy(task, "single", value, "validation")]

        over = [[task] for task in lab.suite.names]
        title = f"{method}, rate {lr:g}"
        for trial in grid(other, "rate_search", [method], over=over, title=title):
            rows = kept(trial, measure, search=1)
            tables.append(tidy(rows).assign(lr=lr))
    return combine(*tables)


@experiment(declared.MERGING_RATES, runs=_merged_runs)
def merging_rates(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Merge tasks' vectors at the usual learning rate and at the lower ones of some.

    Of one way of fine-tuning all merges have vectors that are equally accurate alone. Between ways
    this accuracy differs, and who learns less may merge better for that alone.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        merges: Any of `MERGES`; by default `LEADING`.
        rates: Learning rates; those above a method's own are left out.
        n_tasks: Sizes of groups of tasks; by default the preset's.
    """
    names, tables = several(lab.suite), []
    sizes = (len(names),) if n_tasks is None else n_tasks
    chosen, rates = known_merges(LEADING if merges is None else merges), ascending(rates)
    for method in known_methods(methods):
        for lr, steps in below(lab, method, rates):
            other = lab.sibling(tasks=names, lr=lr, steps=steps)
            alone = single(other, [method])
            edited = merging(other, [method], chosen, n_tasks=sizes)
            rows = pd.concat([alone[alone["method"] == method], edited], ignore_index=True)
            rows = rows[rows["metric"].isin(("single", "absolute"))]
            rows = rows.drop(columns=["hits", "trials", "option"], errors="ignore")
            tables.append(rows.assign(experiment="merging_rates", lr=lr))
    return combine(*tables)


def below(lab: Lab, method: str, rates: Sequence[float] = RATES) -> Iterator[tuple[float, int]]:
    """Yield a method's usual learning rate and all lower ones, each with its usual steps.

    Args:
        lab: Gives the usual rate and steps of its model.
        method: One of `EDITS`.
        rates: Learning rates, of which those above the usual one are left out.

    Yields:
        Learning rate and number of steps, rates ascending.
    """
    own, steps = usual_rate(lab, method)
    for lr in sorted({own, *(rate for rate in rates if rate < own)}):
        yield lr, steps
