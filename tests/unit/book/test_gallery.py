"""The gallery of figures: which picture stands for a function."""

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document


def test_the_first_named_figure_of_a_function_is_taken(extension):
    document = new_document("page", get_default_settings())
    for number, (code, uri, name) in enumerate([
        ("figures.once_recorded(figures.ring, df)", "a.svg", "fig-ring"),
        ("rows = df\nfigures.forest(rows)", "b.png", "fig-png"),
        ("figures.ring(other)", "c.svg", "fig-second"),
        ("figures.forest(rows)", "d.svg", "fig-forest"),
        ("figures.growth(rows)", "e.svg", ""),
    ]):  # fmt: skip
        names = [name] if name else []
        figure = nodes.figure("", nodes.image(uri=uri), ids=names)
        cell = nodes.container("", nodes.literal_block(code, code), nb_element="cell_code")
        cell += nodes.container("", figure, ids=[f"cell-{number}"])
        document += cell
    found = extension("gallery").shown_in(document)
    assert {name: figure["ids"] for name, figure in found.items()} == {
        "ring": ["fig-ring"], "forest": ["fig-forest"],
    }  # fmt: skip
