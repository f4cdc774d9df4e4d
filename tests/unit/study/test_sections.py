"""Answers of sections: chosen by the verdict on the records, for any model."""

import pandas as pd
import pytest

from tasklab.evidence.records import tidy
from tasklab.evidence.study import chips, sections
from tasklab.storage.store import Store
from tests.helpers import refuses
from tests.rows import single as records

ADD = "do-the-vectors-add"


def sums(values, seeds=3, model="vitl14", init="pretrained", n_tasks=2):
    """Return accuracies of single models and of sums, by method."""
    rows = []
    for method, value in values.items():
        for seed in range(seeds):
            common = {"seed": seed, "model": model, "init": init}
            for row in records([seed], method=method):
                rows.append({**row, **common, "value": value + 0.1 * seed})
                if method != "pretrained":
                    more = {"experiment": "addition", "n_tasks": n_tasks, "alpha": 0.3}
                    for metric, x in (("absolute", value), ("normalised", value - 1)):
                        rows.append({**row, **common, **more, "metric": metric, "value": x})
    return tidy(rows)


@pytest.mark.parametrize(
    ("linearized", "begins"),
    [
        (80.0, "**Linearized vectors add better.**"),
        (60.0, "**Linearized vectors do not add better.**"),
    ],
)
def test_the_verdict_chooses_the_sentence(linearized, begins):
    values = {"pretrained": 40.0, "nonlinear": 70.0, "linearized": linearized}
    found = sections.of_run("tangent", [sums(values)], "vitl14")
    text = found.answer(ADD)
    assert text.startswith(begins) and f"sum of two linearized vectors scores {linearized}" in text
    assert "mini" not in text and "`vitl14`" in found.found(worlds=False)
    line = sections.line("tangent-adds", found, worlds=False)
    assert line.endswith(" · paper +3.4 (<code>vitl14</code>)")


def test_one_seed_decides_nothing_and_a_rehearsal_means_nothing():
    values = {"pretrained": 40.0, "nonlinear": 70.0, "linearized": 80.0}
    table = sums(values, seeds=1)
    text = sections.of_run("tangent", [table], "vitl14").answer(ADD)
    assert text.startswith("**Whether linearized vectors add better is open.**")
    assert text.endswith("*One seed of fine-tuning cannot decide this.*")
    few = sections.of_run("tangent", [table], "vitl14")
    told = "- On `vitl14` one seed of fine-tuning leaves both statements open."
    assert few.tested == 2 and few.weaknesses() == told
    text = sections.of_run("tangent", [table], "vitl14", steps=2).answer(ADD)
    assert text.endswith("*A rehearsal of 2 steps: these numbers mean nothing.*")


def test_numbers_that_no_statement_tests_are_few_or_a_rehearsal(monkeypatch):
    table = sums({"pretrained": 40.0, "nonlinear": 70.0, "linearized": 80.0}, seeds=1)
    monkeypatch.setattr(sections.Evidence, "_row", lambda *_: None)
    ends = {None: "*These records are too few for a verdict.*", 2: "these numbers mean nothing.*"}
    for steps, end in ends.items():
        text = sections.of_run("tangent", [table], "vitl14", steps=steps).answer(ADD)
        assert text.startswith("**Whether linearized vectors add better is open.**")
        assert text.endswith(end) and text.count("*These") + text.count("*A rehearsal") == 1


def test_what_was_not_run_is_not_answered():
    empty = sections.of_run("tangent", [], "vitl14")
    assert empty.answer(ADD) == empty.found(worlds=False) == empty.weaknesses() == ""
    assert empty.tested == 0
    table = sums({"pretrained": 40.0, "nonlinear": 70.0})
    assert sections.of_run("tangent", [table], "vitl14").answer(ADD) == ""
    refuses("did you mean 'do-the-vectors-add'", empty.answer, "do-vectors-add")


def test_random_weights_are_judged_as_the_models_own():
    values = {"pretrained": 10.0, "nonlinear": 70.0, "linearized": 60.0}
    found = sections.of_run("tangent", [sums(values, init="random")], "vitl14", init="random")
    assert found.name == "vitl14 (random weights)"
    assert found.answer(ADD).startswith("**Linearized vectors do not add better.**")
    assert "these statements fail: Linearized fine-tuning adds better" in found.weaknesses()


