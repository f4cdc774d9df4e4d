"""What the table of times compares gives the same numbers both ways, on a few images."""

import json
import re
import sys
import time
from pathlib import Path

import nbformat
import pytest

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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_card_is_measured_in_parts_that_go_on(script, tmp_path, monkeypatch):
    script("gpu"), script("merges")
    card, out = script("card"), tmp_path / "card.json"
    monkeypatch.setenv(card.compiled.SETTING, "")  # measurements set it
    monkeypatch.setattr(card.compiled, "_backend", "eager")
    card.compiled.block.cache_clear()

    def rows(part, *words):
        given = [part, "--device", "cpu", "--tiny", "--out", str(out), *words]
        monkeypatch.setattr(sys, "argv", ["card", *given])
        card.main()
        return {(row["part"], row["name"]): row for row in json.loads(out.read_text())["rows"]}

    one = rows("merges", "--only", "ties")
    assert set(one) == {("merges", "ties")} and one["merges", "ties"]["seconds"] > 0
    every = rows("merges")
    assert every["merges", "ties"] == one["merges", "ties"]  # not measured again
    free = {name for name, method in card.merging.METHODS.items() if not method.needs}
    assert {name for part, name in every} == free
    assert not [row for row in every.values() if "failed" in row]
    found = rows("paths", "--only", "linearized")
    ways = {name.rpartition(", ")[0] for part, name in found if part == "paths"}
    assert ways == {*card.WAYS} and not [row for row in found.values() if "failed" in row]
    steps = rows("steps", "--only", "tau_jp")
    assert ("steps", "mini_xs tau_jp eager") in steps
    card.compiled.block.cache_clear()


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
