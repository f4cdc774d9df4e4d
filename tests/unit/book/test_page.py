"""Captions, sentences and code as Markdown that is computed."""

import base64
import io
import re
from types import SimpleNamespace

import IPython.display
import pandas as pd
import pytest

from tasklab import page
from tasklab.bench.parameters import Parameters
from tasklab.book import captions, speaking
from tasklab.evidence import experiments, figures
from tasklab.evidence.records import combine, tidy, verdicts
from tasklab.evidence.records.statements import verdict_rows
from tasklab.evidence.records.table import nothing
from tests.helpers import refuses
from tests.rows import single as records


def documented(x):
    """Say something.

    in several lines.
    """
    return x + 1


@pytest.mark.parametrize("function", [documented, page.word])
def test_source_is_the_functions_own_without_its_docstring(function):
    text = page.source(function).data
    assert text.startswith("```python\n# tests/") or text.startswith(
        "```python\n# tasklab/evidence/study/numbers.py"
    )
    assert f"def {function.__name__}(" in text and '"""' not in text
    assert "    return" in text and text.endswith("\n```")


def test_order_signs_and_what_is_awaited():
    assert page.order(pd.Series({"a": 1.0, "b": 2.0})) == "b 2.0, a 1.0"
    assert "`python -m tasklab record merging --all`" in page.awaited(nothing(), "merging").data
    assert page.awaited(tidy(records()), "merging") is None
    for given in ([nothing()], [tidy(records()), nothing()]):  # one is enough
        assert page.once_recorded(pytest.fail, *given).data == "*Not recorded yet.*"
    assert page.once_recorded(lambda *given: len(given), tidy(records()), tidy(records())) == 2
    assert page.say("  ") is None
    text = page.say("From -0.5 (-3) to [-1, 2]: 10-20, `-1`, $10^{-5}$, mini-2.").data
    assert text == "From −0.5 (−3) to [−1, 2]: 10-20, `-1`, $10^{-5}$, mini-2."
    assert "x = -1" in page.source(with_a_negative_number).data


def test_an_answer_is_folded_where_its_cell_is_not(monkeypatch):
    folded = "<details><summary>Answer</summary>\n\nTwo: $x$.\n\n</details>"
    assert page.answer("Two: $x$.").data == folded
    monkeypatch.setenv("TASKLAB_SITE", "1")
    assert page.answer("Two: $x$.").data == "Two: $x$."


def test_a_chapter_opens_with_what_is_studied_and_a_style_for_dark_themes():
    class Studied(Chosen):
        chapter, family = "tangent", {"small": "mini_s"}

        def __repr__(self):
            return "<mini> on 2 tasks"

        def provenance(self):
            return {"utc": "2026-11-22 07:00:00"}

    shown, told = page.opened(Studied("all"))._repr_mimebundle_()
    assert told == {captions.KEY: {"utc": "2026-11-22 07:00:00"}}  # for the page of executions
    assert shown["text/plain"].startswith("<mini> on 2 tasks\nfigures and tables: computed here")
    (recorded, _), start = page.opened(Studied("example"))._repr_mimebundle_(), "results: recorded"
    assert recorded["text/plain"].splitlines()[1].startswith(start)
    assert "&lt;mini&gt; on 2 tasks\n" in shown["text/html"]
    style = shown["text/html"].partition("</style>")[0]
    assert '[data-jp-theme-light="false"]' in style and ".tasklab-opened" in style


def with_a_negative_number():
    x = -1
    return x


def test_findings_are_those_of_a_section():
    judged = verdicts(full_records(), "tangent", model="mini")
    told = page.findings(judged, "do-the-vectors-add").data
    assert re.search(">holds .*</a> Linearized fine-tuning adds better: \\+10.0 points", told)
    assert 'verdicts.md#verdict-tangent-adds"' in told
    assert "own task" not in told  # another section's
    refuses("did you mean 'do-the-vectors-add'", page.findings, judged, "do-vectors-add")
    alone = verdicts(full_records().query("seed == 0"), "tangent", model="mini")
    told = page.findings(alone, "do-the-vectors-add").data
    assert re.search(">open</a>.* Linearized fine-tuning adds better: .10.0 points, one seed", told)


def test_a_long_table_is_a_file():
    rows = pd.DataFrame({"merge": ["TIES", "sum"], "accuracy (%)": [74.512345678, 76.4]})
    told = page.as_csv(rows, "merges").data
    name, coded = re.search('download="([^"]+)" href="data:text/csv;base64,([^"]+)"', told).groups()
    back = pd.read_csv(io.BytesIO(base64.b64decode(coded)))
    assert name == "merges.csv" and back.equals(rows.round(4)) and "2 rows" in told
    assert page.as_csv(rows.iloc[:0], "merges").data == "*Not recorded yet.*"


