"""Stitched models, and averages of weights beside averages of logits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses import cross_task, stitching
from tasklab.analyses.cross_task import Merge
from tasklab.experiments.disentanglement import pairs
from tasklab.experiments.lab import Lab
from tasklab.models import heads
from tasklab.records import papers
from tasklab.records.table import filled
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune

ALGORITHM = 2  # part of every key: raise it when the same configuration gives other records
# Fine-tunings of one task that differ as a search of hyper-parameters would let them.
RATES, STEPS = (0.5, 1.0, 2.0), (0.67, 1.0)  # times the recipe's


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

    Args:
        lab: What to study.
        methods: Those that train a vector.
        block: The last block of the front; by default three quarters of the way, as in the paper,
            whose ViT-B/32 is cut after block 9 of 12. -1 takes every block in turn, at the largest
            coefficient alone.
        coefficients: Values of lambda; by default the preset's grid without 0.
        n_pairs: How many pairs of tasks; by default the preset's.

    Returns:
        Records of the experiment `stitched_addition`: the metric `stitched` for each task of the
        pair `subset` at each `alpha`, with the columns block and front (`both`, `own`, `other`; and
        `edited`, the features of theta_0 + lambda (tau_i + tau_j) / 2 in the same place).
    """
    grid = [a for a in coefficients or lab.scale.alphas if a]
    blocks = _cuts(lab, block)
    grid = grid[-1:] if block == -1 else grid
    rows = []
    for method, seed in lab.grid(methods, "stitched addition"):
        for pair in pairs(lab, n_pairs):
            rows += lab.kept(
                "stitched_addition",
                method,
                seed,
                lambda m=method, s=seed, p=pair: _added(lab, m, s, p, blocks, grid),
                tasks=pair,
                blocks=blocks,
                alphas=grid,
                images=lab.scale.images,
                stitching=ALGORITHM,
            )
    return papers.tidy(rows)


