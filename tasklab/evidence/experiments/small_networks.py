"""The networks of `scratch`: their settings, images and keys (CTL, appendix C.1.1)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tasklab import mini
from tasklab.errors import choose
from tasklab.isolation import isolated
from tasklab.tasks import small
from tasklab.tasks.drawn import Images
from tasklab.tuning import scratch

if TYPE_CHECKING:
    from tasklab.bench.lab import Lab


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a network is trained."""

    network: str  #: One of `SETTINGS`
    lr: float  #: Of plain SGD: 0.1 for the MLP, 0.05 for the ResNet (C.1.1)
    pretraining: int  #: Epochs on the first task
    finetuning: int  #: Epochs on each other task
    seed: int = 0  #: Of the initial weights and the order of the images
    #: Share of the training samples of both tasks that are replaced, and by what: `"pretraining"`
    #: samples, or those of the `"other"` task (figure 12).
    replaced: str = "other"
    ratio: float = 0.0  #: That share
    finetuning_lr: float | None = None  #: Of fine-tuning, if it is another one
    #: Times the usual width: 100 units of the MLP's hidden layers, as in the paper, and 8 channels
    #: of the ResNet's first stage, an eighth of the paper's.
    wider: int = 1
    pictures: int | None = None  #: The most of each class in either split; `None` is all


# The paper takes one epoch of MNIST, 938 steps; 1,300 digits make 525 steps of 25 epochs.
SETTINGS = {"mlp": Setting("mlp", 0.1, 25, 15), "resnet18": Setting("resnet18", 0.05, 10, 10)}
REHEARSED = 10  # pictures of each class: drawing all of them takes longer than training
_CHANGES = [field.name for field in dataclasses.fields(Setting) if field.name != "network"]
SUITES = {"mlp": "rotated_digits", "resnet18": "class_splits"}


def setting(network: str, **changes: Any) -> Setting:
    """Return a network's usual setting, with changes."""
    choose("network", network, SETTINGS)
    for name in changes:
        choose("change of a network's setting,", name, _CHANGES)
    return dataclasses.replace(SETTINGS[network], **changes)


def as_text(setting: Setting) -> str:
    """Serialise a setting for store keys."""
    values = as_key(setting).items()
    parts = (f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in values)
    return f"Setting({', '.join(parts)})"


def as_key(setting: Setting) -> dict[str, Any]:
    """Return the fields of a setting for store keys: the number of pictures if it is not all."""
    values = dataclasses.asdict(setting)
    if setting.pictures is None:
        del values["pictures"]
    return values


def task_names(network: str) -> tuple[str, ...]:
    """Return the names of the task of pre-training and of the four others."""
    if network == "mlp":
        return tuple(f"{angle:g}°" for angle in (0.0, *small.ANGLES[-4:]))
    return tuple(f"split {i}" for i in range(1, 6))


@isolated
def chosen_setting(lab: Lab, network: str, seed: int, changes: Mapping[str, Any]) -> Setting:
    """Return the setting of a seed; if the lab only rehearses, one epoch of few pictures.

    Args:
        lab: Decides whether this is a rehearsal.
        network: One of `SETTINGS`.
        seed: Of the initial weights and the order of the images.
        changes: Fields of `Setting` in place of the usual ones.

    Raises:
        TasklabError: If there is no such network or field.
    """
    quick = {"pretraining": 1, "finetuning": 1} if lab.rehearsal else {}
    return setting(network, **(dict(changes) | quick | few(lab) | {"seed": seed}))


def few(lab: Lab) -> dict[str, int]:
    """Return the changes of a setting by which a rehearsal draws few pictures.

    Args:
        lab: Decides whether this is a rehearsal.
    """
    return {"pictures": REHEARSED} if lab.rehearsal else {}


def data_of(network: str, index: int, split: str, pictures: int | None = None) -> Images:
    """Return the images of a task.

    Args:
        network: `"mlp"` reads rotated digits, `"resnet18"` drawings of half of the classes each.
        index: 0 for the task of pre-training, from 1 on those of fine-tuning.
        split: `"train"` or `"test"`.
        pictures: The most drawings of each class; `None` is all.
    """
    if network == "mlp":
        return small.rotated_digits((0.0, *small.ANGLES[-4:])[index], split)
    return small.class_split(index, split, pictures)


