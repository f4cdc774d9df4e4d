"""Cross-task linearity of a suite's models: segments, addition, negation, sums of many."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from tasklab.analyses import cross_task as ctl
from tasklab.analyses import transitivity
from tasklab.analyses.cross_task import Merge
from tasklab.analyses.edited import Edited
from tasklab.analyses.finite import as_coefficient, as_coefficients
from tasklab.errors import wholes
from tasklab.evidence.experiments import small_networks
from tasklab.evidence.experiments.disentanglement import checked_pairs
from tasklab.evidence.experiments.kit import (
    Claim,
    Lab,
    Rows,
    Sides,
    experiment,
    filled,
    several,
    tidy,
)
from tasklab.evidence.experiments.runner import Trial, run
from tasklab.evidence.records.schema import NETWORKS
from tasklab.taskvector import TaskVector

LAMBDA = 0.4  # the paper's coefficient of addition and negation (its figures 7 and 8)

# Cross-task linearity holds for a pair if its distance is at most this share of the base. Where all
# pairs hold, or none does, nothing can be transitive: a range has thresholds in between.
THRESHOLDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)


def linearity(name: str) -> Rows:
    """Return the declaration of records that compare merged features with merged weights'."""
    return Rows(
        name,
        "merged features against merged weights' on the segment, in the sum, ... of models; "
        "`distance` 1 - cos, `coef` the coefficient, the others the models' own distances; "
        "quartiles over images",
        "distance, coef, base, base_merged, endpoint, first",
        f"block, low, middle, high, {small_networks.COLUMNS}",
        figure="cross_task",
    )


Edits = dict[str, tuple[TaskVector, float]]
Plan = tuple[Edits, list[Merge]]


def _features(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Merged weights' features against an `endpoint`'s, or the coefficient's error against `one`.

    Distances are from the merged features: how much nearer than a single model's features are those
    of the merged weights. (The models' distance from each other would be a weaker test, which a
    single model passes too.) They are of the encoder's projected output; of an MLP, whose output is
    that of its classifier, of the last hidden layer. The coefficient's error is the largest over
    the blocks (`merged`), as the paper's figures show blocks, or that of the output (`output`).
    Segments are judged in their middle.
    """
    rows = rows[rows["method"] == "nonlinear"]
    if rows.empty:
        return {}
    network = rows["model"].iloc[0]
    if network in NETWORKS:
        rows = _usual(rows)
    if claim.experiment == "ctl":
        rows = rows[np.isclose(rows["alpha"], 0.5)]
    output = rows["block"].isna()
    if claim.metric == "distance":
        deep = rows["block"] == rows["block"].max() - 1 if network == "mlp" else output
        rows = rows[deep.fillna(False)]
        sides = {"merged": "distance", "endpoint": "endpoint"}
        return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}
    error = rows.assign(value=(rows["value"] - 1).abs())
    error, output = error[rows["metric"] == "coef"], output[rows["metric"] == "coef"]
    blocks = error[~output]
    if network == "mlp":
        blocks = blocks[blocks["block"] < blocks["block"].max()]
    keys = ["seed", "task", "subset"]
    merged = blocks.sort_values("value").drop_duplicates(keys, keep="last").sort_index()
    return {"merged": merged, "output": error[output], "one": merged.assign(value=1.0, error=0.0)}


def _usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a network that was trained as its setting says: as most were."""
    chosen = (rows["ratio"] == 0) & (rows["replaced"] == "other")
    for name in ("pretraining", "finetuning"):
        chosen &= rows[name] == rows[name].mode().iloc[0]
    if "wider" in rows:
        chosen &= rows["wider"].fillna(1) == 1
    return rows[chosen]


def _sums(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame, *, every: bool) -> Sides:
    """The (k + 1) form (`merged`) and the pre-trained model (`start`) against a sum of k vectors.

    k is 2, or the largest for which the theorem's condition on alpha is met: models at
    (k + 1) alpha are no further away than fine-tuned ones, which are cross-task linear.
    """
    rows = rows[rows["block"].isna() & (rows["method"] == "nonlinear")]
    rows = rows[(rows["n_tasks"] + 1) * rows["alpha"] <= 1 + 1e-9]
    rows = rows[rows["n_tasks"] == (rows["n_tasks"].max() if every else 2)]
    rows = rows[np.isclose(rows["alpha"], rows["alpha"].max())]
    sides = {"merged": "distance", "start": "first"}
    return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}


def _transitivity(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How often (i, k) fails after linear pairs with a middle (`linked`), and without one.

    In per cent of the triples, at each of `THRESHOLDS` where some premise holds.
    """
    pairs = transitivity.pairs_in(rows[rows["method"] == "nonlinear"])
    if len(pairs) < 6:
        return {}
    table = transitivity.transitivity(pairs, THRESHOLDS, by=["seed"]).summary
    table = table.assign(task=table["threshold"].map("{:g}".format), subset="")
    columns = {"linked": "violations", "unlinked": "violations_unlinked"}
    table = table.dropna(subset=list(columns.values()))
    table = table[["seed", "task", "subset", *columns.values()]]
    return {side: table.assign(value=100 * table[name]) for side, name in columns.items()}


@experiment(linearity("ctl"), sides={"features": _features, "transitivity": _transitivity})
def cross_task(
    lab: Lab,
    methods: Sequence[str],
    *,
    alphas: Sequence[float] = (0.25, 0.5, 0.75),
    pairs: Sequence[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Measure cross-task linearity between models of different tasks (CTL, section 4.1).

    Each pair is measured on the images of both its tasks.

    Args:
        alphas: Places on the segment theta_alpha = alpha theta_i + (1 - alpha) theta_j.
    """
    every = itertools.combinations(several(lab.suite), 2)
    chosen = checked_pairs(lab, every if pairs is None else pairs)
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


@experiment(linearity("ctl_addition"))
def cross_task_addition(
    lab: Lab, methods: Sequence[str], *, coefficient: float = LAMBDA
) -> pd.DataFrame:
    """Compare added vectors with added features (CTL, equation 2), for all pairs of tasks.

    f(theta_0 + lambda (tau_i + tau_j)) is compared with the mean of f(theta_0 + 2 lambda tau_i) and
    f(theta_0 + 2 lambda tau_j).

    `alpha` is lambda.
    """
    pairs = list(itertools.combinations(several(lab.suite), 2))
    as_coefficient(coefficient)

    def plan(vectors: Mapping) -> Plan:
        models = {task: (vector, 2 * coefficient) for task, vector in vectors.items()}
        merges = [Merge(f"{i}+{j}|{coefficient:g}", {i: 0.5, j: 0.5}, (i, j)) for i, j in pairs]
        return models, merges

    return _measured(lab, "ctl_addition", methods, plan, at=[coefficient])


@experiment(linearity("ctl_negation"))
def cross_task_negation(
    lab: Lab, methods: Sequence[str], *, coefficient: float = LAMBDA
) -> pd.DataFrame:
    """Compare negated vectors with negated features (CTL, equation 3), for every task.

    f(theta_0) is compared with the mean of f(theta_0 + lambda tau) and f(theta_0 - lambda tau).

    `alpha` is lambda.
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


@experiment(
    linearity("ctl_sum"),
    sides={
        "sum_of_two": functools.partial(_sums, every=False),
        "sum_of_most": functools.partial(_sums, every=True),
    },
)
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
        sizes: Numbers k of vectors, each of the suite's first k tasks; by default 2 to all.
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
