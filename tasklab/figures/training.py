"""Figures of what comes before editing: the data, the loss and the cost of training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.marks import curves, log
from tasklab.figures.style import WIDTH, book_figure


@book_figure
def loss_curve(df: pd.DataFrame, smooth: int = 10) -> Figure:
    """Draw the training loss against the step, one line for each method, averaged over tasks.

    Args:
        df: Columns method, task, step, loss; seed may be there. This is not a table of records.
        smooth: Steps of the running mean.
    """
    means = df.groupby(["method", "step"])["loss"].mean().groupby(level="method")
    smoothed = means.transform(lambda x: x.rolling(smooth, min_periods=1, center=True).mean())
    plot = curves(smoothed.reset_index(), "step", "loss", dots=False, lw=1.8, errorbar=None)
    log(plot.first, "y")
    return plot.finish(x="training step", y="training loss (nats)")


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
    size = (WIDTH, (WIDTH / columns + 0.4) * len(rows) + 0.1)
    figure, grid = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    for line, (task, start) in zip(grid, rows, strict=True):
        for j, axes in enumerate(line):
            axes.axis("off")
            if start + j < len(images[task]):
                axes.imshow(images[task][start + j], interpolation="nearest")
                name = textwrap.fill(str(classes[task][start + j]), 80 // columns)
                look = {"ha": "center", "va": "top", "fontsize": 9, "linespacing": 0.95}
                axes.text(0.5, -0.06, name, transform=axes.transAxes, **look)
        if start == 0:
            line[0].set_title(task, loc="left", fontweight="bold")
    return figure
