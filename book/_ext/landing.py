"""Sphinx extension: what the landing page takes from elsewhere, and a description of every page.

    ```{editor-of} notebooks/tangent
    ```

shows the editor that a chapter's run has made, smaller: nothing is computed again, and a build
without it says so. `{network}` shows the network that ships, whose weights a page loads on request.
`{citation}` is `CITATION.cff` as BibTeX.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tasklab.book import explore

EDITOR = 'class="tasklab-editor"'
TABLE = '<div class="tl-table">'  # of an editor
PICTURES = 1  # of each task
WEIGHTS = "network.js"
_LONGEST = 160  # characters of a description


class editor_of(nodes.General, nodes.Element):  # noqa: N801 - docutils names nodes so
    """Stands where the editor of a chapter will be, until all pages are read."""


class EditorOf(SphinxDirective):
    """The editor of another page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a placeholder, replaced once all pages are read."""
        return [editor_of(chapter=self.arguments[0])]


class Network(SphinxDirective):
    """The network that ships with the package."""

    def run(self) -> list[nodes.Node]:
        """Return its page without the weights, which `_write` puts beside."""
        text = explore.network().document(source=f"_static/{WEIGHTS}")
        return [nodes.raw("", text, format="html")]


class Citation(SphinxDirective):
    """BibTeX of `CITATION.cff`."""

    def run(self) -> list[nodes.Node]:
        """Return a block of code, which has a button to copy it."""
        file = Path(self.env.srcdir).parent / "CITATION.cff"
        self.env.note_dependency(str(file))
        text = bibtex(yaml.safe_load(file.read_text("utf-8")))
        return [nodes.literal_block(text, text, language="bibtex")]


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    app.add_node(editor_of)
    app.add_directive("editor-of", EditorOf)
    app.add_directive("network", Network)
    app.add_directive("citation", Citation)
    app.connect("doctree-resolved", _fill)
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _write)
    return {"version": "1", "parallel_read_safe": True}


def _write(app: Sphinx, error: Exception | None) -> None:
    """Write the network's weights where its page loads them from."""
    if error is None and app.builder.name == "html":
        file = Path(app.outdir) / "_static" / WEIGHTS
        file.write_text(explore.network().script(), "utf-8")


def bibtex(cff: Mapping[str, Any]) -> str:
    """Return the entry of a citation file; what it does not say is left out.

    Args:
        cff: Its fields.
    """
    fields = {
        "author": " and ".join(f"{{{author['name']}}}" for author in cff["authors"]),
        "title": f"{{{cff['title']}}}",
        "version": cff.get("version"),
        "year": str(cff["date-released"])[:4] if "date-released" in cff else None,
        "doi": cff.get("doi"),
        "url": cff.get("url") or cff.get("repository-code"),
        "license": cff.get("license"),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join(["@software{tasklab,", *lines, "}"])


def _fill(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for place in list(doctree.findall(editor_of)):
        chapter = app.env.get_doctree(place["chapter"])
        texts = (node.astext() for node in chapter.findall(nodes.raw))
        found = next((text for text in texts if TABLE in text), None)
        if found:
            fewer = found.replace(EDITOR, f'{EDITOR} data-pictures="{PICTURES}"', 1)
            made = nodes.raw("", fewer, format="html")
        else:
            made = nodes.paragraph(
                text="The editor is made when the chapter on the tangent space runs; "
                "this site was built without it."
            )
        place.replace_self(made)


def _describe(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give a page its first paragraph as the description that search engines show."""
    if doctree is None or 'name="description"' in context.get("metatags", ""):
        return
    plain = (p for p in doctree.findall(nodes.paragraph) if not any(p.findall(nodes.math)))
    told = (" ".join(p.astext().split()) for p in plain)
    told = (text for text in told if not text.startswith("Executed notebook"))
    told = (re.sub(r" \[[^\]]*\d{4}[^\]]*\]", "", text) for text in told)  # without citations
    text = next(
        (text for text in told if len(text) > 40), f"{context['title']}: {app.config.project}"
    )
    short = text if len(text) <= _LONGEST else text[:_LONGEST].rpartition(" ")[0] + " …"
    tag = f'<meta name="description" content="{html.escape(short)}" />'
    context["metatags"] = context.get("metatags", "") + f"\n{tag}"
