"""The forest plot of all statements."""

import base64
import dataclasses
import io
import math
import re

import matplotlib.image
import matplotlib.pyplot as plt
import nbformat
import pytest

from tasklab.book import outputs
from tasklab.evidence import figures
from tasklab.evidence.figures.forest_plot import LOOKS
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.statements import PLAIN, SITE
from tests.helpers import refuses
from tests.rows import found


@pytest.fixture(autouse=True)
def on_the_site(monkeypatch):
    monkeypatch.setenv(SITE, "1")


@pytest.fixture
def verdicts():
    effects = {"tangent-2-target": 2.0, "tangent-2-posthoc-target": -2.0, "closed-4-full": 0.5,
               "closed-1-data-sup": 40.0}  # fmt: skip
    made = [found(name, effect) for name, effect in effects.items()]
    return [*made, found("closed-1-scale-clip", 3.0, math.nan)]


def test_rows_are_grouped_by_paper_and_marked_by_outcome(verdicts):
    figure = figures.forest(verdicts)
    tangent, closed = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Tangent space", "Closed vocabulary"]  # fmt: skip
    told = [label.get_text() for label in tangent.get_yticklabels()]
    assert told == [f"{v.claim.short} ✓" for v in verdicts[:2]]  # few survive their correction
    marks = {
        line.get_color(): line.get_xdata()[0] for line in tangent.lines if line.get_marker() in "oX"
    }
    assert marks == {LOOKS["holds"][0]: 2.0, LOOKS["does not hold"][0]: -2.0}
    assert tangent.yaxis_inverted()  # the first statement is on top
    arrow = next(line for line in closed.lines if line.get_marker() == ">")
    assert arrow.get_xdata()[0] < 40  # beyond the axis
    open_mark = next(line for line in closed.lines if line.get_markerfacecolor() == "white")
    assert open_mark.get_xdata()[0] == 0
    assert "one seed" in closed.texts[-1].get_text()
    assert "+2.0 points (1.0 to 3.0)" in tangent.texts[0].get_text()


def test_lighter_marks_are_decided_on_these_tasks_alone(verdicts):
    open_in_general = dataclasses.replace(
        verdicts[2], sources=("seeds", "tasks"), here=Interval(0.5, 0.2, 0.8), p_here=0.01
    )
    figure = figures.forest([*verdicts[:2], open_in_general, *verdicts[3:]])
    lighter = "light: on these tasks alone"
    assert lighter in [text.get_text() for text in figure.legends[0].get_texts()]
    (mark,) = (line for line in figure.axes[1].lines if line.get_xdata()[0] == 0.5)
    line = next(line for line in figure.axes[1].lines if tuple(line.get_xdata()) == (-0.5, 1.5))
    assert mark.get_color() == LOOKS["holds"][0] != mark.get_markerfacecolor()
    assert line.get_color() == LOOKS["undecided"][0]
    usual = figures.forest(verdicts)
    assert lighter not in [text.get_text() for text in usual.legends[0].get_texts()]
    none = [dataclasses.replace(v, outcome="not tested") for v in verdicts]
    refuses("no statement was tested", figures.forest, none)


def test_what_holds_where_both_sides_are_equal_stands_below_its_statement(verdicts):
    equal = found("tangent-2-target@accuracy", -3.0)
    figure = figures.forest([*verdicts, equal])
    told = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    short = verdicts[0].claim.short
    assert told == [short, "at equal accuracy", verdicts[1].claim.short]
    styles = [label.get_style() for label in figure.axes[0].get_yticklabels()]
    assert styles == ["normal", "italic", "normal"]
    _, _, _, said = figure.links[1]
    assert said.startswith(f"{short} at equal accuracy: not confirmed, ")


@pytest.mark.parametrize("here", ["", "tangent", "ctl"])
def test_a_row_leads_where_the_row_of_the_list_does(verdicts, here):
    shown = figures.forest(verdicts, here)._repr_mimebundle_()["text/html"]
    listed = figures.verdict_list(verdicts, here)._repr_html_()
    rows = re.findall(r'<a href="([^"]*)".*? aria-label="([^"]*)">', shown)
    told = zip([said for _, said in rows], verdicts, strict=True)
    for said, one in told:
        assert said.startswith(f"{one.claim.short}: {PLAIN.get(one.outcome, one.outcome)}, ")
    assert [link for link, _ in rows] == re.findall(r'<a href="([^"]*)">', listed)


def test_a_notebook_gets_one_picture_whose_links_need_no_style_sheet(verdicts, monkeypatch):
    monkeypatch.delenv(SITE)
    shown = figures.forest(verdicts, "tangent")._repr_mimebundle_()["text/html"]
    assert shown.count("<img ") == 1 and shown.count("<a ") == len(verdicts)
    without = re.sub(r"<style>.*?</style>", "", shown, flags=re.S)  # where it is not trusted
    assert without.count("position: absolute; left: 0; width: 100%") == len(verdicts)
    assert 'style="position: relative; max-width: 875px"' in without
    links = re.findall(r'<a href="(.*?)"', shown)
    assert links[0] == "#Does-subtracting-a-vector-forget-its-task?"
    assert links[-1].startswith("closed_vocab.ipynb#") and not any(".html" in x for x in links)


def test_links_and_pictures_of_the_site(verdicts, extension):
    figure = figures.forest(verdicts)
    shown = figure._repr_mimebundle_()
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(shown["image/png"])))
    assert picture.shape[:2] == tuple(figure.bbox.size[::-1].astype(int))  # nothing is cut off
    places = re.findall(r"top: (.*?)%; height: (.*?)%", shown["text/html"])
    labels = [label for axes in figure.axes for label in axes.get_yticklabels()]
    for (top, height), label in zip(places, labels, strict=True):
        box = label.get_window_extent()
        middle = 100 * (1 - (box.y0 + box.y1) / 2 / figure.bbox.height)
        assert float(top) + float(height) / 2 == pytest.approx(middle, abs=float(height) / 8)
    shown = figures.forest(verdicts)._repr_mimebundle_()
    before, after = extension("captions").PICTURE.split(shown["text/html"])
    assert before.startswith("<div") and after.count("<a ") == len(verdicts)
    assert "base64" not in before + after and "image/svg+xml" in shown


def test_an_executed_notebook_to_download_has_each_picture_once(verdicts):
    @figures.style.book_figure
    def other():
        return plt.subplots(figsize=(figures.style.WIDTH, 2))[0]

    shown = [figure._repr_mimebundle_() for figure in (other(), figures.forest(verdicts))]
    told = [nbformat.v4.new_output("display_data", data) for data in shown]
    cells = [nbformat.v4.new_code_cell("1", outputs=told)]
    (cell,) = outputs.in_jupyterlab(nbformat.v4.new_notebook(cells=cells), "tangent").cells
    picture, forest = cell.outputs
    assert picture.metadata == {"image/png": {"width": 750}} and "text/html" not in picture.data
    assert picture.data["image/png"] == shown[0]["image/png"]
    text = forest.data["text/html"]
    assert forest.data["image/png"] in text and "image/svg+xml" not in forest.data
    assert text.count("<div") == text.count("</div>") and text.count("<a ") == len(verdicts)
