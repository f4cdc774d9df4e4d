"""What explains cross-task linearity, and what it foretells (CTL, sections 4.3 and 5)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.analyses import cross_task, curvature
from tasklab.experiments import small_networks
from tasklab.experiments.lab import Lab
from tasklab.progress import track
from tasklab.records import papers
from tasklab.taskvector import TaskVector

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records
# Of the theorem: epochs before and after, and rates of fine-tuning relative to the setting's.
STAGES = {"mlp": (0, 5, 15, 40), "resnet18": (0, 2, 5, 10)}
EPOCHS = {"mlp": (5, 15), "resnet18": (5, 10)}
RATES = (0.1, 0.3, 1.0)


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
        lab: Whose store and seeds are used.
        network: `"mlp"` or `"resnet18"`.
        stages: Epochs of pre-training, a checkpoint each.
        epochs: Of fine-tuning.
        rates: Of fine-tuning, times the setting's learning rate.

    Returns:
        Records of the experiment `theorem`, a pair each: the metric `delta` (nats), with the
        columns that `sharpness.pairs` returns, and group, the checkpoint.
    """
    stages, epochs = stages or STAGES[network], epochs or EPOCHS[network]
    if lab.rehearsal:
        stages, epochs = (0, 1), (1,)
    checkpoints = list(itertools.product(lab.parameters.seeds, stages))
    rows = []
    done = track(checkpoints, len(checkpoints), "theorem 5.1", unit="checkpoint", on=lab.progress)
    for seed, stage in done:
        usual = small_networks.setting(network, seed=seed, pretraining=stage)
        config = {
            "experiment": "theorem 5.1",
            "setting": repr(usual),
            "epochs": list(epochs),
            "rates": list(rates),
            "algorithms": [ALGORITHM, small_networks.ALGORITHM],
        }
        made = lab.store.get(
            "records",
            config,
            lambda _, u=usual: ({}, {"rows": _pairs(lab, u, epochs, rates)}),
        )
        rows += made.record["rows"]
    return papers.tidy(rows)


def _pairs(
    lab: Lab, usual: small_networks.Setting, epochs: Sequence[int], rates: Sequence[float]
) -> list[dict]:
    name, vectors = usual.network, {}
    for rate, length in itertools.product(rates, epochs):
        how = {"finetuning": length, "finetuning_lr": rate * usual.lr}
        changed = small_networks.setting(
            name, seed=usual.seed, pretraining=usual.pretraining, **how
        )
        network, (start, tuned) = small_networks.trained(lab, changed, 1)
        vectors[f"rate {rate:g}, {length} epochs"] = TaskVector.between(start, tuned)
    images = small_networks.data_of(name, 1, "test")
    x, classes = network.preprocess(images.x), small_networks.classes_of(name, 1)
    columns = torch.arange(10) if classes is None else torch.tensor(classes)
    labels = torch.searchsorted(columns, images.y)

    def loss(params: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(network(params, x)[:, columns].double(), labels)

    found = curvature.pairs(loss, start, vectors)
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
        for row in found.to_dict("records")
    ]


def pair_errors(
    lab: Lab, methods: Sequence[str], *, coefficients: Sequence[float] = (0.5, 1.0)
) -> pd.DataFrame:
    """Return disentanglement error and loss in addition of all pairs of tasks.

    Of theta_0 + c (tau_i + tau_j) on either task, beside theta_0 + c tau_i of the task alone: the
    share of changed predictions (xi, tangent, equation 3) and the accuracy that is lost. At c = 0.5
    the sum is the middle of the two models, where `cross_task` measures. All vectors are used in
    the model itself, not in its linearization, in which cross-task linearity is exact.

    Args:
        lab: What to study.
        methods: Those that train a vector.
        coefficients: Values of c.

    Returns:
        Records of the experiment `pair_errors` for the task `"T1+T2"` at each `alpha`: the metrics
        `xi_pair` and `lost` (points), means over both tasks.
    """
    count = 4 * lab.scale.images
    rows = []
    for method, seed in lab.grid(methods, "pairs of tasks"):
        rows += lab.kept(
            "pair_errors",
            method,
            seed,
            lambda m=method, s=seed: _errors(lab, m, s, coefficients, count),
            coefficients=list(coefficients),
            images=count,
            theory=ALGORITHM,
        )
    return papers.tidy(rows)


def _errors(
    lab: Lab, method: str, seed: int, coefficients: Sequence[float], count: int
) -> list[dict]:
    encoder, evaluator = lab.clip.encoder, lab.evaluator_of(method, seed)
    theta = encoder.params
    vectors = {t: v.to(encoder.device) for t, v in lab.vectors(method, seed).items()}
    data = {
        t: (evaluator.preprocessed(t, "test", count), evaluator.images(t, "test").y[:count])
        for t in vectors
    }

    @torch.inference_mode()
    def guess(params: Mapping[str, Tensor], task: str) -> Tensor:
        head, (x, _) = evaluator.head(task), data[task]
        parts = evaluator.parts(lambda part: head(encoder(params, part)).argmax(-1), x)
        return torch.cat(list(parts))

    rows = []
    for c in coefficients:
        models = {t: v.apply(theta, c) for t, v in vectors.items()}
        alone = {t: guess(params, t) for t, params in models.items()}
        for pair in itertools.combinations(vectors, 2):
            both = cross_task.merged(
                {**models, "start": theta}, {**dict.fromkeys(pair, 1), "start": -1}
            )
            errors, lost = [], []
            for task in pair:
                together, labels = guess(both, task), data[task][1]
                errors.append((together != alone[task]).double().mean().item())
                lost.append(_accuracy(alone[task], labels) - _accuracy(together, labels))
            common = lab.row("pair_errors", method, seed, task="+".join(pair), alpha=c)
            n = sum(len(data[task][1]) for task in pair)
            for metric, parts in (("xi_pair", errors), ("lost", lost)):
                value = 100 * sum(parts) / len(parts)
                rows.append({**common, "metric": metric, "value": value, "n": n})
    return rows


def _accuracy(guess: Tensor, labels: Tensor) -> float:
    return (guess == labels).double().mean().item()


def foretold(linearity: pd.DataFrame, errors: pd.DataFrame, alpha: float = 0.5) -> pd.DataFrame:
    """Put a pair's linearity beside its disentanglement error and its loss in addition.

    Args:
        linearity: Records of `cross_task`.
        errors: Records of `pair_errors` of the same methods and seeds.
        alpha: Where both are looked at.

    Returns:
        A row a pair and method, means over seeds: method, one, other, distance (1 - cos at the
        features), base, xi_pair (%) and lost (points); group is the method.
    """
    left = linearity[
        linearity["block"].isna()
        & (linearity["alpha"] - alpha).abs().lt(1e-9)
        & linearity["metric"].isin(["distance", "base"])
    ]
    right = errors[(errors["alpha"] - alpha).abs().lt(1e-9)]
    table = pd.concat([left, right]).pivot_table(
        index=["method", "task"], columns="metric", values="value", sort=False
    )
    table = table.dropna().reset_index().rename_axis(None, axis=1)
    ends = table.pop("task").str.split("+", expand=True)
    return table.assign(one=ends[0], other=ends[1], group=table["method"])
