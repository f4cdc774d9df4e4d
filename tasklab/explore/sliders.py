"""Widgets for a running notebook: move a coefficient and see every task's accuracy.

A linear model answers at once: its features are computed when the widget is made, and a new
coefficient is a matrix product and an argmax.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasklab.errors import TasklabError
from tasklab.experiments import LINEAR, Lab
from tasklab.figures import COLOURS
from tasklab.taskvector import TaskVector


def accuracies(lab: Lab, method: str, split: str = "val"):
    """Return a function from {task: coefficient} to accuracies (T,) in % of the edited model.

    Each task's vector gets its own coefficient: f0 + sum_t alpha_t J tau_t.

    Args:
        lab: The notebook's model and tasks.
        method: `"linearized"`, `"posthoc"` or `"attention_posthoc"`.
        split: Images to evaluate on; choose coefficients on `"val"`.

    Raises:
        TasklabError: If the method's model is not linear.
    """
    if method not in LINEAR:
        raise TasklabError(f"only {', '.join(LINEAR)} answer at once; {method!r} is not linear.")
    vectors: dict[str, TaskVector] = lab.vectors(method, lab.parameters.seeds[0])
    found = {
        task: {
            other: lab.evaluator.tangent_features(v, task, split) for other, v in vectors.items()
        }
        for task in vectors
    }

    def at(alphas: dict[str, float]) -> np.ndarray:
        values = []
        for task, features in found.items():
            total = next(iter(features.values())).f0
            for other, alpha in alphas.items():
                total = total + alpha * features[other].jtau
            values.append(lab.evaluator.accuracy(total, task, split))
        return np.array(values)

    return at


def coefficients(lab: Lab, method: str = "linearized", split: str = "val") -> Any:
    """Return a widget with one slider per task vector, from -1 to 1, and a bar per task.

    Args:
        lab: What to edit.
        method: Whose vectors.
        split: Images that are looked at.
    """
    import ipywidgets as widgets

    at, tasks = accuracies(lab, method, split), lab.suite.names
    sliders = {
        task: widgets.FloatSlider(0.0, min=-1, max=1, step=0.05, description=task) for task in tasks
    }
    bars = {
        task: widgets.FloatProgress(
            0, min=0, max=100, description=task, style={"bar_color": COLOURS[method]}
        )
        for task in tasks
    }
    labels = {task: widgets.Label() for task in tasks}

    def show(_=None) -> None:
        values = at({task: slider.value for task, slider in sliders.items()})
        for task, value in zip(tasks, values, strict=True):
            bars[task].value, labels[task].value = value, f"{value:.1f} %"

    for slider in sliders.values():
        slider.observe(show, "value")
    show()
    right = [widgets.HBox([bars[task], labels[task]]) for task in tasks]
    return widgets.HBox([widgets.VBox(list(sliders.values())), widgets.VBox(right)])
