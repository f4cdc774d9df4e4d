"""A phone has a picture of its own: nothing of the figure is lost, cut off or hidden in it."""

from __future__ import annotations

import base64
import io
import itertools
from types import SimpleNamespace

import IPython
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure
from PIL import Image

from tasklab.figures import contact_sheet, pictures
from tasklab.figures.marks import curves, scale
from tasklab.figures.style import book_figure
from tasklab.records.statements import SITE

LOOKS = {"a": ("the first of two groups", "#000000", "o"), "b": ("the second", "#D55E00", "s")}


@book_figure
def drawn(rows: int = 1, columns: int = 3):
    """Draw panels whose axes are named at the edge of the grid alone."""
    cells = [
        (f"row {i}", f"column {j}", hue, x, x + i)
        for i in range(rows)
        for j in range(columns)
        for hue in LOOKS
        for x in range(3)
    ]
    df = pd.DataFrame(cells, columns=["row", "col", "hue", "x", "y"])  # fmt: skip
    facets = {"row": "row", "col": "col"} if rows > 1 else {"col": "col"}
    plot = curves(df, "x", "y", hue="hue", looks=LOOKS, height=2.5 * rows, **facets)
    for axes, _, column in plot:
        axes.set_title(f"of {column}\nand HouseNumbers", fontsize=9)
    long = "words that are as long as the page is wide and longer than a phone's"
    return plot.finish(x=long, y="value")


@book_figure
def maps(count: int):
    figure, grid = plt.subplots(1, count, figsize=(pictures.WIDTH, 2.5), squeeze=False)
    for axes in grid.flat:
        axes.pcolormesh(np.eye(3))
        axes.set_aspect("equal")
    return scale(figure, grid.flat, "a number")


@pytest.fixture
def shown(monkeypatch):
    """Return what shows a figure on the site."""
    monkeypatch.setenv(SITE, "1")
    return lambda figure: figure._repr_mimebundle_()


def narrow(figure):
    figure.draw_without_rendering()
    return pictures.stacked(figure)


def test_a_notebook_has_one_picture_and_the_site_two(monkeypatch, shown):
    figure = drawn()
    bundle = shown(figure)
    html, ((_, picture),) = bundle["text/html"], pictures.TWIN.findall(bundle["text/html"])
    assert html.count("<img ") == 1 and bundle["image/png"] in html
    sizes = [Image.open(io.BytesIO(base64.b64decode(one))).width
             for one in (bundle["image/png"], picture)]  # fmt: skip
    assert sizes == [pictures.WIDTH * figure.dpi, pictures.NARROW * figure.dpi]
    assert figure.get_figwidth() == pictures.WIDTH  # as it was
    monkeypatch.delenv(SITE)
    data, told = drawn()._repr_mimebundle_()
    assert data["image/png"] == bundle["image/png"] and "text/html" not in data
    assert told == {"image/png": {"width": 750}}  # of a column of the site


@pytest.mark.parametrize("site", [True, False])
def test_a_notebook_draws_a_figure_once(monkeypatch, site):
    """Matplotlib registers a formatter, which IPython prefers to a figure's own bundle."""
    formatter, times = DisplayFormatter(), []
    monkeypatch.setattr(
        IPython, "get_ipython", lambda: SimpleNamespace(display_formatter=formatter)
    )
    formatter.formatters["image/png"].enabled = True
    formatter.formatters["image/png"].for_type(Figure, lambda one: times.append(one) or "theirs")
    if site:
        monkeypatch.setenv(SITE, "1")
    figure, _ = drawn(), drawn()
    bundle, _ = formatter.format(figure)
    assert times == [] and bundle["image/png"] != "theirs"
    assert ("text/html" in bundle) == site
    plain, _ = formatter.format(Figure())  # a reader's own
    assert plain["image/png"] == "theirs"