def test_effects_print_their_interval_and_what_was_drawn():
    row = {"here": "", "outcome": "holds", "unit": "points", "n_seeds": 3}
    row |= {"effect": 2.04, "low": 1.0, "high": 3.0}
    assert chips.effect(row) == "+2.0 points (1.0 to 3.0 over seeds)"
    assert chips.effect(row, interval=False) == "+2.0 points"
    general = row | {"here": "holds", "here_effect": 2.04, "here_low": 1.5, "here_high": 2.5}
    assert chips.effect(general) == "+2.0 points (1.0 to 3.0 over seeds and tasks)"
    few = general | {"outcome": "undecided"}
    assert chips.effect(few) == "+2.0 points (1.5 to 2.5 over seeds)"
    assert chips.verdict_word(few) == "holds here"
    assert chips.verdict_word(general) == "holds for new tasks"
    small = row | {"unit": "", "effect": -0.0123, "low": -0.02, "high": -0.0046}
    assert chips.effect(small) == "−0.0123 (−0.0200 to −0.0046 over seeds)"


def test_each_section_is_a_heading_whose_statement_exists(root):
    import json
    import re

    from tasklab.evidence.chapters import CHAPTERS
    from tasklab.evidence.records.claims import CLAIMS
    from tasklab.evidence.records.statements import anchor

    known = {one.entry for one in CLAIMS}
    for chapter in CHAPTERS:
        cells = json.loads((root / "notebooks" / f"{chapter}.ipynb").read_text("utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        places = {anchor(one) for one in re.findall(r"^## (.+)$", text, re.M)}
        asked = re.findall(r'page\.answered\("([^"]+)"\)', text)
        assert {*sections._SECTIONS[chapter]} == {*asked} and {*asked} <= places
        assert {sections.statement_of(chapter, name) for name in asked} <= known


def test_a_statement_with_different_outcomes_in_worlds_is_marked(monkeypatch):
    values = {"pretrained": 40.0, "nonlinear": 70.0}
    better, worse = (
        sections.of_run("tangent", [sums({**values, "linearized": x})], "vitl14") for x in (80, 60)
    )
    monkeypatch.setattr(sections, "recorded_worlds", lambda chapter: {"mini": "synthetic"})
    for other, differ in ((better, False), (worse, True)):
        monkeypatch.setattr(sections, "of_records", lambda *_, other=other: other)
        assert better.differs("tangent-adds") is differ
        text = better.marks("tangent-adds", worlds=True)
        assert (">by world</a>" in text) is differ and text.count("title=") == 1 + differ
        assert "by world" not in better.marks("tangent-adds", worlds=False)


def test_what_fails_is_the_claim_and_not_the_sentence_before():
    values = {"pretrained": 40.0, "nonlinear": 70.0, "linearized": 60.0}
    failed = sections.of_run("tangent", [sums(values)], "vitl14")
    text = failed.found(worlds=False)
    assert "do not add better" in text and ">claim fails" in text
    assert ">fails" in failed.marks("tangent-adds", worlds=False)  # beside the statement


def test_recorded_evidence_is_read_once_in_a_process_and_store(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(sections, "judged", lambda chapter, **_: read.append(chapter) or [])
    monkeypatch.setattr(sections, "section_numbers", lambda *_: {})
    one, other = (Store(tmp_path / name) for name in "ab")
    found = sections.of_records("ctl", store=one)
    assert sections.of_records("ctl", store=one) is found and read == ["ctl"]
    assert sections.of_records("ctl", store=other) is not found
    assert sections.of_records("ctl", "icons", store=one).model == "icons"
    assert len(read) == 3


def test_statements_that_are_not_about_new_tasks_do_not_count_for_them():
    table = pd.DataFrame(
        {"outcome": ["holds", "holds", "undecided"], "here": ["", "holds", "holds"]}
    )
    told = {"of both kinds": table, "of these tasks": table[:1], "open": table[2:].assign(here="")}
    counts = {}
    for name, rows in told.items():
        found = sections.Evidence(chapter="ctl", model="mini", name="mini", verdicts=(), numbers={})
        found.__dict__["rows"] = rows
        counts[name] = found.counted()
    assert counts == {
        "of both kinds": "3 statements tested: 3 hold on these tasks, 1 also for new tasks.",
        "of these tasks": "1 statement tested: 1 holds on these tasks; "
        "none is judged for new tasks.",
        "open": "1 statement tested: none is decided for the claim.",
    }
