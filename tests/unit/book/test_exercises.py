"""Exercises of notebooks, which the site shows in the form of `sphinx-exercise`."""

import json


def test_a_question_and_its_answer_become_directives(extension):
    answer = {"cell_type": "code", "metadata": {"tags": ["hide-cell"]}, "source": "page.answer(x)"}
    asked = {
        "cell_type": "markdown",
        "metadata": {},
        "source": ["## Exercises\n", "\n", "**1.** Why?"],
    }
    other = {"cell_type": "code", "metadata": {}, "source": "1"}
    source = [json.dumps({"cells": [other, asked, answer]})]
    extension("exercises")._directives(None, "notebooks/ctl_more", source)
    cells = json.loads(source[0])["cells"]
    assert [cell["source"] for cell in cells] == [
        "1",
        "## Exercises\n\n:::{exercise}\n:label: ctl-more-1\n\nWhy?\n:::\n",
        ":::{solution-start} ctl-more-1\n:label: ctl-more-1-answer\n:class: dropdown\n:::\n",
        "page.answer(x)",
        ":::{solution-end}\n:::\n",
    ]
    assert cells[3]["metadata"] == answer["metadata"]  # by which its outputs are found
    page = ["**1.** A list of a page"]
    extension("exercises")._directives(None, "method", page)
    assert page == ["**1.** A list of a page"]