def classes_of(network: str, index: int) -> tuple[int, ...] | None:
    """Return the labels that a task has; `None` is all of the network's."""
    return None if network == "mlp" else small.classes(index)


def network_of(chosen: Setting) -> scratch.Network:
    """Return the network with its initial weights."""
    if chosen.network == "mlp":
        return scratch.mlp(chosen.seed, width=chosen.wider * scratch.HIDDEN)
    return scratch.resnet18(chosen.seed, width=chosen.wider * 8, stride=2)


def data_version(network: str) -> dict[str, object]:
    """Return the edition of a network's images, for keys."""
    return {} if network == "mlp" else {"data": mini.VERSION}  # scikit-learn's digits stay


def key_of(chosen: Setting, index: int) -> dict[str, object]:
    """Return a model's configuration in the store."""
    shared = {"network": chosen.network, "wider": chosen.wider, "lr": chosen.lr}
    shared |= data_version(chosen.network)
    shared |= {} if chosen.pictures is None else {"pictures": chosen.pictures}
    before = {"seed": chosen.seed, "algorithm": 2, "pretraining": chosen.pretraining}
    if not index:
        return shared | before
    return {
        **shared,
        **before,
        "task": index,
        "finetuning": chosen.finetuning,
        "replaced": [chosen.replaced, chosen.ratio] if chosen.ratio else None,
        "finetuning_lr": chosen.finetuning_lr or chosen.lr,
    }


@isolated
def trained(
    lab: Lab, chosen: Setting, n_tasks: int
) -> tuple[scratch.Network, list[dict[str, Tensor]]]:
    """Return a network with the parameters of its pre-trained and its fine-tuned models.

    Source: CTL paper, appendix C.1.1.

    Args:
        lab: Its store keeps the parameters; a run that is in there is not repeated.
        chosen: Rate, epochs, seed and shares of replaced samples.
        n_tasks: Number of tasks of fine-tuning.

    Returns:
        The network, and parameters by name: of the pre-trained model, then of one model per task.

    Raises:
        TasklabError: If the lab must not train.
    """
    lab.needs_training(f"{chosen.network} from scratch")
    network, name = network_of(chosen), chosen.network
    images = functools.partial(data_of, name, split="train", pictures=chosen.pictures)

    def kept(index: int, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        key = key_of(chosen, index)
        return lab.store.get("scratch", key, lambda _: (make(), {})).tensors()

    first = images(0)
    # Each training has an order of its own, or two models of the same samples would be one.
    how: dict[str, Any] = {"lr": chosen.lr, "epochs": chosen.pretraining, "seed": 10 * chosen.seed}
    how["classes"] = classes_of(name, 0)
    run = functools.partial(scratch.train, network)
    start = kept(0, functools.partial(run, network.params, first, **how))
    models = [start]
    for index in range(1, n_tasks + 1):
        data, classes = images(index), classes_of(name, index)
        if chosen.ratio:
            other = 0 if chosen.replaced == "pretraining" else 3 - index
            # samples of pre-training are in both tasks, those of the other one in the second alone:
            # at the ratio 1 both tasks are the first one's
            share = chosen.ratio if chosen.replaced == "pretraining" or index == 2 else 0.0
            data = small.replaced(data, images(other), share)
            classes = classes and tuple(sorted(set(data.y.tolist())))
        lr = chosen.finetuning_lr or chosen.lr
        how = {"lr": lr, "epochs": chosen.finetuning, "seed": 10 * chosen.seed + index}
        how["classes"] = classes
        models.append(kept(index, functools.partial(run, start, data, **how)))
    return network, models


def record(experiment: str, chosen: Setting) -> dict:
    """Return a record with the columns of a training."""
    fields = {k: v for k, v in dataclasses.asdict(chosen).items() if v is not None}
    fields.pop("pictures", None)
    network, seed = fields.pop("network"), fields.pop("seed")
    suite = SUITES[network]
    common = {"experiment": experiment, "method": "nonlinear", "model": network, "suite": suite}
    return {**common, "seed": seed, "split": "test", **fields}
