"""Marks of figures: curves, points with intervals, scatter plots, lines of reference.

seaborn averages and arranges the panels; a figure adds to `Panels`, and `finish` adds labels and
the legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from tasklab.analyses.statistics import Correlation
from tasklab.evidence.figures.rows import methods_in, where
from tasklab.evidence.figures.style import INK, WIDTH, Looks, key, method_looks

SEEDS = ("sd", 1)  # two or three seeds: their spread, not a limit of confidence
GIVEN: dict[str, Any] = {"estimator": "median", "errorbar": ("pi", 100)}  # of `rows.ends`
DASHED: dict[str, Any] = {"color": INK, "lw": 1.1, "ls": "--", "zorder": 1}  # a line of reference
_LEVEL = ("--", ":")
ZERO: dict[str, Any] = {"ls": "-", "lw": 0.8}  # where nothing changes, in place of the former


def unused(panels: int, columns: int) -> tuple[float, float] | None:
    """Return the middle of the place that the last line of panels leaves, in shares of a figure."""
    lines, last = divmod(panels, columns)
    return ((last / columns + 1) / 2 + 0.02, 0.5 / (lines + 1)) if last and lines else None


class Panels:
    """The panels of a figure, each with its row and column (`None` where it has none).

    Args:
        grid: seaborn's; `first` is its first panel.
        hue: Column of the groups.
        looks: Label, colour and marker of each group.
        facets: Columns of the `row` and `col` of panels.
        height: Of the whole figure, in inches.
        line: Style of the groups' lines in the legend; empty for markers alone.
    """

    def __init__(
        self,
        grid: sns.FacetGrid,
        hue: str,
        looks: Looks,
        facets: Mapping[str, Any],
        *,
        height: float,
        line: str = "",
    ) -> None:
        grid.figure.set_size_inches(WIDTH, height)
        grid.set_axis_labels("", "")
        self.grid = grid.set_titles("", row_template="", col_template="")
        self.figure, self.first, self.looks = grid.figure, grid.axes.flat[0], looks
        self._hue, self._line = hue, line
        self._facets = facets.get("row"), facets.get("col")
        self._wrap = facets.get("col_wrap") or 1

    def __iter__(self) -> Iterator[tuple[Axes, Any, Any]]:
        for name, axes in (self.grid.axes_dict or {None: self.first}).items():
            yield axes, *(name if all(self._facets) else (None, name))

    def mark(self, rows: pd.DataFrame, x: str, y: str = "value", **look: Any) -> None:
        """Add a larger hollow marker at each row, in its panel and its group's colour.

        Args:
            rows: With the columns of panels and groups.
            x, y: Columns of the position.
            look: Keywords of `matplotlib.axes.Axes.plot`.
        """
        self._add(rows, x, y, {"ls": "", "ms": 10, "mfc": "none", "mew": 2, "zorder": 5} | look)

    def trace(self, rows: pd.DataFrame, x: str, y: str = "value", **look: Any) -> None:
        """Add a line for each group, in each panel.

        Args:
            rows: With the columns of panels and groups, in the line's order.
            x, y: Columns of the position.
            look: Keywords of `matplotlib.axes.Axes.plot`.
        """
        self._add(rows, x, y, {"marker": "", "lw": 1.3} | look)

    def _add(self, rows: pd.DataFrame, x: str, y: str, look: dict[str, Any]) -> None:
        for axes, *names in self:
            here = dict(zip(self._facets, names, strict=True))
            mine = where(rows, **{facet: name for facet, name in here.items() if facet})
            for group, part in mine.groupby(self._hue, sort=False, observed=True):
                _, colour, marker = self.looks[group]
                at = part[x].astype(float), part[y].astype(float)
                axes.plot(*at, **({"color": colour, "marker": marker} | look))

    def finish(
        self,
        extra: Iterable[Artist] = (),
        *,
        looks: Looks | None = None,
        **words: str | Mapping[Any, str] | Callable[[Any], str],
    ) -> Figure:
        """Add the legend and labels, and return the figure.

        Args:
            extra: Further labelled artists of the legend.
            looks: Groups of the legend, if not those that are drawn.
            words: `x`, `y` and `title`: one text, or one for each column of panels.
        """
        setters = {"x": Axes.set_xlabel, "y": Axes.set_ylabel, "title": Axes.set_title}
        for name, text in words.items():
            if isinstance(text, str):  # on the outer axes alone
                getattr(self.grid, f"set_{name}labels")(text)
                continue
            for axes, _, column in self:
                setters[name](axes, text(column) if callable(text) else text.get(column, ""))
        shown = self.looks if looks is None else looks
        free = unused(len(self.grid.axes_dict), self._wrap)
        key(self.figure, shown, extra, line=self._line, free=free)
        return self.figure


def curves(
    df: pd.DataFrame,
    x: str,
    y: str = "value",
    *,
    hue: str = "method",
    looks: Looks | None = None,
    kind: str = "line",
    height: float | tuple[float, float] = 3.6,
    columns: int = 3,
    share: tuple[Any, Any] = (True, True),
    dots: bool = True,
    **more: Any,
) -> Panels:
    """Plot curves of mean `y` over `x` with intervals, a colour and marker a group.

    Args:
        df: Tidy records.
        x: Column of the horizontal position.
        y: Column of the averaged values.
        hue: Column of the groups.
        looks: Label, colour and marker of each group; by default those of methods.
        kind: `line`, or `scatter` for one dot per row.
        height: Inches of the figure, or around the panels and of each line of them.
        columns: Panels side by side at most.
        share: Whether panels share their axes, as `sharex`, `sharey`.
        dots: Whether measured positions have a marker.
        more: Keywords of `seaborn.relplot`; missing panels of `col_order` are left out.
    """
    looks = method_looks(methods_in(df)) if looks is None else looks
    settings: dict[str, Any] = {"errorbar": SEEDS, "err_kws": {"alpha": 0.15, "lw": 0}}
    settings |= {"dashes": False, "ms": 5, "mew": 0} if dots else {}
    if kind == "scatter":
        settings = {"s": 32, "alpha": 0.8, "edgecolor": INK, "linewidth": 0.4}
    if dots:
        markers = {key: marker for key, (_, _, marker) in looks.items()}
        settings |= {"style": hue, "style_order": list(looks), "markers": markers}
    lines = 1
    if "col" in more and "row" not in more:
        present = list(dict.fromkeys(df[more["col"]]))
        order = [name for name in more.get("col_order", present) if name in present]
        more |= {"col_order": order, "col_wrap": min(columns, len(order))}
        lines = math.ceil(len(order) / columns)
    if isinstance(height, tuple):
        height = height[0] + height[1] * lines
    grid = sns.relplot(
        _plain(df, x, y), x=x, y=y, hue=hue, kind=kind, legend=False, **_hues(looks),
        facet_kws={"sharex": share[0], "sharey": share[1]}, **(settings | more),
    )  # fmt: skip
    return Panels(grid, hue, looks, more, height=height, line="" if kind == "scatter" else "-")


def scatter(df: pd.DataFrame, x: str, y: str = "value", **more: Any) -> Panels:
    """Plot one dot per row, a colour and marker a group.

    Args:
        df: Tidy records.
        x, y: Columns of the position.
        more: Arguments of `curves`; panels have axes of their own by default.
    """
    return curves(df, x, y, kind="scatter", **({"share": (False, False)} | more))


def against(
    table: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    labels: Mapping[str, str],
    rank: Callable[[pd.DataFrame, str, str], Correlation] | None = None,
    **more: Any,
) -> Panels:
    """Plot columns of a table against one another: a panel per pair of columns, a dot per row.

    Args:
        table: One row a dot, with all columns named in `pairs`.
        pairs: Horizontal and vertical column of each panel.
        labels: Axis title of each column.
        rank: Correlation of two columns of the table, printed above the panel with its interval.
        more: Arguments of `scatter`.
    """
    parts = [table.assign(x=table[x], y=table[y], pair=f"{x} {y}") for x, y in pairs]
    plot = scatter(pd.concat(parts), "x", "y", col="pair", **({"height": 3.7} | more))
    for (axes, _, _), (x, y) in zip(plot, pairs, strict=True):
        axes.set(xlabel=labels[x], ylabel=labels[y])
        if rank is not None:
            told = rank(table, x, y)
            words = "rank correlation undefined\n(constant values)"
            if not math.isnan(told.value):
                words = f"rank correlation {told.value:.2f}\n[{told.low:.2f}, {told.high:.2f}]"
            axes.set_title(words.replace("-", "−"))
    return plot


def means_in(
    axes: Axes,
    df: pd.DataFrame,
    y: str,
    x: str = "value",
    *,
    hue: str,
    looks: Looks,
    order: Mapping[Any, str],
    dots: bool = False,
    apart: bool = True,
    **more: Any,
) -> None:
    """Plot means with intervals, one line per category, its groups below one another.

    Args:
        axes: The panel.
        df: Tidy records.
        y: Column of the categories.
        x: Column whose mean is drawn.
        hue: Column of the groups.
        looks: Label, colour and marker of each group.
        order: The categories from the top, with their names.
        dots: Whether each measurement is a small dot, too.
        apart: Whether groups of a category are below one another.
        more: Keywords of `seaborn.pointplot`.
    """
    several = apart and hue != y and len(looks) > 1
    shift = min(0.64, 0.2 * (len(looks) - 1)) if several else False  # nearer to its own line
    same = {"x": x, "y": y, "hue": hue, "order": list(order), "orient": "h", "legend": False}
    same |= {"data": _plain(df, x), "ax": axes, **_hues(looks)}
    look = {"errorbar": SEEDS, "err_kws": {"linewidth": 1.5}, "markersize": 6, "linestyles": "none"}
    look |= {"markeredgecolor": INK, "markeredgewidth": 0.5}
    markers = [marker for _, _, marker in looks.values()]
    sns.pointplot(**same, dodge=shift, markers=markers, **(look | more))
    if dots:
        small = {"size": 3.5, "alpha": 0.55, "jitter": False, "linewidth": 0, "zorder": 1}
        sns.stripplot(**same, dodge=bool(shift), **small)
    axes.set_yticks(range(len(order)), order.values())
    axes.grid(visible=True, axis="x")
    axes.set(xlabel="", ylabel="")


def points(
    df: pd.DataFrame,
    y: str,
    *,
    height: float,
    hue: str = "method",
    looks: Looks | None = None,
    facets: Mapping[str, Any] | None = None,
    **more: Any,
) -> Panels:
    """Plot panels of `means_in`, each with its own horizontal axis.

    Args:
        df: Tidy records.
        y: Column of the categories.
        height: Inches of the figure.
        hue: Column of the groups.
        looks: Label, colour and marker of each group; by default those of methods.
        facets: Columns of the panels: `row`, `col`, and the number `col_wrap`.
        more: Arguments of `means_in`.
    """
    looks = method_looks(methods_in(df)) if looks is None else looks
    grid = sns.FacetGrid(df, **(facets or {}), sharex=False)
    for (i, j, _), part in grid.facet_data():
        means_in(grid.facet_axis(i, j), part, y, hue=hue, looks=looks, **more)
    return Panels(grid, hue, looks, facets or {}, height=height)


def level(axes: Axes, value: float, *, along: str = "x", **look: Any) -> Line2D:
    """Draw a line of reference across the panel and return it.

    Args:
        axes: The panel.
        value: Where the line crosses the other axis.
        along: Axis that the line is parallel to, `x` or `y`.
        look: Keywords of the line; by default dashed.
    """
    return (axes.axhline if along == "x" else axes.axvline)(value, **(DASHED | look))


def reaching(values: pd.Series, times: float = 1.5) -> tuple[float, float]:
    """Return the extremes within so many quartile ranges of the middle half."""
    few, many = values.quantile([0.25, 0.75])
    away = times * (many - few)
    usual = values[values.between(few - away, many + away)]
    return float(usual.min()), float(usual.max())


def cut(axes: Axes, low: float, high: float = np.inf) -> None:
    """Limit the horizontal axis of a panel; a point beyond becomes an arrow with its number.

    Args:
        axes: The panel.
        low: Left end; a line of reference below it stays in the panel.
        high: Right end; by default that of the data.
    """
    points = [(line, *at) for line in axes.lines if line.get_marker() not in ("", "None")
              for at in line.get_xydata()]  # fmt: skip
    levels = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() in _LEVEL]
    low, high = min([low, *levels]), max([high, *levels])
    start, end = axes.get_xlim()
    width = min(high, end) - max(low, start)
    if any(x < low for _, x, _ in points):
        low -= 0.06 * width
        axes.set_xlim(left=low)
    if any(x > high for _, x, _ in points):
        high += 0.06 * width
        axes.set_xlim(right=high)
    for line, x, y in points:
        if not low <= x <= high:
            edge, aside, side = (low, 26, "left") if x < low else (high, -26, "right")
            look = {"va": "center", "ha": side, "fontsize": 9, "textcoords": "offset points"}
            arrow = {"arrowstyle": "->", "color": line.get_color(), "lw": 1.5}
            told = f"{x:.1f}".replace("-", "−")
            axes.annotate(told, (edge, y), (aside, 0), arrowprops=arrow, **look)


def diagonal(axes: Axes, **look: Any) -> list[Line2D]:
    """Draw y = x without changing the limits."""
    limits = np.array([axes.get_xlim(), axes.get_ylim()])
    first, last = limits[:, 0].max(), limits[:, 1].min()
    line = axes.plot([first, last], [first, last], **(DASHED | look)) if first < last else []
    axes.set(xlim=limits[0], ylim=limits[1])
    return line


def log(axes: Axes, which: str = "xy") -> None:
    """Set logarithmic axes, with labels at powers of ten or, where few, between them."""
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
    """Return floats in place of nullable integers, which seaborn does not average."""
    return df.assign(**{name: df[name].astype(float) for name in columns})
