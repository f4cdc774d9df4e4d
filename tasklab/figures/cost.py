"""Figures of training data, losses, and the cost of a step (`tasklab.analyses.cost.measure`)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from tasklab.errors import TasklabError
from tasklab.figures.marks import GIVEN, ZERO, curves, level
from tasklab.figures.rows import ends, where
from tasklab.figures.style import COLOURS, WIDTH, book_figure

_GREY, _ORANGE = "#595959", "#E69F00"
_VARIANTS = {  # of the linearized model: a method's colour, grey for the paper's listing
    "ours": ("here", COLOURS["linearized"], "s"),
    "listing": ("paper's listing", _GREY, "^"),
    "cached": ("cached features", "#56B4E9", "o"),
}
_CLAIMS = {  # tangent paper, appendix B: from, to
    ("training", "time_ratio"): (2, 2),
    ("training", "peak_memory"): (2, 2),
    ("inference", "time_ratio"): (2, 3),
}
_TITLES = {"time_ratio": "time", "peak_memory": "peak memory"}


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
    size = (WIDTH, (WIDTH / columns + 0.44) * len(rows) + 0.1)
    figure, grid = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    figure.set_layout_engine("constrained", h_pad=0.07)
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


@book_figure
def linearization_cost(df: pd.DataFrame) -> Figure:
    """Plot time and memory of the linearized model as multiples of the non-linear one's.

    The band is the tangent paper's expectation (appendix B). Dashed is the counted number of matrix
    products of `ours`; bars are quartiles over rounds.

    Raises:
        TasklabError: If `standard` or every linearized variant is missing.
    """
    runs = [what for what in ("training", "inference") if what in set(df["what"])]
    looks = {v: look for v, look in _VARIANTS.items() if v in set(df["variant"])}
    if not looks or "standard" not in set(df["variant"]):
        raise TasklabError("nothing to draw: measure 'standard' and a linearized variant.")
    ratios = _over_standard(df)
    shown = where(ratios, variant=looks, metric=_TITLES)
    plot = curves(
        ends(shown, "what", "metric", "variant", "batch_size"), "batch_size", hue="variant",
        looks=looks, row="what", row_order=runs, col="metric", col_order=list(_TITLES),
        height=0.9 + 2.3 * len(runs), share=(True, False), err_style="bars",
        err_kws={"elinewidth": 1.2}, **GIVEN,
    )  # fmt: skip
    counted = where(ratios, metric="flops", variant="ours").assign(metric="time_ratio")
    plot.trace(counted.sort_values("batch_size"), "batch_size", ls="--", lw=1.2, color="#000000")
    drawn = pd.concat([shown, counted.assign(high=counted["value"])])
    batches = sorted(set(df["batch_size"]))
    for axes, what, metric in plot:
        level(axes, 1, **ZERO)
        low, high = _CLAIMS.get((what, metric), (0, 0))
        if high:
            axes.axhspan(low - 0.02, high + 0.02, color=_ORANGE, alpha=0.5, lw=0, zorder=1)
        top = max(where(drawn, what=what, metric=metric)["high"].max(), high)
        axes.set(ylim=(0, 1.12 * top), title=f"{what}: {_TITLES[metric]}")
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 5, 10]))
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.xaxis.set_minor_locator(NullLocator())
    extra = [Patch(color=_ORANGE, alpha=0.5, label="paper's estimate"),
             Line2D([], [], ls="--", color="#000000", label="matrix products (here)")]  # fmt: skip
    return plot.finish(extra, x="batch size (images)", y="× non-linear")


def _over_standard(df: pd.DataFrame) -> pd.DataFrame:
    """Return costs divided by `standard`'s; times already are, within each round."""
    by = ["what", "batch_size", "metric"]
    table = df.join(where(df, variant="standard").set_index(by)["value"].rename("base"), on=by)
    table.loc[table["metric"] == "time_ratio", "base"] = 1.0
    scaled = table[["value", "low", "high"]].div(table["base"], axis=0)
    return table.assign(**scaled)
