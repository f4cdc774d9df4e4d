"""Widgets of a running notebook: coefficients of vectors, and every task's accuracy beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
import pandas as pd
from IPython.display import display

from tasklab.analyses.coefficients import affine_scores
from tasklab.errors import choose
from tasklab.evidence.experiments import LINEAR, Lab
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import EDITS

_SLIDER: dict[str, Any] = {  # the usual width cuts names of ten letters
    "min": -1.0,
    "max": 1.0,
    "step": 0.05,
    "style": {"description_width": "8em"},
}


def accuracies(lab: Lab, method: str, split: str = "val") -> Callable[..., pd.Series]:
    """Return a function from coefficients by task to the accuracies in % of all tasks.

    The model is theta_0 + sum_t alpha_t tau_t, or its linearization; a task that is not given has
    the coefficient 0. The control task comes last, if the model has prompts for it.

    Args:
        lab: Model, tasks, seeds, scale and store.
        method: Of the vectors.
        split: `"val"`, on which coefficients are chosen, or `"test"`.
    """
    choose("method", method, EDITS)
    choose("split", split, ("val", "test"))
    tasks, evaluator, every = lab.suite.names, lab.evaluator_of(method), lab.vectors(method)
    shown = (*tasks, lab.suite.control.name) if lab.clip.text is not None else tasks
    if method in LINEAR:  # affine in the coefficients: computed once
        scores = {name: affine_scores(evaluator, [*every.values()], name, split) for name in shown}

    def at(**alphas: float) -> pd.Series:
        each = [alphas.get(task, 0.0) for task in tasks]
        if method in LINEAR:
            return pd.Series({name: one.accuracy(each) for name, one in scores.items()})
        total = TaskVector.sum(every[task] * a for task, a in zip(tasks, each, strict=True) if a)
        return pd.Series({x: evaluator.evaluate(total, x, split, linear=False) for x in shown})

    return at


def coefficients(lab: Lab, method: str = "linearized", split: str = "val") -> ipywidgets.Widget:
    """Return sliders from -1 to 1 for the coefficients of a method's vectors, for JupyterLab.

    Below them is a table of accuracies of the unedited and of the edited model. A linear model
    follows at once; another one is measured on all images when *evaluate* is pressed.

    Args:
        lab: Model, tasks, seeds, scale and store.
        method: Of the vectors.
        split: `"val"`, on which coefficients are chosen, or `"test"`.
    """
    at, tasks = accuracies(lab, method, split), lab.suite.names
    before = at().rename("probes" if lab.parameters.head == "probe" else "pre-trained")

    def show(**alphas: float) -> None:
        table = pd.concat([before, at(**alphas).rename("edited")], axis=1)
        table.loc["mean of the tasks"] = table.loc[list(tasks)].mean()
        display(table.round(1))

    waits = {"manual": method not in LINEAR, "manual_name": "evaluate"}
    sliders = {task: ipywidgets.FloatSlider(0.0, description=task, **_SLIDER) for task in tasks}
    every = ipywidgets.FloatSlider(0.0, description="all tasks", **_SLIDER)
    for slider in sliders.values():
        ipywidgets.dlink((every, "value"), (slider, "value"))
    return ipywidgets.VBox([every, ipywidgets.interactive(show, waits, **sliders)])
