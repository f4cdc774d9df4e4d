"""Where the eigenfunctions of the tangent kernel have their energy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from tasklab.analyses import kernels as spectral
from tasklab.experiments.disentanglement import pairs
from tasklab.experiments.lab import Lab
from tasklab.records import papers

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records


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
    rows = []
    for init in inits or dict.fromkeys((lab.parameters.init, "random")):
        other = lab if init == lab.parameters.init else lab.sibling(init=init)
        for task, control in pairs(lab, n_pairs):
            rows += other.kept(
                "localization",
                "pretrained",
                0,
                lambda o=other, t=task, c=control: _localization(o, t, c),
                tasks=(task, control),
                images=lab.scale.kernel_images,
                classes=lab.scale.kernel_classes,
                kernel=ALGORITHM,
            )
    return papers.tidy(rows)


def _localization(lab: Lab, task: str, control: str) -> list[dict]:
    encoder, n, names = lab.clip.encoder, lab.scale.kernel_images, lab.suite[task].classes
    classes = range(len(names))[: lab.scale.kernel_classes]

    def some(name: str, split: str) -> torch.Tensor:
        return encoder.preprocess(lab.evaluator.images(name, split).x[:n])

    own, unseen, others = some(task, "train"), some(task, "test"), some(control, "test")
    kernels = spectral.gram(
        encoder,
        encoder.params,
        lab.evaluator.head(task),
        own,
        torch.cat([unseen, others]),
        classes=classes,
    )
    seen = torch.cat([kernels[:, :, :n], kernels[:, :, 2 * n :]], -1)
    found = spectral.localization(seen, n)
    fresh = spectral.localization(kernels[:, :, n:], n)
    common = lab.row("localization", "pretrained", 0, task=f"{task}|{control}", n=n)
    rows = []
    for i, c in enumerate(classes):
        here = {**common, "subset": names[c]}
        sides = {
            "task": found.energy[i, :n],
            "unseen": fresh.energy[i, :n],
            "control": found.energy[i, n:],
        }
        for side, energy in sides.items():
            rows += [
                {**here, "metric": "energy", "side": side, "x": x, "value": value}
                for x, value in enumerate(energy.tolist())
            ]
        for metric, share in (("share", found.share[i]), ("unseen_share", fresh.share[i])):
            rows.append({**here, "metric": metric, "side": "", "x": 0, "value": float(share)})
    return rows
