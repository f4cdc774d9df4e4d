"""Where the eigenfunctions of the tangent kernel have their energy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from tasklab.analyses import kernels as spectral
from tasklab.experiments.disentanglement import pairs
from tasklab.experiments.lab import Lab
from tasklab.experiments.runner import Trial, kept
from tasklab.records.table import tidy

CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other records


def localization(
    lab: Lab,
    inits: Sequence[str] | None = None,
    *,
    n_pairs: int | None = None,
) -> pd.DataFrame:
    """Return the local energy of eigenfunctions on a task and a control (tangent, figure 6).

    The kernel is of the head of the pair's first task, a matrix for each class; its rows are
    training images of that task. Energy is reported on these, on as many unseen images of the task,
    and on as many images of the pair's second task, the control.

    Args:
        lab: What to study.
        inits: Initialisations of the encoder to compare; by default the lab's and random weights.
        n_pairs: How many pairs of tasks; by default the preset's.

    Returns:
        Records of the experiment `localization`, for the task `"T|control"` and, as subset, each
        class of T: the metrics `energy` with the columns side (`task`, `unseen` or `control`) and x
        (number of the image), and `share` (of the task's energy) and
        `unseen_share` (of the unseen images').
    """
    n, most = lab.scale.kernel_images, lab.scale.kernel_classes

    def measure(trial: Trial) -> list[dict]:
        (task, control), evaluator, encoder = (
            trial.tasks,
            trial.lab.evaluator,
            trial.lab.clip.encoder,
        )
        names = trial.lab.suite[task].classes
        classes = range(len(names))[:most]
        own, unseen, others = (
            encoder.preprocess(evaluator.images(name, split).x[:n])
            for name, split in ((task, "train"), (task, "test"), (control, "test"))
        )
        columns = torch.cat([unseen, others])
        head = evaluator.head(task)
        kernels = spectral.gram(encoder, encoder.params, head, own, columns, classes=classes)
        seen = spectral.localization(torch.cat([kernels[:, :, :n], kernels[:, :, 2 * n :]], -1), n)
        fresh = spectral.localization(kernels[:, :, n:], n)
        rows = []
        for i, c in enumerate(classes):
            common = trial.row(task=f"{task}|{control}", n=n, subset=names[c])
            sides = {
                "task": seen.energy[i, :n],
                "unseen": fresh.energy[i, :n],
                "control": seen.energy[i, n:],
            }
            rows += [
                {**common, "metric": "energy", "side": side, "x": x, "value": value}
                for side, energy in sides.items()
                for x, value in enumerate(energy.tolist())
            ]
            for metric, share in (("share", seen.share[i]), ("unseen_share", fresh.share[i])):
                rows.append({**common, "metric": metric, "side": "", "x": 0, "value": float(share)})
        return rows

    rows = []
    for init in inits or dict.fromkeys((lab.parameters.init, "random")):
        other = lab if init == lab.parameters.init else lab.sibling(init=init)
        for pair in pairs(lab, n_pairs):
            trial = Trial(
                lab=other, experiment="localization", method="pretrained", seed=0, tasks=pair
            )
            rows += kept(trial, measure, images=n, classes=most, kernel=CACHE_VERSION)
    return tidy(rows)
