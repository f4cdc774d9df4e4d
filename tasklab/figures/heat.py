"""Heat maps: errors by two coefficients, and tables of numbers around 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tasklab.figures.rows import averaged, where
from tasklab.figures.style import WIDTH

SCALES = {  # label of the colour bar, unit, and its upper end where it has one by definition
    "xi_classifier": ("prediction error ξ (%)", " %", 1, 200.0),
    "xi_representation": ("divergence ξ of features (nats)", " nats", 2, None),
}


def error_maps(
    rows: pd.DataFrame,
    names: dict[tuple, str],
    metric: str,
    *,
    columns: int,
    box: tuple[float, float],
    top: float | None = None,
) -> Figure:
    """Draw maps of errors by two coefficients, with the mean over a box in their titles.

    All have one scale from 0, of one hue whose low end is light: no colour needs telling apart.

    Args:
        rows: Records of one metric; the column panel has the keys of `names`.
        names: Title of each panel, in their order.
        metric: A key of `SCALES`.
        columns: Panels side by side.
        box: Lowest and highest coefficient of the search box.
        top: Upper end of the colour scale; by default the metric's, or the largest value.
    """
    label, unit, digits, usual = SCALES[metric]
    means = averaged(rows, "panel", "alpha1", "alpha2", "task")
    highest = float(means["value"].max())
    top = top or usual or highest
    names = {panel: name for panel, name in names.items() if panel in set(means["panel"])}
    half = (box[1] - box[0]) / 2
    wrap, numbers = min(columns, len(names)), set()
    grid = sns.FacetGrid(means, col="panel", col_order=list(names), col_wrap=wrap,
                         sharex=False, sharey=False)  # fmt: skip
    for axes, (panel, name) in zip(grid.axes.flat, names.items(), strict=True):
        mine = where(means, panel=panel)
        cells = mine.pivot_table(index="alpha2", columns="alpha1", values="value")
        sns.heatmap(cells, ax=axes, cmap="Blues", vmin=0, vmax=top, square=True, cbar=False,
                    xticklabels=False, yticklabels=False, rasterized=True)  # fmt: skip
        axes.invert_yaxis()
        centres = (cells.columns.to_numpy(float), cells.index.to_numpy(float))
        for axis, values in zip((axes.xaxis, axes.yaxis), centres, strict=True):
            whole = _whole(values)
            axis.set_ticks(_place(values, whole), [f"{a}".replace("-", "−") for a in whole])
        (left, right), (low, high) = (_place(values, np.array(box)) for values in centres)
        frame = {"fill": False, "ec": "#D55E00", "lw": 1.8}
        axes.add_patch(Rectangle((left, low), right - left, high - low, **frame))
        centres_inside = mine[["alpha1", "alpha2"]].sub(sum(box) / 2).abs() <= half + 1e-9
        inside = mine[centres_inside.all(axis=1)]["value"]
        numbers.add(len(inside))
        mean = f"\nbox: {inside.mean():.{digits}f}{unit}" if len(inside) else ""
        axes.set_title(name + mean, fontsize=9)
        one, _, two = mine["task"].iloc[0].partition("+")
        axes.set_xlabel(f"$\\alpha_1$ ({one})", fontsize=9, labelpad=2)
        axes.set_ylabel(f"$\\alpha_2$ ({two})", fontsize=9, labelpad=1)
    side = min(2.9, WIDTH / wrap - 0.6)
    tall = 0.62 + 0.17 * max(name.count("\n") + 1 for name in names.values())
    grid.figure.set_size_inches(WIDTH, (side + tall) * -(-len(names) // wrap) + 0.8)
    size = f"; mean over the box: {numbers.pop()} cells" if len(numbers) == 1 else ""
    beyond = "max" if highest > top * (1 + 1e-9) else "neither"
    scale(grid.figure, grid.axes.flat, label + size, beyond)
    return grid.figure


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