@pytest.mark.parametrize(
    ("rows", "columns", "abreast"), [(1, 1, 1), (1, 3, 1), (2, 2, 1), (3, 4, 2)]
)
def test_panels_are_below_one_another_and_nothing_is_cut_off(rows, columns, abreast):
    figure = drawn(rows, columns)
    twin = narrow(figure)
    twin.draw_without_rendering()
    assert twin.get_figwidth() == pictures.NARROW
    boxes = [axes.get_tightbbox() for axes in [*twin.axes, *twin.legends]]
    assert len(boxes) == rows * columns + 1
    assert len({round(axes.get_position().x0, 6) for axes in twin.axes}) == abreast
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= twin.bbox.width and box.y1 <= twin.bbox.height
        assert not any(box.overlaps(other) for other in boxes[:i])
    was, now = (one.axes[0].get_window_extent().height for one in (figure, twin))
    assert now == pytest.approx(was, rel=0.01)


def test_a_number_at_the_edge_of_a_wider_panel_is_not_cut_off():
    """In the narrow picture there is one at 97.5, where the wide one has none."""
    df = pd.DataFrame({"x": [81.5, 96.8] * 2, "y": 1.0, "col": ["a", "a", "b", "b"], "hue": "a"})

    @book_figure
    def narrow_range():
        plot = curves(df, "x", "y", hue="hue", looks=LOOKS, col="col", height=2.5)
        return plot.grid.set(xlim=(81, 97.5)) and plot.finish(x="accuracy alone (%)")

    copy = pictures.stacked(narrow_range())
    copy.draw_without_rendering()
    for axes in copy.axes:
        assert max(axes.get_xticks()) == 97.5 and max(axes.get_xticks()) <= axes.get_xlim()[1]
        assert axes.get_tightbbox().x1 <= copy.bbox.width


def test_every_panel_has_the_words_of_the_edge():
    figure = drawn(2, 2)
    assert [axes.get_xlabel()[:5] for axes in figure.axes] == ["", "", "words", "words"]
    twin = narrow(figure)
    assert {axes.get_xlabel()[:5] for axes in twin.axes} == {"words"}
    assert [axes.get_ylabel() for axes in twin.axes] == ["value"] * 4
    for axes in twin.axes:
        assert axes.yaxis.label.get_visible()
        assert any(label.get_visible() and label.get_text() for label in axes.get_xticklabels())
    assert [axes.get_title()[3:11] for axes in twin.axes] == ["column 0", "column 1"] * 2


def test_an_empty_label_takes_the_nearest_and_not_that_of_another_kind():
    figure, grid = plt.subplots(3, 1)
    for axes, x in zip(grid, ("", "angle", "error"), strict=True):
        axes.set_xlabel(x)
    grid[0].set_title("above", fontsize=7)
    plt.close(figure)
    twin = narrow(figure)
    assert [axes.get_xlabel() for axes in twin.axes] == ["angle", "angle", "error"]
    assert {axes.title.get_fontsize() for axes in twin.axes} == {7}


def test_maps_keep_their_shape_and_their_scale_is_below_them():
    twin = narrow(maps(3))
    twin.draw_without_rendering()
    *panels, bar = [axes.get_window_extent() for axes in twin.axes]
    for box in panels:
        assert box.width == pytest.approx(box.height, rel=0.02)
        assert box.width > 0.3 * twin.bbox.width and box.y0 > bar.y1
    assert [round(box.x0) for box in panels[::2]] == [round(panels[0].x0)] * 2  # two abreast
    assert panels[1].x0 > panels[0].x1 and panels[2].y1 < panels[0].y0


@pytest.mark.parametrize(("columns", "smaller"), [(4, False), (12, True)])
def test_numbers_in_a_matrix_fit_its_columns(columns, smaller):
    @book_figure
    def matrix():
        figure, axes = plt.subplots(figsize=(pictures.WIDTH, 3))
        sns.heatmap(np.full((3, columns), -12.3), annot=True, fmt=".1f", cbar=False, ax=axes)
        return figure

    figure = matrix()
    before = figure.axes[0].texts[0].get_fontsize()
    twin = narrow(figure)
    twin.draw_without_rendering()
    cell = twin.axes[0].get_window_extent().width / columns
    assert all(text.get_window_extent().width <= cell for text in twin.axes[0].texts)
    assert (twin.axes[0].texts[0].get_fontsize() < before) == smaller
    assert (twin.axes[0].get_xticklabels()[0].get_fontsize() < 9) == smaller


