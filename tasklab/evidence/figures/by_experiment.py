"""The figure of each experiment's records, figures of a single edit, and images of tasks."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasklab.bench.answers import Evaluation
from tasklab.errors import TasklabError, texts
from tasklab.evidence.figures.style import COLOURS, WIDTH, NothingToDrawError, book_figure
from tasklab.evidence.records.schema import EXPERIMENTS
from tasklab.isolation import isolated


def plot(what: Any, lab: Any = None, **options: Any) -> Figure:
    """Plot the table of an experiment or of `lab.evaluate`, or a vector along its coefficient.

    Args:
        what: Records of an experiment (each has its figure), an evaluation, or a `TaskVector`.
        lab: Of a vector: on its validation images accuracies are plotted.
        **options: Of the figure; of a vector `tasks` and `alphas`, by default from 0 to 1.5.
    """
    if isinstance(what, Evaluation):
        return evaluation(what.table(), edited=what.edited)
    if lab is not None:
        return along(_curves(what, lab, **options))
    return draw(what, **options)


@isolated
def _curves(
    vector: Any,
    lab: Any,
    tasks: Sequence[str] | str | None = None,
    alphas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    names = lab.tasks if tasks is None else texts("tasks", tasks, lab.tasks)
    each = (lab.evaluator.evaluate(vector, task, "val", alphas) for task in names)
    return {task: (alphas, values) for task, values in zip(names, each, strict=True)}


def draw(df: pd.DataFrame, **options: Any) -> Figure:
    """Draw the records that an experiment returned, with options of its figure."""
    if not isinstance(df, pd.DataFrame) or "experiment" not in df:
        raise TasklabError(
            "a plot is made of records of an experiment, an evaluation or a vector: "
            "lab.plot(lab.evaluate(a + b)), lab.plot(a)."
        )
    there = df["experiment"].value_counts().index  # the most rows first
    drawn = [EXPERIMENTS[name].figure for name in there if name in EXPERIMENTS]
    known = [name for name in drawn if name]
    if not known:
        raise NothingToDrawError(
            f"no figure draws records of {', '.join(map(str, there)) or 'nothing'} alone: those of "
            f"{', '.join(n for n, rows in EXPERIMENTS.items() if rows.figure)} have one; others "
            "are in tasklab.evidence.figures."
        )
    return getattr(importlib.import_module("tasklab.evidence.figures"), known[0])(df, **options)


@book_figure
def evaluation(table: pd.DataFrame, *, edited: bool) -> Figure:
    """Draw accuracies before and after an edit, one line per task, with 95 % intervals.

    Args:
        table: Columns task, before, after, low and high (ends of an interval).
        edited: Whether intervals are of the gain from before to after, or of the accuracy.
    """
    figure, axes = plt.subplots(figsize=(6, 0.8 + 0.32 * len(table)))
    for place, row in enumerate(table.itertuples()):
        colour = COLOURS["nonlinear"] if row.after >= row.before else COLOURS["linearized"]
        axes.plot([row.before, row.after], [place, place], color=colour, lw=2)
        ends = np.clip(np.array([row.low, row.high]) + edited * row.before, 0, 100)
        axes.plot(ends, [place, place], color=colour, lw=1)
        axes.plot(row.after, place, "o", color=colour)
        axes.plot(row.before, place, "o", color=COLOURS["pretrained"])
    axes.set_yticks(range(len(table)), table["task"])
    axes.invert_yaxis()
    of = "the gain, from grey" if edited else "it"
    axes.set_xlabel(f"accuracy (%), grey: before; thin line: 95 % interval of {of}")
    return figure


@book_figure
def along(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Draw accuracies of an edited model against the coefficient of its vector.

    `curves` has the coefficients of each task, and the accuracies in % at them.
    """
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for task, (alphas, values) in curves.items():
        axes.plot(alphas, values, marker=".", label=task)
    axes.set(xlabel="coefficient of the vector", ylabel="accuracy on validation images (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


@book_figure
def contact_sheet(
    images: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]], columns: int = 8
) -> Figure:
    """Show images with their class names, one row (or more) for each task.

    Args:
        images: For each task an array (n, h, w, 3), `uint8` or floats in 0 to 1.
        classes: For each task the class name of each of its images.
        columns: Images in a row.
    """
    rows = [(task, i) for task, x in images.items() for i in range(0, len(x), columns)]
    names = [
        [
            textwrap.fill(str(name), 80 // columns, break_long_words=False)
            for name in classes[task][start:][:columns]
        ]
        for task, start in rows
    ]
    lines = [1 + max(name.count("\n") for name in row) for row in names]
    heights = [
        WIDTH / columns + 0.15 * n + 0.25 * (start == 0)
        for n, (_, start) in zip(lines, rows, strict=True)
    ]
    figure, grid = plt.subplots(
        len(rows), columns, figsize=(WIDTH, sum(heights)), squeeze=False, height_ratios=heights
    )
    figure.set_layout_engine("constrained", h_pad=0.02, w_pad=0.06)
    look = {"ha": "center", "va": "top", "fontsize": 9, "linespacing": 0.95, "in_layout": False}
    for line, named, (task, start) in zip(grid, names, rows, strict=True):
        for j, axes in enumerate(line):
            axes.set_anchor("N")  # the names have the room below
            axes.axis("off")
            if start + j < len(images[task]):
                axes.imshow(images[task][start + j], interpolation="nearest")
                axes.text(0.5, -0.06, named[j], transform=axes.transAxes, **look)
        if start == 0:
            line[0].set_title(task, loc="left", fontweight="bold")
    return figure
