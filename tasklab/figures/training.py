"""Figures of what comes before editing: the data, the loss and the cost of training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tasklab.figures.style import COLOURS, METHOD_LABEL, WIDTH, book_figure, legend, methods_in


@book_figure
def loss_curve(df: pd.DataFrame, smooth: int = 10) -> Figure:
    """Draw the training loss against the step, one line for each method, averaged over tasks.

    Args:
        df: Columns method, task, step, loss; seed may be there. This is not a table of records.
        smooth: Steps of the running mean.
    """
    figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
    for method in methods_in(df):
        mean = df[df["method"] == method].groupby("step")["loss"].mean()
        mean = mean.rolling(smooth, min_periods=1, center=True).mean()
        axes.plot(mean.index, mean, lw=1.8, color=COLOURS[method], label=METHOD_LABEL[method])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")  # 0.2 and 5 instead of powers of ten
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("training step")
    axes.set_ylabel("training loss (nats)")
    legend(figure, axes)
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
    figure, panels = plt.subplots(
        len(rows), columns, figsize=(WIDTH, 1.27 * len(rows) + 0.1), squeeze=False
    )
    for line, (task, start) in zip(panels, rows, strict=True):
        for j, axes in enumerate(line):
            axes.axis("off")
            if start + j < len(images[task]):
                axes.imshow(images[task][start + j], interpolation="nearest")
                name = textwrap.fill(str(classes[task][start + j]), 12)
                axes.text(
                    0.5,
                    -0.06,
                    name,
                    ha="center",
                    va="top",
                    fontsize=9,
                    linespacing=0.95,
                    transform=axes.transAxes,
                )
        if start == 0:
            line[0].set_title(task, loc="left", fontsize=10, fontweight="bold")
    return figure
