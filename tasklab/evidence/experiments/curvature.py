"""Explanations of cross-task linearity, and its predictions (CTL, sections 4.3 and 5)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.analyses import curvature
from tasklab.analyses import pair_errors as errors
from tasklab.analyses.finite import as_coefficients
from tasklab.analyses.pair_errors import foretold as foretold
from tasklab.evidence.declared import curvature as declared
from tasklab.evidence.experiments import small_networks
from tasklab.evidence.experiments.kit import (
    Lab,
    experiment,
    several,
    tidy,
)
from tasklab.evidence.experiments.runner import Trial, run, stored
from tasklab.progress import track
from tasklab.taskvector import TaskVector

# Of the theorem: epochs before and after, and rates of fine-tuning relative to the setting's.
STAGES = {"mlp": (0, 5, 15, 40), "resnet18": (0, 2, 5, 10)}
EPOCHS = {"mlp": (5, 15), "resnet18": (5, 10)}
RATES = (0.1, 0.3, 1.0)


def _networks(lab: Lab, network: str = "mlp") -> Iterator[tuple[small_networks.Setting, int]]:
    stages, epochs = _extent(lab, network)
    for seed, stage in itertools.product(lab.seeds, stages):
        few = small_networks.few(lab)
        usual = small_networks.setting(network, seed=seed, pretraining=stage, **few)
        yield from ((changed, 1) for changed in _tuned(usual, epochs, RATES).values())


@experiment(declared.THEOREM, networks=_networks)
def theorem(
    lab: Lab,
    network: str = "mlp",
    *,
    stages: Sequence[int] | None = None,
    epochs: Sequence[int] | None = None,
    rates: Sequence[float] = RATES,
) -> pd.DataFrame:
    """Return both sides of theorem 5.1 for pairs of models of one task (CTL, appendix C.2).

    Several checkpoints are pre-trained for different times, and fine-tuned on the first task with
    different rates and lengths. f is the loss on that task's test images.

    Args:
        lab: Model, tasks, seeds, scale and store.
        network: One of `small_networks.SETTINGS`.
        stages: Epochs of pre-training, a checkpoint each.
        epochs: Of fine-tuning.
        rates: Learning rates of fine-tuning.
    """
    usual_stages, usual_epochs = _extent(lab, network)
    stages, epochs = stages or usual_stages, epochs or usual_epochs
    checkpoints = list(itertools.product(lab.seeds, stages))
    rows = []
    told = len(checkpoints), "theorem 5.1"
    for seed, stage in track(checkpoints, *told, unit="checkpoint", on=lab.progress):
        few = small_networks.few(lab)
        usual = small_networks.setting(network, seed=seed, pretraining=stage, **few)
        config = {
            "experiment": "theorem 5.1",
            "setting": small_networks.as_text(usual),
            "epochs": list(epochs),
            "rates": list(rates),
            "algorithms": [1, 2],
            **small_networks.data_version(network),
        }
        rows += stored(lab, config, functools.partial(_pairs, lab, usual, epochs, rates))
    return tidy(rows)


def _extent(lab: Lab, network: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    network = small_networks.setting(network).network  # there is one of that name
    return ((0, 1), (1,)) if lab.rehearsal else (STAGES[network], EPOCHS[network])


def _tuned(
    usual: small_networks.Setting, epochs: Sequence[int], rates: Sequence[float]
) -> dict[str, small_networks.Setting]:
    return {
        f"rate {rate:g}, {length} epochs": dataclasses.replace(
            usual, finetuning=length, finetuning_lr=rate * usual.lr
        )
        for rate, length in itertools.product(rates, epochs)
    }


def _pairs(
    lab: Lab, usual: small_networks.Setting, epochs: Sequence[int], rates: Sequence[float]
) -> list[dict]:
    name, vectors = usual.network, {}
    for label, changed in _tuned(usual, epochs, rates).items():
        network, (start, tuned) = small_networks.trained(lab, changed, 1)
        vectors[label] = TaskVector.between(start, tuned)
    images = small_networks.data_of(name, 1, "test", usual.pictures)
    x, classes = network.preprocess(images.x), small_networks.classes_of(name, 1)
    columns = torch.arange(10) if classes is None else torch.tensor(classes)
    labels = torch.searchsorted(columns, images.y)

    def loss(params: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(network(params, x)[:, columns].double(), labels)

    table = curvature.pairs(loss, start, vectors)
    common = small_networks.record("theorem", usual) | {"task": small_networks.task_names(name)[1]}
    return [
        {
            **common,
            **row,
            "metric": "delta",
            "group": f"{usual.pretraining} epochs, seed {usual.seed}",
            "subset": f"{row['one']} | {row['other']}",
            "n": len(labels),
        }
        for row in table.to_dict("records")
    ]


@experiment(declared.PAIR_ERRORS)
def pair_errors(
    lab: Lab,
    methods: Sequence[str],
    *,
    coefficients: Sequence[float] = (0.5, 1.0),
    linear: bool = False,
) -> pd.DataFrame:
    """Return disentanglement error and loss in addition of all pairs of tasks.

    At c = 0.5 the sum of two vectors is the middle of the two models, where `cross_task` measures.
    All vectors are used in the model itself, not in its linearization, in which cross-task
    linearity is exact, unless that is asked for.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Fine-tuning methods, any of `EDITS`.
        coefficients: Common coefficients c of both vectors.
        linear: Whether the vectors are used in the linearized model.
    """
    as_coefficients(coefficients, "coefficients")
    several(lab.suite)
    count = 4 * lab.scale.images

    def measure(trial: Trial) -> list[dict]:
        edited = trial.evaluator, trial.vectors_on_device
        return trial.rows(errors.pair_errors(*edited, coefficients, count, linear=linear))

    key = {"coefficients": list(coefficients), "images": count, "theory": 2}
    key |= {"linear": True} if linear else {}
    return run(lab, "pair_errors", methods, measure, title="pairs of tasks", **key)
