"""Pictures of a figure: six inches wide for a page, and four for a phone.

The second one is the same figure laid out again: half as many panels side by side, as high as they
were, and the words that stood at the edge of the grid at every panel.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import math
import pickle
import re
import sys
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

# Inches. A page's column is 750 pixels wide, a phone's 360: 10 points are 17 and 12 pixels there.
WIDTH, NARROW = 6.0, 4.0
PIXELS = 125  # of an inch on a page
_LEAST = 0.75  # a panel's width
_LETTERS = 13  # of nine points in an inch
_NAMES, _SMALL = 8, 6  # points, of a matrix's names and, at least, numbers
_WHOLE = {"break_long_words": False, "break_on_hyphens": False}
SHADES = 64  # of a narrow picture: a third of the bytes
_BAR = "<colorbar>"  # matplotlib's label of the axes of a scale
TWIN = re.compile(r"<!-- (narrow|dark|narrow dark) (\S+) -->")  # other pictures of a figure
_NIGHT = "#121212", "#d9d9d9"  # a dark page of the site, and words there
_IMAGE = '<img alt="" src="data:image/png;base64,{}" style="max-width: 100%; height: auto">'


def for_site(figure: Figure, **_) -> dict[str, str]:
    """Return what the site shows of a figure; the picture for a phone is in a comment.

    There `_ext/captions.py` makes it a second image. JupyterLab shows no comments. Colours of a
    figure are turned over on a dark page, but those of photographs, which have pictures for it.
    """
    photographs = any(axes.images for axes in figure.axes)
    wide, narrow = encoded(figure), stacked(figure)
    twins = {"narrow": encoded(narrow, 0 if photographs else SHADES)}
    if photographs:
        twins |= {"dark": encoded(_dark(figure)), "narrow dark": encoded(_dark(narrow))}
    comments = (f"<!-- {kind} {picture} -->" for kind, picture in twins.items())
    text = _IMAGE.format(wide) + "".join(comments)
    return {"text/plain": repr(figure), "image/png": wide, "text/html": text}


def for_notebook(figure: Figure, **_) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Return what a notebook shows of a figure, and how wide: as wide as on the site.

    A style would not do, as JupyterLab leaves those of an untrusted notebook out.
    """
    data = {"text/plain": repr(figure), "image/png": encoded(figure)}
    return data, {"image/png": {"width": round(PIXELS * figure.get_figwidth())}}