def _added(
    lab: Lab,
    method: str,
    seed: int,
    pair: tuple[str, str],
    blocks: Sequence[int],
    grid: Sequence[float],
) -> list[dict]:
    encoder, theta = lab.clip.encoder, lab.clip.encoder.params
    vectors = {t: v.to(encoder.device) for t, v in lab.vectors(method, seed, pair).items()}
    middle = TaskVector.sum(vectors.values()) / 2
    rows = []
    for task, alpha in itertools.product(pair, grid):
        (other,) = set(pair) - {task}
        models = {
            "own": vectors[task].apply(theta, alpha),
            "other": vectors[other].apply(theta, alpha),
            "edited": middle.apply(theta, alpha),
        }
        for block in blocks:
            h = {name: _front(lab, params, task, block) for name, params in models.items()}
            h["both"] = (h["own"] + h["other"]) / 2
            for name, states in h.items():
                value = _accuracy(lab, method, seed, task, block, states)
                rows.append(
                    _row(lab, "stitched_addition", method, seed, task, value, block, alpha)
                    | {"front": name, "subset": "+".join(pair)}
                )
    return rows


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

    Args:
        lab: What to study.
        methods: Those that train a vector.
        block: The last block of the front; by default four fifths of the way, as in the paper,
            whose ViT-L/14 is cut after block 19 of 24.
        coefficients: Values of lambda; by default the preset's grid.
        n_tasks: How many tasks of the suite, from its first.

    Returns:
        Records of the experiment `stitched_negation`: the metric `stitched` of the task, and of the
        control with the task as `subset`, at each `alpha`, with the columns block and front
        (`features`, `weights`).
    """
    grid, (cut,) = list(coefficients or lab.scale.alphas), _cuts(lab, block, 0.8)
    rows = []
    for method, seed in lab.grid(methods, "stitched negation"):
        for task in lab.suite.names[:n_tasks]:
            rows += lab.kept(
                "stitched_negation",
                method,
                seed,
                lambda m=method, s=seed, t=task: _negated(lab, m, s, t, cut, grid),
                tasks=[task],
                block=cut,
                alphas=grid,
                images=lab.scale.images,
                stitching=ALGORITHM,
            )
    return papers.tidy(rows)


def _negated(
    lab: Lab, method: str, seed: int, task: str, block: int, grid: Sequence[float]
) -> list[dict]:
    encoder, theta = lab.clip.encoder, lab.clip.encoder.params
    vector = lab.vectors(method, seed, [task])[task].to(encoder.device)
    rows = []
    for name in (task, lab.suite.control.name):
        start = _front(lab, theta, name, block)
        for alpha in grid:
            more, less = (
                _front(lab, vector.apply(theta, sign * alpha), name, block) for sign in (1, -1)
            )
            for front, h in (("features", 2 * start - more), ("weights", less)):
                value = _accuracy(lab, method, seed, name, block, h)
                rows.append(
                    _row(lab, "stitched_negation", method, seed, name, value, block, alpha)
                    | {"front": front, "subset": task}
                )
    return rows


def averaging(lab: Lab, *, task: str | None = None, count: int = 3) -> pd.DataFrame:
    """Return averages of weights beside ensembles of logits (CTL, section 4.2).

    One task is fine-tuned with several learning rates, lengths and seeds. Of all groups of `count`
    of these models, the accuracy of the mean of weights is set beside that of the mean of logits
    (figure 4), and the features of the mean of all weights beside the mean of features (equation 1,
    figures 5, 6, 17 and 18).

    Args:
        lab: What to study.
        task: Of the suite; by default its first.
        count: Models in a group.

    Returns:
        Records of the experiment `averaging` (the metrics `averaged`, `ensemble`, and `alone` of
        single models, with the group as subset), and of `ctl_average`, as
        `experiments.cross_task` returns them.
    """
    task = task or lab.suite.names[0]
    rows = []
    for seed in lab.parameters.seeds:
        runs = _variants(lab, task, seed)
        rows += lab.kept(
            "averaging",
            "nonlinear",
            seed,
            lambda s=seed, r=runs: _averaged(lab, task, s, r, count),
            tasks=[task],
            variants=[finetune.identity(run, lab.clip, lab.suite) for run in runs.values()],
            count=count,
            images=lab.scale.images,
            stitching=ALGORITHM,
        )
    return papers.tidy(rows)


def _variants(lab: Lab, task: str, seed: int) -> dict[str, finetune.FineTune]:
    """Return runs of one task by what distinguishes them; no two seeds share one."""
    first = lab.run(task, "nonlinear", seed)
    found = {}
    for rate, length in itertools.product(RATES, STEPS):
        steps = max(1, round(length * first.steps))
        run = dataclasses.replace(
            first,
            lr=rate * first.lr,
            steps=steps,
            warmup=min(first.warmup, steps),
            seed=100 * seed + len(found),
        )
        found[f"lr {rate:g}, steps {steps}, seed {run.seed}"] = run
    return found


def _averaged(
    lab: Lab, task: str, seed: int, runs: Mapping[str, finetune.FineTune], count: int
) -> list[dict]:
    encoder, evaluator = lab.clip.encoder, lab.evaluator
    models, logits = {}, {}
    for name, run in runs.items():
        tuned = finetune.finetune(run, lab.clip, lab.store, tasks=lab.suite, progress=lab.progress)
        models[name] = tuned.vector.to(encoder.device).apply(encoder.params)
        logits[name] = evaluator.head(task)(evaluator.features(models[name], task, "test"))
    labels = evaluator.images(task, "test").y
    rows = []

    def add(metric: str, subset: str, value: float) -> None:
        row = lab.accuracy("averaging", "nonlinear", seed, task, metric, value)
        rows.append(row | {"subset": subset})

    for name, found in logits.items():
        add("alone", name, 100 * heads.accuracy(found, labels))
    for group in itertools.combinations(models, count):
        mean = cross_task.merged(models, dict.fromkeys(group, 1 / count))
        features = evaluator.features(mean, task, "test")
        add("averaged", " | ".join(group), evaluator.accuracy(features, task, "test"))
        together = torch.stack([logits[name] for name in group]).mean(0)
        add("ensemble", " | ".join(group), 100 * heads.accuracy(together, labels))
    images = evaluator.images(task, "test").x[: lab.scale.images]
    merge = Merge(task, dict.fromkeys(models, 1 / len(models)), (task,))
    found = cross_task.measure(encoder, models, [merge], {task: images})
    common = lab.row("ctl_average", "nonlinear", seed, task=task)
    return rows + [{**common, **row} for row in filled(found.drop(columns="merge"))]


def _cuts(lab: Lab, block: int | None, share: float = 0.75) -> list[int]:
    count = len(lab.clip.encoder.blocks)
    if block == -1:
        return list(range(count))
    return [round(share * count) - 1 if block is None else block]


@torch.inference_mode()
def _front(lab: Lab, params: Mapping[str, Tensor], task: str, block: int) -> Tensor:
    encoder, images = lab.clip.encoder, lab.evaluator.images(task, "test").x[: 2 * lab.scale.images]
    return stitching.front(encoder, params, encoder.preprocess(images), block)


@torch.inference_mode()
def _accuracy(lab: Lab, method: str, seed: int, task: str, block: int, h: Tensor) -> float:
    encoder, images = lab.clip.encoder, lab.evaluator.images(task, "test")
    x, y = images.x[: 2 * lab.scale.images], images.y[: 2 * lab.scale.images]
    features = stitching.back(encoder, encoder.params, encoder.preprocess(x), block, h)
    return 100 * heads.accuracy(lab.evaluator_of(method, seed).head(task)(features), y)


def _row(
    lab: Lab,
    experiment: str,
    method: str,
    seed: int,
    task: str,
    value: float,
    block: int,
    alpha: float,
) -> dict:
    row = lab.row(experiment, method, seed, task=task, metric="stitched", value=value)
    n = min(2 * lab.scale.images, lab.evaluator.count(task, "test"))
    return {**row, "split": "test", "block": block, "alpha": alpha, "n": n}
