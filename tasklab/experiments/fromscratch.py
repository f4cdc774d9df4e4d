"""Cross-task linearity of networks that are pre-trained and fine-tuned here (CTL, sections 4.1, 5).

An MLP reads digits and then rotated digits; a ResNet-18 reads five classes of the generated world
and then five others at a time. Both are trained from scratch within seconds, so that what makes the
linearity emerge can be varied: how long each phase takes, and how alike the tasks are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from tasklab import ctl, results, scratch, splits
from tasklab.ctl import Merge
from tasklab.datasets import Images
from tasklab.errors import unknown
from tasklab.experiments.crosstask import rows_of
from tasklab.experiments.lab import Lab
from tasklab.progress import track

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records
ALPHAS = (0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a network is trained.

    Attributes:
        network: One of `SETTINGS`.
        lr: Of plain SGD: 0.1 for the MLP, 0.05 for the ResNet (C.1.1).
        pretraining: Epochs on the first task.
        finetuning: Epochs on each other task.
        seed: Of the initial weights and the order of the images.
        replaced: Share of the training samples of both tasks that are replaced, and by what:
            `"pretraining"` samples, or those of the `"other"` task (figure 12).
        ratio: That share.
    """

    network: str
    lr: float
    pretraining: int
    finetuning: int
    seed: int = 0
    replaced: str = "other"
    ratio: float = 0.0


# The paper takes one epoch of MNIST, 938 steps; 1,300 digits make 525 steps of 25 epochs.
SETTINGS = {"mlp": Setting("mlp", 0.1, 25, 15), "resnet18": Setting("resnet18", 0.05, 10, 10)}
_SUITES = {"mlp": "rotated_digits", "resnet18": "class_splits"}


def setting(network: str, **changes: object) -> Setting:
    """Return how a network is trained by default, with changes.

    Raises:
        TasklabError: If there is no such network.
    """
    if network not in SETTINGS:
        raise unknown("network", network, SETTINGS)
    return dataclasses.replace(SETTINGS[network], **changes)


def task_names(network: str) -> tuple[str, ...]:
    """Return the names of the task of pre-training and of the four others."""
    if network == "mlp":
        return tuple(f"{angle:g}°" for angle in (0.0, *splits.ANGLES[-4:]))
    return tuple(f"split {i}" for i in range(1, 6))


def scratch_linearity(
    lab: Lab, network: str, *, n_tasks: int = 4, alphas: Sequence[float] = ALPHAS, **changes: object
) -> pd.DataFrame:
    """Return cross-task linearity between all pairs of a network's fine-tuned models.

    Figures 2, 3 and 13 to 16; with other epochs figure 11, with `ratio` figure 12.

    Args:
        lab: Whose store and seeds are used.
        network: `"mlp"` or `"resnet18"`.
        n_tasks: The first so many of its tasks after that of pre-training.
        alphas: Places on the segments.
        **changes: Of the network's `Setting`.

    Returns:
        Records of the experiment `ctl`, as `experiments.cross_task` returns them, of the model
        `network`, with the setting's epochs, `replaced` and `ratio` as columns.
    """
    rows = []
    for seed in lab.parameters.seeds:
        chosen = _chosen(lab, network, seed, changes)
        rows += _kept(lab, "ctl", chosen, n_tasks, list(alphas))
    return results.tidy(rows)


def segments(
    lab: Lab, network: str, *, n_tasks: int = 4, points: int = 11, **changes: object
) -> pd.DataFrame:
    """Return loss and accuracy along the segment between two models (linear mode connectivity).

    Args:
        lab: Whose store and seeds are used.
        network: `"mlp"` or `"resnet18"`.
        n_tasks: The first so many of its tasks after that of pre-training.
        points: Places on each segment, ends included.
        **changes: Of the network's `Setting`.

    Returns:
        Records of the experiment `segment`: the metrics `loss` (nats) and `accuracy` (%) on the
        test images of either task and of pre-training, with the pair as subset; theta_alpha is
        alpha theta_i + (1 - alpha) theta_j of the pair `"i+j"`.
    """
    alphas = torch.linspace(0, 1, points).tolist()
    rows = []
    for seed in lab.parameters.seeds:
        chosen = _chosen(lab, network, seed, changes)
        rows += _kept(lab, "segment", chosen, n_tasks, alphas)
    return results.tidy(rows)


def emergence(lab: Lab, what: str, values: Iterable[float], network: str = "resnet18"):
    """Return cross-task linearity of the first two tasks as one condition varies (section 5).

    Args:
        lab: Whose store and seeds are used.
        what: `"pretraining"` or `"finetuning"` (epochs, figure 11), or what samples are replaced by
            at a ratio, `"pretraining samples"` or `"other samples"` (figure 12).
        values: Epochs, or ratios from 0 to 1.
        network: `"mlp"` or `"resnet18"`.

    Returns:
        Records as `scratch_linearity` returns them, at alpha = 0.5.

    Raises:
        TasklabError: If there is no such condition.
    """
    known = ("pretraining", "finetuning", "pretraining samples", "other samples")
    if what not in known:
        raise unknown("condition", what, known)
    tables = []
    for value in track(list(values), None, what, unit="setting", on=lab.progress):
        changes = {what: value}
        if what.endswith("samples"):
            changes = {"replaced": what.removesuffix(" samples"), "ratio": float(value)}
        tables.append(scratch_linearity(lab, network, n_tasks=2, alphas=(0.5,), **changes))
    return results.tidy(pd.concat(tables, ignore_index=True).drop_duplicates())


