"""Figures laid out anew for a phone."""

import base64
import gzip
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from tasklab.evidence.figures import narrow, pictures, rows, style


def drawn(lines, columns, titles=(), **more):
    figure, grid = plt.subplots(lines, columns, figsize=(6, 2 * lines + 1), squeeze=False, **more)
    plt.close(figure)
    figure.set_layout_engine("constrained")
    for i, axes in enumerate(grid.flat):
        axes.plot([0, 1], [i, i + 1])
        axes.set_title(titles[i] if titles else f"panel {i}")
    return figure, list(grid.flat)


def places(panels):
    return [(box.y1, box.x0) for box in (one.get_position() for one in panels)]


@pytest.mark.parametrize(("columns", "abreast"), [(2, 1), (3, 2), (4, 2)])
def test_panels_are_put_below_one_another_and_no_word_is_cut(columns, abreast):
    figure, panels = drawn(1, columns, sharey=True)
    panels[0].set(ylabel="accuracy (%)")
    for axes in panels:
        axes.set_xlabel("a label that is longer than its panel is wide")
    pictures.put_legend(
        figure, [*panels[0].lines] * 4, [f"a name of a group {i}" for i in range(4)]
    )
    narrow.narrow(figure).draw_without_rendering()
    assert figure.get_figwidth() == narrow.NARROW
    lines = -(-columns // abreast)
    assert len({round(y, 3) for y, _ in places(panels)}) == lines
    first = panels[::abreast]  # of each line: with numbers and a label of their own
    assert [axes.get_ylabel() for axes in first] == ["accuracy (%)"] * lines
    assert all(any(t.get_visible() for t in axes.get_yticklabels()) for axes in first)
    whole = figure.bbox.padded(1)
    texts = [t for axes in panels for t in (axes.xaxis.label, axes.yaxis.label, axes.title)]
    for text in (*texts, *figure.legends[0].get_texts()):
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1, text.get_text()


def test_two_lines_that_differ_in_one_thing_become_columns():
    figure, panels = drawn(2, 3, titles=["a", "b", "c", "", "", ""])
    narrow.narrow(figure).draw_without_rendering()
    spots = places(panels)
    for top, below in zip(spots[:3], spots[3:], strict=True):
        assert top[0] == pytest.approx(below[0]) and top[1] < below[1]


def test_a_long_word_below_a_panel_has_the_whole_width():
    for word, lines in (("error (%)", 2), ("disentanglement error", 3)):
        figure, panels = drawn(1, 3)
        panels[1].set_xlabel(word)
        narrow.narrow(figure).draw_without_rendering()
        assert len({round(y, 3) for y, _ in places(panels)}) == lines


def test_a_map_with_numbers_has_the_whole_width():
    figure, panels = drawn(1, 3)
    for axes in panels:
        axes.set(aspect="equal", xlim=(0, 4), ylim=(0, 4))
        for i in range(16):
            axes.text(i % 4, i // 4, "1")
    narrow.narrow(figure).draw_without_rendering()
    assert len({round(y, 3) for y, _ in places(panels)}) == 3


def test_a_picture_carries_its_narrow_layout_and_the_records_drawn(extension, tmp_path):
    table = pd.DataFrame({"x": [1, 2, 3], "value": [0.5, 1 / 3, 9.0], "kept": [1, 1, 0]})
    table["hits"], table["empty"] = "bits", None

    @style.book_figure
    def plotted(df):
        chosen = rows.require_rows(df[df["kept"] == 1])
        figure, axes = plt.subplots(figsize=(6, 3))
        axes.plot(chosen["x"], chosen["value"])
        return figure

    bundle = narrow.for_site(plotted(table))
    parts = dict(re.findall(r'<metadata class="tl-(\w+)">([^<]*)<', bundle["image/svg+xml"]))
    opened = {kind: gzip.decompress(base64.b64decode(data)) for kind, data in parts.items()}
    assert opened["csv"].decode() == "x,value,kept\n1,0.5,1\n2,0.333333,1\n"
    assert b'width="259.2pt"' in opened["svg"]

    lean = extension("lean")
    images = tmp_path / "_images"
    images.mkdir()
    (images / "a.svg").write_text(bundle["image/svg+xml"])
    for _ in range(2):  # a second build finds what the first left
        lean.part(images)
        assert {one.name for one in images.iterdir()} == {"a.svg", "a.narrow.svg", "a.csv"}
        assert "tl-csv" not in (images / "a.svg").read_text()
    text = (
        '<figure class="align-default" id="fig-a"><a href="_images/a.svg">'
        '<img src="_images/a.svg" style="width: 100%;" /></a>'
        "<figcaption><p>What it shows.</p></figcaption></figure>"
    )
    page = lean.with_records(lean.lazy(text, tmp_path), tmp_path)
    assert '<source srcset="_images/a.narrow.svg" media="(max-width: 700px)" width="346"' in page
    assert 'shows. <a class="tl-csv" href="_images/a.csv" download="fig-a.csv">CSV</a></p>' in page
    assert lean.with_records(lean.lazy(page, tmp_path), tmp_path) == page
    beside = lean.lazy(text.replace("align-default", "tl-opening-figure"), tmp_path)
    assert 'media="all"' in beside


@pytest.mark.parametrize(("columns", "stacked"), [(1, False), (2, True), (4, False)])
def test_captions_say_above_where_a_phone_stacks_the_panels(extension, tmp_path, columns, stacked):
    figure, panels = drawn(1, columns)
    for axes in panels if columns == 4 else ():
        axes.set_aspect("equal")
    (tmp_path / "a.svg").write_text(narrow.for_site(figure)["image/svg+xml"])
    lean = extension("lean")
    lean.part(tmp_path)
    told = "Left: a bright map; the right panel has <a href='left.html'>all</a>."
    text = f'<figure id="f"><img src="_images/a.svg"><figcaption>{told}</figcaption></figure>'
    (tmp_path / "_images").symlink_to(tmp_path)
    page = lean.with_sides(text, tmp_path)
    read = {
        side: re.sub(f'<span class="{other}">[^<]*</span>', "", page)
        for side, other in (("wide", "tl-narrow"), ("narrow", "tl-wide-only"))
    }
    read = {side: re.sub("</?span[^>]*>", "", one) for side, one in read.items()}
    assert read["wide"] == text
    below = text.replace("Left:", "Above:").replace("right panel", "lower panel")
    assert read["narrow"] == (below if stacked else text)
    assert lean.with_sides(page, tmp_path) == page


def test_a_title_above_a_small_panel_begins_above_its_labels():
    figure, (axes,) = drawn(1, 1, [""])
    axes.set_yticks([0, 1], ["a statement that takes most of the width", "another"])
    axes.set_title("Cross-task linearity", loc="left")
    narrow.narrow(figure).draw_without_rendering()
    box = axes._right_title.get_window_extent()
    assert axes.get_title(loc="right") == "Cross-task linearity" and not axes.get_title(loc="left")
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1
