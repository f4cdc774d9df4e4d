"""Sphinx extension: words of the glossary explain themselves where chapters use them.

In each section of a chapter the first use of a word links to its entry (`method.md`), which
`hover.js` shows beside the link.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

PAGE = "method"
TERMS = {  # what chapters write -> the entry's anchor
    r"disentanglement errors?\b|ξ": "term-disentanglement-error",
    r"(?<=the )square\b(?! of (?!coefficients))|search box": "term-square",
    r"(?:on|of|in) the span\b": "term-span",
    r"tasks in general|(?:for|on) new tasks": "term-tasks-in-general",
    r"\btask arithmetic\b": "term-task-arithmetic",
}  # fmt: skip
FORMULAS = {r"\xi": "term-disentanglement-error", "E": "term-E"}
SPOKEN = {"term-disentanglement-error": "disentanglement error ξ", "term-E": "loss E of a merge"}
_KEPT = (nodes.reference, nodes.literal, nodes.raw, nodes.title, nodes.FixedTextElement, nodes.math)


class FormulaLink(nodes.reference):
    """A link that holds only a formula: it needs a name, which `aria-label` gives."""


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    app.add_node(FormulaLink, html=(_visit_formula, HTML5Translator.depart_reference))
    app.connect("doctree-resolved", _link, priority=650)
    return {"version": "1", "parallel_read_safe": True}


def _link(app: Sphinx, doctree: nodes.document, name: str) -> None:
    if not name.startswith("notebooks/") or app.builder.format != "html":
        return
    page = app.builder.get_relative_uri(name, PAGE)
    for chapter in doctree.findall(nodes.section):
        if _section(chapter) is not chapter:
            continue  # a part of a section
        linked: set[str] = set()
        for node in list(chapter.findall(lambda one: isinstance(one, nodes.Text | nodes.math))):
            if _section(node) is chapter and not _is_kept(node.parent) and not _in_a_link(node):
                _link_in(node, page, linked)


def _section(node: nodes.Node) -> nodes.Node | None:
    """Return the section of the first or second level that a node lies in."""
    above = []
    while node is not None:
        if isinstance(node, nodes.section):
            above.append(node)
        node = node.parent
    return above[max(0, len(above) - 2)] if above else None


def _is_kept(node: nodes.Node | None) -> bool:
    while node is not None and not isinstance(node, nodes.section):
        if isinstance(node, _KEPT) or "tl-opening-figure" in node.get("classes", ()):
            return True
        node = node.parent
    return False


def _in_a_link(node: nodes.Node) -> bool:
    """Return whether a node follows the beginning of a link that is written as HTML."""
    at = node.parent.index(node)
    before = node.parent.children[at - 1] if at else None
    return isinstance(before, nodes.raw) and before.astext().lstrip().startswith("<a ")


def _link_in(node: nodes.Node, page: str, linked: set[str]) -> None:
    if isinstance(node, nodes.math):
        entry = FORMULAS.get(node.astext().strip())
        if entry and entry not in linked:
            linked.add(entry)
            link = _reference(page, entry, node.deepcopy(), FormulaLink)
            link["label"] = SPOKEN[entry]
            node.parent.replace(node, link)
        return
    parts, text = [], node.astext()
    while True:
        waiting = {how: entry for how, entry in TERMS.items() if entry not in linked}
        found = [(one, entry) for how, entry in waiting.items() if (one := re.search(how, text))]
        if not found:
            break
        word, entry = min(found, key=lambda one: one[0].start())
        linked.add(entry)
        before, text = text[: word.start()], text[word.end() :]
        parts += [nodes.Text(before), _reference(page, entry, nodes.Text(word[0]))]
    if parts:
        node.parent.replace(node, [*parts, nodes.Text(text)])


def _reference(
    page: str, entry: str, shown: nodes.Node, kind: type[nodes.reference] = nodes.reference
) -> nodes.reference:
    return kind("", "", shown, refuri=f"{page}#{entry}", internal=True, classes=["tl-term"])


def _visit_formula(writer: HTML5Translator, node: FormulaLink) -> None:
    writer.visit_reference(node)
    writer.body[-1] = writer.body[-1].replace("<a ", f'<a aria-label="{node["label"]}" ', 1)
