"""What the table of times compares gives the same numbers both ways, on a few images."""

import json
import re
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch

from tasklab.bench.parameters import Parameters

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


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
    bench, compared, _ = scripts
    wrong = compared.Figure(name="x", ours=lambda: 1, theirs=lambda: 2, check=int.__eq__)
    with pytest.raises(SystemExit, match="disagree"):
        bench.measured(wrong, 1, bench.time.process_time)


def test_measurements_replace_their_own_rows(scripts, tmp_path, monkeypatch):
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


def test_the_loader_is_compared_on_the_same_photos(scripts, tmp_path, monkeypatch):
    bench, compared, _ = scripts
    out = tmp_path / "out.json"
    words = ["--quick", "--models", "mini", "--only", "loader", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    bench.main()
    named = [row["figure"] for row in json.loads(out.read_text())["rows"]]
    assert len(named) == 2 and all(name.startswith("loader, ") for name in named)


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


def test_a_sample_belongs_to_the_innermost_frame_that_a_rule_knows(script):
    phases = script("phases")
    loop = [("x/tasklab/tuning/finetune.py", "train"), ("cell", "<module>")]
    package, importing = "x/tasklab/", "<frozen importlib._bootstrap>"
    for inner, expected in (
        ([], "training"),
        ([(package + "models/inference.py", "run")], "training"),
        ([(package + "taskvector.py", "merged")], "vectors"),
        ([("hashlib.py", "update"), (package + "storage/store.py", "checksum")], "hashing"),
        ([(package + "storage/files.py", "write")], "files"),
        ([(package + "taskvector.py", "check_finite")], "finiteness"),
        ([("x/torch/_inductor/compile.py", "build")], "compiling"),
        ([(package + "figures/bars.py", "<module>"), (importing, "_find_and_load")], "importing"),
    ):
        assert phases.phase(inner + loop) == expected
    assert phases.phase([(package + "analyses/maps.py", "cell"), ("cell", "f")]) == "passes"
    assert phases.phase([("cell", "<module>")]) == "the rest"


def test_a_sampler_shares_the_clock_out(script, monkeypatch, tmp_path):
    phases = script("phases")
    printing = "import time\nfor n in (100, 50, 0): print(n, flush=True)\ntime.sleep(60)"
    monkeypatch.setattr(phases, "DRIVER", (sys.executable, "-c", printing))
    file = tmp_path / "tasklab" / "taskvector.py"
    waits = compile("import time\ndef add(s): time.sleep(s)", str(file), "exec")
    names = {}
    exec(waits, names)
    sampler = phases.Sampler(0.002)
    names["add"](0.3)
    until = time.perf_counter() + 20
    while len(sampler._busy) < 3 and time.perf_counter() < until:
        time.sleep(0.01)
    found = sampler.report()
    assert found["busy"] == 0.5
    assert 0.15 < found["phases"]["vectors"] <= found["wall_s"]
    assert sum(found["phases"].values()) <= found["wall_s"] + 0.2


def test_a_chapter_is_stopped_after_its_minutes_and_says_what_it_did(script, tmp_path, monkeypatch):
    chapters = script("chapters")
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path))
    cells = [
        nbformat.v4.new_code_cell(text) for text in ("x = 1", "import time; time.sleep(60)", "y")
    ]
    source = tmp_path / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), source)
    row = chapters.profiled(source, {}, 4)
    assert not row["whole"] and len(row["cells"]) == 3  # the injected one, the first, the long one
    assert row["phases"]["the rest"] > 1 and row["wall_s"] < 40


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_steps_on_a_gpu_are_measured_beside_open_clips(script, tmp_path, monkeypatch, capsys):
    gpu, out = script("gpu"), tmp_path / "gpu.json"
    monkeypatch.setenv(gpu.compiled.SETTING, "")
    monkeypatch.setattr(gpu.compiled, "_backend", "eager")
    gpu.compiled.block.cache_clear()
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--tiny", "--out", str(out)])
    gpu.main()
    gpu.compiled.block.cache_clear()
    rows = json.loads(out.read_text())["rows"]
    names = [(row["method"], row["way"]) for row in rows]
    methods = ("open_clip", "nonlinear", "linearized", "attention")
    assert names == [(method, way) for method in methods for way in ("eager", "compiled")]
    by = dict(zip(names, rows, strict=True))
    for method, way in names:
        row, base = by[method, way], by["open_clip", way]
        assert row["of_open_clip"] == row["seconds"] / base["seconds"] > 0
        assert row["micro_batch"] == row["batch"] == 4 and row["utilisation"] is None
    flops = [by[method, "eager"]["flops"] / by["open_clip", "eager"]["flops"] for method in methods]
    assert flops == pytest.approx([1, 1, 5 / 3, 7 / 9])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)


@pytest.fixture
def card(script, device, tmp_path, monkeypatch):
    """Return the script, and a function that measures a part of it on a pretended card."""
    for name in ("gpu", "merges"):
        script(name)
    card, out = script("card"), tmp_path / "card.json"
    monkeypatch.setenv(card.compiled.SETTING, "1")
    monkeypatch.setattr(card.compiled, "block", card.dual.block_of)  # no code is made
    monkeypatch.setattr(torch, "compile", lambda network, **options: network)
    monkeypatch.setattr(card.compiled.Quick, "failed", set())

    def rows(part, *words):
        given = [part, "--device", "cuda", "--tiny", "--out", str(out), *words]
        monkeypatch.setattr(sys, "argv", ["card", *given])
        card.main()
        every = json.loads(out.read_text())["rows"]
        assert not [row for row in every if "failed" in row]
        return {row["name"]: row for row in every if row["part"] == part}

    return card, rows


