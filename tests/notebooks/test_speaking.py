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
NO_PICTURE = "<svg><!-- not written --></svg>"
# What each kernel does first: figures are laid out and drawn in both widths, but no picture is
# written, which takes longer than all else.
UNWRITTEN = f"""
from tasklab.evidence.figures import forest_plot, narrow, pictures, style
def for_site(figure, **_):
    with pictures.laid_out(figure):
        figure.draw_without_rendering()
    told = pictures.described(figure)
    if not hasattr(figure, "links"):
        narrow.narrow(figure).draw_without_rendering()
    return {{"text/plain": told, "image/svg+xml": {NO_PICTURE!r}, "image/png": "iVBORw0KGgo="}}
forest_plot.for_site = style.for_site = for_site
"""
FEW_PICTURES = """
from tasklab.tasks import small
small.PER_CLASS.update(train=8, test=4)
small._CHUNK = 100
"""  # of each class, for networks from scratch


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
def test_a_run_speaks_of_what_it_ran(chapter, parameters, rehearsal, chapters_store, shared,
                                     tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.setenv(summary.FILE, str(tmp_path / "summary.json"))
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    other = "model" in parameters  # else the rehearsal has trained it already
    (startup / "first.py").write_text(UNWRITTEN + FEW_PICTURES * other)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    store = shared / "spoken" if other else chapters_store
    given = {**parameters, "steps": 2, "store_root": str(store)}
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
    shown = [one.get("data", {}) for cell in run["cells"] for one in cell.get("outputs", ())]
    assert {one["image/svg+xml"] for one in shown if "image/svg+xml" in one} == {NO_PICTURE}
