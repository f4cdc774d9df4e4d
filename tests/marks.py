"""What is drawn in a figure, and whether it can be read."""

import itertools

import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from tasklab.evidence.figures.style import WIDTH


def shown(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


def marked(axes):
    """Return the marks of a panel as (y, x), in order."""
    dots = [line.get_xydata() for line in axes.lines if line.get_marker() not in ("", "None", None)]
    return sorted((float(y), float(x)) for d in dots for x, y in d if x == x)


def texts(figure):
    """Draw a figure; return its visible texts."""
    seen, plain = {}, Text.draw

    def draw(self, renderer, *args, **kwargs):
        seen[self] = None
        plain(self, renderer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        FigureCanvasAgg(figure).draw()
    return [text for text in seen if text.get_visible() and text.get_text().strip()]


def readable(figure, least=9, apart=True):
    """Check the sizes of a figure's texts, and that they lie within it and not on each other.

    Titles of panels never do; with `apart` no text does.
    """
    drawn = texts(figure)
    assert figure.get_figwidth() == WIDTH and not plt.get_fignums()
    assert min(text.get_fontsize() for text in drawn) >= least
    boxes = [text.get_window_extent() for text in drawn]
    for text, box in zip(drawn, boxes, strict=True):
        assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1, text
        assert box.y0 >= -1 and box.y1 <= figure.bbox.height + 1, text
    titles = {part for axes in figure.axes for part in axes.get_children() if part in drawn}
    titles -= {text for axes in figure.axes for text in axes.texts}
    apart_from = [
        (text, box) for text, box in zip(drawn, boxes, strict=True) if apart or text in titles
    ]
    for (one, a), (other, b) in itertools.combinations(apart_from, 2):
        across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 2 or along < 2, (one, other)
