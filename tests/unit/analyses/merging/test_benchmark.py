"""The rows of the benchmark on merges by singular vectors: small ones, and what the large are."""

import json
import sys

import open_clip
import pytest
import torch

from tasklab.analyses.merging.vectors import is_matrix


@pytest.fixture
def bench(script):
    return script("bench")


def test_both_ways_merge_the_same_on_small_shapes(bench, tmp_path, monkeypatch, capsys):
    small = bench.merges.Shape(width=16, blocks=3, output=8, tasks=4)
    monkeypatch.setitem(bench.merges.SHAPES, "vitl14", small)
    out = tmp_path / "bench.json"
    earlier = {"model": "mini", "figure": "step", "commit": "x"}
    out.write_text(json.dumps({"rows": [earlier], "provenance": {"sizes": {"mini": {"step": 4}}}}))
    words = ["bench.py", "--models", "vitl14", "--rounds", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    threads = torch.get_num_threads()
    try:
        bench.main()
    finally:
        torch.set_num_threads(threads)
    written = json.loads(out.read_text())
    assert written["rows"][0] == earlier  # what was not measured now stays
    rows = {row["figure"]: row for row in written["rows"][1:]}
    assert set(rows) == {f"{name} of 4 vectors" for name in ("TSV-M", "Iso-C", "Iso-CTS")}
    for row in rows.values():
        assert row["model"] == "vitl14" and row["whole"] == [1.0, 3.0] and row["rounds"] == 2
        assert row["ours_s"] >= 0 and row["papers_s"] >= 0
    sizes = written["provenance"]["sizes"]
    assert sizes["vitl14"]["blocks"] == 3 and sizes["mini"] == {"step": 4}
    assert capsys.readouterr().out.count("vitl14") == 3


def test_the_shapes_are_those_of_the_model(bench):
    with torch.device("meta"):
        tower = open_clip.create_model("ViT-L-14", device="meta").visual
    shape = bench.merges.SHAPES["vitl14"]
    matrices = {n: tuple(p.shape) for n, p in tower.named_parameters() if is_matrix(n, p)}
    assert len(matrices) == shape.blocks * len(shape.block()) + len(shape.rest())
    wanted = {**shape.block(), **shape.rest()}
    assert wanted == {name: matrices[name] for name in wanted}
