"""Maps of figures: matrices of coloured numbers, and their colour scales."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tasklab.evidence.figures.style import INK

_ABREAST = 60  # characters that names of columns may have together


def numbers_in(axes: Axes, table: pd.DataFrame, limit: float, form: str, **more: Any) -> None:
    """Draw a matrix of numbers coloured from -limit to limit; missing ones are empty.

    Args:
        axes: The panel.
        table: Rows and columns of the matrix, with their names.
        limit: The number with the darkest colour.
        form: Format of a number, e.g. `+z.1f`.
        more: Keywords of `seaborn.heatmap`.
    """
    words = table.map(lambda x: "" if pd.isna(x) else f"{x:{form}}".replace("-", "−"))
    look = {"annot_kws": {"fontsize": 9}, "linewidths": 0.5, "cmap": "PuOr_r", "cbar": False}
    look |= {"vmin": -limit, "vmax": limit, "fmt": ""} | more
    sns.heatmap(table, ax=axes, annot=words, **look)
    cells = axes.collections[0]
    drawn = ~np.ma.getmaskarray(cells.get_array()).ravel()
    for text, colour in zip(axes.texts, cells.get_facecolors()[drawn], strict=True):
        # What contrasts more; seaborn writes in white on a middling blue, too.
        text.set_color("white" if sns.utils.relative_luminance(colour) < 0.245 else INK)
    axes.grid(visible=False)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(axis="y", rotation=0)


def names_above(axes: Axes) -> None:
    """Put a matrix's column names above it, slanted where they are long."""
    names = [name.get_text() for name in axes.get_xticklabels()]
    axes.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False)
    if max(len(name.partition("\n")[0]) for name in names) * len(names) > _ABREAST:
        names = [name.replace("\n", ": ") for name in names]
        axes.set_xticklabels(names, rotation=40, ha="left", rotation_mode="anchor")
    else:
        axes.tick_params(axis="x", rotation=0)


def scale(figure: Figure, axes: Iterable[Axes], label: str, extend: str = "neither") -> Figure:
    """Put the colour scale of maps below them and return the figure.

    Args:
        figure: Has the maps.
        axes: The panels; the first gives the colours and their range.
        label: Of the scale, with its unit.
        extend: Ends drawn as an arrow, for values beyond: `neither`, `min`, `max` or `both`.
    """
    # It has to know of the bar, and keeps names of one line of maps from those of the next.
    figure.set_layout_engine("constrained", h_pad=0.07)
    axes = list(axes)
    place = {"location": "bottom", "aspect": 45, "ticks": MaxNLocator(5)}
    bar = figure.colorbar(axes[0].collections[0], ax=axes, label=label, extend=extend, **place)
    bar.outline.set_visible(False)
    return figure
