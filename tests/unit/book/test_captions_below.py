"""Captions below figures, from the metadata of their cells."""

import types

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest

from tasklab.book import captions
from tasklab.book.captions import caption, sample
from tasklab.evidence import figures
from tasklab.evidence.records import tidy
from tasklab.evidence.records.table import nothing
from tests.rows import single as records


def test_a_caption_tells_its_sample_and_spread():
    table = tidy(records())
    text = caption("fig-a", "Accuracy $a$.", table, kind="live").data
    assert text == (
        "<!-- caption fig-a -->\n\n**Figure.** Accuracy $a$. "
        "*Live: one seed, two tasks, 500 test images of each.*"
    )
    assert caption("fig-a", "A toy.").data.endswith("**Figure.** A toy.")
    without = caption("fig-a", "A toy.", table, kind="recorded", counts=False).data
    assert without.endswith("A toy. *Recorded.*")
    told = "Dots are seeds, bars their standard deviation, dashed 1; bands are standard deviations."
    one, two = (caption("fig-a", told, tidy(records(range(n)))).data for n in (1, 2))
    assert "Dots are seeds, dashed 1. *one seed, two tasks" in one
    assert f"{told} *two seeds, two tasks" in two
    told = "Sums win. Bars: standard deviation over seeds; dashed: $a$. Bars: standard deviations."
    one = caption("fig-a", told, tidy(records())).data
    assert "**Figure.** Sums win. Dashed: $a$. *one seed" in one


def test_a_caption_of_a_run_on_texts_has_no_images():
    told, texts = "Sums win. Dashed, the model on test images.", {"suite": "wordnet"}
    table = tidy({**row, **texts} for row in records())
    text = caption("fig-a", told, table, kind="live", live=True).data
    assert "**Figure.** Dashed, the model on test texts. *Live" in text
    images = caption("fig-a", told, tidy(records()), kind="live", live=True).data
    assert "on test images. *Live" in images


def test_a_sample_names_what_differs():
    table = tidy(
        records(seeds=range(3))
        + records(method="linearized", n=1200)
        + records(seeds=range(7), method="pretrained")
    )
    assert sample(table) == "one to three seeds, two tasks, 500 to 1,200 test images of each"
    pairs = tidy(records(tasks=["Signs+Scenes", "Signs+Digits"]))
    assert sample(pairs).startswith("one seed, two pairs of tasks")
    assert sample(tidy(records(tasks=["Signs"]))) == "one seed, 500 test images"
    # Inits have seeds of their own; models that are compared are no tasks; costs have rounds.
    inits = tidy(records(range(3)) + [{**r, "init": "random"} for r in records(range(2))])
    assert sample(inits).startswith("two or three seeds, two tasks, ")
    gap = {"experiment": "theorem", "metric": "delta", "one": "short", "other": "long"}
    pairs = tidy({**row, **gap} for row in records(tasks=["Signs"]))
    assert sample(pairs) == "one seed, 500 test images"
    cosines = {"experiment": "cosines", "metric": "cosine", "other": "Places", "n": None}
    assert sample(tidy({**row, **cosines} for row in records())) == "one seed, three tasks"
    timed = {"experiment": "cost", "metric": "time_ratio", "variant": "ours", "n": 3}
    steps = tidy({**row, **timed} for row in records(tasks=["Signs"]))
    assert sample(steps) == "three rounds of timing"
    unseen = tidy({**row, "split": "validation", "n": 80} for row in records())
    assert sample(unseen) == "one seed, two tasks, 80 validation images of each"
    assert sample(pd.concat([unseen, tidy(records())])).endswith("500 test images of each")
    losses = pd.DataFrame({"method": "nonlinear", "task": ["a", "b"], "seed": [0, 1]})
    assert sample(losses) == "two seeds, two tasks"
    assert sample(pd.DataFrame({"value": [1.0]})) == ""
    assert sample(pd.DataFrame({"task": ["a", "b", "all"]})) == "two tasks"
    table = tidy(records() + records(tasks=["all"]) + records(tasks=["Signs+Scenes"]))
    assert sample(table).startswith("one seed, two tasks")


@pytest.mark.parametrize(
    ("suites", "noun"),
    [(["mini_text"] * 2, "texts"), (["mini"] * 2, "images"), (["mini", "mini_text"], "examples")],
)
def test_a_sample_of_texts_says_so(suites, noun):
    rows = pd.DataFrame({"suite": suites, "split": "test", "n": [30, 40]})
    assert sample(rows) == f"30 to 40 test {noun}"


def test_what_is_not_drawn_is_awaited():
    told = caption("fig-a", "A.", drawn=False).data
    assert told == "<!-- awaited fig-a -->\n\n*Not recorded yet.*"
    table = tidy(records())
    words = "Sums win (the paper's figure 2). A dot is a task."
    here = caption("fig-a", words, table, kind="live", live=True).data  # the message is of others
    assert "**Figure.** A dot is a task. *Live:" in here and "win" not in here
    here = caption("fig-a", words, table, kind="live", live=True, about="Accuracies.").data
    assert "**Figure.** Accuracies. A dot is a task. *Live:" in here
    recorded = caption("fig-a", words, table, kind="recorded", live=True).data
    assert "**Figure.** *Recorded of `mini`:* Sums win" in recorded
    rows = records() + [
        {**row, "experiment": "addition", "metric": "absolute", "n_tasks": 2}
        for row in records(range(3))
    ]
    told = caption("fig-a", "A.", tidy(rows), experiment="addition").data
    assert "*three seeds, two tasks" in told


@figures.book_figure
def dots(rows):
    figure = plt.figure()
    figure.subplots().plot(rows["value"])
    return figure


@pytest.fixture
def run(tmp_path, monkeypatch):
    cell = nbformat.v4.new_code_cell("dots(rows)", id="one")
    cell.metadata["tasklab"] = {"figure": "fig-dots", "caption": "Dots are even.", "kind": "live"}
    path = tmp_path / "chapter.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    captions.follow(path)
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda one: shown.append(one.data))

    def ended(code, name=None, *, result=None, success=True):
        shown.clear()
        info = types.SimpleNamespace(raw_cell=code, cell_id=name)
        captions._below(types.SimpleNamespace(info=info, result=result, success=success))
        return "".join(shown)

    return ended


def test_a_cell_s_caption_appears_below_its_figure(run):
    figure = dots(tidy(records()))
    told = run("dots(rows)", result=figure)
    assert told.startswith("<!-- caption fig-dots -->") and "*Live: one seed, two tasks" in told
    assert run("dots(rows)  # changed", "one", result=figure) == told  # JupyterLab gives the name
    assert run("dots(others)", "two", result=figure) == ""
    assert run("dots(rows)", success=False) == ""
    assert run("dots(rows)", result=dots(nothing())).startswith("<!-- awaited fig-dots -->")


def test_the_open_copy_s_captions_go_first(run, tmp_path, monkeypatch):
    text = (tmp_path / "chapter.ipynb").read_text().replace("Dots are even.", "Mine.")
    (tmp_path / "copy.ipynb").write_text(text)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "copy.ipynb"))
    captions.follow(tmp_path / "chapter.ipynb")
    assert "Mine." in run("dots(rows)", result=dots(tidy(records())))
