"""The cross-examination: every metric of the book, for every method, in one table.

The chapters' experiments are called with the chapters' options, so that stored results are reused.
`benchmarks/foretelling.py` correlates the metrics with the loss by merging (`records.foretold`).

| of | metrics |
|---|---|
| a task | `single`; `absolute`, `normalised` and `lost_sum` in the sum of all; `lost_ties`, ... in merges of all; `target` and `control` of its negation; `norm`; `gap` from linear; `share` of the kernel's energy; cost of its run |
| a pair | `lost`, `xi_pair`, `xi_classifier`, `xi_representation` at one coefficient; `distance`, `coef` and `base` of cross-task linearity; `cosine`; `gradient_cosine` and `gradient_distance` of the losses |
"""  # noqa: E501

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tasklab.errors import TasklabError, texts
from tasklab.evidence.declared import crossing as declared
from tasklab.evidence.experiments.cross_task import cross_task
from tasklab.evidence.experiments.curvature import pair_errors
from tasklab.evidence.experiments.disentanglement import disentanglement
from tasklab.evidence.experiments.editing import addition, negation, single
from tasklab.evidence.experiments.kernels import localization
from tasklab.evidence.experiments.kit import LEADING_MERGES, LINEAR, Lab, experiment, filled
from tasklab.evidence.experiments.layers import cosines, gradients, linear_gaps
from tasklab.evidence.experiments.merging import merging
from tasklab.evidence.experiments.registry import trained
from tasklab.evidence.experiments.runner import Trial, known_methods
from tasklab.evidence.records.table import tidy
from tasklab.tuning.methods import POSTHOC

COEFFICIENT = 0.5  # of both vectors of a pair: the middle of their models, where CTL is looked at


@experiment(declared.CROSSING)
def crossing(
    lab: Lab,
    methods: Sequence[str],
    *,
    coefficient: float = COEFFICIENT,
    kernels: bool = True,
    merges: Sequence[str] = LEADING_MERGES,
) -> pd.DataFrame:
    """Return every metric of the book for some methods, by task and by pair of tasks.

    `records.combine` concatenates the tables of several encoders.

    `share` is the mean over classes of the task's share of energy; `seconds_finetune` is of the
    machine that trained.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`. A post-hoc method shares cosine, length, gap from linear and
            cross-task linearity with the method whose vectors it uses; accuracies are measured in
            the model that it edits.
        coefficient: Of the vectors of a pair.
        kernels: Whether to add the localization of the tangent kernel, which belongs to the
            encoder alone (method `pretrained`).
        merges: Merge rules whose loss is added.
    """
    methods, names = list(known_methods(methods)), lab.suite.names
    if len(names) < 3:
        raise TasklabError(f"metrics are crossed over at least three tasks, not {len(names)}.")
    merges = texts("merges", merges, LEADING_MERGES) if merges else ()
    pairs, own = list(itertools.combinations(names, 2)), trained(methods)
    linear = [method for method in methods if method in LINEAR]
    network = [method for method in methods if method not in LINEAR]
    at: dict[str, Any] = {"coefficients": (coefficient,)}
    of_edits = [
        single(lab, methods),
        addition(lab, methods, [len(names)]),
        *([negation(lab, methods)] if lab.clip.text is not None else []),  # no control's head
        disentanglement(lab, methods, reach=coefficient, points=3, of=pairs),
        gradients(lab, methods),
        *([pair_errors(lab, network, **at)] if network else []),
        *([pair_errors(lab, linear, linear=True, **at)] if linear else []),
        *([localization(lab, [lab.parameters.init])] if kernels else []),
    ]
    of_vectors = [cross_task(lab, own), linear_gaps(lab, own), cosines(lab, own)]
    rows = [row for table in of_edits for row in _kept(table, coefficient)]
    rows += _shared([row for table in of_vectors for row in _kept(table, 0.5)], methods)
    reached = [{**row, "metric": "lost_sum"} for row in rows if row["metric"] == "absolute"]
    if merges:
        reached += _kept(merging(lab, methods, merges, [len(names)]), coefficient)
    rows += _lost(rows, reached)
    rows += _shared(_costs(lab, own), methods)
    return tidy(rows)


def _kept(table: pd.DataFrame, alpha: float) -> list[dict]:
    table = table[table["split"] == "test"]
    experiment = table["experiment"].iloc[0]
    if experiment == "addition":
        table = table[table["experiment"] == "addition"]  # without its curve
    elif experiment == "disentanglement":
        table = table[table[["alpha1", "alpha2"]].sub(alpha).abs().lt(1e-9).all(axis=1)]
        table = table.assign(alpha=alpha)
    elif experiment == "ctl":
        middle = table["block"].isna() & table["alpha"].sub(alpha).abs().lt(1e-9)
        table = table[middle & table["metric"].isin(["distance", "coef", "base"])]
    elif experiment == "linearity":
        table = table[table["metric"] == "gap"]
    elif experiment == "cosines":
        whole = table["block"].isna() & table["projection"].eq("all")
        table = table[whole & table["metric"].isin(["cosine", "norm"])]
        together = table["metric"] == "cosine"
        both = table["task"].where(~together, table["task"] + "+" + table["subset"])
        table = table.assign(task=both, subset="")
    elif experiment == "merging":
        table = table[table["metric"] == "absolute"]
        table = table.assign(metric="lost_" + table["merge"])  # what `_lost` makes of it
    elif experiment == "localization":
        table = table[table["metric"] == "share"]
        task = table["task"].str.partition("|")[0]
        keys = ["experiment", "model", "suite", "init", "method", "task", "seed", "metric"]
        table = table.assign(task=task).groupby(keys, as_index=False)["value"].mean()
    columns = ("model", "suite", "init", "method", "task", "seed", "metric", "alpha", "value", "n")
    return [
        {"experiment": "crossing", "n_tasks": 1 + ("+" in row["task"])}
        | {name: row[name] for name in columns if name in row}
        for row in filled(table)
    ]


def _shared(rows: list[dict], methods: Sequence[str]) -> list[dict]:
    """Return records of trained methods, repeated for post-hoc methods that use their vectors."""
    return [
        {**row, "method": method}
        for method in methods
        for row in rows
        if row["method"] == POSTHOC.get(method, method)
    ]


def _lost(rows: list[dict], reached: list[dict]) -> list[dict]:
    def run(row: Mapping) -> tuple:
        return tuple(row.get(name) for name in ("method", "seed", "task"))

    alone = {run(row): row["value"] for row in rows if row["metric"] == "single"}
    return [{**row, "value": alone[run(row)] - row["value"]} for row in reached]


def _costs(lab: Lab, methods: Sequence[str]) -> list[dict]:
    rows = []
    for method, seed, task in itertools.product(methods, lab.seeds, lab.suite.names):
        record = lab.tune(task, method, seed).record
        trial = Trial(lab=lab, experiment="crossing", method=method, seed=seed)
        values = {"seconds_finetune": record["seconds"], "trainable": record["parameters"]}
        for metric, value in values.items():
            rows.append(trial.row(task=task, n_tasks=1, metric=metric, value=float(value)))
    return rows
