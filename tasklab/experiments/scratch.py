"""Cross-task linearity of networks that are pre-trained and fine-tuned here (CTL, sections 4.1, 5).

An MLP reads digits and then rotated digits; a ResNet-18 reads five classes of the generated world
and then five others at a time. Both are trained from scratch within seconds, so that what makes the
linearity emerge can be varied: how long each phase takes, and how alike the tasks are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
import torch

from tasklab.analyses import cross_task
from tasklab.analyses.cross_task import Merge
from tasklab.errors import choose
from tasklab.experiments.cross_task import CACHE_VERSION as MERGING_VERSION
from tasklab.experiments.cross_task import rows_of
from tasklab.experiments.lab import Lab
from tasklab.experiments.runner import stored
from tasklab.experiments.small_networks import (
    CACHE_VERSION,
    SETTINGS,
    Setting,
    chosen_setting,
    classes_of,
    data_of,
    data_version,
    record,
    task_names,
    trained,
)
from tasklab.progress import track
from tasklab.records.comparisons import CONDITIONS
from tasklab.records.comparisons import conditions as conditions
from tasklab.records.comparisons import varied as varied
from tasklab.records.table import tidy
from tasklab.tasks.drawn import Images
from tasklab.tuning import scratch

ALPHAS = (0.25, 0.5, 0.75)
N_TASKS = 4  # that a network is fine-tuned on


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
        lab: Whose store and seeds are used.
        network: `"mlp"` or `"resnet18"`.
        n_tasks: The first so many of its tasks after that of pre-training.
        alphas: Places on the segments.
        **changes: Of the network's `Setting`.

    Returns:
        Records of the experiment `ctl`, as `experiments.cross_task` returns them, of the model
        `network`, with the setting's epochs, `replaced` and `ratio` as columns.
    """
    return _records(lab, "ctl", network, changes, n_tasks, alphas)


def segments(
    lab: Lab, network: str, *, n_tasks: int = N_TASKS, points: int = 11, **changes: object
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
    return _records(lab, "segment", network, changes, n_tasks, alphas)


def emergence(
    lab: Lab, what: str, values: Iterable[float], network: str = "resnet18"
) -> pd.DataFrame:
    """Return cross-task linearity of the first two tasks as one condition varies (section 5).

    Args:
        lab: Whose store and seeds are used.
        what: One of `CONDITIONS`: epochs (figure 11), or samples that others are replaced by
            (figure 12).
        values: Epochs, or ratios from 0 to 1.
        network: `"mlp"` or `"resnet18"`.

    Returns:
        Records as `scratch_linearity` returns them, at alpha = 0.5.

    Raises:
        TasklabError: If there is no such condition.
    """
    choose("condition", what, CONDITIONS)
    tables, values = [], list(values)
    for value in track(values, len(values), what, unit="setting", on=lab.progress):
        changes = _changes(what, value)
        tables.append(scratch_linearity(lab, network, n_tasks=2, alphas=(0.5,), **changes))
    return tidy(pd.concat(tables, ignore_index=True).drop_duplicates())


def _changes(what: str, value: float) -> dict[str, object]:
    """Return what a condition's value changes of a setting."""
    if what.endswith("samples"):
        return {"replaced": what.removesuffix(" samples"), "ratio": float(value)}
    return {what: value}


def settings(lab: Lab) -> Iterator[tuple[Setting, int]]:
    """Yield what a chapter trains beside the theorem's models: settings, and how many tasks.

    Args:
        lab: Its preset and seeds.
    """
    for seed in lab.parameters.seeds:
        for network in SETTINGS:
            yield chosen_setting(lab, network, seed, {}), N_TASKS
        for what, values in conditions(lab.parameters.preset).items():
            for value in values:
                yield chosen_setting(lab, "resnet18", seed, _changes(what, value)), 2


def _records(
    lab: Lab, experiment: str, network: str, changes: Mapping, n_tasks: int, alphas: Sequence[float]
) -> pd.DataFrame:
    measure, count = {"ctl": _linear, "segment": _segments}[experiment], lab.scale.images
    rows = []
    for seed in lab.parameters.seeds:
        chosen = chosen_setting(lab, network, seed, changes)
        config = {
            "experiment": f"{experiment} from scratch",
            "setting": dataclasses.asdict(chosen),
            "n_tasks": n_tasks,
            "alphas": list(alphas),
            "images": count,
            "algorithm": CACHE_VERSION,
            **data_version(network),
        }
        config |= {"ctl": MERGING_VERSION} if experiment == "ctl" else {}
        rows += stored(lab, config, lambda c=chosen: measure(lab, c, n_tasks, alphas, count))
    return tidy(rows)


def _linear(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = trained(lab, chosen, n_tasks)
    names = task_names(chosen.network)[1 : n_tasks + 1]
    merges = [
        Merge(f"{i}+{j}|{alpha:g}", {i: alpha, j: 1 - alpha}, (i, j))
        for i, j in itertools.combinations(names, 2)
        for alpha in alphas
    ]
    data = {
        name: data_of(chosen.network, index, "test").x[: max(4 * count, 16)]
        for index, name in enumerate(names, 1)
    }
    table = cross_task.measure(network, dict(zip(names, models, strict=True)), merges, data)
    # The output of these networks is that of the classifier, and no layer of its own.
    if network.blocks[-1] == "classifier":
        table = table[table["block"].notna()]
    return rows_of(record("ctl", chosen), table)


def _segments(
    lab: Lab, chosen: Setting, n_tasks: int, alphas: Sequence[float], count: int
) -> list[dict]:
    network, (_, *models) = trained(lab, chosen, n_tasks)
    names = task_names(chosen.network)
    rows = []
    for i, j in itertools.combinations(range(1, n_tasks + 1), 2):
        for alpha in alphas:
            params = cross_task.merged(
                {"i": models[i - 1], "j": models[j - 1]}, {"i": alpha, "j": 1 - alpha}
            )
            for index in (i, j, 0):
                data = data_of(chosen.network, index, "test")
                data = Images(*(part[: max(4 * count, 16)] for part in data))
                classes = classes_of(chosen.network, index)
                common = record("segment", chosen) | {"alpha": alpha, "n": len(data.y)}
                common |= {"subset": f"{names[i]}+{names[j]}", "task": names[index]}
                for metric, measure in (("loss", scratch.loss), ("accuracy", scratch.accuracy)):
                    value = measure(network, params, data, classes)
                    rows.append({**common, "metric": metric, "value": value})
    return rows
