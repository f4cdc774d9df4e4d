"""Sphinx extension: captions and equations of notebooks get numbers and names.

Where a line must not break, text gets spaces that keep it together.

`tasklab.book.captions` shows a caption below its figure, as a second output of the cell. Here both
become a numbered figure with a name that text can refer to. An equation has its name in an anchor
above it, `<a id="eq-edit"></a>`, which JupyterLab does not show; links lead to it in both. A page
of the book is `../book/method.md` in a notebook, as its file lies, and `../method.md` on the site.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from tasklab.book import words
from tasklab.book.captions import FIGURE, FIRST, NOT_YET
from tasklab.evidence.figures.pictures import PHOTOGRAPHS

LOGGER = logging.getLogger(__name__)
FOLDED = "Figure: "  # what the line of a folded figure begins with
MARK = re.compile(r"<!-- (caption|awaited) ([\w-]+) -->")
PICTURE = re.compile(r'<img alt="[^"]*" src="data:image/png[^>]*>')
DESCRIPTION = re.compile(r"<desc>(.*?)</desc>", re.DOTALL)
TAGS = re.compile(r"<!--.*?-->|<style.*?</style>|<[^>]*>", re.DOTALL)
BREAKS = re.compile(  # or a tag
    r"<(script|style)\b.*?</\1>|<[^>]*>|(?<=\d) (?=%)|\[[−+\d.]+, [−+\d.]+\]", re.DOTALL
)
ANCHOR = re.compile(r'<a id="(eq-[\w-]+)"></a>')


def setup(app: Sphinx) -> dict[str, object]:
    """Add the transforms, and let Markdown in outputs be MyST: it has formulas and links."""
    app.add_transform(Pictures)
    app.add_transform(Captions)
    app.add_transform(Awaited)
    app.add_transform(Equations)
    app.add_transform(Parameters)
    app.add_transform(Together)
    app.connect("source-read", _pages_beside)
    app.connect("env-get-updated", _counted_by_page, priority=900)  # after Sphinx has counted
    return {"version": "1", "parallel_read_safe": True}


def _pages_beside(app: Sphinx, name: str, source: list[str]) -> None:
    """Let a chapter's links to pages, which are paths to their files, lead to them on the site.

    Code stays as it is, for the cache knows a chapter by its code; `words.say` turns its links.
    """
    if name.startswith("notebooks/"):
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                cell["source"] = text.replace(words.IN_NOTEBOOKS, words.ON_SITE)
        source[0] = json.dumps(notebook)


def _counted_by_page(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Let figures outside chapters count from 1 on every page; Sphinx counts them through."""
    for kinds in env.toc_fignumbers.values():
        for kind, numbers in kinds.items():
            if all(len(number) == 1 for number in numbers.values()):
                order = sorted(numbers, key=numbers.__getitem__)
                kinds[kind] = {name: (i,) for i, name in enumerate(order, 1)}
    return []


class Pictures(SphinxTransform):
    """Describe pictures of figures, and take those in HTML from their files.

    The description is in the picture (`tasklab.evidence.figures.pictures`).
    """

    default_priority = 290

    def apply(self, **kwargs: object) -> None:
        """Go through the page's outputs."""
        for bundle in [node for node in self.document.findall() if _is(node, "mime_bundle")]:
            images = [one for one in bundle.findall(nodes.image) if one["uri"].endswith(".svg")]
            for image in images:
                file = Path(self.env.relfn2path(image["uri"], self.env.docname)[1])
                head = file.read_text("utf-8")[:4000]
                if found := DESCRIPTION.search(head):
                    image["alt"] = html.unescape(found[1])
                if PHOTOGRAPHS in head:
                    image["classes"].append("photographs")
            for note in list(bundle.findall(nodes.raw)):
                before, *after = PICTURE.split(note.astext())
                if images and after:
                    parts = [nodes.raw("", text, format="html") for text in (before, *after)]
                    note.replace_self(nodes.container("", parts[0], images[0].deepcopy(), parts[1]))


class Captions(SphinxTransform):
    """Move printed captions into figures, before figures are numbered."""

    default_priority = 300

    def apply(self, **kwargs: object) -> None:
        """Go through the page's cells."""
        for note in list(self.document.findall(nodes.raw)):
            found = MARK.fullmatch(note.astext().strip())
            if found is None:
                continue
            kind, name = found.groups()
            if kind == "awaited":  # text refers to a figure that is not recorded yet
                self._name(next(note.parent.findall(nodes.paragraph)), name)
                continue
            printed = _above(note, lambda node: _is(node, "mime_bundle"))
            cell = _above(note, lambda node: _is(node, "cell_code"))
            pictures = [] if cell is None else [node for node in cell.findall(_shows_a_picture)]
            if printed is None or not pictures:
                LOGGER.warning("caption %s is under no figure", name, location=note)
                continue
            text = next(node for node in note.parent.children if isinstance(node, nodes.paragraph))
            children = [node.deepcopy() for node in text.children if node.astext()]
            if children[0].astext() == FIGURE.strip("*"):
                children[:2] = [nodes.Text(children[1].astext().lstrip())]
            figure = nodes.figure("", nodes.caption(text.rawsource, "", *children))
            last = pictures[-1]
            last.replace_self(figure)
            figure.insert(0, last)
            self._name(figure, name)
            _fold(cell, figure)
            printed.parent.remove(printed)

    def _name(self, node: nodes.Element, name: str) -> None:
        """Let links to a name lead to a node."""
        node["names"].append(name)
        self.document.note_explicit_target(node, node)


