"""Cross-task linearity of a suite's models: segments, addition, negation, sums of many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from tasklab.analyses import cross_task as ctl
from tasklab.analyses.cross_task import Merge
from tasklab.analyses.edited import Edited
from tasklab.analyses.finite import as_coefficient, as_coefficients
from tasklab.errors import wholes
from tasklab.evidence.declared import cross_task as declared
from tasklab.evidence.experiments.disentanglement import checked_pairs
from tasklab.evidence.experiments.kit import (
    Lab,
    experiment,
    filled,
    several,
    tidy,
)
from tasklab.evidence.experiments.runner import Trial, run
from tasklab.taskvector import TaskVector

LAMBDA = 0.4  # the paper's coefficient of addition and negation (its figures 7 and 8)

# Cross-task linearity holds for a pair if its distance is at most this share of the base. Where all
# pairs hold, or none does, nothing can be transitive: a range has thresholds in between.


Edits = dict[str, tuple[TaskVector, float]]
Plan = tuple[Edits, list[Merge]]


@experiment(declared.CTL)
def cross_task(
    lab: Lab,
    methods: Sequence[str],
    *,
    alphas: Sequence[float] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Measure cross-task linearity between models of different tasks (CTL, section 4.1).

    Each pair is measured on the images of both its tasks.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        alphas: Places on the segment theta_alpha = alpha theta_i + (1 - alpha) theta_j; by default
            the preset's.
        pairs: Pairs of tasks; by default the preset's number of them.
    """
    every = itertools.combinations(several(lab.suite), 2)
    chosen = checked_pairs(lab, every if pairs is None else pairs)
    alphas = lab.scale.places if alphas is None else alphas
    as_coefficients(alphas)

    def plan(vectors: Mapping) -> Plan:
        models = {task: (vector, 1.0) for task, vector in vectors.items()}
        merges = [
            Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
            for i, j in chosen
            for alpha in alphas
        ]
        return models, merges

    return _measured(lab, "ctl", methods, plan, pairs=[list(p) for p in chosen], at=list(alphas))


@experiment(declared.CTL_ADDITION)
def cross_task_addition(
    lab: Lab, methods: Sequence[str], *, coefficient: float = LAMBDA
) -> pd.DataFrame:
    """Compare added vectors with added features (CTL, equation 2), for all pairs of tasks.

    f(theta_0 + lambda (tau_i + tau_j)) is compared with the mean of f(theta_0 + 2 lambda tau_i) and
    f(theta_0 + 2 lambda tau_j).

    `alpha` is lambda.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        coefficient: lambda.
    """
    pairs = list(itertools.combinations(several(lab.suite), 2))
    as_coefficient(coefficient)

    def plan(vectors: Mapping) -> Plan:
        models = {task: (vector, 2 * coefficient) for task, vector in vectors.items()}
        merges = [Merge(f"{i}+{j}|{coefficient:g}", {i: 0.5, j: 0.5}, (i, j)) for i, j in pairs]
        return models, merges

    return _measured(lab, "ctl_addition", methods, plan, at=[coefficient])


@experiment(declared.CTL_NEGATION)
def cross_task_negation(
    lab: Lab, methods: Sequence[str], *, coefficient: float = LAMBDA
) -> pd.DataFrame:
    """Compare negated vectors with negated features (CTL, equation 3), for every task.

    f(theta_0) is compared with the mean of f(theta_0 + lambda tau) and f(theta_0 - lambda tau).

    `alpha` is lambda.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        coefficient: lambda.
    """
    as_coefficient(coefficient)

    def plan(vectors: Mapping) -> Plan:
        models, merges = {}, []
        for task, vector in vectors.items():
            more, less = f"+{task}", f"-{task}"
            models[more], models[less] = (vector, coefficient), (vector, -coefficient)
            merges.append(Merge(f"{task}|{coefficient:g}", {more: 0.5, less: 0.5}, (task,)))
        return models, merges

    return _measured(lab, "ctl_negation", methods, plan, alone=True, at=[coefficient])


@experiment(declared.CTL_SUM)
def cross_task_sum(
    lab: Lab,
    methods: Sequence[str],
    *,
    sizes: Sequence[int] | None = None,
    coefficient: float = 0.2,
) -> pd.DataFrame:
    """Compare a sum of k vectors with the sum of features (CTL, theorem 4.3).

    f(theta_0 + alpha sum_i tau_i) is compared with

        sum_i f(theta_0 + (k + 1) alpha tau_i) / (k + 1)  +  f(theta_0) / (k + 1).

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        sizes: Numbers k of vectors, each of the suite's first k tasks; by default 2 to all.
        coefficient: Of every vector in the sum.
    """
    names = lab.suite.names
    usual = range(2, len(several(lab.suite)) + 1)
    sizes = list(wholes("sizes", usual if sizes is None else sizes, 1, len(names)))
    as_coefficient(coefficient)

    def plan(vectors: Mapping) -> Plan:
        models: Edits = {"start": (TaskVector({}), 0.0)}
        merges = []
        for k in sizes:
            for task in names[:k]:
                models[f"{task}, {k}"] = vectors[task], (k + 1) * coefficient
            weights = dict.fromkeys(("start", *(f"{task}, {k}" for task in names[:k])), 1 / (k + 1))
            merges.append(Merge(f"{k}|{coefficient:g}", weights, tuple(names[:k])))
        return models, merges

    table = _measured(lab, "ctl_sum", methods, plan, sizes=sizes, at=[coefficient])
    return tidy(table.assign(n_tasks=table["task"].astype(int), task="all"))


def _measured(
    lab: Lab,
    experiment: str,
    methods: Sequence[str],
    plan: Callable[[Mapping], Plan],
    *,
    alone: bool = False,
    **key: object,
) -> pd.DataFrame:
    count = lab.scale.feature_images[alone]

    def measure(trial: Trial) -> list[dict]:
        encoder, (edits, merges) = lab.clip.encoder, plan(trial.vectors_on_device)
        data = {t: lab.evaluator.images(t, "test").x[:count] for t in lab.suite.names}
        # Made when they are asked for: copies of a large model would not fit.
        models = {name: Edited(encoder.params, *edit) for name, edit in edits.items()}
        table = ctl.measure(encoder, models, merges, data, progress=lab.progress)
        return rows_of(trial.row(), table)

    return run(lab, experiment, methods, measure, images=count, ctl=2, **key)


def rows_of(common: Mapping[str, object], table: pd.DataFrame) -> list[dict]:
    """Return a table of `cross_task.measure` as records; a merge is called `"task|alpha"`."""
    rows = []
    for row in filled(table):
        task, _, alpha = row.pop("merge").partition("|")
        rows.append({**common, **row, "task": task, "alpha": float(alpha)})
    return rows