def show_once(figure: Figure) -> None:
    """Let a notebook take the figure's own bundle; matplotlib's formatter would draw it again."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["image/png"]
    drawn = formatter.type_printers.get(Figure)
    if drawn is not None and getattr(drawn, "__name__", "") != "spared":

        def spared(other: Figure) -> object:
            return None if hasattr(other, "_repr_mimebundle_") else drawn(other)

        formatter.for_type(Figure, spared)


def encoded(figure: Figure, shades: int = 0) -> str:
    """Return a picture in base64, with so many colours or, by default, with all."""
    drawn, small = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(drawn)  # `savefig` goes through it all twice
    if shades:
        Image.open(drawn).convert("RGB").quantize(shades, method=2).save(small, "png")
    return base64.b64encode((small if shades else drawn).getvalue()).decode("ascii")


def _dark(figure: Figure) -> Figure:
    copy = pickle.loads(pickle.dumps(figure))
    copy.set_facecolor(_NIGHT[0])
    for text in copy.findobj(Text):
        text.set_color(_NIGHT[1])
    return copy


def stacked(figure: Figure) -> Figure:
    """Return a copy of a drawn figure for a phone; panels keep their height, maps their shape."""
    panels = [axes for axes in figure.axes if axes.get_label() != _BAR]
    columns = math.ceil(panels[0].get_gridspec().ncols / 2)
    abreast = 1 if len(panels) < 4 else max(columns, 1 + (len(panels) > 8))
    abreast = max(abreast, min(2, len(panels))) if all(map(_is_map, panels)) else abreast
    copy = _stacked(figure, abreast)
    return copy if abreast == 1 or _legible(copy) else _stacked(figure, 1)


def _stacked(figure: Figure, abreast: int) -> Figure:
    copy = pickle.loads(pickle.dumps(figure))
    FigureCanvasAgg(copy)  # where words are measured; without it, each time with a new one
    copy.set_layout_engine("none")
    bars = [axes for axes in copy.axes if axes.get_label() == _BAR]
    panels = [axes for axes in copy.axes if axes not in bars]
    lines = [panels[i : i + abreast] for i in range(0, len(panels), abreast)]
    if len(panels) > 1:
        _label_all(panels)
    for line in lines:
        _label_first(line)
    for legend in copy.legends:
        legend.remove()
        words = [text.get_text() for text in legend.get_texts()]
        put_legend(copy, legend.legend_handles, words, NARROW)
    breaks = functools.partial(_break_all, beside=0.05 * abreast)
    for change in (_turn, _fit, breaks) if any(map(_is_matrix, panels)) else (breaks,):
        _place(copy, lines, bars)
        for axes in copy.axes:
            change(axes)
    _place(copy, lines, bars)  # a panel of another width may have other ticks
    return copy


def _place(figure: Figure, lines: Sequence[Sequence[Axes]], bars: Sequence[Axes]) -> None:
    """Give panels their places, below the legend and above the scale; all lengths are in inches."""
    words = {axes: _outside(axes) for line in lines for axes in line}
    lefts = [
        max(words[line[i]][0] for line in lines if i < len(line)) for i in range(len(lines[0]))
    ]
    right = max(reach[2] for reach in words.values())
    gap = 0.05 * len(lefts)  # words that are wider than their panel reach into it
    width = (NARROW - sum(lefts)) / len(lefts) - right - 2 * gap
    width = max(width, 0.1)  # where the words leave nothing; `stacked` does not take that
    sizes, rows, y = {axes: _inches(axes) for axes in [*words, *bars]}, {}, 0.05
    for bar in bars:
        _, below, _, above = _outside(bar)
        rows[bar] = (lefts[0], y + below, NARROW - lefts[0] - right - 0.2, sizes[bar].height)
        y += below + sizes[bar].height + above + 0.1
    for line in reversed(lines):
        _, below, _, above = np.max([words[axes] for axes in line], axis=0)
        shapes = [1 if axes.get_aspect() == "auto" else width / sizes[axes].width for axes in line]
        height = max(f * sizes[axes].height for f, axes in zip(shapes, line, strict=True))
        for i, axes in enumerate(line):
            x = sum(lefts[: i + 1]) + gap + i * (width + right + 2 * gap)
            rows[axes] = (x, y + below, width, height)
        y += below + height + above + 0.1
    y += 0.05 + sum(_inches(legend).height for legend in figure.legends)
    figure.set_size_inches(NARROW, y)
    for axes, place in rows.items():
        axes.set_position(np.divide(place, (NARROW, y, NARROW, y)))


def _legible(figure: Figure) -> bool:
    """Return whether no panel but a photograph is too narrow for what is drawn or said in it."""
    panels = [axes for axes in figure.axes if axes.axison and axes.get_label() != _BAR]
    words = [(text, axes) for axes in panels for text in axes.texts if not _is_matrix(axes)]
    return (
        all(_inches(axes).width > _LEAST for axes in panels)
        and all(_inches(text).width < _inches(axes).width for text, axes in words)
        and all(text.get_fontsize() >= _SMALL for axes in panels for text in axes.texts)
    )


def _is_matrix(axes: Axes) -> bool:
    return bool(axes.texts) and any(isinstance(one, QuadMesh) for one in axes.collections)


def _is_map(axes: Axes) -> bool:
    plain = axes.get_aspect() != "auto" and not axes.texts
    return plain and any(isinstance(one, QuadMesh) for one in axes.collections)


def _room(axes: Axes) -> float:
    """Return by what to multiply the numbers of a matrix that they fit its columns; at most 1."""
    column = 0.97 * axes.get_window_extent().width / np.ptp(axes.get_xlim())
    return min(1, column / max(text.get_window_extent().width for text in axes.texts))


def _turn(axes: Axes) -> None:
    """Have upright and smaller names at a matrix that is too narrow, or made so by slanted ones."""
    if not _is_matrix(axes):
        return
    slanted = any(name.get_rotation() % 90 for name in axes.get_xticklabels())
    if slanted or _room(axes) < 1:
        axes.tick_params(axis="both", labelsize=_NAMES)
        axes.tick_params(axis="x", rotation=90)
        for name in axes.get_xticklabels():
            name.set(ha="center", rotation_mode="default")


def _fit(axes: Axes) -> None:
    """Make numbers in a matrix smaller where its columns are still too narrow."""
    if _is_matrix(axes) and (factor := _room(axes)) < 1:
        for text in axes.texts:
            text.set_fontsize(factor * text.get_fontsize())


def _break_all(axes: Axes, beside: float) -> None:
    """Break the words around a panel where they are longer than its sides."""
    box, right = _inches(axes), _outside(axes)[2]
    for text in (axes.title, axes.xaxis.label):
        _break(text, box.width + 2 * (beside + right), "width")
    _break(axes.yaxis.label, box.height + 0.3, "height")


def _inches(drawn: Artist) -> Bbox:
    return drawn.get_window_extent().transformed(drawn.get_figure().dpi_scale_trans.inverted())


def _outside(axes: Axes) -> tuple[float, float, float, float]:
    """Return how far words reach to the left of a panel, below, to the right, and above it.

    Words along a side may be longer than it: they are broken.
    """
    whole, box = axes.get_tightbbox(for_layout_only=True), axes.get_window_extent()
    reach = (box.x0 - whole.x0, box.y0 - whole.y0, whole.x1 - box.x1, whole.y1 - box.y1)
    return tuple(np.divide(reach, axes.get_figure().dpi))


def _label_all(panels: Sequence[Axes]) -> None:
    """Write at each panel what stands at the edge of the grid alone."""
    places = {axes: axes.get_subplotspec() for axes in panels if axes.axison}
    for axes, place in places.items():
        axes.tick_params(labelleft=True, labelbottom=True)
        column = [one for one, at in places.items() if at.colspan == place.colspan]
        row = [one for one, at in places.items() if at.rowspan == place.rowspan]
        above, below = column[: column.index(axes)], column[column.index(axes) + 1 :]
        _say(axes.xaxis.label, [one.xaxis.label for one in below])
        _say(axes.yaxis.label, [one.yaxis.label for one in row[: row.index(axes)]])
        if not any(map(axes.get_title, ("left", "right"))):
            _say(axes.title, [one.title for one in reversed(above)])


def _label_first(line: Sequence[Axes]) -> None:
    """Leave out at a panel what stands at the one to its left."""
    for one, axes in itertools.pairwise(line):
        if one.get_ylabel() == axes.get_ylabel():
            axes.yaxis.label.set_visible(False)
        if axes.get_shared_y_axes().joined(one, axes):
            axes.tick_params(labelleft=False)


def _say(text: Text, others: Sequence[Text]) -> None:
    """Show a text or, where it is empty, the nearest one that is not."""
    said = next((one for one in (text, *others) if one.get_text()), text)
    text.set(text=said.get_text(), fontsize=said.get_fontsize(), visible=True)


def _break(text: Text, room: float, side: str) -> None:
    """Break words into as few lines as have that room, in inches, and these of like length."""

    def fits(lines: Sequence[str]) -> bool:
        text.set_text("\n".join(lines))
        return getattr(_inches(text), side) <= room

    broken = []
    for line in text.get_text().split("\n"):
        ways = [textwrap.wrap(line, n, **_WHOLE) for n in range(len(line), 0, -1)] or [[""]]
        few = len(next(filter(fits, ways), ways[-1]))
        broken += next(way for way in reversed(ways) if len(way) == few)
    text.set_text("\n".join(broken))


def put_legend(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], width: float = WIDTH
) -> None:
    """Put a legend above the whole figure, in as many lines as its labels need.

    Args:
        figure: The figure.
        handles: What is drawn of each entry.
        labels: And said.
        width: Of the figure, in inches.
    """
    longest = [max(map(len, label.split("\n"))) + 6 for label in labels]
    columns = _columns(longest, int(_LETTERS * width))
    room = {"columnspacing": 1.2, "handlelength": 1.5, "handletextpad": 0.5}
    room |= {"frameon": False, "fontsize": 9}
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(handles=handles, labels=labels, **place, **room)


def _columns(widths: list[int], most: int) -> int:
    """Return how many columns fit; widths are in characters, and columns are filled first."""
    fit = (n for n in range(len(widths), 1, -1)
           if sum(map(max, np.array_split(widths, n))) <= most)  # fmt: skip
    return next(fit, 1)
