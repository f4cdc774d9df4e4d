"""The figure of each experiment's records, and figures of a single edit."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from tasklab.errors import TasklabError
from tasklab.figures.style import COLOURS, NothingToDrawError, book_figure

FIGURES = {  # experiment -> module and function that draws its records
    "sweep": "editing.addition_curves",
    "addition": "editing.addition_bars",
    "negation": "editing.negation",
    "single": "editing.single_task",
    "disentanglement": "disentanglement.heatmaps",
    "merging": "merging.merge_accuracy",
    "merging_rates": "merged_models.merge_rates",
    "merged": "merged_models.merge_models",
    "budget": "budgets.budget_curves",
    "rate_search": "budgets.rate_search",
    "cross_task": "merged_features.cross_task",
    "subsets": "closed_vocabulary.subset_curves",
    "localization": "kernels.localization",
    "averaging": "stitching.averaging",
    "cost": "cost.linearization_cost",
}


def draw(df: pd.DataFrame, **options: Any) -> Figure:
    """Draw the records that an experiment returned.

    Args:
        df: Records.
        **options: Of the figure.

    Raises:
        TasklabError: If these are no records, or no figure draws them alone.
    """
    if not isinstance(df, pd.DataFrame) or "experiment" not in df:
        raise TasklabError("a plot is made of records of an experiment, an evaluation or a vector.")
    there = list(dict.fromkeys(df["experiment"]))
    known = [name for name in FIGURES if name in there]
    if not known:
        raise NothingToDrawError(
            f"no figure draws records of {', '.join(map(str, there)) or 'nothing'} alone: "
            f"{', '.join(FIGURES)} have one each; others are in tasklab.figures."
        )
    module, _, name = FIGURES[known[0]].partition(".")
    return getattr(importlib.import_module(f"tasklab.figures.{module}"), name)(df, **options)


@book_figure
def evaluation(table: pd.DataFrame) -> Figure:
    """Draw accuracies before and after an edit, a line a task, with intervals of the gain.

    Args:
        table: `task`, `before`, `after`, `half_interval`.
    """
    figure, axes = plt.subplots(figsize=(6, 0.8 + 0.32 * len(table)))
    for place, row in enumerate(table.itertuples()):
        colour = COLOURS["nonlinear"] if row.after >= row.before else COLOURS["linearized"]
        axes.plot([row.before, row.after], [place, place], color=colour, lw=2)
        axes.errorbar(row.after, place, xerr=row.half_interval, fmt="o", color=colour)
        axes.plot(row.before, place, "o", color=COLOURS["pretrained"])
    axes.set_yticks(range(len(table)), table["task"])
    axes.invert_yaxis()
    axes.set_xlabel("accuracy (%), grey: before; bar: 95 % interval of the gain")
    return figure


@book_figure
def along(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Draw accuracies of an edited model against the coefficient of its vector.

    Args:
        curves: Task -> coefficients, and the accuracies in % at them.
    """
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for task, (alphas, values) in curves.items():
        axes.plot(alphas, values, marker=".", label=task)
    axes.set(xlabel="coefficient of the vector", ylabel="accuracy on validation images (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
