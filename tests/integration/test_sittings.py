"""A part in several sittings: the seeds that a file lacks, added to those that it has."""

import dataclasses
import json

import pandas as pd
import pytest
import torch

from tasklab import TasklabError
from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.evidence.chapters import CHAPTERS, Work
from tasklab.evidence.records import table as records
from tasklab.evidence.study import recording, sittings
from tests.helpers import refuses

SINGLE = {"single": {}}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Parameters(
        model="mini_xs", preset="full", seeds=[0], steps=2,
        store_root=tmp_path_factory.mktemp("sittings"), device="cpu",
    )  # fmt: skip


@pytest.fixture
def works(monkeypatch):
    works = (Work(("nonlinear",), SINGLE), Work(("linearized",), SINGLE, seeds=1))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", works)


def sorted_rows(table):
    return table.sort_values([*table.columns]).reset_index(drop=True)


def record(parameters, path, **more):
    recording.study("tangent", parameters, out=path, **more)
    return records.read(path)


def test_two_sittings_record_what_one_does(small, works, tmp_path):
    both = dataclasses.replace(small, seeds=[0, 1])
    first, origin = record(small, tmp_path / "a.csv.xz")
    assert "sittings" not in origin
    joined, origin = record(both, tmp_path / "a.csv.xz", add=True)
    whole, at_once = record(both, tmp_path / "b.csv.xz")
    pd.testing.assert_frame_equal(sorted_rows(joined), sorted_rows(whole))
    assert origin["seeds"] == [0, 1]
    assert [sitting["seeds"] for sitting in origin["sittings"]] == [[0], [1]]
    assert all(sitting["machine"] and sitting["utc"] for sitting in origin["sittings"])
    # eight tasks: both methods of the first seed, one of the second
    assert [s["fine_tuning"]["runs"] for s in origin["sittings"]] == [16, 8]
    assert origin["fine_tuning"]["runs"] == at_once["fine_tuning"]["runs"] == 24
    assert origin["recipes"] == at_once["recipes"]
    third, origin = record(dataclasses.replace(small, seeds=3), tmp_path / "a.csv.xz", add=True)
    assert [sitting["seeds"] for sitting in origin["sittings"]] == [[0], [1], [2]]
    alone = third[third["method"] == "linearized"]
    assert set(alone["seed"]) == {0} and set(third["seed"]) == {0, 1, 2}


def test_a_dry_run_counts_what_the_records_lack(small, works, tmp_path, capsys):
    path = tmp_path / "a.csv.xz"
    record(small, path)
    terms = ["--model", "mini_xs", "--steps", "2", "--store-root", str(tmp_path / "elsewhere")]
    terms += ["--seeds", "0,1", "--out", str(path), "--dry-run", "--device", "cpu"]
    for more, runs in ([], 24), (["--add"], 8):  # one method has its only seed already
        assert main(["record", "tangent", *terms, *more]) == 0
        assert f"{runs} runs,     0 in the store" in capsys.readouterr().out


def test_the_further_seeds_may_be_given_alone(small, works, tmp_path):
    record(small, tmp_path / "a.csv.xz")
    joined, origin = record(dataclasses.replace(small, seeds=[2]), tmp_path / "a.csv.xz", add=True)
    assert origin["seeds"] == [0, 2] and set(joined["seed"]) == {0, 2}


def test_nothing_is_added_to_records_of_other_choices(small, works, tmp_path, monkeypatch):
    path = tmp_path / "a.csv.xz"
    refuses(r"no records: .* is missing", record, small, path, add=True)
    _, origin = record(small, path)
    kept = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(recording, "_records", None)  # nothing is computed before it is said
        with pytest.raises(TasklabError, match="made with steps = 2, not 3: record all seeds anew"):
            record(dataclasses.replace(small, seeds=[1], steps=3), path, add=True)
    refuses("has the seeds 0 already: give more", record, small, path, add=True)
    more = dataclasses.replace(small, seeds=2)
    for change, named in (({"model": "mini_s"}, "model, weights"), ({"preset": "quick"}, "preset")):
        with pytest.raises(TasklabError, match=f"another choice of {named}"):
            record(dataclasses.replace(more, **change), path, add=True)
    assert path.read_bytes() == kept and records.read(path)[1] == origin


