"""The table at the end of a run, and the files beside its output."""

import json

from tasklab.book import captions, summary

ROW = {
    "statement": "tangent-adds", "short": "Linearized <b> adds", "unit": "points",
    "this": {"outcome": "open", "effect": 1.25, "low": None, "high": None, "over": "seeds",
             "seeds": 1},
    "paper": {"vitb32": 5.1},
    "worlds": {"mini": {"outcome": "holds here", "effect": 3.9, "low": 2.5, "high": 5.2,
                        "over": "seeds"}},
}  # fmt: skip


def test_the_table_has_the_run_the_paper_and_the_worlds():
    made = summary.Summary("tangent", "vitl14", None, [ROW])
    text = made.to_html()
    assert "<code>vitl14</code> against the paper" in text and "Linearized &lt;b&gt; adds" in text
    assert "<td>+1.2 points, one seed</td><td>open</td>" in text
    assert "+5.1 <code>vitb32</code>" in text
    assert "+3.9 points (2.5 to 5.2 over seeds)<br>holds here" in text
    assert "tests none" in summary.Summary("tangent", "vitl14", 2, []).to_html()


def test_an_effect_that_is_undefined_is_no_number_in_json():
    from tasklab.evidence.study import sections

    nan = float("nan")
    row = {"outcome": "undecided", "here": "", "unit": "", "n_seeds": 1}
    told = sections._short(row | {"effect": nan, "low": nan, "high": nan})
    json.dumps(told, allow_nan=False)  # a kernel sends nothing else without a warning
    shown = summary.Summary("ctl", "vitl14", 2, [ROW | {"this": told | {"seeds": 1}}])
    assert "<td>undefined, one seed</td>" in shown.to_html()


def test_it_is_found_in_an_executed_notebook_and_written(tmp_path):
    made = summary.Summary("tangent", "vitl14", 2, [ROW])
    data, told = made._repr_mimebundle_()
    assert data["text/plain"] == "Linearized <b> adds: +1.2 points, one seed"
    output = {"output_type": "execute_result", "data": data, "metadata": told}
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": [output]}]
    found = summary.of_notebook({"cells": json.loads(json.dumps(cells))})
    assert found == made and set(told) == {captions.KEY}
    assert summary.of_notebook({"cells": cells[:1]}) is None
    made.write(tmp_path / "tangent.summary.json")
    back = json.loads((tmp_path / "tangent.summary.json").read_text())
    assert back["model"] == "vitl14" and back["rows"][0]["paper"] == {"vitb32": 5.1}
    page = summary.page([made, made])
    assert page.count("<h2>tangent</h2>") == 2 and "<title>vitl14 against the papers" in page