def test_merges_on_a_card_go_on_where_they_stopped(card):
    card, rows = card
    one = rows("merges", "--only", "ties")
    assert set(one) == {"ties"} and one["ties"]["peak_memory_mib"] > 0
    every = rows("merges")
    assert every["ties"] == one["ties"]  # not measured again
    free = {name for name, method in card.merging.METHODS.items() if not method.needs}
    assert set(every) == free


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_every_step_runs_on_a_card(card):
    card, rows = card
    rows("steps", "--only", "compiled")
    methods = (card.gpu.PLAIN, *card.gpu.METHODS, *card.PENALISED)
    expected = {f"mini_xs {method} compiled" for method in methods}
    found = rows("steps", "--only", "joint")
    assert set(found) == expected | {"mini_xs joint"}
    assert all(row["seconds"] > 0 and row["peak_memory_mib"] > 0 for row in found.values())


def test_ways_of_being_fast_are_switched_off_one_by_one(card, capsys):
    card, rows = card
    found = rows("paths", "--only", "nonlinear")
    off = {f"without {way}, nonlinear" for way in card.WAYS}
    assert set(found) == {"all, nonlinear", *off}
    told = capsys.readouterr().out
    assert all(f"{way}: nonlinear " in told for way in card.WAYS) and "leaves" not in told
    every = [{"name": f"all, {method}", "seconds": 1.0} for method in card.METHODS]
    every += [
        {"name": f"without {way}, {method}", "seconds": 1.3 if way == "recorded steps" else 1.1}
        for way in card.WAYS
        for method in card.METHODS
    ]
    leave = [line.partition(":")[0] for line in card.gains(every) if "leaves" in line]
    assert leave == [way for way in card.WAYS if way != "recorded steps"]


def test_other_processes_get_what_their_scripts_understand(card, script, monkeypatch):
    card, rows = card
    chapters, asked = script("chapters"), []

    def profiled(source, given, seconds):
        asked.append((source.stem, given, seconds))
        about = {"cpu_s": 1.0, "wall_s": 2.0, "busy": 0.5, "most_gib": 1.0, "whole": True}
        return {**about, "phases": {"training": 1.0}, "cells": []}

    def profile(words):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["chapters", *words])
            patch.setenv("TASKLAB_STORE", "")
            chapters.main()

    monkeypatch.setattr(chapters, "profiled", profiled)
    monkeypatch.setattr(chapters.execution, "INLINE", {})
    monkeypatch.setattr(card, "profile", profile)
    found = rows("chapters")
    assert [name for name, *_ in asked] == ["ctl", "merging"] and set(found) == {"ctl", "merging"}
    known = Parameters.names()
    assert all(name in known for _, given, _ in asked for name in given)
    assert asked[0][1]["device"] == "cuda" and found["ctl"]["busy"] == 0.5
    started = card.started

    def on_this_processor(words):
        return started([words[0], "cpu", *words[2:]])

    monkeypatch.setattr(card, "started", on_this_processor)
    monkeypatch.setenv(card.compiled.SETTING, "0")  # making code takes a minute
    found = rows("many", "--only", "1 process")
    assert found["mini_xs, 1 process"]["processes"] == 1


def test_what_lower_precision_changes_is_measured(script, tmp_path, monkeypatch):
    precision, out = script("precision"), tmp_path / "out.json"
    assert precision.cut(torch.tensor([1 + 2**-10, 1 + 2**-11])).tolist() == [1 + 2**-10, 1]
    words = ["--models", "mini_xs", "--tasks", "2", "--steps", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["precision", *words])
    precision.main()
    low, cut = json.loads(out.read_text())["rows"]
    assert (low["precision"], cut["precision"]) == ("bfloat16", "tf32")
    assert 1e-5 < cut["features"] < low["features"] < 0.05
    for row in (low, cut):
        assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
        assert row["fit"] is (row["changed"] < precision.FIT) and row["seconds"] > 0


def test_a_failed_measurement_is_told_and_the_others_are_made(
    script, tmp_path, monkeypatch, capsys
):
    script("gpu"), script("merges")
    card, out = script("card"), tmp_path / "card.json"

    def broken():
        raise RuntimeError("no kernel image")

    def part(size, device):
        yield "bad", 1.0, broken
        yield "good", 1.0, lambda: {"seconds": 2.0}
        yield "late", 1e9, lambda: {"seconds": 3.0}

    monkeypatch.setattr(card, "PARTS", {"merges": part})
    monkeypatch.setattr(sys, "argv", ["card", "merges", "--device", "cpu", "--out", str(out)])
    card.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["bad", "good"]
    assert rows[0]["failed"] == "RuntimeError: no kernel image" and rows[1]["seconds"] == 2.0
    assert "1 measurements are left" in capsys.readouterr().out