def _fold(cell: nodes.Element, figure: nodes.figure) -> None:
    """Let a folded figure say its message as its caption has it on this page."""
    if cell.get("prompt_show", "").startswith(FOLDED):
        caption = next(figure.findall(nodes.caption)).astext()
        cell["prompt_show"] = FOLDED + FIRST.split(caption.strip(), maxsplit=1)[0]


class Awaited(SphinxTransform):
    """Say once a section that results are not recorded yet, and leave out what would show them."""

    default_priority = 310

    def apply(self, **kwargs: object) -> None:
        """Go through the page's cells, with what each one shows."""
        said: dict[nodes.Node, nodes.Element] = {}  # by section, the paragraph that says so
        for cell in _cells(self.document):
            shown = [node for node in cell.findall() if _is(node, "mime_bundle", "stream")]
            if not shown or not all(map(_waits, shown)):
                continue
            note = next(cell.findall(nodes.paragraph), None)
            first = said.get(cell.parent)
            if first is None:
                note = note or nodes.paragraph("", "", nodes.emphasis("", NOT_YET))
                said[cell.parent] = note
                cell.replace_self(note)
            else:
                if note is not None and note["ids"]:  # links to its figure stay
                    note.children.clear()
                    first.parent.insert(first.parent.index(first), note)
                cell.parent.remove(cell)


def _waits(shown: nodes.Element) -> bool:
    """Return whether an output says that results are not recorded yet, and nothing else."""
    kinds = (re.sub(TAGS, "", part.astext()).strip() for part in shown.children)
    return NOT_YET in kinds


class Parameters(SphinxTransform):
    """Fold the cells of parameters and of what they choose, which JupyterLab shows."""

    default_priority = 310

    def apply(self, **kwargs: object) -> None:
        """Go through the page's cells."""
        for cell in _cells(self.document):
            code = next(cell.findall(nodes.literal_block), None)
            opens = code is not None and "page.opened(" in code.astext()
            if opens or "tag_parameters" in cell["classes"]:
                what = "model and tasks" if opens else "parameters"
                cell["hide_mode"] = "all" if opens else "input"
                cell["prompt_show"], cell["prompt_hide"] = f"Show {what}", f"Hide {what}"


class Equations(SphinxTransform):
    """Give the names in anchors to the equations below them, before they are referred to."""

    default_priority = 300

    def apply(self, **kwargs: object) -> None:
        """Go through the page's anchors."""
        math = self.env.domains["math"]
        for anchor in list(self.document.findall(nodes.paragraph)):
            found = ANCHOR.fullmatch(anchor.astext().strip())
            if found is None:
                continue
            equation = anchor.next_node(nodes.math_block, descend=False, siblings=True)
            if equation is None:
                LOGGER.warning("anchor %s is above no equation", found[1], location=anchor)
                continue
            equation["label"], equation["docname"] = found[1], self.env.docname
            math.note_equation(self.env.docname, found[1], location=anchor)
            equation["number"] = math.get_equation_number_for(found[1])
            equation["ids"].append(nodes.make_id(f"equation-{found[1]}"))
            self.document.note_explicit_target(equation)
            anchor.parent.remove(anchor)


class Together(SphinxTransform):
    """Let no line break before a percent sign or within an interval, `[-1.0, 2.0]`."""

    default_priority = 320

    def apply(self, **kwargs: object) -> None:
        """Go through the page's words: not through code, formulas, scripts and styles."""
        kept = (nodes.literal, nodes.math, nodes.FixedTextElement)
        for text in list(self.document.findall(nodes.Text)):
            above = text.parent
            if isinstance(above, nodes.raw) or not isinstance(above, kept):
                above.replace(text, nodes.Text(BREAKS.sub(_unbroken, text)))


def _unbroken(found: re.Match[str]) -> str:
    return found[0] if found[0][0] == "<" else found[0].replace(" ", "\N{NO-BREAK SPACE}")


def _is(node: nodes.Node, *kinds: str) -> bool:
    """Return whether a node is one of these parts of a notebook."""
    return isinstance(node, nodes.Element) and node.get("nb_element") in kinds


def _shows_a_picture(node: nodes.Node) -> bool:
    return _is(node, "mime_bundle") and next(node.findall(nodes.image), None) is not None


def _cells(document: nodes.document) -> list[nodes.container]:
    return [node for node in document.findall(nodes.container) if _is(node, "cell_code")]


def _above(node: nodes.Node, wanted) -> nodes.Element | None:
    while node is not None:
        if isinstance(node, nodes.container) and wanted(node):
            return node
        node = node.parent
    return None
