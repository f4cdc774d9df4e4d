"""A figure has one layout: an SVG for the site, a PNG for notebooks, and a description."""

import base64
import io
from types import SimpleNamespace
from xml.etree import ElementTree

import IPython
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure
from PIL import Image

from tasklab.evidence.figures import contact_sheet, pictures
from tasklab.evidence.figures.marks import curves
from tasklab.evidence.figures.style import book_figure
from tasklab.evidence.records.statements import SITE

LOOKS = {"a": ("the first of two groups", "#000000", "o"), "b": ("the second", "#D55E00", "s")}
SVG = "{http://www.w3.org/2000/svg}"


@book_figure
def drawn(columns=2):
    cells = [(f"column {j}", hue, x, x) for j in range(columns) for hue in LOOKS for x in range(3)]
    df = pd.DataFrame(cells, columns=["col", "hue", "x", "y"])
    plot = curves(df, "x", "y", hue="hue", looks=LOOKS, height=2.5, col="col")
    return plot.finish(x="coefficient $\\alpha_1$", y="accuracy (%)", title=str)


def opened(picture):
    return Image.open(io.BytesIO(base64.b64decode(picture)))


def test_the_site_has_an_svg_and_a_notebook_a_picture_of_its_width(monkeypatch):
    data, told = drawn()._repr_mimebundle_()
    assert told == {"image/png": {"width": 750}} and "image/svg+xml" not in data
    monkeypatch.setenv(SITE, "1")
    bundle = drawn()._repr_mimebundle_()
    assert bundle["image/png"] == data["image/png"]
    assert opened(bundle["image/png"]).width == pictures.WIDTH * 180
    root = ElementTree.fromstring(bundle["image/svg+xml"])
    assert root.get("width") == "432pt"
    shapes = [*root.iter(f"{SVG}path")]
    assert shapes and not [*root.iter(f"{SVG}text")]  # letters need no font
    assert not any("fill: #ffffff" in shape.get("style", "") for shape in shapes)
    assert bundle["image/svg+xml"] == drawn()._repr_mimebundle_()["image/svg+xml"]


def test_a_picture_says_what_it_shows(monkeypatch):
    expected = (
        "2 panels: column 0; column 1. Horizontal axis: coefficient alpha1. Vertical axis: "
        "accuracy (%). Groups: the first of two groups, the second."
    )
    figure = drawn()
    assert figure._repr_mimebundle_()[0]["text/plain"] == expected
    assert ElementTree.fromstring(pictures.svg(figure)).find(f"{SVG}desc").text == expected


def test_dots_legends_and_light_areas():
    for count in (50, 5000):
        figure, axes = plt.subplots()
        axes.scatter(*np.random.default_rng(0).random((2, count)))
        plt.close(figure)
        text = pictures.svg(figure)
        assert ("<image" in text) == (count > 1000)
        assert len(text) < 100_000  # 5000 shapes would be 300,000
    assert pictures._columns([35, 13, 34, 13], 52) == 1  # not 35 and 13, but 35 and 34
    assert pictures._columns([20, 20, 20], 52) == 2
    assert pictures._columns([10, 10, 10], 52) == 3
    assert pictures._columns([10] * 7, 60) == 4  # two lines of four and three, not of six and one
    # As the band of the forest plot, which is nearly white and must not become so.
    figure, axes = plt.subplots(figsize=(2, 2))
    axes.axvspan(0, 1, color="#E6E6E6")
    axes.plot([0, 1], [0, 1], color="#0072B2")
    axes.plot([0, 1], [1, 0], color="#D55E00")
    plt.close(figure)
    light = np.asarray(opened(pictures.png(figure)).convert("RGB")).reshape(-1, 3)
    assert (np.abs(light.astype(int) - 0xE6).max(1) <= 3).mean() > 0.3


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
    assert ("image/svg+xml" in bundle) == site
    plain, _ = formatter.format(Figure())  # a reader's own
    assert plain["image/png"] == "theirs"


def test_letters_beside_photographs_follow_the_theme_and_photographs_stay(extension, tmp_path):
    images = {"Signs": np.random.default_rng(0).random((8, 32, 32, 3))}
    figure = contact_sheet(images, {"Signs": ["a name that is wide"] * 8})
    text = pictures.svg(figure)
    assert "prefers-color-scheme" in text and "prefers-color-scheme" not in pictures.svg(drawn())
    shades = {kind: len(opened(pictures.png(one)).convert("RGB").getcolors(1 << 20))
              for kind, one in {"photographs": figure, "drawing": drawn()}.items()}  # fmt: skip
    assert shades["drawing"] <= 128 < shades["photographs"]
    for name, svg in {"photo": text, "drawing": pictures.svg(drawn())}.items():
        (tmp_path / f"{name}.svg").write_text(svg)
        image = shown(extension, tmp_path, nodes.image(uri=f"{name}.svg"))[0]
        assert ("photographs" in image["classes"]) == (name == "photo")
        assert image["alt"] == pictures.described(figure if name == "photo" else drawn())


def shown(extension, folder, *outputs):
    document = new_document("page", get_default_settings())
    document += nodes.container("", *outputs, nb_element="mime_bundle")
    document.settings.env = SimpleNamespace(
        docname="page", relfn2path=lambda uri, _: (uri, str(folder / uri))
    )
    extension("captions").Pictures(document).apply()
    return [*document.findall(nodes.image)]


def test_a_picture_in_html_is_taken_from_its_file(extension, tmp_path):
    (tmp_path / "a.svg").write_text(pictures.svg(drawn()))
    html = '<div><img alt="x" src="data:image/png;base64,AAAA" style="width: 100%"><a></a></div>'
    raw = nodes.raw("", html, format="html")
    inside, _ = shown(extension, tmp_path, raw, nodes.image(uri="a.svg"))
    around = [node.astext() for node in inside.parent.findall(nodes.raw)]
    assert around == ["<div>", "<a></a></div>"]
    assert inside["uri"] == "a.svg"


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