def test_a_part_that_has_all_its_seeds_is_left_alone(small, monkeypatch, tmp_path):
    works = (Work(("nonlinear",), SINGLE, seeds=1),)
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", works)
    record(small, tmp_path / "a.csv.xz")
    with pytest.raises(TasklabError, match="seeds 0 already: this part is recorded with no more"):
        record(dataclasses.replace(small, seeds=2), tmp_path / "a.csv.xz", add=True)


def test_another_precision_is_told_of_each_sitting(small, works, tmp_path):
    small = dataclasses.replace(small, precision="float32")
    path = tmp_path / "a.csv.xz"
    record(small, path)
    beside = records.provenance_path(path)
    note = json.loads(beside.read_text())
    note["recipe"]["precision"] = "bfloat16"
    note["machine"]["cpu"] = "another"
    beside.write_text(json.dumps(records.sealed(note)))
    _, origin = record(dataclasses.replace(small, seeds=2), path, add=True)
    assert [sitting["precision"] for sitting in origin["sittings"]] == ["bfloat16", "float32"]
    assert "precision" not in origin["recipe"]
    assert origin["machine"]["threads"] == torch.get_num_threads() >= 1
    assert {"make", "cpu"} <= set(origin["machine"])
    assert origin["sittings"][0]["machine"]["cpu"] == "another" != origin["machine"]["cpu"]


def test_a_model_that_a_file_lacks_gets_all_seeds(small, monkeypatch, tmp_path):
    one, other = (Work(("nonlinear",), SINGLE, {"model": m}) for m in ("mini_xs", "mini_s"))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "family", (one,))
    path = tmp_path / "a.csv.xz"
    record(small, path, part="family")
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "family", (one, other))
    joined, origin = record(dataclasses.replace(small, seeds=2), path, part="family", add=True)
    tuned = joined[joined["method"] == "nonlinear"]
    expected = {(model, seed) for model in ("mini_xs", "mini_s") for seed in (0, 1)}
    assert set(zip(tuned["model"], tuned["seed"], strict=True)) == expected
    assert origin["seeds"] == [0, 1] and [s["seeds"] for s in origin["sittings"]] == [[0], [0, 1]]
    assert set(origin["recipes"]) == {"mini_xs", "mini_s"}
    assert [s["fine_tuning"]["runs"] for s in origin["sittings"]] == [8, 24]
    assert not any("only" in sitting for sitting in origin["sittings"])


def test_a_sitting_of_further_models_at_the_same_seeds_names_them(small, monkeypatch, tmp_path):
    works = tuple(Work(("nonlinear",), SINGLE, {"model": m}) for m in ("mini_xs", "mini_s"))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "family", works[:1])
    path = tmp_path / "a.csv.xz"
    record(small, path, part="family")
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "family", works)
    joined, origin = record(small, path, part="family", add=True)
    assert set(joined["model"]) == {"mini_xs", "mini_s"} and origin["seeds"] == [0]
    assert [s.get("only") for s in origin["sittings"]] == [None, "mini_s"]
    assert set(origin["recipes"]) == {"mini_xs", "mini_s"} and "weights" not in origin["recipe"]
    weights = {own["weights"] for own in origin["recipes"].values()}
    assert len(weights) == 2 and "method" in origin["recipe"]
    assert [s["seeds"] for s in origin["sittings"]] == [[0], [0]]
    refuses("seeds 0 already: give more", record, small, path, part="family", add=True)


def test_an_experiment_and_a_merge_that_a_file_lacks_are_added(small, monkeypatch, tmp_path):
    path, parts = tmp_path / "a.csv.xz", CHAPTERS["tangent"].parts
    merged = {"merges": ("arithmetic", "average"), "n_tasks": (8,)}
    few = {"merging": {**merged, "merges": ("arithmetic",)}}
    works = [
        (SINGLE, None),
        ({**SINGLE, **few}, "merging"),
        ({**SINGLE, "merging": merged}, "average"),
    ]
    for names, only in works:
        monkeypatch.setitem(parts, "family", (Work(("nonlinear",), names),))
        joined, origin = record(small, path, part="family", add=only is not None)
        assert (origin["sittings"][-1]["only"] if only else None) == only
    whole, _ = record(small, tmp_path / "b.csv.xz", part="family")
    pd.testing.assert_frame_equal(sorted_rows(joined), sorted_rows(whole))
    assert set(joined["merge"].dropna()) == {"arithmetic", "average"}


