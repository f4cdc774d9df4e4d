"""Cross-task linearity of networks that are pre-trained and fine-tuned here (CTL, sections 4.1, 5).

An MLP reads digits and then rotated digits; a ResNet-18 reads five classes of the generated world
and then five others at a time. Both are trained from scratch within seconds, so that the
suspected causes of linearity can be varied: the length of each phase, and the tasks' similarity.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
import torch

from tasklab.analyses import cross_task
from tasklab.analyses.cross_task import Merge
from tasklab.errors import choose
from tasklab.evidence.declared import scratch as declared
from tasklab.evidence.declared.scratch import CONDITIONS
from tasklab.evidence.declared.scratch import varied as varied
from tasklab.evidence.experiments import small_networks
from tasklab.evidence.experiments.cross_task import rows_of
from tasklab.evidence.experiments.kit import (
    Lab,
    experiment,
    stored,
    tidy,
)
from tasklab.evidence.experiments.small_networks import Setting
from tasklab.progress import track
from tasklab.tasks.drawn import Images
from tasklab.tuning import scratch

ALPHAS = (0.25, 0.5, 0.75)
N_TASKS = 4  # that a network is fine-tuned on
EPOCHS, RATIOS = (0, 1, 2, 5, 10, 20), (0.0, 0.25, 0.5, 0.75, 1.0)  # that they take


def _networks(
    lab: Lab, network: str, *, n_tasks: int = N_TASKS, **changes: object
) -> Iterator[tuple[Setting, int]]:
    changes = {name: value for name, value in changes.items() if name not in ("alphas", "points")}
    for seed in lab.seeds:
        yield small_networks.chosen_setting(lab, network, seed, changes), n_tasks


def _emergence_networks(
    lab: Lab, what: str, values: Iterable[float] | None = None, network: str = "resnet18"
) -> Iterator[tuple[Setting, int]]:
    for value in conditions(lab.parameters.preset)[what] if values is None else values:
        yield from _networks(lab, network, n_tasks=2, **_changes(what, value))


def conditions(preset: str = "full") -> dict[str, tuple[float, ...]]:
    """Return the values of each condition that `emergence` varies: figures 11 and 12.

    Args:
        preset: In `"quick"` only the ends of each range.
    """
    few = preset == "quick"
    ratios = (RATIOS[0], RATIOS[-1]) if few else RATIOS
    return {
        "pretraining": (0, 10) if few else EPOCHS,
        "finetuning": (2, 10) if few else EPOCHS[1:],
        "pretraining samples": ratios,
        "other samples": ratios,
    }


@experiment(declared.CTL, networks=_networks)
def scratch_linearity(
    lab: Lab,
    network: str,
    *,
    n_tasks: int = N_TASKS,
    alphas: Sequence[float] = ALPHAS,
    **changes: object,
) -> pd.DataFrame:
    """Return cross-task linearity between all pairs of a network's fine-tuned models.

    Figures 2, 3 and 13 to 16; with other epochs figure 11, with `ratio` figure 12.

    Args:
        lab: Model, tasks, seeds, scale and store.
        network: `"mlp"` or `"resnet18"`.
        n_tasks: Tasks that the network is fine-tuned on.
        alphas: Weights of the first model of a pair.
        **changes: Of the usual setting (`small_networks.Setting`), e.g. `pretraining=5`.
    """
    return _records(lab, "ctl", network, changes, n_tasks, alphas)


@experiment(declared.SEGMENT, networks=_networks)
def segments(
    lab: Lab, network: str, *, n_tasks: int = N_TASKS, points: int = 11, **changes: object
) -> pd.DataFrame:
    """Return loss and accuracy along the segment between two models (linear mode connectivity).

    theta_alpha is alpha theta_i + (1 - alpha) theta_j of the pair `"i+j"`, on the test images of
    either task and of pre-training.

    Args:
        lab: Model, tasks, seeds, scale and store.
        network: `"mlp"` or `"resnet18"`.
        n_tasks: Tasks that the network is fine-tuned on.
        points: Models along the segment.
        **changes: Of the usual setting (`small_networks.Setting`), e.g. `pretraining=5`.
    """
    alphas = torch.linspace(0, 1, points).tolist()
    return _records(lab, "segment", network, changes, n_tasks, alphas)


@experiment(declared.CTL, networks=_emergence_networks)
def emergence(
    lab: Lab, what: str, values: Iterable[float] | None = None, network: str = "resnet18"
) -> pd.DataFrame:
    """Return cross-task linearity of the first two tasks as one condition varies (section 5).

    Records are those of `scratch_linearity`, at alpha = 0.5.

    Args:
        lab: Model, tasks, seeds, scale and store.
        what: One of `CONDITIONS`: epochs (figure 11), or samples that others are replaced by
            (figure 12).
        values: Epochs, or ratios from 0 to 1; by default the preset's (`conditions`).
        network: `"resnet18"` or `"mlp"`.
    """
    choose("condition", what, CONDITIONS)
    tables = []
    values = list(conditions(lab.parameters.preset)[what] if values is None else values)
    for value in track(values, len(values), what, unit="setting", on=lab.progress):
        changes = _changes(what, value)
        tables.append(scratch_linearity(lab, network, n_tasks=2, alphas=(0.5,), **changes))
    return tidy(pd.concat(tables, ignore_index=True).drop_duplicates())


def _changes(what: str, value: float) -> dict[str, object]:
    if what.endswith("samples"):
        return {"replaced": what.removesuffix(" samples"), "ratio": float(value)}
    return {what: value}


def _records(
    lab: Lab, experiment: str, network: str, changes: Mapping, n_tasks: int, alphas: Sequence[float]
) -> pd.DataFrame:
    measure, count = {"ctl": _linear, "segment": _segments}[experiment], lab.scale.images
    rows = []
    for seed in lab.seeds:
        chosen = small_networks.chosen_setting(lab, network, seed, changes)
        config = {
            "experiment": f"{experiment} from scratch",
            "setting": small_networks.as_key(chosen),
            "n_tasks": n_tasks,
            "alphas": list(alphas),
            "images": count,
            "algorithm": 2,
            **small_networks.data_version(network),
        }
        config |= {"ctl": 2} if experiment == "ctl" else {}
        asked = lab, chosen, n_tasks, alphas, count
        rows += stored(lab, config, functools.partial(measure, *asked))
    return tidy(rows)


def _linear(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = small_networks.trained(lab, chosen, n_tasks)
    names = small_networks.task_names(chosen.network)[1 : n_tasks + 1]
    merges = [
        Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
        for i, j in itertools.combinations(names, 2)
        for alpha in alphas
    ]
    images = functools.partial(small_networks.data_of, chosen.network, split="test")
    data = {
        name: images(index, pictures=chosen.pictures).x[: max(4 * count, 16)]
        for index, name in enumerate(names, 1)
    }
    table = cross_task.measure(network, dict(zip(names, models, strict=True)), merges, data)
    # The output of these networks is that of the classifier, and no layer of its own.
    if network.blocks[-1] == "classifier":
        table = table[table["block"].notna()]
    return rows_of(small_networks.record("ctl", chosen), table)


def _segments(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = small_networks.trained(lab, chosen, n_tasks)
    names = small_networks.task_names(chosen.network)
    rows = []
    for i, j in itertools.combinations(range(1, n_tasks + 1), 2):
        for alpha in alphas:
            params = cross_task.merged(
                {"i": models[i - 1], "j": models[j - 1]}, {"i": alpha, "j": 1 - alpha}
            )
            for index in (i, j, 0):
                data = small_networks.data_of(chosen.network, index, "test", chosen.pictures)
                data = Images(*(part[: max(4 * count, 16)] for part in data))
                classes = small_networks.classes_of(chosen.network, index)
                common = small_networks.record("segment", chosen)
                common |= {"alpha": alpha, "n": len(data.y)}
                common |= {"subset": f"{names[i]}+{names[j]}", "task": names[index]}
                for metric, measure in (("loss", scratch.loss), ("accuracy", scratch.accuracy)):
                    value = measure(network, params, data, classes)
                    rows.append({**common, "metric": metric, "value": value})
    return rows