def panels_named(names, count, **more):
    """Draw lines of panels that share their named vertical axis, as correlations are drawn."""
    figure, grid = plt.subplots(-(-count // 3), 3, figsize=(pictures.WIDTH, 4), sharey=True)
    for axes in grid.flat[count:]:
        axes.remove()
    for axes in grid.flat[:count]:
        axes.set_yticks(range(len(names)), names)
        axes.set(xlim=(-1, 1), **more)
    plt.close(figure)
    return figure


def test_names_stand_once_a_line_and_never_in_a_panel():
    """Where two abreast leave no room, there is one."""
    for names, abreast in ((["a name of a metric"] * 3, 2), (["a name that is " + 30 * "long"], 1)):
        twin = narrow(panels_named(names, 6))
        twin.draw_without_rendering()
        for i, axes in enumerate(twin.axes):
            named = [label for label in axes.get_yticklabels() if label.get_visible()]
            assert bool(named) == (i % abreast == 0)
            box = axes.get_window_extent()
            assert all(label.get_window_extent().x1 <= box.x0 for label in named)
            assert abreast == 1 or box.width > 0.75 * twin.dpi


def test_words_in_a_panel_do_not_leave_it():
    figure = panels_named(["x"], 6)
    for axes in figure.axes:
        axes.text(0.99, 0.9, "words that are in a panel", ha="right", transform=axes.transAxes)
    twin = narrow(figure)
    twin.draw_without_rendering()
    for axes in twin.axes:
        assert axes.texts[0].get_window_extent().x0 >= axes.get_window_extent().x0


def test_words_along_a_side_are_broken_where_they_are_longer():
    """And into lines of like length: the last is not a word alone."""
    figure = panels_named(["a name of a task"], 3)
    words = "test accuracy (%) of the sum of 8 tasks, bars: 95 % interval"
    for axes in figure.axes:
        axes.set(xlabel=words, ylabel=words)
    twin = narrow(figure)
    twin.draw_without_rendering()
    for axes in twin.axes:
        across, along = axes.xaxis.label, axes.yaxis.label
        assert across.get_text().replace("\n", " ") == words
        lines = [len(line) for line in across.get_text().split("\n")]
        assert len(lines) == 2 and min(lines) > 0.7 * max(lines)
        assert across.get_window_extent().x1 <= twin.bbox.width
        assert along.get_window_extent().height < axes.get_window_extent().height + 0.3 * twin.dpi


def test_slanted_names_of_a_matrix_stand_upright():
    @book_figure
    def matrix():
        figure, axes = plt.subplots(figsize=(pictures.WIDTH, 3))
        names = [f"a way with a long name, {i}" for i in range(9)]
        sns.heatmap(
            np.full((3, 9), -12.3), annot=True, fmt=".1f", cbar=False, ax=axes, xticklabels=names
        )
        axes.tick_params(axis="x", rotation=40)
        plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
        return figure

    twin = narrow(matrix())
    twin.draw_without_rendering()
    (axes,) = twin.axes
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(box.x0 >= 0 and box.x1 <= twin.bbox.width and box.y0 >= 0 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
    assert min(text.get_fontsize() for text in axes.texts) >= 6.5


def test_photographs_are_four_abreast_and_keep_their_colours(shown):
    images = {"Signs": np.random.default_rng(0).random((8, 32, 32, 3))}
    figure = contact_sheet(images, {"Signs": ["a name that is wide"] * 8})
    bundle = shown(figure)
    twins = dict(pictures.TWIN.findall(bundle["text/html"])) | {"wide": bundle["image/png"]}
    opened = {k: Image.open(io.BytesIO(base64.b64decode(one))) for k, one in twins.items()}
    assert {one.mode for one in opened.values()} == {"RGBA"}  # of no palette
    for name, dark in (("wide", "dark"), ("narrow", "narrow dark")):
        day, night = (np.asarray(opened[kind])[..., :3].astype(int) for kind in (name, dark))
        assert day[0, 0].tolist() == [255] * 3 and night[0, 0].tolist() == [0x12] * 3
        same, words = (day == night).all(-1), (night > 0xC0).all(-1) & (day < 0x50).all(-1)
        assert 0.2 < same.mean() < 0.9 and words.any()  # the photographs are as they were
    twin = pictures.stacked(figure)
    assert len({round(axes.get_position().x0, 6) for axes in twin.axes}) == 4
    was, now = (one.axes[0].get_window_extent().width for one in (figure, twin))
    assert now > 0.8 * was


def test_columns_of_a_legend_fit_as_matplotlib_divides_them():
    assert pictures._columns([35, 13, 34, 13], 52) == 1  # not 35 and 13, but 35 and 34
    assert pictures._columns([20, 20, 20], 52) == 2
    assert pictures._columns([10, 10, 10], 52) == 3


def test_the_site_makes_files_of_both(extension, shown, tmp_path):
    bundle = shown(drawn(1, 1))
    document = new_document("page", get_default_settings())
    box = nodes.container(nb_element="mime_bundle")
    raw = nodes.raw("", bundle["text/html"], format="html")
    box += [raw, nodes.image(uri="/wide.png")]
    document += box
    document.settings.env = SimpleNamespace(
        docname="page", relfn2path=lambda uri, _: (uri, str(tmp_path / uri.strip("/")))
    )
    extension("captions").Pictures(document).apply()
    wide, twin, _ = document.findall(nodes.image)
    assert (wide["uri"], wide["classes"]) == ("/wide.png", ["wide"])
    assert (twin["uri"], twin["classes"]) == ("/wide.narrow.png", ["narrow"])
    picture = (tmp_path / "wide.narrow.png").read_bytes()
    assert Image.open(io.BytesIO(picture)).width == 4 * 180
    assert "base64" not in document.astext()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "at 95 % of [−1.0, 2.5], 3 % 2, a 5 percent",
            "at 95_% of [−1.0,_2.5], 3_% 2, a 5 percent",
        ),
        (
            "<p title='5 %'>5 %</p><script>5 % 2</script>",
            "<p title='5 %'>5_%</p><script>5 % 2</script>",
        ),
    ],
)
def test_no_line_breaks_before_a_percent_sign_or_within_an_interval(extension, text, expected):
    document = new_document("page", get_default_settings())
    document += nodes.paragraph("", "", nodes.strong("", text))
    document += nodes.raw("", text, format="html")
    document += [nodes.literal_block("", text), nodes.paragraph("", "", nodes.literal("", text))]
    extension("captions").Together(document).apply()
    told = [node.replace("\N{NO-BREAK SPACE}", "_") for node in document.findall(nodes.Text)]
    if "<" not in text:
        assert told[0] == expected
    assert told[1:] == [expected, text, text]


def test_a_picture_of_few_colours_keeps_light_areas():
    """As the band of the forest plot, which is nearly white and must not become so."""
    figure, axes = plt.subplots(figsize=(2, 2))
    axes.axvspan(0, 1, color="#E6E6E6")
    axes.plot([0, 1], [0, 1], color="#0072B2")
    axes.plot([0, 1], [1, 0], color="#D55E00")
    drawn = Image.open(
        io.BytesIO(base64.b64decode(pictures.encoded(figure, pictures.SHADES)))
    ).convert("RGB")
    plt.close(figure)
    light = np.asarray(drawn).reshape(-1, 3)
    assert (np.abs(light.astype(int) - 0xE6).max(1) <= 3).mean() > 0.3
