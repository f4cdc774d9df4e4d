"""Models without a text tower, in one vocabulary with those that have one: probing and addition.

*Task Addition and Weight Disentanglement in Closed-Vocabulary Models* compares pre-training
schemes. A lab of `Parameters(head="probe")` follows its section 3.1: a linear probe is fitted for
each task, then the encoder is fine-tuned with the probe frozen. When vectors are added, each task's
own head is plugged in. The method `full` trains encoder and head together (appendix G), from a
random head, or, where `head="zero_shot"`, from the one made of prompts (appendix H).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses import editing, evaluation
from tasklab.analyses.finite import as_coefficients, check_grid
from tasklab.errors import TasklabError, choose, texts
from tasklab.evidence.declared import closed_vocabulary as declared
from tasklab.evidence.experiments.editing import alone as of_each_alone
from tasklab.evidence.experiments.editing import shares
from tasklab.evidence.experiments.kit import Lab, combine, experiment, tidy
from tasklab.evidence.experiments.runner import Trial, kept, known_methods, run
from tasklab.evidence.records.images import unpacked
from tasklab.models.zoo import SCHEMES, SORTS, family
from tasklab.taskvector import TaskVector
from tasklab.tuning import probes

# The paper's grid (section 3.2) holds few of the coefficients at which sums are best: here some
# between them as well. The quick one has the paper's up to 0.3, and a few further ones.
_BETWEEN = (0.01, 0.02, 0.03, 0.04, 0.075, 0.125, 0.175)
LAMBDAS = tuple(sorted({*evaluation.ALPHAS, *_BETWEEN}))
QUICK_LAMBDAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)


def scheme_models(model: str) -> dict[str, str]:
    """Return the models of all pre-training schemes that a model is compared with, by role.

    A model without relatives (timm's) is the only one, of the role `given`.

    >>> scheme_models("vitb16_in1k")["mae"]
    'mae_b16'
    """
    models = family(model)
    return {role: models[role] for role in SCHEMES if role in models} or {"given": model}


def schemes(
    lab: Lab,
    roles: Sequence[str] | None = None,
    *,
    head: str = "probe",
    tasks: Sequence[str] | None = None,
) -> list[Lab]:
    """Return a lab of each pre-training scheme, with probed heads and the same preset and store.

    Args:
        lab: Model, tasks, seeds, scale and store.
        roles: Of `zoo.family`. By default all of `SCHEMES` that it has in the preset `full`,
            else of `SORTS`. A model without relatives (timm's) is the only one, whatever the roles.
        head: `"probe"`, or `"zero_shot"` for models with a text tower (open vocabulary).
        tasks: Names of tasks; by default the lab's.
    """
    models = lab.family or scheme_models(lab.parameters.model)
    if not lab.family:
        roles = list(models)
    elif roles is not None:
        roles = texts("roles", roles)
    else:
        usual = SCHEMES if lab.parameters.preset == "full" else SORTS
        roles = [role for role in usual if role in models]
    for role in roles:
        choose("role", role, models)
    names = lab.suite.names if tasks is None else tasks
    return [lab.sibling(model=models[role], head=head, tasks=names) for role in roles]


def across(
    labs: Sequence[Lab], experiment: Callable[..., pd.DataFrame], *args: Any, **more: Any
) -> pd.DataFrame:
    """Return the records of one experiment on several labs, as one table.

    Args:
        labs: Labs of several models.
        experiment: One of `experiments`.
        *args: Further arguments of the experiment.
        **more: Options of the experiment.
    """
    return combine(*(experiment(lab, *args, **more) for lab in labs))


@experiment()
def probing(lab: Lab) -> pd.DataFrame:
    """Return the accuracy of each task's linear probe on the pre-trained features.

    Returns:
        Records of the experiment `single` and the method `probe`, on test and validation images:
        one probe, whatever the seed of fine-tuning. An open vocabulary has none: zero-shot accuracy
        instead, of the method `pretrained`.
    """
    return tidy([{**row, "seed": seed} for seed in lab.seeds for row in _probing(lab)])


def _probing(lab: Lab) -> list[dict]:
    probed = lab.parameters.vocabulary == "closed"
    method = "probe" if probed else "pretrained"

    def measure(trial: Trial) -> list[dict]:
        own = {task: probe_of(lab, task).head for task in lab.suite.names} if probed else {}
        evaluator, empty = lab.evaluator.with_heads(own), TaskVector({})
        rows = []
        for task in lab.suite.names:
            named = {"experiment": "single", "method": method}
            right = evaluator.answers(empty, task, "test", 0.0, linear=False)
            rows.append(trial.answered(task, "single", right, **named))
            value = evaluator.evaluate(empty, task, "val", 0.0, linear=False)
            rows.append(trial.accuracy(task, "single", value, "validation", **named))
        return _with_vocabulary(lab, rows)

    key = {task: probe_identity(lab, task) for task in lab.suite.names} if probed else {}
    trial = Trial(lab=lab, experiment="probing", method="pretrained", seed=0)
    return kept(trial, measure, probes=key, closed=2)


@experiment(declared.ADDITION_FINE)
def closed_addition(
    lab: Lab, methods: Sequence[str] = ("nonlinear",), *, lambdas: Sequence[float] | None = None
) -> pd.DataFrame:
    """Add the vectors of all tasks, each with its own head (tables 1, 3 and 4, figure 2).

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`; `full` trains the head along.
        lambdas: Coefficients, ascending from 0; by default `LAMBDAS`, or `QUICK_LAMBDAS` in the
            preset `quick`.

    Returns:
        Records of `single` (test), `sweep` (validation), `addition` (test, at the best coefficient
        of the paper's grid, which is the metric `lambda` of the task `all`), `addition_fine` and
        `closed_cost`. With `nonlinear` vectors, `addition` also has probing alone (method `probe`,
        or `pretrained` in an open vocabulary), at lambda = 0, normalised by these vectors.
    """
    if lambdas is None:
        usual = LAMBDAS if lab.parameters.preset == "full" else QUICK_LAMBDAS
        lambdas = lab.scale.alphas if lab.rehearsal else usual
    grid = list(as_coefficients(lambdas, "lambdas"))
    check_grid(grid)
    if grid[0] != 0:
        raise TasklabError(f"lambdas must begin at 0, the model without vectors, not {grid[0]:g}.")
    measure, title = functools.partial(_added, grid=grid), "closed-vocabulary addition"
    return run(lab, "closed_addition", methods, measure, title=title, alphas=grid, closed=2)


def _added(trial: Trial, grid: Sequence[float]) -> list[dict]:
    lab, vectors, evaluator, linear = trial.lab, trial.vectors, trial.evaluator, trial.linear
    tasks, total = tuple(vectors), TaskVector.sum(vectors.values())
    began = time.perf_counter()
    alone = {"val": editing.single_task(evaluator, vectors, "val", linear=linear)}
    validation = evaluator.sweep(total, tasks, "val", linear=linear, alphas=grid)
    mean = editing.normalised(validation, alone["val"]).mean(1)
    seconds = time.perf_counter() - began
    common: dict[str, Any] = {"n_tasks": len(tasks)}
    rows = of_each_alone(trial, experiment="single")
    alone["test"] = np.array([row["value"] for row in rows])
    for x, absolute in zip(grid, validation, strict=True):
        at = common | {"experiment": "sweep", "alpha": x, "split": "validation"}
        rows += shares(trial, tasks, absolute, alone["val"], **at)
    of_paper = [i for i, x in enumerate(grid) if x in evaluation.ALPHAS]
    test: dict[float, list[np.ndarray]] = {}  # coefficient -> which images are answered, by task
    for sort, allowed in (("addition", of_paper), ("addition_fine", range(len(grid)))):
        chosen = grid[max(allowed, key=lambda i: mean[i])]
        if chosen not in test:
            test[chosen] = [
                evaluator.answers(total, task, "test", chosen, linear=linear) for task in tasks
            ]
        at = {"experiment": sort, "alpha": chosen, **common}
        absolute = editing.percent(test[chosen])
        rows += shares(trial, tasks, absolute, alone["test"], answers=test[chosen], **at)
        rows.append(trial.row(task="all", metric="lambda", value=chosen, **at))
    if trial.method == "nonlinear":
        start = [row for row in _probing(lab) if row["split"] == "test"]
        right = [unpacked(row["hits"], row["n"]) for row in start]
        at = {"experiment": "addition", "method": start[0]["method"], "alpha": 0.0, **common}
        rows += shares(trial, tasks, editing.percent(right), alone["test"], answers=right, **at)
    rows.append(_seconds(trial, "sweep", seconds))
    return _with_vocabulary(lab, rows)


@experiment(declared.CLOSED_COST)
def closed_cost(lab: Lab, methods: Sequence[str] = ("nonlinear",)) -> pd.DataFrame:
    """Return the seconds that probing and adding take, as they were when they were made."""
    seed, rows = lab.seeds[0], []
    trials = [
        Trial(lab=lab, experiment="closed_cost", method=method, seed=seed)
        for method in known_methods(methods)
    ]
    for task in lab.suite.names if lab.parameters.vocabulary == "closed" else ():
        probe = probe_of(lab, task)
        for part, value in (("features", probe.seconds_features), ("probe", probe.seconds_fit)):
            rows.append(_seconds(trials[0], part, value, task=task, method="probe"))
    for trial in trials:
        for task in lab.suite.names:
            value = float(lab.tune(task, trial.method, seed).record["seconds"])
            rows.append(_seconds(trial, "finetune", value, task=task))
    sweeps = closed_addition(lab, methods)
    mine = (sweeps["experiment"] == "closed_cost") & (sweeps["seed"] == seed)
    return combine(tidy(_with_vocabulary(lab, rows)), sweeps[mine])


def _seconds(trial: Trial, part: str, value: float, task: str = "all", **more: str) -> dict:
    common = {"experiment": "closed_cost", "task": task, **more}
    return trial.row(metric=f"seconds_{part}", value=value, **common)


def _with_vocabulary(lab: Lab, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "vocabulary": lab.parameters.vocabulary} for row in rows]


def probe_of(lab: Lab, task: str) -> probes.Fitted:
    """Return a task's probe."""
    return probes.fit(lab.run(task).probe, lab.clip, lab.suite, task, lab.store)


def probe_identity(lab: Lab, task: str) -> dict[str, Any]:
    """Return all that determines a task's probe."""
    return probes.identity(lab.run(task).probe, lab.clip, lab.suite, task)
