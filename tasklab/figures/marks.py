"""What figures are made of: curves, points and dots with intervals, and maps, in facets.

seaborn averages, draws the intervals and arranges the panels; a figure says what is on which axis,
and `finish` names the panels and puts the legend above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from tasklab.figures.style import INK, WIDTH, Looks, key

SEEDS = ("sd", 1)  # two or three seeds: their spread, not a limit of confidence
GIVEN: dict[str, Any] = {"estimator": "median", "errorbar": ("pi", 100)}  # of what `ends` returns


def ends(df: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return measured intervals in a form that seaborn draws as they are.

    The columns value, low and high are averaged in each group and become three rows, of which
    `GIVEN` draws the median and the range. A mean may lie outside the quartiles of a skewed
    distribution; it then is its own end.

    Args:
        df: Records with the columns value, low and high.
        by: Columns of a group.
    """
    groups = df.groupby(list(by), dropna=False, sort=False, observed=True)
    means = groups[["value", "low", "high"]].mean()
    means["low"] = means[["low", "value"]].min(axis=1)
    means["high"] = means[["high", "value"]].max(axis=1)
    return pd.concat([means.assign(value=means[end]) for end in means]).reset_index()


def curves(
    df: pd.DataFrame,
    x: str,
    y: str = "value",
    *,
    hue: str,
    looks: Looks,
    kind: str = "line",
    height: float = 3.6,
    columns: int = 3,
    share: tuple[Any, Any] = (True, True),
    dots: bool = True,
    **more: Any,
) -> sns.FacetGrid:
    """Draw curves of `y` over `x` with their intervals, a colour and marker a group.

    Args:
        df: Records, a row a measurement.
        x: Column on the horizontal axis.
        y: Column on the vertical one, whose mean is drawn.
        hue: Column of the groups.
        looks: Label, colour and marker of each group.
        kind: `line`, or `scatter` for a dot a row.
        height: Of the whole figure, in inches.
        columns: Panels side by side at most, where there are no rows of them.
        share: Whether panels share their horizontal and vertical axis, as `sharex`, `sharey`.
        dots: Whether measured places have a marker.
        more: Keywords of `seaborn.relplot`: `row`, `col`, `errorbar` (the spread over what is
            averaged; by default the standard deviation), `units`.
    """
    settings: dict[str, Any] = {"errorbar": SEEDS, "err_kws": {"alpha": 0.15, "lw": 0}}
    settings |= {"dashes": False, "ms": 5, "mew": 0} if dots else {}
    if kind == "scatter":
        settings = {"s": 32, "alpha": 0.8, "edgecolor": INK, "linewidth": 0.4}
    if dots:
        markers = {key: marker for key, (_, _, marker) in looks.items()}
        settings |= {"style": hue, "style_order": list(looks), "markers": markers}
    if "col" in more and "row" not in more:
        panels = len(more.get("col_order", df[more["col"]].unique()))
        settings["col_wrap"] = min(columns, panels)
    grid = sns.relplot(
        _plain(df, x, y), x=x, y=y, hue=hue, kind=kind, legend=False, **_hues(looks),
        facet_kws={"sharex": share[0], "sharey": share[1]}, **(settings | more),
    )  # fmt: skip
    return _sized(grid, height)


def scatter(df: pd.DataFrame, x: str, y: str, **more: Any) -> sns.FacetGrid:
    """Draw a dot a row, a colour and marker a group.

    Args:
        df: Records.
        x: Column on the horizontal axis.
        y: Column on the vertical one.
        more: Keywords of `curves`, and of dots: `s`, `alpha`.
    """
    return curves(df, x, y, kind="scatter", **({"share": (False, False)} | more))


def means_in(
    axes: Axes,
    df: pd.DataFrame,
    y: str,
    x: str = "value",
    *,
    hue: str,
    looks: Looks,
    order: Sequence[Any],
    dots: bool = False,
    apart: bool = True,
    **more: Any,
) -> None:
    """Draw means with intervals, a line of the page a category, groups below one another.

    Args:
        axes: Where to draw.
        df: Records, a row a measurement.
        y: Column of the categories.
        x: Column whose mean is drawn.
        hue: Column of the groups; may be the categories themselves.
        looks: Label, colour and marker of each group.
        order: The categories from the top.
        dots: Whether each measurement is a small dot, too.
        apart: Whether groups are below one another, where there are several on a line.
        more: Keywords of `seaborn.pointplot`, e.g. `errorbar`.
    """
    shift = 0.64 if apart and hue != y and len(looks) > 1 else False
    same = {"x": x, "y": y, "hue": hue, "order": list(order), "orient": "h", "legend": False}
    same |= {"data": _plain(df, x), "ax": axes, **_hues(looks)}
    look = {"errorbar": SEEDS, "err_kws": {"linewidth": 1.5}, "markersize": 6, "linestyles": "none"}
    look |= {"markeredgecolor": INK, "markeredgewidth": 0.5}
    markers = [marker for _, _, marker in looks.values()]
    sns.pointplot(**same, dodge=shift, markers=markers, **(look | more))
    if dots:
        small = {"size": 3.5, "alpha": 0.55, "jitter": False, "linewidth": 0, "zorder": 1}
        sns.stripplot(**same, dodge=bool(shift), **small)
    axes.grid(visible=True, axis="x")
    axes.set(xlabel="", ylabel="")


