"""Cost of training and inference, by method and by the way to linearize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from tasklab.analyses import cost as costs
from tasklab.evidence.declared import cost as declared
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, tidy
from tasklab.evidence.experiments.runner import machine_key
from tasklab.evidence.experiments.versions import version
from tasklab.tasks import drawn
from tasklab.tasks.suites import SUITES, suite
from tasklab.tuning import memory

_TRAINING = ("standard", "ours", "listing", *(v for v in costs.VARIANTS if "attention" in v))
_ROUNDS = 15
_METRICS = {
    "seconds": "seconds_per_step",
    "time_ratio": "time_ratio",
    "peak_memory": "peak_memory",
    "trainable": "trainable",
}


def cost(
    lab: Lab, variants: Sequence[str], *, batch_sizes: Sequence[int] | None = None, rounds: int = 3
) -> pd.DataFrame:
    """Return time, memory, matrix products and sizes, as `analyses.cost.measure` describes them.

    Kept in the store for one machine, number of threads, device and version of torch. In the
    rehearsal of a full-size model it is one round of training alone, without the optimiser's two
    copies of the model for every variant.

    Args:
        lab: Model, tasks, seeds, scale and store.
        variants: Ways of training, any of `analyses.cost.VARIANTS`.
        batch_sizes: By default the preset's.
        rounds: Times that each variant is timed, in turns.
    """
    sizes = list(batch_sizes or lab.scale.cost_batches)
    task = lab.suite.names[0]
    known = lab.suite.name in SUITES and task == suite(lab.suite.name).names[0]
    own = {} if known else {"task": drawn.images_of(lab.suite).version(task, "train")}
    light: dict[str, Any] = {"optimiser": False, "runs": ["training"]} if lab.light else {}
    rounds = 1 if lab.light else rounds
    key = {
        "variants": list(variants),
        "batch_sizes": sizes,
        "rounds": rounds,
        "model": lab.parameters.model,
        "weights": lab.clip.encoder.weights_hash,
        "algorithm": 1,
        **machine_key(lab),
        **light,
        **own,
        **version(cost),
    }

    def make(_: object) -> tuple[dict, dict]:
        images = lab.evaluator.images(task, "train")
        with memory.given_back(lab.clip.encoder):
            table = costs.measure(
                lab.clip,
                lab.evaluator.head(task),
                images.x,
                images.y,
                variants=variants,
                batch_sizes=sizes,
                rounds=rounds,
                **light,
            )
        return {}, {"rows": table.to_dict("records")}

    return pd.DataFrame(lab.store.get("cost", key, make).record["rows"])


@experiment(declared.COST)
def step_cost(
    lab: Lab, variants: Sequence[str] = _TRAINING, *, rounds: int = _ROUNDS
) -> pd.DataFrame:
    """Return the costs of a training step as records, which claims are judged by.

    Args:
        lab: Model, tasks, seeds, scale and store.
        variants: Ways of training, any of `analyses.cost.VARIANTS`.
        rounds: Times that each variant is timed, in turns.
    """
    lab.needs_training("the cost of a step")
    batch = [max(lab.scale.cost_batches)]
    return step_records(lab, cost(lab, variants, batch_sizes=batch, rounds=rounds))


def step_records(lab: Lab, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the training steps of a table of `cost` with the largest batch."""
    training = costs[costs["what"] == "training"]
    largest = training[training["batch_size"] == training["batch_size"].max()]
    task, seed = lab.suite.names[0], lab.seeds[0]
    return tidy(
        Trial(lab=lab, experiment="cost", method=row["method"], seed=seed).row(
            task=task,
            metric=_METRICS[row["metric"]],
            **{name: row[name] for name in ("variant", "value", "low", "high", "n")},
        )
        for row in largest.to_dict("records")
        if row["metric"] in _METRICS
    )