def _chosen(lab: Lab, network: str, seed: int, changes: Mapping[str, object]) -> Setting:
    quick = {"pretraining": 1, "finetuning": 1} if lab.rehearsal else {}
    return setting(network, **(dict(changes) | quick | {"seed": seed}))


def _kept(
    lab: Lab, experiment: str, chosen: Setting, n_tasks: int, alphas: Sequence[float]
) -> list[dict]:
    config = {
        "experiment": f"{experiment} from scratch",
        "setting": dataclasses.asdict(chosen),
        "n_tasks": n_tasks,
        "alphas": list(alphas),
        "images": lab.scale.images,
        "algorithm": ALGORITHM,
    }
    make = {"ctl": _linear, "segment": _segments}[experiment]
    count = lab.scale.images
    made = lab.store.get(
        "records", config, lambda _: ({}, {"rows": make(lab, chosen, n_tasks, alphas, count)})
    )
    return list(made.record["rows"])


def _data(network: str, index: int, split: str) -> Images:
    if network == "mlp":
        return splits.rotated_digits((0.0, *splits.ANGLES[-4:])[index], split)
    return splits.class_split(index, split)


def _classes(network: str, index: int) -> tuple[int, ...] | None:
    return None if network == "mlp" else splits.classes(index)


def _network(chosen: Setting) -> scratch.Network:
    if chosen.network == "mlp":
        return scratch.mlp(chosen.seed)
    return scratch.resnet18(chosen.seed, width=8, stride=2)


def _trained(
    lab: Lab, chosen: Setting, n_tasks: int
) -> tuple[scratch.Network, list[dict[str, Tensor]]]:
    """Return the network, and the parameters of the pre-trained and the fine-tuned models."""
    network, name = _network(chosen), chosen.network

    def run(start: Mapping[str, Tensor], data: Images, epochs: int, classes: object) -> dict:
        more = {"lr": chosen.lr, "epochs": epochs, "seed": chosen.seed, "classes": classes}
        return scratch.train(network, start, data, **more)

    def kept(key: dict, make) -> dict[str, Tensor]:
        common = {"network": name, "lr": chosen.lr, "seed": chosen.seed, "algorithm": ALGORITHM}
        found = lab.store.get("scratch", {**common, **key}, lambda _: (make(), {}))
        return found.tensors()

    before = {"pretraining": chosen.pretraining}
    first = _data(name, 0, "train")
    start = kept(before, lambda: run(network.params, first, chosen.pretraining, _classes(name, 0)))
    models = [start]
    for index in range(1, n_tasks + 1):
        data, classes = _data(name, index, "train"), _classes(name, index)
        if chosen.ratio:
            other = 0 if chosen.replaced == "pretraining" else 3 - index
            data = splits.replaced(data, _data(name, other, "train"), _share(chosen, index))
            classes = classes and tuple(sorted(set(data.y.tolist())))
        after = {
            **before,
            "task": index,
            "finetuning": chosen.finetuning,
            "replaced": [chosen.replaced, chosen.ratio] if chosen.ratio else None,
        }
        models.append(kept(after, lambda d=data, c=classes: run(start, d, chosen.finetuning, c)))
    return network, models


def _share(chosen: Setting, index: int) -> float:
    """Return the share to replace in one task.

    By samples of pre-training, in both alike. By samples of the other task only in the second: at
    the ratio 1 both tasks are the first one's.
    """
    return chosen.ratio if chosen.replaced == "pretraining" or index == 2 else 0.0


def _linear(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = _trained(lab, chosen, n_tasks)
    names = task_names(chosen.network)[1 : n_tasks + 1]
    merges = [
        Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
        for i, j in itertools.combinations(names, 2)
        for alpha in alphas
    ]
    data = {
        name: _data(chosen.network, index, "test").x[: max(4 * count, 16)]
        for index, name in enumerate(names, 1)
    }
    found = ctl.measure(network, dict(zip(names, models, strict=True)), merges, data)
    # The output of these networks is that of the classifier, and no layer of its own.
    if network.blocks[-1] == "classifier":
        found = found[found["block"].notna()]
    return rows_of(_common("ctl", chosen), found)


def _segments(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = _trained(lab, chosen, n_tasks)
    names = task_names(chosen.network)
    rows = []
    for i, j in itertools.combinations(range(1, n_tasks + 1), 2):
        for alpha in alphas:
            params = ctl.merged(
                {"i": models[i - 1], "j": models[j - 1]}, {"i": alpha, "j": 1 - alpha}
            )
            for index in (i, j, 0):
                data = _data(chosen.network, index, "test")
                data = Images(*(part[: max(4 * count, 16)] for part in data))
                classes = _classes(chosen.network, index)
                where = {"subset": f"{names[i]}+{names[j]}", "task": names[index]}
                for metric, measured in (("loss", scratch.loss), ("accuracy", scratch.accuracy)):
                    value = measured(network, params, data, classes)
                    rows.append(
                        _common("segment", chosen)
                        | where
                        | {"metric": metric, "alpha": alpha, "value": value, "n": len(data.y)}
                    )
    return rows


def _common(experiment: str, chosen: Setting) -> dict:
    told = dataclasses.asdict(chosen)
    network, seed = told.pop("network"), told.pop("seed")
    suite = _SUITES[network]
    common = {"experiment": experiment, "method": "nonlinear", "model": network, "suite": suite}
    return {**common, "seed": seed, "split": "test", **told}
