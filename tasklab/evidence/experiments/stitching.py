"""Stitched models, and averages of weights compared with averages of logits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses import cross_task, stitching
from tasklab.analyses.cross_task import Merge
from tasklab.analyses.finite import as_coefficients
from tasklab.errors import TasklabError, choose, whole
from tasklab.evidence.declared import stitching as declared
from tasklab.evidence.experiments.disentanglement import pairs
from tasklab.evidence.experiments.kit import Lab, Run, experiment, tidy
from tasklab.evidence.experiments.runner import Trial, grid, kept, run
from tasklab.tasks.drawn import Images
from tasklab.tuning import finetune

# Fine-tunings of one task that differ as a search of hyper-parameters would let them.
RATES, STEPS = (0.5, 1.0, 2.0), (0.67, 1.0)  # times the recipe's
_PART = 256  # images in memory


def _variant_runs(lab: Lab, _methods: Sequence[str], task: str | None = None) -> Iterator[Run]:
    for seed in lab.seeds:
        for recipe in variants(lab, task or lab.suite.names[0], seed).values():
            yield Run(lab, recipe)


@experiment(declared.STITCHED_ADDITION)
def stitched_addition(
    lab: Lab,
    methods: Sequence[str],
    *,
    block: int | None = None,
    coefficients: Sequence[float] | None = None,
    n_pairs: int | None = None,
) -> pd.DataFrame:
    """Return accuracies of stitched models on two tasks (CTL, figure 9).

    The back is the pre-trained model's. The front is that of theta_0 + lambda tau_i, that of
    theta_0 + lambda tau_j, or gives the mean of both's features.

    Fronts are `both`, `own` and `other`; `edited` has the features of theta_0 + lambda (tau_i +
    tau_j) / 2 in the same place.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        block: The last block of the front, counted from 0; by default that after three quarters of
            them, rounded, as in the paper, whose ViT-B/32 is cut after block 9 of 12. -1 takes
            every block in turn, at the largest coefficient alone.
        coefficients: Common coefficients of both vectors; by default a grid.
        n_pairs: Number of pairs of tasks; by default the preset's.
    """
    alphas = [a for a in _alphas(lab, coefficients) if a]
    if not alphas:
        raise TasklabError("coefficients must be a list of at least one number other than 0.")
    block, n = _cut(lab, block, 0.75, least=-1), lab.scale.stitched_images[0]
    blocks = list(range(len(lab.clip.encoder.blocks))) if block == -1 else [block]
    alphas = alphas[-1:] if block == -1 else alphas

    def measure(trial: Trial) -> list[dict]:
        vectors, rows = trial.vectors_on_device, []
        for task, alpha in itertools.product(trial.tasks, alphas):
            (other,) = set(trial.tasks) - {task}
            chosen: dict[str, Any] = {"own": vectors[task], "other": vectors[other], "alpha": alpha}
            chosen["blocks"] = blocks
            means = _means(trial, task, n, functools.partial(stitching.sums, **chosen))
            for (cut, name), value in means.items():
                row = _row(trial, task, value, cut, alpha, n)
                rows.append(row | {"front": name, "subset": "+".join(trial.tasks)})
        return rows

    key = {"blocks": blocks, "alphas": alphas, "images": n // 2, "stitching": 2}
    return run(lab, "stitched_addition", methods, measure, over=pairs(lab, n_pairs), **key)


@experiment(declared.STITCHED_NEGATION)
def stitched_negation(
    lab: Lab,
    methods: Sequence[str],
    *,
    block: int | None = None,
    coefficients: Sequence[float] | None = None,
    n_tasks: int = 2,
) -> pd.DataFrame:
    """Return accuracies of stitched negation on the task and on the control (CTL, figure 10).

    The back is the pre-trained model's. The front gives f(theta_0) - Delta, with Delta the change
    f(theta_0 + lambda tau) - f(theta_0), or the features of theta_0 - lambda tau.

    Fronts are `features` and `weights`; the control's records have the task as `subset`.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        block: The last block of the front; by default four fifths of the way, as in the paper,
            whose ViT-L/14 is cut after block 19 of 24.
        coefficients: Coefficients of the negated vector; by default a grid.
        n_tasks: Number of tasks.
    """
    alphas, cut = _alphas(lab, coefficients), _cut(lab, block, 0.8)
    n_tasks, n = whole("n_tasks", n_tasks, 1), lab.scale.stitched_images[1]

    def measure(trial: Trial) -> list[dict]:
        ((task, vector),), rows = trial.vectors_on_device.items(), []
        for name in (task, lab.suite.control.name):
            chosen: dict[str, Any] = {"vector": vector, "alphas": alphas, "block": cut}
            means = _means(trial, name, n, functools.partial(stitching.negations, **chosen))
            for (alpha, front), value in means.items():
                row = _row(trial, name, value, cut, alpha, n)
                rows.append(row | {"front": front, "subset": task})
        return rows

    key = {"block": cut, "alphas": alphas, "images": n // 2, "stitching": 2}
    over = [[task] for task in lab.suite.names[:n_tasks]]
    return run(lab, "stitched_negation", methods, measure, over=over, **key)


@experiment(declared.AVERAGING, declared.CTL_AVERAGE, runs=_variant_runs)
def averaging(lab: Lab, *, task: str | None = None, count: int = 3) -> pd.DataFrame:
    """Return averages of weights beside ensembles of logits (CTL, section 4.2).

    One task is fine-tuned with several learning rates, lengths and seeds. Of all groups of `count`
    of these models, the accuracy of the mean of weights is set beside that of the mean of logits
    (figure 4), and the features of the mean of all weights beside the mean of features (equation 1,
    figures 5, 6, 17 and 18).

    Args:
        lab: Model, tasks, seeds, scale and store.
        task: Name of the task; by default the first.
        count: Models in a group.
    """
    task = task or lab.suite.names[0]
    choose("task", task, lab.suite.names)
    count = whole("count", count, 1, len(_searched(lab)))
    head = lab.run(task, "nonlinear", lab.seeds[0]).head
    if head not in ("zero_shot", "probe"):
        raise TasklabError(
            "models are averaged under one head, and here each trains its own: take a lab with "
            "head='probe'."
        )
    key: dict[str, Any] = {
        "count": count,
        "images": lab.scale.feature_images[1],
        "stitching": 2,
        "ctl": 2,
    }
    key |= {"heads": head} if head == "probe" else {}  # once they were the untrained model's
    rows = []
    for trial in grid(lab, "averaging", ["nonlinear"], over=[[task]]):
        runs = variants(lab, task, trial.seed)
        measure = functools.partial(_averaged, runs=runs, count=count)
        own = [lab.trainer.identity(run) for run in runs.values()]
        rows += kept(trial, measure, variants=own, **key)
    return tidy(rows)


def variants(lab: Lab, task: str, seed: int) -> dict[str, finetune.FineTune]:
    """Return the runs of one task that `averaging` averages, by their rate, steps and seed.

    In a rehearsal at full size all have one length; no two seeds share a run.

    Args:
        lab: Its recipe's rate and steps are multiplied.
        task: Name of a task.
        seed: Of the experiment, from which the runs' seeds follow.
    """
    first, runs = lab.run(task, "nonlinear", seed), dict[str, finetune.FineTune]()
    own = lab.trainer.rate(first)
    for rate, length in _searched(lab):
        steps = max(1, round(length * first.steps))
        run = dataclasses.replace(
            first,
            lr=rate * own,
            steps=steps,
            warmup=min(first.warmup, steps),
            seed=100 * seed + len(runs),
        )
        runs[f"lr {rate:g}, steps {steps}, seed {run.seed}"] = run
    return runs


def _searched(lab: Lab) -> list[tuple[float, float]]:
    return list(itertools.product(RATES, STEPS[-1:] if lab.light else STEPS))


def _averaged(trial: Trial, runs: Mapping[str, finetune.FineTune], count: int) -> list[dict]:
    lab, (task,) = trial.lab, trial.tasks
    encoder, evaluator = lab.clip.encoder, trial.evaluator
    models, logits = {}, {}
    for config in runs.values():  # before models are held: training takes the memory of five
        lab.trainer(config)
    for name, config in runs.items():
        models[name] = lab.trainer(config).vector.to(encoder.device).apply(encoder.params)
        logits[name] = evaluator.head(task)(evaluator.features(models[name], task, "test"))
    labels = evaluator.images(task, "test").y

    def row(metric: str, subset: str, logits: Tensor) -> dict:
        right = (logits.argmax(-1) == labels).cpu().numpy()
        return trial.answered(task, metric, right, subset=subset)

    rows = [row("alone", name, guess) for name, guess in logits.items()]
    for group in itertools.combinations(models, count):
        name, mean = " | ".join(group), cross_task.merged(models, dict.fromkeys(group, 1 / count))
        features = evaluator.features(mean, task, "test")
        together = torch.stack([logits[one] for one in group]).mean(0)
        rows.append(row("averaged", name, evaluator.logits(features, task)))
        rows.append(row("ensemble", name, together))
    images = evaluator.images(task, "test").x[: lab.scale.feature_images[1]]
    merge = Merge(task, dict.fromkeys(models, 1 / len(models)), (task,))
    table = cross_task.measure(encoder, models, [merge], {task: images}).drop(columns="merge")
    return rows + trial.rows(table, experiment="ctl_average", task=task)


def _alphas(lab: Lab, coefficients: Sequence[float] | None) -> list[float]:
    chosen = list(lab.scale.alphas) if coefficients is None else coefficients
    as_coefficients(chosen, "coefficients")
    return list(chosen)


def _cut(lab: Lab, block: int | None, share: float, least: int = 0) -> int:
    count = len(lab.clip.encoder.blocks)
    return round(share * count) - 1 if block is None else whole("block", block, least, count - 1)


def _means(
    trial: Trial,
    task: str,
    n: int,
    accuracies: Callable[..., Iterable[tuple[Hashable, Hashable, float]]],
) -> dict[tuple, float]:
    encoder, head = trial.evaluator.passes, trial.evaluator.head(task)
    images = trial.lab.evaluator.images(task, "test")
    parts = list(zip(images.x[:n].split(_PART), images.y[:n].split(_PART), strict=True))
    whole, means = sum(len(y) for _, y in parts), dict[tuple, float]()
    for x, y in parts:
        for one, two, value in accuracies(encoder, head, Images(encoder.preprocess(x), y)):
            means[one, two] = means.get((one, two), 0.0) + value * (len(y) / whole)
    return means


def _row(trial: Trial, task: str, value: float, block: int, alpha: float, n: int) -> dict:
    n = min(n, trial.lab.evaluator.count(task, "test"))
    more = {"split": "test", "block": block, "alpha": alpha, "n": n}
    return trial.row(task=task, metric="stitched", value=value, **more)
