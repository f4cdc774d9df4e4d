"""Cost of a training step, by method and by the way to linearize."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tasklab.analyses import cost
from tasklab.errors import TasklabError
from tasklab.evidence.declared import cost as declared
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, tidy
from tasklab.evidence.experiments.runner import machine_key
from tasklab.evidence.experiments.versions import version
from tasklab.tasks import drawn
from tasklab.tasks.suites import SUITES, suite
from tasklab.tuning import memory

_METRICS = {
    "seconds": "seconds_per_step",
    "time_ratio": "time_ratio",
    "peak_memory": "peak_memory",
    "trainable": "trainable",
}


@experiment(declared.COST)
def step_cost(
    lab: Lab, variants: Sequence[str] = tuple(cost.VARIANTS), *, rounds: int | None = None
) -> pd.DataFrame:
    """Return the costs of a training step as records, which claims are judged by.

    Kept in the store for one machine, number of threads, device and version of torch. In the
    rehearsal of a full-size model it is one round, without the optimiser's two copies of the model
    for every variant.

    Args:
        lab: Model, tasks, seeds, scale and store.
        variants: Ways of training, any of `analyses.cost.VARIANTS`.
        rounds: Times that each variant is timed, in turns; by default the preset's.

    Raises:
        TasklabError: If the first task has fewer training images than the step.
    """
    lab.needs_training("the cost of a step")
    task, size = lab.suite.names[0], lab.scale.cost_batch
    known = lab.suite.name in SUITES and task == suite(lab.suite.name).names[0]
    own = {} if known else {"task": drawn.images_of(lab.suite).version(task, "train")}
    light = {"optimiser": False} if lab.light else {}
    rounds = 1 if lab.light else lab.scale.cost_rounds if rounds is None else rounds
    key = {
        "variants": list(variants),
        "batch_sizes": [size],
        "rounds": rounds,
        "model": lab.parameters.model,
        "weights": lab.clip.encoder.weights_hash,
        "algorithm": 1,
        **machine_key(lab),
        **light,
        **own,
        **version(step_cost),
    }

    def make(_: object) -> tuple[dict, dict]:
        images = lab.evaluator.images(task, "train")
        if len(images.x) < size:
            raise TasklabError(
                f"the cost of a step is measured on {size} training images; {task} has "
                f"{len(images.x)}."
            )
        with memory.given_back(lab.clip.encoder):
            table = cost.measure(
                lab.clip,
                lab.evaluator.head(task),
                images.x[:size],
                images.y[:size],
                variants=variants,
                rounds=rounds,
                **light,
            )
        return {}, {"rows": table.to_dict("records")}

    return tidy(
        Trial(lab=lab, experiment="cost", method=row["method"], seed=lab.seeds[0]).row(
            task=task,
            metric=_METRICS[row["metric"]],
            **{name: row[name] for name in ("variant", "value", "low", "high", "n")},
        )
        for row in lab.store.get("cost", key, make).record["rows"]
        # stored tables of former versions have inference, too
        if row["metric"] in _METRICS and row.get("what", "training") == "training"
    )
