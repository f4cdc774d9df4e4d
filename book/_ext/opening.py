"""Sphinx extension: a chapter opens with its claim, its answer and its main figure beside them.

The main figure is the one whose cell has the tag `main`. Its picture is repeated at the top, beside
the claim or on a phone below it, with the first sentence of its caption and a link to the figure.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

TAG = "tag_main"
OPENING, PICTURE = "tl-opening", "tl-opening-figure"
_SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z*$λ])")  # where a caption's first sentence ends


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build, after what was found is below the claim (`executions`)."""
    app.connect("doctree-resolved", _open, priority=600)
    return {"version": "1", "parallel_read_safe": True}


def _open(app: Sphinx, doctree: nodes.document, name: str) -> None:
    cell = next((one for one in doctree.findall(nodes.container) if TAG in one["classes"]), None)
    figure = None if cell is None else next(cell.findall(nodes.figure), None)
    chapter = next((one for one in doctree.children if isinstance(one, nodes.section)), None)
    if figure is None or chapter is None:
        return
    found = (one for one in chapter.children if "tag_found" in one.get("classes", ()))
    last = next(found, None) or next(chapter.findall(nodes.paragraph))
    first = next(i for i, one in enumerate(chapter.children) if isinstance(one, nodes.title)) + 1
    end = chapter.index(last) + 1
    words, rest = chapter.children[first:end], []
    for one in chapter.children[end:]:
        if isinstance(one, nodes.section):
            break
        rest.append(one)
    for one in (*words, *rest):
        chapter.remove(one)
    parts = nodes.container("", *words), repeated(figure), nodes.container("", *rest)
    box = nodes.container("", *parts, classes=[OPENING])
    chapter.insert(first, box)


def repeated(figure: nodes.figure) -> nodes.figure:
    """Return a figure's picture again, with the first sentence of its caption and a link to it."""
    caption = next(figure.findall(nodes.caption))
    message = _SENTENCE.split(caption.astext(), maxsplit=1)[0].rstrip(".:") + "."
    link = nodes.reference("", "Details", refid=figure["ids"][0], internal=True)
    told = nodes.caption("", f"{message} ", link, nodes.Text("."))
    picture = next(figure.findall(nodes.image)).deepcopy()
    name = f"{figure['ids'][0]}-main"  # not counted among the figures, as it is added after that
    return nodes.figure("", picture, told, ids=[name], classes=[PICTURE])
