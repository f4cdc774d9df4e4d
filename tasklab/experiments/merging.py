"""Every way of merging task vectors on one protocol (`tasklab.analyses.merging`).

All methods have the same rule and the same budget: options as their papers have them, and one
coefficient, chosen on validation images among `TRIALS` multiples of the one that is best in the
tangent model. That one is solved for from J(x) tau on the same images (`best.span`), so that
methods whose results differ in length by orders of magnitude are searched alike. Test images only
report.

Beside the methods stand two minima of what they approximate: on the span of the vectors, and over
all weights after some steps of conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from tasklab.analyses import editing
from tasklab.analyses.merging import METHODS, best, fisher_diagonals, grams, merge
from tasklab.errors import texts
from tasklab.experiments.editing import shares
from tasklab.experiments.lab import Lab
from tasklab.experiments.runner import Trial, run
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other records
SPAN, EVERYWHERE = "best_span", "best"
MERGES = (*(name for name in METHODS if name != "wudi_descent"), SPAN, EVERYWHERE)
TRIALS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
# Training images of each task, and steps of conjugate gradients.
FULL = {"grams": 256, "diagonals": 64, "best": 64, "steps": 20}
QUICK = {"grams": 128, "diagonals": 24, "best": 24, "steps": 6}
REHEARSAL = {"grams": 2, "diagonals": 1, "best": 1, "steps": 1}


def merging(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Merge task vectors in every way; return accuracies at the coefficient that validation chose.

    Args:
        lab: What to study.
        methods: How the vectors are fine-tuned and edited, any of `EDITS`.
        merges: Any of `MERGES`; by default all.
        n_tasks: Sizes of the groups of merged tasks; by default the preset's.

    Returns:
        Records of the experiment `merging`: `absolute` and `normalised` of each task on test
        images, and `objective` (task `all`), E(tau) / E(0) in the tangent model on validation
        images at the coefficient that is best there. `trials` is the number of coefficients whose
        validation accuracy was looked at.

    Raises:
        TasklabError: If a method or merge is unknown.
    """
    chosen = MERGES if merges is None else texts("merges", merges, MERGES)
    names = lab.suite.names
    sizes = REHEARSAL if lab.rehearsal else QUICK if lab.parameters.preset == "quick" else FULL

    def measure(trial: Trial) -> list[dict]:
        evaluator, tasks, linear = trial.evaluator, tuple(trial.vectors), trial.linear
        whole = {
            "n_tasks": len(tasks),
            "subset": "" if len(tasks) == len(names) else "+".join(tasks),
        }
        own = [evaluator.tangent_features(v, t, "val").jtau for t, v in trial.vectors.items()]
        alone = {
            split: editing.single_task(evaluator, trial.vectors, split, linear=linear)
            for split in ("val", "test")
        }
        rows = []
        for name in chosen:
            vector = _merged(name, trial, own, sizes)
            moved = best.tangents(evaluator, vector, tasks, "val")
            scale = float(best.span([moved], own)[0])
            objective = best.relative([scale * x for x in moved], own)
            scale = scale if scale > 0 else 1.0
            alphas = [scale * c for c in TRIALS]
            validation = evaluator.sweep(vector, tasks, "val", linear=linear, alphas=alphas)
            share = editing.normalised(validation, alone["val"]).mean(1)
            alpha = alphas[int(share.argmax())]
            absolute = evaluator.sweep(vector, tasks, "test", linear=linear, alphas=[alpha])[0]
            more = {"merge": name, "trials": len(alphas), **whole}
            rows += shares(trial, tasks, absolute, alone["test"], alpha=alpha, **more)
            told = {"task": "all", "metric": "objective", "split": "validation", "alpha": scale}
            many = sum(len(x) for x in own)
            rows.append(trial.row(**told, value=objective, n=many, **more))
        return rows

    groups = [g for n in n_tasks or lab.sizes() for g in map(list, editing.groups(names, n))]
    return run(
        lab,
        "merging",
        methods,
        measure,
        over=groups,
        merges=list(chosen),
        coefficients=list(TRIALS),
        sizes=sizes,
        rule=CACHE_VERSION,
    )


def _merged(name: str, trial: Trial, own: list[Tensor], sizes: dict[str, int]) -> TaskVector:
    """Return the merged vector of a trial's tasks, before its coefficient.

    Args:
        name: One of `MERGES`.
        trial: Whose vectors are merged.
        own: J(x) tau_t on the validation images of each task.
        sizes: Images and steps.
    """
    vectors = trial.vectors
    if name == SPAN:
        basis = [best.tangents(trial.evaluator, v, tuple(vectors), "val") for v in vectors.values()]
        weights = best.span(basis, own).tolist()
        return merge("arithmetic", vectors, alpha=weights)
    if name == EVERYWHERE:
        images = {task: _images(trial, task, sizes["best"]) for task in vectors}
        start, encoder = merge("average", vectors), trial.lab.clip.encoder
        on = {task: vector.to(encoder.device) for task, vector in vectors.items()}
        return best.everywhere(
            encoder, on, images, start=start.to(encoder.device), steps=sizes["steps"]
        ).vector.to("cpu")
    needs = METHODS[name].needs
    if not needs:
        return merge(name, vectors)
    return merge(name, vectors, **{needs: [_told(needs, trial, task, sizes) for task in vectors]})


def _told(needs: str, trial: Trial, task: str, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Return what training images of a task tell of its own model."""
    encoder, vector = trial.lab.clip.encoder, trial.vectors[task]
    x = _images(trial, task, sizes[needs])
    # Of a tangent vector the model itself makes another function: images are read at theta_0.
    params = None if trial.linear else vector.apply(encoder.params)
    if needs == "grams":
        told = grams(encoder, x, params=params)
    else:
        head = trial.evaluator.head(task)
        told = fisher_diagonals(encoder, head, x, params=params, names=vector)
    return {name: value.cpu() for name, value in told.items()}


def _images(trial: Trial, task: str, count: int) -> Tensor:
    data = drawn.images_of(trial.lab.suite)
    many = min(count, data.size(task, "train"))
    return data.load(task, "train", n=many, device=trial.lab.clip.encoder.device).x
