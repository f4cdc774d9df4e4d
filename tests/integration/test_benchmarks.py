"""What the table of times compares gives the same numbers both ways, on a few images."""

import json
import re
import sys
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import torch

from tasklab import figures

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture
def scripts(script):
    return tuple(map(script, ("bench", "compared", "chapters")))


def test_every_figure_agrees_and_is_a_row(scripts, tmp_path, monkeypatch):
    bench, compared, _ = scripts
    few = {"step": 4, "steps": 2, "photos": 24, "images": 8, "features": 2}
    size, out = compared.Size(**few, tasks=2, points=2, alphas=1), tmp_path / "out.json"
    for sizes in (bench.SIZES, bench.QUICK):
        monkeypatch.setitem(sizes, "mini_xs", size)
    words = ["bench", "--quick", "--models", "mini_xs", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    bench.main()
    rows = json.loads(out.read_text())["rows"]
    names = " | ".join(row["figure"] for row in rows)
    for told in (
        "step, linearized",
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
    assert {"commit", "torch", "machine"} <= json.loads(out.read_text())["rows"][-1].keys()
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
    for (model, machine), rows in names["rows"].groupby(["model", "machine"]):  # of each its own
        (table,) = (one for one in tables if f"{model}, {machine}" in one)
        assert (
            all(figure in table for figure in rows["figure"])
            and len(rows) == table.count("<tr>") - 1
        )
    assert all(float(one.replace(",", "")) > 0 for one in cells)
    rounded = {1434.7: "1,430", 21.01: "21.0", 0.001678: "0.00168", 615.0: "615"}
    assert [names["three_digits"](one) for one in rounded] == list(rounded.values())


def test_the_page_says_what_is_measured_on_which_card_and_what_is_not(tmp_path):
    text = (Path(__file__).parents[2] / "book" / "speed.md").read_text("utf-8")
    (cell,) = (part for part in text.split(":tags: [remove-input]") if "ASKED = {" in part)
    cell, shown = cell.partition("```")[0], []
    lines = cell.strip().splitlines()
    last = next(n for n, line in enumerate(lines) if line.startswith("Markdown("))
    lines[last] = f"told = {lines[last]}"
    names = {"json": json, "pd": pd, "figures": figures, "Markdown": str, "display": shown.append}
    names["file"] = tmp_path / "bench.json"

    def told():
        exec("\n".join(lines), names)
        return names["told"]

    lacking = told()
    assert all(one in lacking for one in names["ASKED"].values()) and not shown
    machine = {"driver": "580.65.06"}
    about = {"card": "NVIDIA L4", "commit": "abc", "machine": machine, "torch": "2.11"}
    rows = [
        {"part": "steps", "name": "vitb32 joint eager", "seconds": 0.5, "of_open_clip": 1.25},
        {"part": "many", "name": "mini, 4 processes", "seconds": 2.0},
    ]
    rehearsed = {"part": "merges", "name": "ties", "seconds": 1.0, "tiny": True}
    failed = {"part": "paper", "name": "ctl", "failed": "OutOfMemoryError: full", "tiny": False}
    rows = [{**row, **about, "tiny": False} for row in rows]
    rows += [rehearsed | about, failed | about]
    (tmp_path / "card.json").write_text(json.dumps({"rows": rows}))
    lacking = told()
    assert shown[0] == "On an NVIDIA L4, driver 580.65.06, torch 2.11, commit abc:"
    assert "vitb32 joint eager" in shown[1].to_html() and "ties" not in shown[1].to_html()
    asked = names["ASKED"]
    assert {k for k in asked if asked[k] in lacking} == {"chapters", "paths", "merges", "paper"}


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
    row = chapters.profiled(source, {}, 8)  # a kernel starts within them, beside other tests
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