@pytest.mark.parametrize(("kind", "named"), [("recorded", True), ("live", False)])
def test_on_the_page_of_a_run_files_and_folds_of_records_name_their_model(kind, named):
    rows = pd.DataFrame({"merge": ["TIES"], "accuracy (%)": [74.5]})
    table, at = figures.table(rows), "Recorded of"
    assert at not in page.as_csv(rows, "merges").data + page.folded(table, "Merges").data
    assert at not in page.say("A word.").data + page.answer("A word.").data
    speaking.begin(Chosen("all"))
    try:
        shown = page.folded(table, "Merges", kind=kind).data
        assert shown.startswith("<details") and "74.5" in shown.partition("</summary>")[2]
        assert (at in shown, at in page.as_csv(rows, "merges", kind=kind).data) == (named, named)
        told = page.say("A word.", kind=kind).data, page.answer("A word.", kind=kind).data
        assert [at in one for one in told] == [named, named]
    finally:
        speaking.close()
    assert page.folded(None, "Merges") is None  # nothing is recorded


def test_sentences_of_a_run_are_made_anew_when_records_come_and_at_its_end(monkeypatch):
    made, shown = [], []
    handle = SimpleNamespace(update=lambda text: shown.append(text.data))
    shell = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
    monkeypatch.setattr(speaking, "_shell", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: handle)
    opened = speaking.begin(Chosen("all"))

    def told():
        made.append(len(opened.tables))
        return f"Of {made[-1]}." if made[-1] else ""

    try:
        speaking.stand(told)
        speaking.refresh()  # nothing has come
        assert made == [0] and not shown
        speaking.note(tidy(records()))
        speaking.refresh(), speaking.refresh()
        assert made == [0, 1] and shown == ["Of 1."]
        speaking.end()
        speaking.stand(lambda: "")  # after the end: it is said that there is no answer
        speaking.refresh(), speaking.refresh()
        assert made == [0, 1, 1] and len(shown) == 2 and "does not test" in shown[1]
    finally:
        speaking.close()


def test_verdicts_that_survive_are_counted_and_linked(monkeypatch):
    judged = verdicts(full_records(), "tangent", model="mini")
    told = page.verdicts(judged, "tangent").data
    rows = verdict_rows(judged, cells=False).query("setting == 'chosen'")
    kept = (rows["survives"] != "").sum()
    assert f"{kept} of the chapter's {len(rows)} " in told
    assert 'href="../book/verdicts.md?paper=Tangent%20space"' in told
    monkeypatch.setenv("TASKLAB_SITE", "1")
    assert "../verdicts.html?paper=Tangent%20space" in page.verdicts(judged, "tangent").data


class Chosen:
    """A lab, as far as `page.results` looks at one."""

    def __init__(self, live):
        self.parameters = Parameters(live=live)


def test_results_are_recorded_or_of_a_run():
    rows = tidy([
        *records(method="nonlinear"), *records(method="attention"), *records(method="pretrained"),
        *({**row, "experiment": "addition", "metric": "absolute"} for row in records()),
    ])  # fmt: skip
    shown = page.results(Chosen("example"), rows, experiments.single, ["nonlinear"])
    assert {*shown["method"]} == {"nonlinear", "pretrained"}
    assert {*shown["experiment"]} == {"single"}
    assert captions.caption("fig-a", "A.", shown).data.endswith("500 test images of each.*")
    assert "*Recorded: one seed" in captions.caption("fig-a", "A.", shown).data
    asked = []

    def run(lab, methods, **options):
        asked.append((lab.parameters.live, methods, options))
        return rows

    here = page.results(Chosen("all"), nothing(), run, ["nonlinear"], reach=2.0)
    assert asked == [("all", ["nonlinear"], {"reach": 2.0})] and len(here) == len(rows)
    assert "*Live: one seed" in captions.caption("fig-a", "A.", combine(here, here)).data
    assert "kind" not in rows.attrs  # the table itself is as it was
    assert len(page.results(Chosen("example"), rows, lambda lab: nothing())) == len(rows)


def full_records():
    rows = []
    for method, value in {"pretrained": 40.0, "nonlinear": 50.0, "linearized": 60.0}.items():
        for experiment, metric in (("single", "single"), ("addition", "absolute")):
            common = {"experiment": experiment, "metric": metric, "value": value}
            common |= {"n_tasks": 8} if experiment == "addition" else {}
            rows += [{**row, **common} for row in records(range(3), method=method)]
    return tidy(rows)


def test_origin_has_both_sides():
    class Here:
        def provenance(self):
            return {"utc": "2026-11-22 07:00:00", "machine": {"cpu": "a", "gpu": None}}

    told = page.origin({"utc": "2026-11-01 00:00:00"}, Here()).to_html()
    row = told.split(">utc</th>")[1].split("</tr>")[0]
    assert row.index("2026-11-01") < row.index("2026-11-22") and "machine: cpu" in told
