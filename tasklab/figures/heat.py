"""Heat maps: errors by two coefficients, and tables of numbers around 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def maps(
    df: pd.DataFrame,
    axes_of: tuple[str, str],
    *,
    panel: str,
    order: Sequence[Any],
    columns: int,
    top: float,
    box: tuple[float, float],
) -> tuple[sns.FacetGrid, dict[Any, np.ndarray]]:
    """Draw a grid of heat maps with one scale from 0, and a frame around the search box.

    The scale has one hue whose low end is light, so that no colour needs telling apart.

    Args:
        df: Records; those of a panel and cell are averaged.
        axes_of: Columns on the horizontal and the vertical axis.
        panel: Column of the panels.
        order: Its values in their order.
        columns: Panels side by side.
        top: Upper end of the scale.
        box: Lowest and highest coefficient of the frame, on both axes.

    Returns:
        The grid, and of each panel the values of the cells whose centres lie in the box.
    """
    across, along = axes_of
    wrap = min(columns, len(order))
    grid = sns.FacetGrid(df, col=panel, col_order=list(order), col_wrap=wrap,
                         sharex=False, sharey=False)  # fmt: skip
    inside = {}
    for axes, name in zip(grid.axes.flat, order, strict=True):
        cells = df[df[panel] == name].pivot_table(index=along, columns=across, values="value")
        sns.heatmap(cells, ax=axes, cmap="Blues", vmin=0, vmax=top, square=True, cbar=False,
                    xticklabels=False, yticklabels=False, rasterized=True)  # fmt: skip
        axes.invert_yaxis()
        axes.set(xlabel="", ylabel="")
        centres = (cells.columns.to_numpy(float), cells.index.to_numpy(float))
        for axis, values in zip((axes.xaxis, axes.yaxis), centres, strict=True):
            whole = _whole(values)
            axis.set_ticks(_place(values, whole), [f"{a}".replace("-", "−") for a in whole])
        (left, right), (low, high) = (_place(values, np.array(box)) for values in centres)
        frame = {"fill": False, "ec": "#D55E00", "lw": 1.8}
        axes.add_patch(Rectangle((left, low), right - left, high - low, **frame))
        rows, cols = ((v >= box[0] - 1e-9) & (v <= box[1] + 1e-9) for v in centres[::-1])
        inside[name] = cells.to_numpy()[np.ix_(rows, cols)]
    return grid, inside


def scale(figure: Figure, axes: Iterable[Axes], label: str, extend: str = "neither") -> None:
    """Put the scale of maps below them, which is that of the first.

    Args:
        figure: The figure.
        axes: Its maps.
        label: What the colours are.
        extend: Where values are beyond the scale: `max` or `neither`.
    """
    figure.set_layout_engine("constrained")  # which has to know of the bar
    axes = list(axes)
    bar = figure.colorbar(axes[0].collections[0], ax=axes, label=label, extend=extend,
                          location="bottom", aspect=45)  # fmt: skip
    bar.outline.set_visible(False)


def numbers_in(axes: Axes, table: pd.DataFrame, limit: float, form: str, **more: Any) -> None:
    """Draw numbers around 0 with their colours, no number where there is none.

    Args:
        axes: Where to draw.
        table: The numbers, as they stand on the page.
        limit: Largest size of a number on the scale.
        form: How a number is written, e.g. `+z.1f`.
        more: Keywords of `seaborn.heatmap`.
    """
    words = table.map(lambda x: "" if pd.isna(x) else f"{x:{form}}".replace("-", "−"))
    sns.heatmap(
        table, ax=axes, cmap="PuOr_r", vmin=-limit, vmax=limit, cbar=False, annot=words, fmt="",
        annot_kws={"fontsize": 9}, linewidths=0.5, **more,
    )  # fmt: skip
    axes.grid(visible=False)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(axis="y", rotation=0)


def _whole(values: np.ndarray) -> np.ndarray:
    """Return the whole coefficients within a grid's reach; of many only the ends and 0."""
    reach = int(np.floor(np.abs(values).max() + 1e-9))
    whole = np.arange(-reach, reach + 1, 1 if reach <= 2 else reach)
    return whole[(whole >= values.min() - 1e-9) & (whole <= values.max() + 1e-9)]


def _place(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return where coefficients lie on a heat map, whose cells are one wide from 0."""
    step = (values[-1] - values[0]) / (len(values) - 1) if len(values) > 1 else 1.0
    return (at - values[0]) / step + 0.5
