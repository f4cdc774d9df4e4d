"""Narrow layouts of figures, for phones and for a column beside text.

A figure is laid out six inches wide. Its panels are put below one another, or two abreast, so that
the same letters fit 3.6 inches: 346 pixels, in which nine points are twelve pixels.
"""

from __future__ import annotations

import base64
import gzip
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text

from tasklab.evidence.figures.pictures import (
    BAR,
    LETTERS,
    described,
    laid_out,
    png,
    put_legend,
    svg,
)

NARROW = 3.6  # inches
STACKED = "<!-- below one another -->"  # in a narrow layout of panels that were side by side
_TITLE = 20  # letters of a title above a panel
_AROUND = 0.8  # inches of a legend and of the labels of the last line of panels
_LONG = 13  # letters of a word below a panel, which half of the width has room for
_FEW = 9  # words in a panel, which fit half of the width
_FORMULA = re.compile(r"\$[^$]*\$|\S+")


def for_site(figure: Figure, **_: Any) -> dict[str, str]:
    """Return a figure as the site shows it, and the PNG for the notebook that can be downloaded.

    The SVG carries its narrow layout and the records that are drawn, as CSV; the build of the site
    makes files of both (`book/_ext/lean.py`).
    """
    with laid_out(figure):
        wide, shown = svg(figure), png(figure)
    told, parts = described(figure), {}
    records = getattr(figure, "drawn", None)
    if records is not None:
        parts["csv"] = records.to_csv(index=False, float_format="%.6g")
    if figure.get_figwidth() > NARROW and not hasattr(figure, "links"):  # of which lines are links
        abreast = _shape(_panels(figure))[1]
        drawn = svg(narrow(figure))
        stacked = abreast > 1 and _shape(_panels(figure))[1] == 1
        parts["svg"] = drawn.replace("</svg>", f"{STACKED}</svg>") if stacked else drawn
    return {"text/plain": told, "image/svg+xml": attached(wide, parts), "image/png": shown}


def attached(picture: str, parts: Mapping[str, str]) -> str:
    """Return an SVG that carries further files, by their ending, compressed in its metadata."""
    body, end, rest = picture.rpartition("</svg>")
    packed = (
        f'<metadata class="tl-{kind}">'
        f"{base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()}</metadata>\n"
        for kind, text in parts.items()
    )
    return f"{body}{''.join(packed)}{end}{rest}"


def narrow(figure: Figure) -> Figure:
    """Lay a figure out anew, 3.6 inches wide, and return it.

    Three panels or more side by side become two; two become one below the other. Labels are broken
    at spaces where they are longer than their panel.
    """
    width, height = figure.get_size_inches()
    if width <= NARROW:
        return figure
    panels = _panels(figure)
    lines, columns = _shape(panels)
    abreast = 1
    if columns > 1:
        turned = _matrix(panels, lines, columns)
        lettered = any(len(axes.texts) > _FEW for axes in panels)  # numbers in the cells of a map
        wordy = any(_letters(word) > _LONG for axes in panels for word in axes.get_xlabel().split())
        abreast = 1 if lettered or ((columns == 2 or wordy) and not _square(panels)) else 2
        height = _reflow(panels, columns, abreast, lines, height, turned=turned)
    more = _relabel(figure, panels, abreast)
    more += _legends(figure) + sum(map(_upright, panels))
    figure.set_size_inches(NARROW, height + more)
    return figure


def _panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != BAR and axes.get_subplotspec()]


def _shape(panels: Sequence[Axes]) -> tuple[int, int]:
    """Return the numbers of lines and columns of a figure's panels."""
    shapes = [axes.get_subplotspec().get_gridspec().get_geometry() for axes in panels]
    return max(shapes, default=(1, 1), key=lambda shape: shape[0] * shape[1])


def _square(panels: Sequence[Axes]) -> bool:
    """Return whether panels are maps, which stay legible at half of the width."""
    return all(axes.get_aspect() != "auto" for axes in panels)


def _matrix(panels: Sequence[Axes], lines: int, columns: int) -> bool:
    """Return whether panels are two lines that differ in one thing, each column in another one."""
    titles = [axes.get_title() for axes in panels]
    named = all(titles[:columns]) and titles[columns:] in ([""] * columns, titles[:columns])
    return lines == 2 and columns > 2 and len(panels) == lines * columns and named