def test_a_method_and_a_rate_that_a_file_lacks_are_added(small, monkeypatch, tmp_path):
    def works(methods, *rates):
        budgets = {"budgets": {"lengths": None, "rates": rates}}
        first = Work(methods, SINGLE)
        return first, *(dataclasses.replace(first, names={**budgets}) for _ in rates[:1])

    path, parts = tmp_path / "a.csv.xz", CHAPTERS["tangent"].parts
    monkeypatch.setitem(parts, "family", works(["nonlinear"]))
    record(small, path, part="family")
    monkeypatch.setitem(parts, "family", works(["nonlinear", "attention"]))
    _, origin = record(small, path, part="family", add=True)
    assert origin["sittings"][1]["only"] == "attention"
    assert [s["fine_tuning"]["runs"] for s in origin["sittings"]] == [8, 8]
    for rates in (1e-3,), (1e-3, 2e-3):
        monkeypatch.setitem(parts, "family", works(["nonlinear", "attention"], *rates))
        joined, origin = record(small, path, part="family", add=True)
        assert set(rates) <= set(joined["lr"])
        assert str(rates[-1]) in origin["sittings"][-1]["only"]
        assert origin["sittings"][-1]["fine_tuning"]["runs"] == 32  # at its own, too
    whole, at_once = record(small, tmp_path / "b.csv.xz", part="family")
    for one in (origin, at_once):
        assert {1e-3, 2e-3} <= {*one["recipes"]["attention"]["lr"]}
    pd.testing.assert_frame_equal(sorted_rows(joined), sorted_rows(whole))


def test_nothing_is_added_where_another_model_was_pre_trained_anew(small, monkeypatch, tmp_path):
    both = tuple(Work(("nonlinear",), SINGLE, {"model": m}) for m in ("mini_xs", "mini_s"))
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "family", both)
    path = tmp_path / "a.csv.xz"
    _, origin = record(small, path, part="family")
    assert origin["recipes"]["mini_xs"]["weights"] == origin["weights"]
    beside = records.provenance_path(path)
    note = json.loads(beside.read_text())
    assert note["recipes"]["mini_s"]["weights"] not in ("", origin["weights"])
    note["recipes"]["mini_s"]["weights"] = "0" * 64
    beside.write_text(json.dumps(records.sealed(note)))
    with pytest.raises(TasklabError, match="made with weights = 0000.*: record all seeds anew"):
        record(dataclasses.replace(small, seeds=2), path, part="family", add=True)


def test_one_part_at_a_time(capsys):
    assert main(["record", "--all", "--add"]) != 0
    assert "--add takes one part" in capsys.readouterr().err


def test_parts_choices_and_spreads_of_sittings():
    before = {"recipes": {"tau_jp": {"lr": 0.1, "penalty": [0.1, 0.3]}}}
    sittings._agree(before, {"recipes": {"tau_jp": {"lr": 0.1, "penalty": 0.3}}})
    with pytest.raises(TasklabError, match="lr = 0.1, not 0.2"):
        sittings._agree(before, {"recipes": {"tau_jp": {"lr": 0.2, "penalty": 0.3}}})
    before = {"recipe": {"steps": 9}, "recipes": {"mini nonlinear": {"lr": 0.1}}}
    now = {"recipe": {"steps": 9, "method": "nonlinear", "head": "probe", "lr": 0.2},
           "recipes": {"mini_few": {}, "mini_mae": {"lr": 0.3}}}  # fmt: skip
    joined = sittings._recipes(before, now)
    assert joined["recipe"] == {"steps": 9}
    assert joined["recipes"] == {
        "mini nonlinear": {"lr": 0.1},
        "mini_few probe nonlinear": {"lr": 0.2},
        "mini_mae probe nonlinear": {"lr": 0.3},
    }


def test_a_provenance_has_the_seeds_that_were_made(small, monkeypatch, tmp_path):
    few = (Work(("nonlinear",), SINGLE, seeds=1),)
    monkeypatch.setitem(CHAPTERS["tangent"].parts, "editing", few)
    table, origin = record(dataclasses.replace(small, seeds=[0, 1]), tmp_path / "a.csv.xz")
    assert origin["seeds"] == [0] == table["seed"].unique().tolist()
