"""Where the eigenfunctions of the tangent kernel have their energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses import kernels as spectral
from tasklab.errors import TasklabError
from tasklab.evidence.declared import kernels as declared
from tasklab.evidence.experiments.disentanglement import pairs
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, tidy
from tasklab.evidence.experiments.runner import in_any_order
from tasklab.models import loading
from tasklab.models.encoder import Encoder

_CHUNK = 16  # images in one pass
_AT_ONCE = 3 * 2**30  # bytes of all gradients at most; groups of parameters take more passes


@experiment(declared.LOCALIZATION)
def localization(
    lab: Lab, inits: Sequence[str] | None = None, *, n_pairs: int | None = None
) -> pd.DataFrame:
    """Return the local energy of eigenfunctions on a task and a control (tangent, figure 6).

    The kernel is of the head of the pair's first task, a matrix for each class; its rows are
    training images of that task. Energy is reported on these, on as many unseen images of the task,
    and on as many images of the pair's second task, the control. Nothing is fine-tuned: a seed
    takes other images (while they last; later seeds draw among all) and, of an encoder that was not
    pre-trained, other random weights.

    `share` is of the task's energy, `unseen_share` of the unseen images'; energies are those of the
    first seed. A record's task is `"T|control"`.

    Args:
        lab: Model, tasks, seeds, scale and store.
        inits: Initialisations of the encoder to compare; by default the lab's and random weights.
        n_pairs: Number of pairs of tasks; by default the preset's.
    """
    n, most = lab.scale.kernel_images, lab.scale.kernel_classes

    def measure(trial: Trial) -> list[dict]:
        (task, control), evaluator = trial.tasks, trial.lab.evaluator
        encoder = _encoder(trial.lab, trial.seed)
        names = trial.lab.suite[task].classes
        classes = range(len(names))[:most]
        own, unseen, others = (
            encoder.preprocess(_drawn(evaluator.images(name, split).x, n, trial.seed, name))
            for name, split in ((task, "train"), (task, "test"), (control, "test"))
        )
        columns = torch.cat([unseen, others])
        head = evaluator.head(task)
        room = {"chunk": _CHUNK, "memory": _memory(encoder, n)}
        kernels = spectral.gram(
            encoder.fixed, encoder.params, head, own, columns, classes=classes, **room
        )
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

    def key(trial: Trial) -> dict[str, Any]:
        return {"images": n, "classes": most, "seed": trial.seed, "kernel": 3}

    asked = inits or dict.fromkeys((lab.parameters.init, "random"))
    labs = [lab if init == lab.parameters.init else lab.sibling(init=init) for init in asked]
    trials = [
        Trial(lab=one, experiment="localization", method="pretrained", seed=seed, tasks=pair)
        for one in labs
        for pair in pairs(lab, n_pairs)
        for seed in lab.seeds
    ]
    table = tidy(in_any_order(trials, measure, key))
    return table[(table["metric"] != "energy") | (table["seed"] == lab.seeds[0])]


def _encoder(lab: Lab, seed: int) -> Encoder:
    at = lab.parameters
    if at.init != "random" or seed == 0:
        return lab.clip.encoder
    return loading.load(at.model, init="random", seed=seed, device=at.device).encoder


def _memory(encoder: Encoder, rows: int) -> int:
    each = sum(tensor.numel() * tensor.element_size() for tensor in encoder.params.values())
    needed = each * (rows + _CHUNK)
    return needed if needed <= _AT_ONCE else 2**30


def _drawn(x: Tensor, n: int, seed: int, task: str) -> Tensor:
    """Return a seed's images: others than those of lower seeds while they last, then any n."""
    if n > len(x):
        raise TasklabError(f"{len(x)} images of {task} are too few for kernels of {n}.")
    if (seed + 1) * n <= len(x):
        return x[seed * n : (seed + 1) * n]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[:n].to(x.device)]
