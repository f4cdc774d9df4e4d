"""Task vectors layer by layer: cosines, sizes, and their effect on other tasks' data."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from tasklab.analyses import gradients as task_gradients
from tasklab.analyses import layers, tangent_gap
from tasklab.analyses.projections import second_moments
from tasklab.evidence.declared import layers as declared
from tasklab.evidence.experiments.kit import Lab, Trial, experiment, run
from tasklab.models.zoo import has_attention
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector

GRADIENT_IMAGES = 64  # of training, of each task


@experiment(declared.COSINES)
def cosines(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return cosines between task vectors and their sizes (linear layers, figure 5).

    `norm` is |tau| / |theta_0|. In a model without attention projections are not separated.
    """
    parts = {} if has_attention(lab.parameters.model) else {"projections": ()}
    theta0 = lab.clip.encoder.params

    def measure(trial: Trial) -> list[dict]:
        vectors = trial.vectors_on_device
        table = layers.cosines(vectors, **parts)
        table["subset"] = table["other"]
        whole = table["block"].isna() & (table["projection"] == layers.ALL)
        table["metric"] = np.where(whole, "cosine", "cosine_part")
        norms = layers.norms(vectors, theta0, **parts)
        return [*trial.rows(table), *trial.rows(norms, metric="norm")]

    title = "cosines of task vectors"
    return run(lab, "cosines", methods, measure, title=title, layers=1)


@experiment(declared.ALIGNMENT, declared.INTERFERENCE)
def alignment(lab: Lab, methods: Sequence[str], *, alpha: float = 0.3) -> pd.DataFrame:
    """Measure vectors on other tasks' data, beside the prediction (proposition 1).

    Metrics are those of `layers.alignment` and `layers.interference`.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        alpha: Of all vectors; the default is near those that addition of eight chooses.
    """
    tasks, count = lab.suite.names[: lab.scale.most_tasks], lab.scale.images

    @functools.cache  # the same for all methods
    def second_moments_by_task() -> dict[str, dict[str, Tensor]]:
        images = {task: lab.evaluator.images(task, "test").x[:count] for task in tasks}
        read = functools.partial(second_moments, lab.clip.encoder, roots=True)
        return {task: {n: C.float() for n, C in read(x).items()} for task, x in images.items()}

    def measure(trial: Trial) -> list[dict]:
        vectors = trial.vectors_on_device
        aligned = layers.alignment(vectors, second_moments_by_task(), lab.clip.encoder.params)
        measured = layers.interference(
            trial.evaluator, vectors, aligned, linear=trial.linear, alpha=alpha
        )
        return [*trial.rows(aligned), *trial.rows(measured, experiment="interference")]

    key = {"alpha": alpha, "images": count, "layers": 1}
    return run(lab, "alignment", methods, measure, over=[tasks], **key)


def _scales(lab: Lab) -> tuple[float, ...]:
    return (0.5, 1.0) if lab.rehearsal else tangent_gap.SCALES


@experiment(declared.LINEARITY)
def linear_gaps(
    lab: Lab, methods: Sequence[str], scales: Sequence[float] | None = None
) -> pd.DataFrame:
    """Measure the linearization error along each task vector (`analyses.tangent_gap`).

    All are on test images of the vector's own task; `gap` is that of the features at 1.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        scales: Distances along each vector; 1 is where fine-tuning ended. By default those of
            `analyses.tangent_gap`, in a rehearsal two.
    """
    scales = _scales(lab) if scales is None else scales
    tangent_gap.check_scales(scales)
    encoder, count = lab.clip.encoder, lab.scale.images

    def measure(trial: Trial) -> list[dict]:
        rows = []
        for task, vector in trial.vectors.items():
            images = lab.evaluator.images(task, "test").x[:count]
            table = tangent_gap.gaps(encoder, vector.to(encoder.device), images, scales)
            table = table.assign(task=task, n=len(images))
            whole = table["block"].isna()
            table["metric"] = np.where(whole, "gap_along", "gap_block")
            end = table[whole & np.isclose(table["alpha"], 1)].assign(metric="gap")
            rows += [*trial.rows(table), *trial.rows(end)]
        return rows

    key = {"scales": list(scales), "images": count, "gaps": 1}
    return run(lab, "linearity", methods, measure, **key)


@experiment(declared.GRADIENTS)
def gradients(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return cosines and distances of tasks' gradients (`analyses.gradients`), pair by pair."""

    def measure(trial: Trial) -> list[dict]:
        lab, data = trial.lab, drawn.images_of(trial.lab.suite)

        def of(task: str, vector: TaskVector) -> TaskVector:
            many = min(GRADIENT_IMAGES, data.size(task, "train"))
            images = data.load(task, "train", n=many, device=lab.clip.encoder.device)
            head = trial.evaluator.head(task)
            return task_gradients.gradient(
                lab.clip.encoder, head, images.x, images.y, vector, linear=trial.linear
            )

        each = {task: of(task, vector) for task, vector in trial.vectors.items()}
        return trial.rows(task_gradients.agreement(each))

    title = "gradients of tasks"
    return run(lab, "gradients", methods, measure, title=title, images=GRADIENT_IMAGES)