def points(
    df: pd.DataFrame, y: str, *, height: float, facets: Mapping[str, Any], **more: Any
) -> sns.FacetGrid:
    """Draw `means_in` panels, each on a horizontal axis of its own.

    Args:
        df: Records, a row a measurement.
        y: Column of the categories.
        height: Of the whole figure, in inches.
        facets: Columns of the `row` and `col` of panels, and `col_wrap`; may be empty.
        more: Keywords of `means_in`.
    """
    grid = sns.FacetGrid(df, **facets, sharex=False)
    for (i, j, _), part in grid.facet_data():
        means_in(grid.facet_axis(i, j), part, y, **more)
    return _sized(grid, height)


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


def panels(grid: sns.FacetGrid) -> Iterator[tuple[Axes, Any, Any]]:
    """Yield each panel with the names of its row and column, `None` where there are none."""
    for name, axes in (grid.axes_dict or {None: grid.axes.flat[0]}).items():
        row, column = name if len(grid.row_names) and len(grid.col_names) else (None, name)
        yield axes, row, column


def finish(
    grid: sns.FacetGrid,
    looks: Looks,
    extra: Iterable[Artist] = (),
    *,
    x: Mapping[Any, str] | str = "",
    y: Mapping[Any, str] | str = "",
    title: Mapping[Any, str] | str = "",
    line: str = "-",
) -> Figure:
    """Name what is on the axes, put a legend above the panels, and return the figure.

    Args:
        grid: The panels.
        looks: Groups of the legend; none where they are named otherwise.
        extra: Further artists of the legend that have a label.
        x: Of the horizontal axes: the same of all, or by the name of the panel's column.
        y: Of the vertical axes.
        title: Of the panels.
        line: Style of the groups' lines in the legend; empty for markers alone.
    """
    grid.set_axis_labels(*(words if isinstance(words, str) else "" for words in (x, y)))
    for axes, _, column in panels(grid):
        for set_words, words in (
            (axes.set_xlabel, x),
            (axes.set_ylabel, y),
            (axes.set_title, title),
        ):
            if isinstance(words, Mapping):
                set_words(words.get(column, ""))
    key(grid.figure, looks, extra, line=line)
    return grid.figure


def level(axes: Axes, value: float, *, along: str = "x", **look: Any) -> Any:
    """Draw a line of reference across the panel and return it.

    Args:
        axes: The panel.
        value: Where it is.
        along: The axis that it is parallel to: at `x` it is level, at `y` upright.
        look: Keywords of the line.
    """
    draw = axes.axhline if along == "x" else axes.axvline
    return draw(value, **({"color": INK, "lw": 1.1, "ls": "--", "zorder": 1} | look))


def diagonal(axes: Axes, **look: Any) -> list[Artist]:
    """Draw y = x over what is shown, without changing it."""
    limits = np.array([axes.get_xlim(), axes.get_ylim()])
    first, last = limits[:, 0].max(), limits[:, 1].min()
    look = {"color": INK, "lw": 1.1, "ls": "--", "zorder": 1} | look
    line = axes.plot([first, last], [first, last], **look) if first < last else []
    axes.set(xlim=limits[0], ylim=limits[1])
    return line


def log(axes: Axes, which: str = "xy") -> None:
    """Make axes logarithmic; label powers of ten or, where there are few, numbers between them."""
    for name in which:
        axes.set(**{f"{name}scale": "log"})
        axis = axes.xaxis if name == "x" else axes.yaxis
        low, high = axis.get_view_interval()
        if high / low < 300:
            subs = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 5, 7)
            axis.set_major_locator(LogLocator(subs=subs))
            axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def _hues(looks: Looks) -> dict[str, Any]:
    return {"hue_order": list(looks), "palette": {key: look[1] for key, look in looks.items()}}


def _plain(df: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return floats where pandas has whole numbers with gaps, which seaborn does not average."""
    return df.assign(**{name: df[name].astype(float) for name in columns})


def _sized(grid: sns.FacetGrid, height: float) -> sns.FacetGrid:
    grid.figure.set_size_inches(WIDTH, height)
    return grid.set_titles("", row_template="", col_template="")


def _whole(values: np.ndarray) -> np.ndarray:
    """Return the whole coefficients within a grid's reach; of many only the ends and 0."""
    reach = int(np.floor(np.abs(values).max() + 1e-9))
    whole = np.arange(-reach, reach + 1, 1 if reach <= 2 else reach)
    return whole[(whole >= values.min() - 1e-9) & (whole <= values.max() + 1e-9)]


def _place(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return where coefficients lie on a heat map, whose cells are one wide from 0."""
    step = (values[-1] - values[0]) / (len(values) - 1) if len(values) > 1 else 1.0
    return (at - values[0]) / step + 0.5
