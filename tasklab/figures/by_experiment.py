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
from tasklab.records.schema import EXPERIMENTS


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
    there = df["experiment"].value_counts().index  # the most rows first
    drawn = [EXPERIMENTS[name].figure for name in there if name in EXPERIMENTS]
    known = [name for name in drawn if name]
    if not known:
        raise NothingToDrawError(
            f"no figure draws records of {', '.join(map(str, there)) or 'nothing'} alone: those of "
            f"{', '.join(n for n, rows in EXPERIMENTS.items() if rows.figure)} have one; others "
            "are in tasklab.figures."
        )
    return getattr(importlib.import_module("tasklab.figures"), known[0])(df, **options)


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
