"""What the table of times compares gives the same numbers both ways, on a few images."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest


@pytest.fixture
def scripts(script):
    return tuple(map(script, ("bench", "compared", "chapters")))


def test_every_figure_agrees_and_is_a_row(scripts, tmp_path):
    bench, compared, _ = scripts
    few = {"step": 4, "steps": 2, "photos": 24, "images": 8, "features": 2}
    size = compared.Size(**few, tasks=2, points=2, alphas=1)
    rows = [
        bench.measured(figure, 1, bench.time.process_time)
        for figure in compared.Bench("mini_xs", size).figures(tmp_path)
    ]
    names = " | ".join(row["figure"] for row in rows)
    for told in (
        "steps, nonlinear",
        "steps, attention",
        "photos for training",
        "photos for evaluation",
        "sweep",
        "map",
        "linearity",
    ):
        assert told in names
    assert all(row["ours_s"] > 0 and row["papers_s"] > 0 for row in rows)
    assert all("difference" in row for row in rows if "bfloat16" in row["figure"])
    step = compared.Bench("mini_xs", size).step(2)
    assert step["ratio"] == pytest.approx(step["papers_s"] / step["ours_s"])


def test_a_disagreement_is_an_error(scripts):
    bench, compared, _ = scripts
    wrong = compared.Figure(name="x", ours=lambda: 1, theirs=lambda: 2, check=int.__eq__)
    with pytest.raises(SystemExit, match="disagree"):
        bench.measured(wrong, 1, bench.time.process_time)


def test_a_whole_measurement_replaces_a_models_rows_and_a_part_only_its_own(
    scripts, tmp_path, monkeypatch
):
    bench, compared, _ = scripts
    out = tmp_path / "bench.json"
    old = [{"model": "mini", "figure": "gone"}, {"model": "vitb32", "figure": "stays"}]
    out.write_text(json.dumps({"rows": old, "provenance": {}}))
    figure = compared.Figure(
        name="sweep", ours=lambda: 1, theirs=lambda: 1, check=lambda a, b: a == b
    )
    monkeypatch.setattr(bench, "Bench", lambda *_: _Few(figure))
    row = {"figure": "step", "ours_s": 1.0, "papers_s": 2.0, "ratio": 2.0}
    monkeypatch.setattr(_Few, "step", lambda self, rounds: row, raising=False)

    def written(*words):
        monkeypatch.setattr(sys, "argv", ["bench", "--models", "mini", "--out", str(out), *words])
        bench.main()
        return [(row["model"], row["figure"]) for row in json.loads(out.read_text())["rows"]]

    kept = [("mini", "gone"), ("vitb32", "stays"), ("mini", "sweep")]
    assert written("--only", "sweep") == kept
    assert written() == [("vitb32", "stays"), ("mini", "step"), ("mini", "sweep")]


class _Few:
    def __init__(self, figure):
        self.figure = figure

    def figures(self, folder):
        yield self.figure


def test_what_a_cell_adds_to_the_store_is_told_by_kind_of_work(scripts, tmp_path):
    _, _, chapters = scripts
    store, seen = chapters.Store(tmp_path), set()
    store.get("finetune", {"run": 1}, lambda _: ({}, {}))
    assert set(chapters.added(store, seen)) == {"fine-tuning"}
    store.get("records", {"of": 1}, lambda _: ({}, {"rows": []}))
    assert set(chapters.added(store, seen)) == {"measuring"}
    assert chapters.added(store, seen) == {}
    assert chapters.headed("## One\ntext\n### Two\n") == "Two" and chapters.headed("# No") == ""


def test_the_page_rounds_no_time_to_nothing(monkeypatch):
    """Its first cell, with the numbers that ship."""
    text = (Path(__file__).parents[2] / "book" / "speed.md").read_text("utf-8")
    cell = text.split(":tags: [remove-input]")[1].partition("```")[0]
    tables = []
    monkeypatch.setattr("IPython.display.display", lambda table: tables.append(table.to_html()))
    names = {}
    exec(cell, names)
    cells = re.findall(r"<td[^>]*>([\d,.]+)</td>", " ".join(tables))
    assert len(cells) == 3 * len(names["rows"])
    assert all(float(one.replace(",", "")) > 0 for one in cells)
    rounded = {1434.7: "1,430", 21.01: "21.0", 0.001678: "0.00168", 615.0: "615"}
    assert [names["three_digits"](one) for one in rounded] == list(rounded.values())
