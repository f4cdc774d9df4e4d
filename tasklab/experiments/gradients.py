"""How the gradients of two tasks' losses agree, each at its own fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tasklab.analyses import gradients as analysis
from tasklab.experiments.kit import Lab, Rows, Trial, experiment, run
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector

IMAGES = 64  # of training, of each task


@experiment(
    Rows(
        "gradients",
        "gradients of the losses of a pair (`T1+T2`), each at its own model",
        "gradient_cosine, gradient_distance",
    )
)
def gradients(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return cosines and distances of tasks' gradients (`analyses.gradients`), pair by pair."""

    def measure(trial: Trial) -> list[dict]:
        lab, data = trial.lab, drawn.images_of(trial.lab.suite)

        def of(task: str, vector: TaskVector) -> TaskVector:
            many = min(IMAGES, data.size(task, "train"))
            images = data.load(task, "train", n=many, device=lab.clip.encoder.device)
            head = trial.evaluator.head(task)
            return analysis.gradient(
                lab.clip.encoder, head, images.x, images.y, vector, linear=trial.linear
            )

        each = {task: of(task, vector) for task, vector in trial.vectors.items()}
        return trial.rows(analysis.agreement(each))

    return run(lab, "gradients", methods, measure, title="gradients of tasks", images=IMAGES)
