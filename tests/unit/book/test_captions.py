"""What the site makes of a chapter's Markdown, which JupyterLab shows as it is."""

import json

import nbformat
from docutils import nodes

from tasklab.book import outputs, words


def test_links_to_pages_are_paths_to_files_in_notebooks_alone(extension):
    link = "[m](../book/method.md)"
    cells = [{"cell_type": kind, "source": [link]} for kind in ("markdown", "code")]
    for name, shown in {"notebooks/ctl": "[m](../method.md)", "speed": link}.items():
        source = [json.dumps({"cells": cells})]
        extension("captions")._pages_beside(None, name, source)
        text, code = ("".join(cell["source"]) for cell in json.loads(source[0])["cells"])
        assert text == shown
        assert code == link  # by its code the cache of outputs knows a chapter


def test_a_folded_figure_says_what_its_caption_says_on_this_page(extension):
    caption = nodes.caption("", "The sum of another model falls. Dashed: the pre-trained model.")
    figure, fold = nodes.figure("", caption), extension("captions")._fold
    for before, after in {
        "Figure: The sum rises.": "Figure: The sum of another model falls.",
        "Show source": "Show source",
    }.items():
        cell = nodes.container(prompt_show=before)
        fold(cell, figure)
        assert cell["prompt_show"] == after


def test_links_of_computed_sentences_lead_to_pages_on_the_site_alone(monkeypatch):
    link = "See [m](../book/method.md) and [chapter 1](tangent.ipynb)."
    assert words.say(link).data == link
    monkeypatch.setenv("TASKLAB_SITE", "1")
    shown = words.say(link).data
    assert shown == "See [m](../method.md) and [chapter 1](tangent.ipynb)."
    told = nbformat.v4.new_output("display_data", {"text/markdown": shown})
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[told])])
    (cell,) = outputs.in_jupyterlab(book, "ctl").cells
    assert cell.outputs[0].data["text/markdown"] == link
