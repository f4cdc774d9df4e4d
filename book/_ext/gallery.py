"""Sphinx extension: a gallery of figure functions, with pictures from the chapters.

    ```{gallery} tasklab.evidence.figures
    ```

shows the first figure of each function that a chapter calls; its name leads there.
"""

from __future__ import annotations

import importlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_CALL = re.compile(r"\bfigures\.(?!once_recorded\b)(\w+)[(,]")


class gallery(nodes.General, nodes.Element):  # noqa: N801 - docutils names nodes so
    """Stands where the pictures will be, until all pages are read."""


class Gallery(SphinxDirective):
    """The pictures of a room."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a placeholder, replaced once all pages are read."""
        self.env.note_reread()  # it changes with the chapters
        return [gallery(room=self.arguments[0])]


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    app.add_node(gallery)
    app.add_directive("gallery", Gallery)
    app.connect("doctree-resolved", _fill)
    return {"version": "1", "parallel_read_safe": True}


def shown_in(doctree: nodes.document) -> dict[str, nodes.figure]:
    """Return the first named figure of each function that a page calls."""
    found: dict[str, nodes.figure] = {}
    for figure in doctree.findall(nodes.figure):
        cell = figure.parent
        while cell is not None and cell.get("nb_element") != "cell_code":
            cell = cell.parent
        code = next(cell.findall(nodes.literal_block), None) if cell is not None else None
        names = _CALL.findall(code.astext()) if code is not None else []
        if names and figure["ids"] and _picture(figure):
            found.setdefault(names[-1], figure)
    return found


def _picture(figure: nodes.figure) -> nodes.image | None:
    pictures = (image for image in figure.findall(nodes.image) if image["uri"].endswith(".svg"))
    return next(pictures, None)


def _fill(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for place in list(doctree.findall(gallery)):
        room = importlib.import_module(place["room"])
        shown: dict[str, tuple[str, nodes.figure]] = {}
        for page in sorted(app.env.found_docs):
            if page.startswith("notebooks/"):
                for function, figure in shown_in(app.env.get_doctree(page)).items():
                    shown.setdefault(function, (page, figure))
        box = nodes.container(classes=["tasklab-gallery"])
        for function in sorted(set(shown) & set(room.__all__)):
            page, figure = shown[function]
            image = _picture(figure).deepcopy()
            link = f"{app.builder.get_relative_uri(name, page)}#{figure['ids'][0]}"
            entry = getattr(room, function)
            caption = nodes.caption()
            caption += nodes.reference("", function, refuri=link, internal=True)
            first, _, _ = (entry.__doc__ or "").splitlines()[0].partition(" Records:")
            caption += nodes.Text(f": {first.replace('`', '')}")
            box += nodes.figure("", image, caption, ids=[f"gallery-{function}"])
        place.replace_self(box)
