"""Pictures of a figure: six inches wide for a page, and four for a phone.

The second one is the same figure laid out again: half as many panels side by side, as high as they
were, and the words that stood at the edge of the grid at every panel.
"""

from __future__ import annotations

import base64
import io
import math
import pickle
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
_LETTERS = 13  # of nine points in an inch
SHADES = 64  # of a narrow picture: a third of the bytes
_BAR = "<colorbar>"  # matplotlib's label of the axes of a scale
_IMAGE = '<img alt="" src="data:image/png;base64,{}" style="max-width: 100%; height: auto">'


def for_site(figure: Figure, **_) -> dict[str, str]:
    """Return what the site shows of a figure; the picture for a phone is in a comment.

    There `_ext/captions.py` makes it a second image. JupyterLab shows no comments.
    """
    photographs = any(axes.images for axes in figure.axes)
    wide, narrow = encoded(figure), encoded(stacked(figure), 0 if photographs else SHADES)
    text = f"{_IMAGE.format(wide)}<!-- narrow {narrow} -->"
    return {"text/plain": repr(figure), "image/png": wide, "text/html": text}


def show_once(figure: Figure) -> None:
    """Let a notebook take the figure's own bundle; matplotlib's formatter would draw it again."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(figure, "_repr_mimebundle_"):
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


def stacked(figure: Figure) -> Figure:
    """Return a copy of a drawn figure for a phone; panels keep their height, maps their shape."""
    copy = pickle.loads(pickle.dumps(figure))
    FigureCanvasAgg(copy)  # where words are measured; without it, each time with a new one
    copy.set_layout_engine("none")
    bars = [axes for axes in copy.axes if axes.get_label() == _BAR]
    panels = [axes for axes in copy.axes if axes not in bars]
    columns = math.ceil(panels[0].get_gridspec().ncols / 2)
    abreast = 1 if len(panels) < 4 else max(columns, 1 + (len(panels) > 8))
    if len(panels) > 1:
        _label_all(panels)
    for axes in copy.axes:
        room = NARROW if axes in bars else NARROW / abreast
        for text in (axes.title, axes.xaxis.label):
            _break(text, int(0.9 * _LETTERS * room))
    for legend in copy.legends:
        legend.remove()
        words = [text.get_text() for text in legend.get_texts()]
        put_legend(copy, legend.legend_handles, words, NARROW)
    lines = [panels[i : i + abreast] for i in range(0, len(panels), abreast)]
    _place(copy, lines, bars)
    for axes in panels:
        _fit(axes)
    _place(copy, lines, bars)  # a panel of another width may have other ticks
    return copy


def _place(figure: Figure, lines: Sequence[Sequence[Axes]], bars: Sequence[Axes]) -> None:
    """Give panels their places, below the legend and above the scale; all lengths are in inches."""
    words = {axes: _outside(axes) for line in lines for axes in line}
    left, _, right, _ = np.max(list(words.values()), axis=0)
    gap = 0.05 * len(lines[0])  # words that are wider than their panel reach into it
    width = NARROW / len(lines[0]) - left - right - 2 * gap
    sizes, rows, y = {axes: _inches(axes) for axes in [*words, *bars]}, {}, 0.05
    for bar in bars:
        _, below, _, above = _outside(bar)
        rows[bar] = (left, y + below, NARROW - left - right - 0.2, sizes[bar].height)
        y += below + sizes[bar].height + above + 0.1
    for line in reversed(lines):
        _, below, _, above = np.max([words[axes] for axes in line], axis=0)
        shapes = [1 if axes.get_aspect() == "auto" else width / sizes[axes].width for axes in line]
        height = max(f * sizes[axes].height for f, axes in zip(shapes, line, strict=True))
        for i, axes in enumerate(line):
            rows[axes] = (i * NARROW / len(lines[0]) + left + gap, y + below, width, height)
        y += below + height + above + 0.1
    y += 0.05 + sum(_inches(legend).height for legend in figure.legends)
    figure.set_size_inches(NARROW, y)
    for axes, place in rows.items():
        axes.set_position(np.divide(place, (NARROW, y, NARROW, y)))


def _fit(axes: Axes) -> None:
    """Make numbers in a matrix, and names above it, smaller where its columns are too narrow."""
    if not axes.texts or not any(isinstance(one, QuadMesh) for one in axes.collections):
        return
    room = 0.97 * axes.get_window_extent().width / np.ptp(axes.get_xlim())
    factor = room / max(text.get_window_extent().width for text in axes.texts)
    if factor < 1:
        for text in axes.texts:
            text.set_fontsize(factor * text.get_fontsize())
        names = axes.get_xticklabels()
        axes.tick_params(axis="x", labelsize=factor * names[0].get_fontsize() if names else None)


def _inches(drawn: Artist) -> Bbox:
    return drawn.get_window_extent().transformed(drawn.get_figure().dpi_scale_trans.inverted())


def _outside(axes: Axes) -> tuple[float, float, float, float]:
    """Return how far words reach to the left of a panel, below, to the right, and above it."""
    whole, box = axes.get_tightbbox(), axes.get_window_extent()
    reach = (box.x0 - whole.x0, box.y0 - whole.y0, whole.x1 - box.x1, whole.y1 - box.y1)
    beside = (1, 1, 1, 1) if axes.axison else (0, 1, 0, 1)  # an image's name may be wider than it
    return tuple(np.multiply(reach, beside) / axes.get_figure().dpi)


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


def _say(text: Text, others: Sequence[Text]) -> None:
    """Show a text or, where it is empty, the nearest one that is not."""
    said = next((one for one in (text, *others) if one.get_text()), text)
    text.set(text=said.get_text(), fontsize=said.get_fontsize(), visible=True)


def _break(text: Text, letters: int) -> None:
    """Break words above or below a panel into lines of so many letters."""
    lines = text.get_text().split("\n")
    text.set_text("\n".join(textwrap.fill(line, letters) for line in lines))


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
