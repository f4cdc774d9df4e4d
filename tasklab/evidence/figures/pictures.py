"""Pictures of a figure: an SVG for the site, a PNG for notebooks.

A figure is laid out six inches wide, and for phones anew (`narrow`). The site follows its dark mode
by one rule of CSS.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

WIDTH = 6.0  # inches
PIXELS = 125  # of an inch in the column of a page, which is 750 pixels wide
BAR = "<colorbar>"  # matplotlib's label of the axes of a scale
PHOTOGRAPHS = 'class="photographs"'
LETTERS = 13  # of nine points in an inch
_SHADES = 128
_DENSE = 400  # dots that are drawn as pixels
_SHORTER = {  # a third of the bytes: coordinates to a hundredth of a point, letters by short names
    r"\b([1-9]\d*\.\d\d)\d+": r"\1",
    r'(?:xlink:)?href="#DejaVuSans-': 'href="#d',
    r'id="DejaVuSans-': 'id="d',
    r'transform="translate\(([\d.]+) 0\)"/>': r'x="\1"/>',
}
_NIGHT = "@media (prefers-color-scheme: dark) { g[id^=text] * { fill: #d9d9d9 !important } }"


def for_notebook(figure: Figure, **_: Any) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Return a figure as a notebook shows it, as wide as on the site.

    JupyterLab drops styles in untrusted notebooks but reads the width in the metadata.
    """
    data = {"text/plain": described(figure), "image/png": png(figure)}
    return data, {"image/png": {"width": round(PIXELS * figure.get_figwidth())}}


def show_once(figure: Figure) -> None:
    """Prefer a figure's own bundle to matplotlib's formatter, which would draw it again."""
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


@contextlib.contextmanager
def laid_out(figure: Figure) -> Iterator[None]:
    """Lay a figure out once; every draw would do it again, which takes longer than drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)  # "none" is one, for which a draw comes before each
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def png(figure: Figure) -> str:
    """Return the picture in base64, in few colours but for photographs."""
    drawn, small = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(drawn)  # `savefig` lays it out twice
    if not any(axes.images for axes in figure.axes):
        Image.open(drawn).convert("RGB").quantize(_SHADES, method=2).save(small, "png")
    return base64.b64encode(small.getvalue() or drawn.getvalue()).decode("ascii")


def svg(figure: Figure) -> str:
    """Return the picture with its description; letters are shapes, the same on every machine.

    The background is transparent. The same figure is the same text in every run.
    """
    for dots in figure.findobj(PathCollection):
        dots.set_rasterized(len(np.asarray(dots.get_offsets())) > _DENSE)
    drawn = io.StringIO()
    look: Any = {"svg.hashsalt": "tasklab", "svg.fonttype": "path"}
    with mpl.rc_context(look), laid_out(figure):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    for long, short in _SHORTER.items():
        text = re.sub(long, short, text)
    told, style, kind = escape(described(figure)), "", ""
    if any(axes.images for axes in figure.axes):
        style, kind = f"<style>{_NIGHT}</style>", f"{PHOTOGRAPHS} "
    head, tag, body = text.partition("<svg ")
    end = body.index(">") + 1
    return f"{head}{tag}{kind}{body[:end]}\n <desc>{told}</desc>{style}{body[end:]}"


def described(figure: Figure) -> str:
    """Describe a figure in words: its panels, axes and groups.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> _ = figure.subplots().set(xlabel="coefficient", ylabel="accuracy (%)")
    >>> described(figure)
    'One panel. Horizontal axis: coefficient. Vertical axis: accuracy (%).'
    >>> lines = [figure.axes[0].plot([0, 1], label=name)[0] for name in ("CLIP, larger", "DINO")]
    >>> _ = figure.legend(handles=lines)
    >>> described(figure).partition("Groups: ")[2]
    'CLIP, larger; DINO.'
    """
    panels = [axes for axes in figure.axes if axes.get_label() != BAR]
    sides = ("left", "center", "right")
    titles = [_plain(" ".join(filter(None, map(axes.get_title, sides)))) for axes in panels]
    parts = ["One panel" if len(panels) == 1 else f"{len(panels)} panels"]
    if any(titles):
        parts[0] += f": {'; '.join(filter(None, titles))}"
    for which, name in (("x", "Horizontal"), ("y", "Vertical")):
        labels = {_plain(getattr(axes, f"get_{which}label")()): None for axes in panels}
        if told := "; ".join(filter(None, labels)):
            parts.append(f"{name} axis: {told}")
    words = [_plain(text.get_text()) for one in figure.legends for text in one.get_texts()]
    if words:
        comma = "; " if any("," in word for word in words) else ", "
        parts.append(f"Groups: {comma.join(words)}")
    scales = [_plain(axes.get_xlabel()) for axes in figure.axes if axes.get_label() == BAR]
    parts += [f"Colour: {scale}" for scale in scales if scale]
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _plain(text: str) -> str:
    r"""Return the text of a label in one line, without the marks of a formula.

    >>> _plain("worse of\nboth ($\\alpha_1$)")
    'worse of both (alpha1)'
    """
    return " ".join(re.sub(r"(?<!\\)[$_{}\\]|\\(?=[a-zA-Z])|\\(?=\$)", "", text).split())


def put_legend(
    figure: Figure,
    handles: Sequence[Artist | tuple[Artist, ...]],
    labels: Sequence[str],
    width: float = WIDTH,
    free: tuple[float, float] | None = None,
) -> None:
    """Put a legend above the whole figure, in as many lines as its labels need.

    Args:
        figure: Without a legend.
        handles: One per label; several artists of one label are drawn on top of one another.
        labels: Texts, which may have several lines.
        width: Inches of the figure.
        free: Centre of an empty place a third of the figure wide, in shares of the figure; at most
            eight short labels go there.
    """
    longest = [max(map(len, label.split("\n"))) + 6 for label in labels]
    columns = _columns(longest, int(LETTERS * width))
    room = {"columnspacing": 1.2, "handlelength": 1.5, "handletextpad": 0.5}
    above = {"loc": "outside upper center", "ncols": columns}
    fits = free and max(longest) <= LETTERS * width / 3 and len(labels) <= 8
    look: Any = {"loc": "center", "bbox_to_anchor": free, "ncols": 1} if fits else above
    figure.legend(handles=handles, labels=labels, frameon=False, fontsize=9, **room, **look)
    lines = 0 if fits else math.ceil(len(labels) / columns)
    figure.legend_of = handles, labels, lines  # type: ignore[attr-defined]  # put anew by `narrow`


def _columns(widths: list[int], most: int) -> int:
    """Return the least number of columns for as few lines as fit; widths are in characters."""
    fit = (n for n in range(len(widths), 1, -1)
           if sum(map(max, np.array_split(widths, n))) <= most)  # fmt: skip
    lines = math.ceil(len(widths) / next(fit, 1))
    return math.ceil(len(widths) / lines)
