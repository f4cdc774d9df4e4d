"""What figures are made of: curves, points and dots with intervals, and maps, in facets.

seaborn averages, draws the intervals and arranges the panels; a figure only says what is on which
axis. Every function returns the grid, whose panels the figure then labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from tasklab.figures.style import INK, WIDTH, Looks

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
    means = df.groupby(list(by), dropna=False, sort=False, observed=True)[["value", "low", "high"]]
    means = means.mean()
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
    height: float = 3.4,
    columns: int | None = None,
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
        height: Of the whole figure, in inches.
        columns: Panels side by side at most.
        share: Whether panels share their horizontal and vertical axis, as `sharex`, `sharey`.
        dots: Whether measured places have a marker.
        more: Keywords of `seaborn.relplot`: `row`, `col`, `errorbar` (the spread over what is
            averaged; by default the standard deviation), `units`.
    """
    settings = {"errorbar": SEEDS, "err_kws": {"alpha": 0.15, "lw": 0}}
    if dots:
        settings |= {**_shapes(hue, looks), "dashes": False, "ms": 5, "mew": 0}
    return _grid(
        sns.relplot(
            data=_plain(df, x, y), x=x, y=y, hue=hue, **_hues(looks), **_facets(df, columns, more),
            kind="line", legend=False, facet_kws=_shared(share), **(settings | more),
        ),
        height,
    )  # fmt: skip


