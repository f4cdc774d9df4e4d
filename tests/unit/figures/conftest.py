"""What a reader asks of every figure."""

import itertools

import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from tasklab.figures.style import WIDTH


def drawn(figure):
    seen: dict[Text, None] = {}
    plain = Text.draw

    def draw(self, renderer, *args, **kwargs):
        seen[self] = None
        plain(self, renderer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        FigureCanvasAgg(figure).draw()
    return [text for text in seen if text.get_visible() and text.get_text().strip()]


@pytest.fixture(scope="session")
def texts():
    return drawn


@pytest.fixture(scope="session")
def readable():

    def check(figure, least=9, apart=True):
        shown = drawn(figure)
        assert figure.get_figwidth() == WIDTH and not plt.get_fignums()
        assert min(text.get_fontsize() for text in shown) >= least
        boxes = [text.get_window_extent() for text in shown]
        for text, box in zip(shown, boxes, strict=True):
            assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1, text
            assert box.y0 >= -1 and box.y1 <= figure.bbox.height + 1, text
        pairs = itertools.combinations(zip(shown, boxes, strict=True), 2) if apart else ()
        for (one, a), (other, b) in pairs:
            across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
            assert across < 2 or along < 2, (one, other)

    return check
