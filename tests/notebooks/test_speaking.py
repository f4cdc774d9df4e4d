"""A chapter that is run with another model says nothing of `mini` without its name."""

import re
from pathlib import Path

import nbformat
import pytest

from tasklab.book import execution, summary

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMED = re.compile(r"`mini`|<code>mini</code>|a small ResNet")
NUMBER = re.compile(r"\d\.\d")
READS = re.compile(r"\b(lab|recorded|records|study)\b")  # a cell that does not is about no model


def outputs(notebook):
    """Return the sentences that each code cell shows, by the cell's source."""
    found = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            shown = [one.get("data", {}).get("text/markdown", "") for one in cell["outputs"]]
            found[cell["source"]] = [one for one in shown if one]
    return found


def sentences(text):
    return {one.strip(" *.-\n") for one in re.split(r"(?<=[.:;])\s+|\n\n", text)} - {""}


def unnamed(run, recorded):
    """Return what a run's page says as the recorded one does, without a model's name."""
    there = outputs(recorded)
    every = {one for texts in there.values() for text in texts for one in sentences(text)}
    messages = {
        re.split(r"(?<=[.:])\s", cell["metadata"]["tasklab"]["caption"])[0]
        for cell in recorded["cells"]
        if "caption" in cell["metadata"].get("tasklab", {})
        and cell["metadata"]["tasklab"].get("kind") != "live"
    }
    found = []
    for source, texts in outputs(run).items():
        if "page.answer(" in source and not READS.search(source):
            continue  # arithmetic of an exercise
        for text in texts:
            if NAMED.search(text) or "<svg" in text or text.startswith("<details class"):
                continue
            found += [text] * (text in there.get(source, ()))  # a sentence as it stands there
            # a single number may be the same by chance, as that of a step's cost
            found += [one for one in sentences(text) & every if len(NUMBER.findall(one)) > 1]
            found += [one for one in messages if one in text and "caption" in text]
    return found


def _cell(text, source="page.say()", **metadata):
    output = {"output_type": "display_data", "data": {"text/markdown": text}}
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [output]}


def test_a_sentence_of_the_recorded_page_needs_a_name():
    recorded = {"cells": [_cell("The sum scores 76.4 %, not 55.8 %. It is the best.")]}
    assert unnamed({"cells": [_cell("A word. The sum scores 76.4 %, not 55.8 %.")]}, recorded)
    assert unnamed(recorded, recorded)
    assert not unnamed({"cells": [_cell("*Recorded of `mini`:* The sum scores 76.4 %.")]}, recorded)
    about = {code: {"cells": [_cell("1.5 + 1.5 = 3.0", code)]} for code in
             ("page.answer(f'{1.5 + 1.5}')", "page.answer(f'{lab.n}')")}  # fmt: skip
    assert [bool(unnamed(one, one)) for one in about.values()] == [False, True]
    drawn = {"tasklab": {"caption": "Sums win. Dots are seeds."}}
    shown = _cell("<!-- caption a -->\n\n**Figure.** Sums win. Dots are seeds. *Live.*", **drawn)
    recorded = {"cells": [_cell("<!-- caption a --> Recorded", **drawn)]}
    assert unnamed({"cells": [shown]}, recorded) == ["Sums win."]


@pytest.mark.parametrize(
    ("chapter", "parameters"),
    [
        ("ctl", {"model": "mini_xs"}),
        pytest.param("tangent", {"model": "icons_s"}, marks=pytest.mark.slow),
        pytest.param("merging", {"model": "mini_xs"}, marks=pytest.mark.slow),
        pytest.param("closed_vocab", {"live": "all"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_speaks_of_what_it_ran(chapter, parameters, rehearsal, chapters_store, tmp_path,
                                     monkeypatch):  # fmt: skip
    monkeypatch.setenv(summary.FILE, str(tmp_path / "summary.json"))
    given = {**parameters, "steps": 2, "store_root": str(chapters_store)}
    with (tmp_path / "log").open("w") as log:
        run = execution.execute(
            FOLDER / f"{chapter}.ipynb", tmp_path / "out.ipynb", parameters=given, log=log
        )
    recorded = nbformat.read(rehearsal / "book" / "_build" / "executed" / f"{chapter}.ipynb", 4)
    assert unnamed(run, recorded) == []
    told = [text for texts in outputs(run).values() for text in texts]
    assert any("in this run of" in text for text in told)  # *Found*
    assert not [text for text in told if text.startswith("*The answer follows")]
    found = summary.of_notebook(run)
    assert found is not None and found.rows and found.model.startswith(given.get("model", "mini"))
    assert (tmp_path / "summary.json").exists()