def scatter(
    df: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str,
    looks: Looks,
    height: float = 3.4,
    columns: int | None = None,
    share: tuple[Any, Any] = (False, False),
    **more: Any,
) -> sns.FacetGrid:
    """Draw a dot a row, a colour and marker a group.

    Args:
        df: Records.
        x: Column on the horizontal axis.
        y: Column on the vertical one.
        hue: Column of the groups.
        looks: Label, colour and marker of each group.
        height: Of the whole figure, in inches.
        columns: Panels side by side at most.
        share: Whether panels share their horizontal and vertical axis.
        more: Keywords of `seaborn.relplot`: `row`, `col`, `s`, `alpha`.
    """
    settings = {"s": 32, "alpha": 0.8, "edgecolor": INK, "linewidth": 0.4, **_shapes(hue, looks)}
    return _grid(
        sns.relplot(
            data=_plain(df, x, y), x=x, y=y, hue=hue, **_hues(looks), **_facets(df, columns, more),
            kind="scatter", legend=False, facet_kws=_shared(share), **(settings | more),
        ),
        height,
    )  # fmt: skip


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
        more: Keywords of `seaborn.pointplot`, e.g. `errorbar`.
    """
    shift = 0.64 if hue != y and len(looks) > 1 else False
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
    df: pd.DataFrame,
    y: str,
    *,
    height: float,
    share: tuple[Any, Any] = (False, True),
    row: str | None = None,
    col: str | None = None,
    **more: Any,
) -> sns.FacetGrid:
    """Draw `means_in` panels.

    Args:
        df: Records, a row a measurement.
        y: Column of the categories.
        height: Of the whole figure, in inches.
        share: Whether panels share their horizontal and vertical axis.
        row: Column of the panels below one another.
        col: Column of the panels side by side.
        more: Keywords of `means_in`.
    """
    facets = _facets(df, None, {"row": row, "col": col})
    grid = sns.FacetGrid(df, **facets, **_shared(share))
    for (i, j, _), part in grid.facet_data():
        means_in(grid.facet_axis(i, j), part, y, **more)
    return _grid(grid, height)


def ticks(axes: Axes, places: pd.Series, y: Iterable[float], height: float = 0.42, **look) -> None:
    """Draw upright strokes of reference at some categories."""
    y = np.asarray(list(y), float)
    axes.vlines(places, y - height, y + height, **({"lw": 2, "zorder": 1} | look))


def maps(
    df: pd.DataFrame,
    axes_of: tuple[str, str],
    *,
    panel: str,
    order: Sequence[Any],
    columns: int,
    top: float,
    box: tuple[float, float],
    colours: str = "Blues",
) -> tuple[sns.FacetGrid, dict[Any, np.ndarray]]:
    """Draw a grid of heat maps with one scale from 0, and a frame around the search box.

    Args:
        df: Records; those of a panel and cell are averaged.
        axes_of: Columns on the horizontal and the vertical axis.
        panel: Column of the panels.
        order: Its values in their order.
        columns: Panels side by side.
        top: Upper end of the scale.
        box: Lowest and highest coefficient of the frame, on both axes.
        colours: A map whose low end is light, so that no colour needs telling apart.

    Returns:
        The grid, and of each panel the values of the cells whose centres lie in the box.
    """
    across, along = axes_of
    columns = min(columns, len(order))
    grid = sns.FacetGrid(
        df, col=panel, col_order=list(order), col_wrap=columns, sharex=False, sharey=False
    )
    inside = {}
    for axes, key in zip(grid.axes.flat, order, strict=True):
        cells = df[df[panel] == key].pivot_table(index=along, columns=across, values="value")
        sns.heatmap(
            cells, ax=axes, cmap=colours, vmin=0, vmax=top, square=True, cbar=False,
            xticklabels=False, yticklabels=False, rasterized=True,
        )  # fmt: skip
        axes.invert_yaxis()
        axes.set(xlabel="", ylabel="")
        names = (cells.columns.to_numpy(float), cells.index.to_numpy(float))
        for axis, values in zip((axes.xaxis, axes.yaxis), names, strict=True):
            whole = _whole(values)
            axis.set_ticks(_place(values, whole), [f"{a}".replace("-", "−") for a in whole])
        (left, right), (low, high) = (_place(values, np.array(box)) for values in names)
        axes.add_patch(
            Rectangle((left, low), right - left, high - low, fill=False, ec="#D55E00", lw=1.8)
        )
        rows, cols = ((v >= box[0] - 1e-9) & (v <= box[1] + 1e-9) for v in names[::-1])
        inside[key] = cells.to_numpy()[np.ix_(rows, cols)]
    return grid, inside


def scale(grid: sns.FacetGrid, label: str, extend: str = "neither") -> None:
    """Put the scale of a grid of maps below it."""
    grid.figure.set_layout_engine("constrained")  # which has to know of the bar
    first = grid.axes.flat[0].collections[0]
    bar = grid.figure.colorbar(
        first, ax=list(grid.axes.flat), label=label, location="bottom", aspect=45, extend=extend
    )
    bar.outline.set_visible(False)


def panels(grid: sns.FacetGrid) -> Iterator[tuple[Axes, Any, Any]]:
    """Yield each panel with the names of its row and column, `None` where there are none."""
    for (row, column), axes in _named(grid):
        yield axes, row, column


def level(axes: Axes, value: float, *, along: str = "x", **look: Any) -> Any:
    """Draw a line of reference across the panel, which may be at a value of either axis."""
    draw = axes.axhline if along == "x" else axes.axvline
    return draw(value, **({"color": INK, "lw": 1.1, "ls": "--", "zorder": 1} | look))


def diagonal(axes: Axes, **look: Any) -> None:
    """Draw y = x over what is shown, without changing it."""
    limits = np.array([axes.get_xlim(), axes.get_ylim()])
    first, last = limits[:, 0].max(), limits[:, 1].min()
    if first < last:
        axes.plot([first, last], [first, last], **({"color": INK, "lw": 1.1, "ls": "--"} | look))
    axes.set(xlim=limits[0], ylim=limits[1])


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


def _shapes(hue: str, looks: Looks) -> dict[str, Any]:
    markers = {key: look[2] for key, look in looks.items()}
    return {"style": hue, "style_order": list(looks), "markers": markers}


def _shared(share: tuple[Any, Any]) -> dict[str, Any]:
    return {"sharex": share[0], "sharey": share[1]}


def _facets(df: pd.DataFrame, columns: int | None, more: dict[str, Any]) -> dict[str, Any]:
    """Take rows and columns out of the keywords, in order of appearance."""
    facets = {name: more.pop(name) for name in ("row", "col") if more.get(name) is not None}
    orders = {f"{name}_order": more.pop(f"{name}_order", None) for name in facets}
    for name, column in list(facets.items()):
        facets[f"{name}_order"] = orders[f"{name}_order"] or list(dict.fromkeys(df[column]))
    if columns is not None and "col" in facets:
        facets["col_wrap"] = min(columns, len(facets["col_order"]))
    return facets


def _plain(df: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return floats where pandas has whole numbers with gaps, which seaborn does not average."""
    return df.assign(**{name: df[name].astype(float) for name in columns})


def _grid(grid: sns.FacetGrid, height: float) -> sns.FacetGrid:
    grid.figure.set_size_inches(WIDTH, height)
    grid.set_titles("")
    for _, axes in _named(grid):
        axes.set_title("")
    return grid


def _named(grid: sns.FacetGrid) -> list[tuple[tuple[Any, Any], Axes]]:
    return [
        (
            (
                grid.row_names[i] if grid.row_names else None,
                grid.col_names[j] if grid.col_names else None,
            ),
            grid.facet_axis(i, j),
        )
        for i in range(max(1, len(grid.row_names)))
        for j in range(max(1, len(grid.col_names)))
    ]


def _whole(values: np.ndarray) -> np.ndarray:
    """Return the whole coefficients within a grid's reach; of many only the ends and 0."""
    reach = int(np.floor(np.abs(values).max() + 1e-9))
    whole = np.arange(-reach, reach + 1, 1 if reach <= 2 else reach)
    return whole[(whole >= values.min() - 1e-9) & (whole <= values.max() + 1e-9)]


def _place(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return where coefficients lie on a heat map, whose cells are one wide from 0."""
    step = (values[-1] - values[0]) / (len(values) - 1) if len(values) > 1 else 1.0
    return (at - values[0]) / step + 0.5
