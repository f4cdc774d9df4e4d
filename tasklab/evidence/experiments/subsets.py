"""Task addition over every subset of the tasks, beside probing alone (`analyses.subsets`)."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from tasklab.analyses.editing import normalised
from tasklab.analyses.subsets import Subset, affine, passes, search, subsets_of
from tasklab.errors import TasklabError
from tasklab.evidence.declared import subsets as declared
from tasklab.evidence.experiments.closed_vocabulary import probe_identity, probe_of
from tasklab.evidence.experiments.kit import Lab, experiment, tidy
from tasklab.evidence.experiments.runner import Trial, grid, kept, known_methods
from tasklab.tuning.methods import JOINT

IMAGES = {"val": 500, "test": 1000}  # of each task, at most
QUICK_IMAGES = {"val": 32, "test": 64}
QUICK_SUBSETS = 2  # of each size


@experiment(declared.SUBSETS)
def subsets(
    lab: Lab, methods: Sequence[str] = ("nonlinear",), *, most: int | None = None
) -> pd.DataFrame:
    """Add the vectors of every subset of the tasks, each sum at its own best coefficient.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`. Those that edit the linearized model have all subsets and the
            whole grid at once.
        most: Subsets of each size for other methods; by default all, or in the preset `quick` a
            sample of `QUICK_SUBSETS`.

    Returns:
        Averages over the subset's tasks (task `all`). The same of the method `probe`, lambda = 0,
        normalised as the first method (absolute alone beside `full`); and `closed_cost` records
        with `seconds_subsets` and `tried`, the coefficients tried for a subset on average.
    """
    if lab.parameters.vocabulary != "closed":
        raise TasklabError("subsets are compared with probing: take a lab with head='probe'.")
    methods = known_methods(methods)
    quick = lab.parameters.preset == "quick" or lab.rehearsal
    most = QUICK_SUBSETS if quick and most is None else most
    images = dict(lab.scale.counts) if lab.rehearsal else QUICK_IMAGES if quick else IMAGES
    rows = []
    for trial in grid(lab, "subsets", methods):
        probed = trial.method == methods[0]
        bounded: dict[str, Any] = {"most": most, "images": images}
        key = {"subsets": 1, **(dict.fromkeys(bounded) if trial.linear else bounded)}
        measure = functools.partial(_sums, **bounded, probed=probed)
        mine = kept(trial, measure, alphas=list(lab.scale.alphas), probed=probed, **key)
        if trial.method == JOINT:  # its heads at lambda = 0 are no probes
            mine = [row for row in mine if row["method"] != "probe"]
            if probed:
                alone = Trial(lab=lab, experiment="subset_probes", method="pretrained", seed=0)
                known = {task: probe_identity(lab, task) for task in lab.suite.names}
                of_probes = functools.partial(_probes, most=most, images=images["test"])
                measured = kept(alone, of_probes, probes=known, **bounded, subsets=1)
                mine += [{**row, "seed": trial.seed} for row in measured]  # the same for all
        rows += mine
    return tidy(rows)


def _probes(trial: Trial, most: int | None, images: int) -> list[dict]:
    lab, tasks, encoder = trial.lab, trial.lab.suite.names, trial.lab.clip.encoder
    count, percent = min(images, *(lab.evaluator.count(t, "test") for t in tasks)), []
    for task in tasks:
        head = probe_of(lab, task).head
        data = lab.evaluator.images(task, "test")
        with torch.inference_mode():
            features = encoder(encoder.params, encoder.preprocess(data.x[:count]))
            right = head(features).argmax(-1) == data.y[:count].to(features.device)
        percent.append(100 * right.double().mean().item())
    rows, named = [], {"method": "probe", "metric": "absolute", "alpha": 0.0}
    for subset in subsets_of(len(tasks), most):
        value = float(np.mean([percent[i] for i in subset]))
        rows.append(_row(trial, [tasks[i] for i in subset], count, **named, value=value))
    return rows


def _row(trial: Trial, tasks: Sequence[str], count: int, **more: object) -> dict:
    sizes = {"n_tasks": len(tasks), "n": count * len(tasks)}
    named = {"experiment": "subsets", "task": "all", "subset": "+".join(tasks)}
    return trial.row(**named, **sizes, **more, vocabulary=trial.lab.parameters.vocabulary)


def _sums(trial: Trial, most: int | None, images: Mapping[str, int], probed: bool) -> list[dict]:
    lab, linear, began = trial.lab, trial.linear, time.perf_counter()
    vectors, evaluator = trial.vectors, trial.evaluator
    tasks, splits = tuple(vectors), ("val", "test")
    counts = {s: min(images[s], min(evaluator.count(t, s) for t in tasks)) for s in splits}
    at = affine(evaluator, vectors) if linear else passes(evaluator, vectors, counts)
    singles = [(i,) for i in range(len(tasks))]
    alone = {split: np.concatenate([at(one, 1.0, split) for one in singles]) for split in splits}
    start = np.concatenate([at(one, 0.0, "test") for one in singles])
    chosen = subsets_of(len(tasks), None if linear else most)
    sums = search(
        at, alone, chosen, lab.scale.alphas, whole=linear, progress=lab.progress and not linear
    )
    seconds = time.perf_counter() - began
    n = min(evaluator.count(t, "test") for t in tasks) if linear else counts["test"]

    def rows_of(method: str, subset: Subset, absolute: np.ndarray, alpha: float) -> list[dict]:
        share = normalised(absolute, alone["test"][list(subset)])
        common, names = {"method": method, "alpha": alpha}, [tasks[i] for i in subset]
        return [
            _row(trial, names, n, metric=metric, value=float(values.mean()), **common)
            for metric, values in (("absolute", absolute), ("normalised", share))
        ]

    rows = []
    for one in sums:
        rows += rows_of(trial.method, one.subset, one.absolute, one.coefficient)
        if probed:
            rows += rows_of("probe", one.subset, start[list(one.subset)], 0.0)
    tried = float(np.mean([one.tried for one in sums]))
    cost = {"experiment": "closed_cost", "task": "all"}
    cost["vocabulary"] = lab.parameters.vocabulary
    for metric, value in (("seconds_subsets", seconds), ("tried", tried)):
        rows.append(trial.row(**cost, metric=metric, value=value))
    return rows
