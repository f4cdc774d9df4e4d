"""The first screen of a chapter, and the words that explain themselves."""

import types

import pytest
from docutils import nodes, utils


def paragraph(*parts):
    return nodes.paragraph("", "", *(nodes.Text(p) if isinstance(p, str) else p for p in parts))


@pytest.fixture
def app():
    to = {"format": "html", "get_relative_uri": lambda _, page: f"../{page}.html"}
    return types.SimpleNamespace(builder=types.SimpleNamespace(**to))


@pytest.fixture
def chapter():
    """Return a document: claim, found, a section with the main figure, one with words."""
    document = utils.new_document("chapter")
    whole = nodes.section("", nodes.title("", "Chapter"), paragraph("The claim."))
    whole += nodes.container("", paragraph("What was found."), classes=["cell", "tag_found"])
    chip = nodes.raw("", '<a class="tl-chip">', format="html")
    whole += paragraph(chip, "for new tasks", nodes.raw("", "</a>", format="html"))
    whole += paragraph("How it was run.")
    caption = nodes.caption("", "Sums differ: by much (ξ). Bars are seeds.")
    figure = nodes.figure("", nodes.image(uri="a.svg"), caption, ids=["fig-a"], names=["fig-a"])
    cell = nodes.container("", figure, classes=["cell", "tag_main"])
    whole += nodes.section("", nodes.title("", "One"), cell)
    words = paragraph(
        "In the square ξ is small, and the error ξ too; ", nodes.math("", "E"), " is."
    )
    inner = nodes.section("", nodes.title("", "Inner"), paragraph("Here ξ again."))
    whole += nodes.section("", nodes.title("", "Two"), words, inner)
    document += whole
    return document


def test_a_chapter_opens_with_its_main_figure_beside_the_claim(extension, app, chapter):
    extension("opening")._open(app, chapter, "notebooks/a")
    title, box, *rest = chapter.children[0].children
    assert title.astext() == "Chapter" and box["classes"] == ["tl-opening"]
    words, figure, after = box.children
    assert after.astext().endswith("How it was run.")
    assert [one.astext() for one in words.children] == ["The claim.", "What was found."]
    assert figure["ids"] == ["fig-a-main"] and figure["classes"] == ["tl-opening-figure"]
    assert figure.astext().strip() == "Sums differ: by much (ξ). Details."
    link = next(figure.findall(nodes.reference))
    assert link["refid"] == "fig-a" and len([*chapter.findall(nodes.image)]) == 2
    assert [one[0].astext() for one in rest] == ["One", "Two"]


def test_a_page_without_a_main_figure_stays(extension, app, chapter):
    next(one for one in chapter.findall(nodes.container) if "tag_main" in one["classes"])[
        "classes"
    ].remove("tag_main")
    before = chapter.pformat()
    extension("opening")._open(app, chapter, "notebooks/a")
    assert chapter.pformat() == before


def test_the_first_use_of_a_word_in_a_section_links_to_its_entry(extension, app, chapter):
    extension("opening")._open(app, chapter, "notebooks/a")
    extension("terms")._link(app, chapter, "notebooks/a")
    linked = [
        (one["refuri"], one.astext())
        for one in chapter.findall(nodes.reference)
        if "tl-term" in one["classes"]
    ]
    xi = "../method.html#term-disentanglement-error"
    square, loss = "../method.html#term-square", "../method.html#term-E"
    assert linked == [(xi, "ξ"), (square, "square"), (xi, "ξ"), (loss, "E")]
    spoken = [one["label"] for one in chapter.findall(nodes.reference) if "label" in one]
    assert spoken == ["loss E of a merge"]  # of a formula, which has no text
    assert "In the square ξ is small, and the error ξ too; E is." in chapter.astext()


@pytest.mark.parametrize(
    ("said", "links"), [("the square of its effect", 0), ("the square of coefficients", 1)]
)
def test_the_square_of_a_number_is_not_that_of_coefficients(extension, app, said, links):
    document = utils.new_document("chapter")
    document += nodes.section("", nodes.title("", "One"), paragraph(f"It grows with {said}."))
    extension("terms")._link(app, document, "notebooks/a")
    assert len([*document.findall(nodes.reference)]) == links


def test_every_entry_is_in_the_glossary(extension, root):
    from sphinx.util.nodes import _make_id

    text = (root / "book" / "method.md").read_text("utf-8").partition("{glossary}\n")[2]
    lines = text.partition("```")[0].splitlines()
    entries = {_make_id(f"term-{line}") for line in lines if line and not line.startswith(" ")}
    terms = extension("terms")
    assert {*terms.TERMS.values(), *terms.FORMULAS.values()} == entries
