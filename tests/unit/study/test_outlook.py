"""What a study has before it, and the command that records all of it."""

from dataclasses import replace

import pytest

from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.evidence.chapters import CHAPTERS, Work
from tasklab.evidence.experiments import Lab
from tasklab.evidence.study import outlook, recording

SINGLE = {"single": {}}


@pytest.fixture
def small(tmp_path, monkeypatch):
    works = {
        "editing": (Work(("nonlinear", "posthoc"), SINGLE), Work(("linearized",), SINGLE, seeds=1)),
        "maps": (Work(("nonlinear",), SINGLE), Work(("nonlinear",), SINGLE, {"steps": 3})),
        "kernels": (Work((), {"localization": {}}),),
    }
    monkeypatch.setitem(CHAPTERS, "tangent", replace(CHAPTERS["tangent"], parts=works))
    return Parameters(
        model="mini_xs", preset="full", seeds=2, steps=2, store_root=tmp_path, device="cpu"
    )


def test_every_run_counts_once(small):
    order = [("tangent", part) for part in ("editing", "maps", "kernels")]
    before = outlook.outlook(small, order).set_index("part")
    # two seeds of eight tasks and one of the other method; then other steps; then nothing
    assert before["runs"].tolist() == [16 + 8, 16, 0]
    assert before["kept"].tolist() == [0, 0, 0]
    assert before["steps"].tolist() == [24 * 2, 16 * 3, 0]
    Lab(small, progress=False).tune("Signs", "nonlinear", 1)
    after = outlook.outlook(small, order).set_index("part")
    assert after["kept"].tolist() == [1, 0, 0] and after["steps"].tolist() == [23 * 2, 16 * 3, 0]
    told = outlook.describe(after.reset_index()).splitlines()
    assert len(told) == 4 and "24 runs,     1 in the store" in told[0]
    assert told[-1] == "40 runs, 1 of them in the store"


def test_rates_lengths_and_strengths_are_counted(small, monkeypatch):
    grid = {"budgets": {"rates": (1e-4, 3e-4), "lengths": (2, 5)}}
    monkeypatch.setitem(
        CHAPTERS["tangent"].parts, "editing", (Work(("nonlinear",), grid, seeds=1),)
    )
    table = outlook.outlook(small, [("tangent", "editing")])
    # two rates and the usual one of two steps, five steps of the usual one
    assert table["runs"].tolist() == [4 * 8] and table["steps"].tolist() == [(3 * 2 + 5) * 8]
    rates = {"merging_rates": {"rates": (1e-9, 1.0)}}  # one below the usual one, one above
    monkeypatch.setitem(
        CHAPTERS["tangent"].parts, "editing", (Work(("nonlinear",), rates, seeds=1),)
    )
    table = outlook.outlook(small, [("tangent", "editing")])
    assert table["runs"].tolist() == [2 * 8]
    strengths = {"penalty_strengths": {"factors": (1.0, 10.0)}}
    works = (Work(("ortho_reg",), strengths, seeds=1), Work(("ortho_reg", "nonlinear"), SINGLE))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", works)
    table = outlook.outlook(small, [("tangent", "editing")])
    assert table["runs"].tolist() == [3 * 8 + 2 * 8]  # none, one and ten; the other seed of two


def test_a_part_of_an_absent_model_names_it_and_the_others_are_counted(
    small, tmp_path, monkeypatch
):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "data"))
    part = (Work(("nonlinear",), SINGLE, {"model": "mini_3"}), Work(("nonlinear",), SINGLE))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", part)
    table = outlook.outlook(small, [("tangent", "editing"), ("tangent", "kernels")])
    assert table["runs"].tolist() == [16, 0]
    ((lack,), none) = table["lacks"]
    assert (lack.kind, lack.what, none) == ("weights", "mini_3", ())
    first, second, total, why = outlook.describe(table).splitlines()
    assert first.endswith("without what needs weights of mini_3") and "without" not in second
    assert total == "16 runs, 0 of them in the store" and why == lack.why
    assert "pretraining.queue mini_3" in why


@pytest.mark.parametrize("named", [(), ("ctl",)])
def test_all_records_every_part_in_order(named, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(outlook, "outlook", lambda parameters, order, to: list(order))
    monkeypatch.setattr(outlook, "describe", lambda order: f"{len(order)} parts")

    def study(chapter, parameters, **more):
        calls.append((chapter, more["part"]))
        assert parameters.preset == "full" and more["jobs"] == 2 and more["out"] is None
        return f"{chapter}/{more['part']}"

    monkeypatch.setattr(recording, "study", study)
    expected = [(n, p) for n in named or CHAPTERS for p in CHAPTERS[n].parts]
    assert main(["record", *named, "--all", "--jobs", "2", "--dry-run"]) == 0
    assert calls == [] and capsys.readouterr().out == f"{len(expected)} parts\n"
    assert main(["record", *named, "--all", "--jobs", "2"]) == 0
    assert calls == expected