def _reflow(
    panels: Sequence[Axes], columns: int, abreast: int, lines: int, height: float, *, turned: bool
) -> float:
    """Put panels into other lines and columns; return the figure's height in inches.

    Args:
        panels: Of the figure.
        columns: Panels side by side until now.
        abreast: Panels side by side from now on.
        lines: Lines of panels until now.
        height: Of the figure until now, in inches.
        turned: Whether lines become columns.
    """
    spec = [axes.get_subplotspec() for axes in panels]
    place = {axes: divmod(one.num1, columns) for axes, one in zip(panels, spec, strict=True)}
    downwards = slice(None, None, -1 if abreast == 1 or turned else None)  # column by column
    ordered = sorted(panels, key=lambda axes: place[axes][downwards])
    left = {line: axes for axes, (line, column) in place.items() if column == 0}
    lowest = {column: axes for axes, (_, column) in sorted(place.items(), key=lambda one: one[1])}
    rows = math.ceil(len(ordered) / abreast)
    ratios = spec[0].get_gridspec().get_height_ratios()
    every = [ratios[place[axes][0]] if ratios else 1.0 for axes in ordered]
    grid = GridSpec(
        rows, abreast, figure=panels[0].figure, height_ratios=[
            max(every[abreast * i : abreast * (i + 1)]) for i in range(rows)
        ],
    )  # fmt: skip
    words = {axes: (axes.get_xlabel(), axes.get_ylabel()) for axes in panels}
    for i, axes in enumerate(ordered):
        line, column = divmod(i, abreast)
        axes.set_subplotspec(grid[line, column])
        was_line, was_column = place[axes]
        if column == 0 and was_column > 0:
            _show(axes, "y")
            axes.set_ylabel(words[axes][1] or words[left[was_line]][1])
        elif (
            column > 0
            and was_column == 0
            and not turned
            and axes.get_shared_y_axes().joined(axes, ordered[i - 1])
        ):
            axes.set_ylabel("")
        if i + abreast >= len(ordered):
            _show(axes, "x")
            axes.set_xlabel(words[axes][0] or words[lowest[was_column]][0])
    if _square(panels):
        titles = max(axes.get_title().count("\n") + 1 for axes in panels)
        names = 0.5 * any(axes.texts for axes in panels)  # of columns, upright below a matrix
        return rows * (NARROW / abreast + 0.17 * titles + names) + _AROUND
    return (height - _AROUND) * sum(grid.get_height_ratios()) / sum(ratios or [1] * lines) + _AROUND


def _show(axes: Axes, which: str) -> None:
    """Show the numbers of an axis that shares them with another one."""
    side = "labelleft" if which == "y" else "labelbottom"
    above = which == "x" and axes.xaxis.get_tick_params().get("labeltop")
    if not above:
        axes.tick_params(axis=which, which="major", **{side: True})
    ticks = axes.get_yticklabels() if which == "y" else axes.get_xticklabels()
    for text in ticks:
        text.set_visible(True)


def _relabel(figure: Figure, panels: Sequence[Axes], abreast: int) -> float:
    """Break labels that are longer than their panel; return the inches of the lines added."""
    added = 0
    for axes in panels:
        names = [_letters(one.get_text()) for one in axes.get_yticklabels() if one.get_visible()]
        room = LETTERS * NARROW / abreast - max(4, *names, 0) - 2
        if room < _TITLE and (title := axes.get_title(loc="left")):  # it begins above the labels
            font = axes._left_title.get_fontproperties()  # noqa: SLF001
            axes.set_title("", loc="left")
            axes.set_title(title, loc="right", fontproperties=font)
            titles: tuple[Text, ...] = (axes.title,)
        else:
            titles = (axes.title, axes._left_title, axes._right_title)  # noqa: SLF001
        lines = _break(axes.xaxis.label, room) + sum(_break(one, room + 2) for one in titles)
        added = max(added, lines)
        tall = LETTERS * axes.get_position().height * figure.get_figheight()
        _break(axes.yaxis.label, max(tall, 18))
    for axes in figure.axes:
        if axes.get_label() == BAR:
            added += _break(axes.xaxis.label, LETTERS * (NARROW - 0.6))
    for text in (figure._supxlabel, figure._suptitle):  # noqa: SLF001
        if text is not None:
            added += _break(text, LETTERS * NARROW)
    return 0.16 * added * (1 if abreast == 1 and len(panels) == 1 else len(panels) / abreast)


def _break(text: Text, room: float) -> int:
    """Break a text at spaces into lines of so many letters; return how many lines are added."""
    room *= 9 / text.get_fontsize()
    old = text.get_text()
    if not old:
        return 0
    new = "\n".join(wrapped(line, room) for line in old.split("\n"))
    text.set_text(new)
    return new.count("\n") - old.count("\n")


def wrapped(line: str, room: float) -> str:
    r"""Return a line broken at spaces; formulas stay whole.

    >>> wrapped("size of the others' vectors on $\\mathcal{D}_1$", 20)
    "size of the others'\nvectors on $\\mathcal{D}_1$"
    """
    lines: list[list[str]] = [[]]
    length = 0.0
    for word in _FORMULA.findall(line):
        size = _letters(word)
        if lines[-1] and length + 1 + size > room:
            lines.append([])
            length = -1
        lines[-1].append(word)
        length += 1 + size
    return "\n".join(" ".join(words) for words in lines) if len(lines) > 1 else line


def _upright(axes: Axes) -> float:
    """Set slanted names above a matrix upright; return the inches that are added."""
    names = [one for one in axes.get_xticklabels() if one.get_rotation() % 90]
    for one in names:
        one.set(rotation=90, ha="center", rotation_mode="default")
    for number in axes.texts if names else ():
        number.set_fontsize(7.5)
    longest = max((len(one.get_text()) for one in names), default=0)
    return longest / LETTERS / 3  # beyond what they take where they are slanted


def _letters(word: str) -> float:
    """Return the width of a word in letters, without the marks of a formula."""
    return min(len(word) / 2, 6) if "$" in word else max(map(len, word.split("\n")))


def _legends(figure: Figure) -> float:
    """Put the legend anew into as many lines as the width needs; return the inches added."""
    given = getattr(figure, "legend_of", None)
    if given is None or not figure.legends:
        return 0.0
    handles, labels, before = given
    figure.legends[0].remove()
    put_legend(figure, handles, labels, NARROW)
    return 0.17 * (figure.legend_of[-1] - before)  # type: ignore[attr-defined]
