"""Sphinx extension: exercises of notebooks become those of `sphinx-exercise`, with folded answers.

In a notebook an exercise is plain Markdown, `**1.** What is ...?`, and the code cell below it
computes the answer: JupyterLab has no directives. Here both get theirs before the page is read.
"""

from __future__ import annotations

import json
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

QUESTION = re.compile(r"^\*\*(\d+)\.\*\* (.*)", re.DOTALL | re.MULTILINE)
EXERCISE = ":::{{exercise}}\n:label: {label}\n\n{text}\n:::\n"
OPENS = ":::{{solution-start}} {label}\n:label: {label}-answer\n:class: dropdown\n:::\n"
CLOSES = ":::{solution-end}\n:::\n"


def setup(app: Sphinx) -> dict[str, object]:
    """Change notebooks as they are read, and show what is in an open answer."""
    app.connect("source-read", _directives)
    app.add_transform(Answers)
    app.add_post_transform(Contents)
    return {"version": "1", "parallel_read_safe": True}


def _directives(app: Sphinx, name: str, source: list[str]) -> None:
    if not name.startswith("notebooks/"):
        return
    notebook = json.loads(source[0])
    cells, label = [], None
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        found = QUESTION.search(text) if cell["cell_type"] == "markdown" else None
        answers = label and "hide-cell" in cell["metadata"].get("tags", [])
        if answers:
            cells += [_markdown(OPENS.format(label=label)), cell, _markdown(CLOSES)]
            label = None
            continue
        if found:
            label = f"{name.removeprefix('notebooks/')}-{found[1]}".replace("_", "-")
            asked = EXERCISE.format(label=label, text=found[2].strip())
            cell = {**cell, "source": text[: found.start()] + asked}
        cells.append(cell)
    source[0] = json.dumps({**notebook, "cells": cells})


def _markdown(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


class Answers(SphinxTransform):
    """Fold only the code of an answer: the whole answer is in a fold already."""

    default_priority = 310

    def apply(self, **kwargs: object) -> None:
        """Go through the page's cells."""
        for cell in self.document.findall(nodes.container):
            if "tag_hide-cell" in cell["classes"]:
                cell["hide_mode"] = "input"


class Contents(SphinxPostTransform):
    """Take away what several exercises of a page have as their name: `exercise-content`."""

    default_priority = 900

    def run(self, **kwargs: object) -> None:
        """Go through the page's exercises and answers."""
        for section in list(self.document.findall(nodes.section)):
            if {*section["ids"]} & {"exercise-content", "solution-content"}:
                where = section.parent.index(section)  # `replace_self` would hand the name on
                section.parent[where : where + 1] = section.children
