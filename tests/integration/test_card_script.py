"""The parts of `benchmarks/card.py` on a pretended card, and on the CPU."""

import json
import sys
import time

import pytest
import torch

from tasklab.bench.parameters import Parameters
from tasklab.evidence.chapters import CHAPTERS
from tasklab.tasks import drawn
from tasklab.tasks.suites import paper_data_sets, suite


@pytest.fixture
def card(script, device, tmp_path, monkeypatch):
    """Return the script, and a function that measures a part of it on a pretended card."""
    for name in ("gpu", "merges", "ways"):
        script(name)
    card, out = script("card"), tmp_path / "card.json"
    monkeypatch.setenv(card.compiled.SETTING, "1")
    monkeypatch.setattr(card.compiled, "block", card.ways.dual.block_of)  # no code is made
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
    rules = {**card.merging.METHODS, **card.registry.NEWER}
    assert set(every) == set(rules)
    for name, row in every.items():
        assert row["images"] == (card.TINY.looked if rules[name].needs else 0)
        assert row["seconds"] > 0 and row["peak_memory_mib"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_every_step_runs_on_a_card(card):
    card, rows = card
    measured, ways = card.gpu.measured, []

    def noted(work, method, way, steps):
        ways.append(method)
        return measured(work, method, way, steps)

    card.gpu.measured = noted
    (first,) = rows("steps", "--only", "joint compiled").values()  # open_clip's is measured with it
    assert ways == ["open_clip", "joint"] and first["tasks"] == 8
    found = rows("steps", "--only", "compiled")
    methods = ("open_clip", "nonlinear", "linearized", "attention", "tau_jp", "tak", "joint")
    assert set(found) == {f"mini_xs {method} compiled" for method in methods}
    assert ways[2:] == [*methods[:-1]]  # open_clip's once in a process
    for name, row in found.items():
        assert row["seconds"] > 0 and row["peak_memory_mib"] > 0
        assert row["of_open_clip"] == row["seconds"] / row["open_clip_s"]
        if "joint" not in name:
            assert row["open_clip_s"] == found["mini_xs open_clip compiled"]["seconds"]
        assert {"torch", "open_clip", "python", "cuda", "commit"} <= row.keys()
        assert row["card"] == row["machine"]["gpu"] and "driver" in row["machine"]


def test_ways_of_being_fast_are_switched_off_one_by_one(card, capsys):
    card, rows = card
    ways, found = card.ways, {}
    for kind in ("nonlinear", "evaluation"):
        found |= rows("paths", "--only", f", {kind}")
    of = {k: [name for name, way in ways.WAYS.items() if k in way.kinds] for k in ways.KINDS}
    off = {f"without {name}, {kind}" for kind in ("nonlinear", "evaluation") for name in of[kind]}
    assert set(found) == {"all, nonlinear", "all, evaluation", *off}
    told = capsys.readouterr().out
    assert all(f"{name}: " in told for name in ways.WAYS)
    assert "leaves" not in told  # a rehearsal decides nothing
    every = [{"name": f"all, {kind}", "seconds": 1.0} for kind in ways.KINDS]
    every += [
        {"name": f"without {name}, {kind}", "seconds": 1.3 if name == "recorded steps" else 1.1}
        for kind in ways.KINDS
        for name in of[kind]
    ]
    every.append({"name": "all, nonlinear", "failed": "RuntimeError", "seconds": None})
    leave = [line.partition(":")[0] for line in ways.gains(every) if "leaves" in line]
    assert leave == [name for name in ways.WAYS if name != "recorded steps"]
    half = [row for row in every if "linearized" not in row["name"]]
    assert sum("leaves" in line for line in ways.gains(half)) == 3  # those of evaluation alone


def test_a_way_is_off_within_its_block_alone(script):
    ways = script("ways")
    rooms = [ways.compiled, ways.dual, ways.session, ways.writing, ways.placement, ways.inference]
    rooms += [ways.recipe, ways.torch.optim, ways.sums]
    rooms.append(sys.modules["tasklab.analyses.edited"])
    usual, seen = [dict(vars(room)) for room in rooms], []
    for way in ways.WAYS.values():
        with way.off():
            seen.append({
                (room.__name__.rpartition(".")[2], name)
                for room, before in zip(rooms, usual, strict=True)
                for name, value in vars(room).items()
                if value is not before.get(name)
            })  # fmt: skip
        assert [dict(vars(room)) for room in rooms] == usual
    assert seen == [
        {("recipe", "usual_precision")}, {("compiled", "block")}, {("dual", "passes")},
        {("compiled", "records")}, {("optim", "AdamW")}, {("session", "EVERY")},
        {("writing", "LARGE")}, {("placement", "fits"), ("edited", "fits")}, {("sums", "_FUSED")},
        {("inference", "passes")}, {("inference", "from_patches")},
    ]  # fmt: skip


def test_other_processes_get_what_their_scripts_understand(card, script, monkeypatch):
    card, rows = card
    chapters, asked = script("chapters"), []

    def profiled(source, given, seconds):
        asked.append((source.stem, given, seconds))
        about = {"cpu_s": 1.0, "wall_s": 2.0, "busy": 0.5, "most_gib": 1.0, "whole": True}
        return {**about, "phases": {"training": 1.0}, "cells": []}

    def profile(words, folder):
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
    assert asked[0][1]["device"] == "cuda" and found["ctl"]["busy"] == 0.5
    found = rows("paper")
    assert [name for name, *_ in asked[2:]] == list(found) == list(CHAPTERS)
    assert all(name in known for _, given, _ in asked for name in given)
    assert asked[-1][1]["preset"] == "full" and asked[-1][1]["suite"] == "mini"
    started = card.started

    def on_this_processor(words):
        return started([words[0], "cpu", *words[2:]])

    monkeypatch.setattr(card, "started", on_this_processor)
    monkeypatch.setenv(card.compiled.SETTING, "0")  # making code takes a minute
    found = rows("many", "--only", "1 process")
    assert found["mini_xs, 1 process"]["processes"] == 1


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


def test_a_part_ends_in_time_whatever_a_measurement_does(script, tmp_path, monkeypatch, capsys):
    script("gpu"), script("merges")
    card, out, made = script("card"), tmp_path / "card.json", []

    def wait(seconds):
        try:
            time.sleep(seconds)
        except Exception:  # as whoever falls back on a slower way
            made.append("swallowed")
        made.append(seconds)
        return {"seconds": seconds}

    def part(size, device):
        yield "short", 0.0, lambda: wait(0.5)
        yield "long", 0.0, lambda: wait(30)
        yield "last", 0.0, lambda: wait(0)

    monkeypatch.setattr(card, "PARTS", {"merges": part})
    words = ["card", "merges", "--device", "cpu", "--out", str(out), "--minutes", f"{1.5 / 60}"]
    monkeypatch.setattr(sys, "argv", words)
    for expected in (["short"], ["short", "long"], ["short", "long", "last"]):
        began = time.monotonic()
        card.main()
        assert time.monotonic() - began < 10
        rows = json.loads(out.read_text())["rows"]
        assert [row["name"] for row in rows] == expected
    assert "takes longer than" in rows[1]["failed"] and made == [0.5, 0]
    assert "2 measurements are left" in capsys.readouterr().out


def test_what_a_process_takes_to_start_belongs_to_its_first_part(script, tmp_path, monkeypatch):
    card, out = script("card"), tmp_path / "card.json"

    def part(size, device):
        yield "long", 60.0, lambda: {"seconds": 1.0}

    monkeypatch.setattr(card, "PARTS", {"merges": part, "many": part})
    words = ["card", "all", "--device", "cpu", "--out", str(out), "--minutes", "1.5"]
    monkeypatch.setattr(sys, "argv", words)
    card.main(45.0)
    assert [row["part"] for row in card.read(out)] == ["many"]


def test_goals_are_compared_with_what_was_measured(script):
    card = script("card")

    def row(part, name, **more):
        return {"part": part, "name": name, **more}

    rows = [
        row("steps", "vitb32 nonlinear compiled", of_open_clip=1.05),
        row("steps", "vitb32 linearized compiled", of_open_clip=2.1),
        row("steps", "vitl14 nonlinear compiled", failed="OutOfMemoryError"),
        row("chapters", "ctl", busy=0.5),
    ]
    assert card.goals(rows) == [
        "vitb32, of compiled open_clip: 1.05 (<= 1.1: met)",
        "vitb32, linearized of non-linear: 2.00 (<= 1.8: not met)",
        "ctl, share in which the card computes: 0.50 (>= 0.7: not met)",
    ]
    phases = {"training": 1000.0, "compiling": 50.0, "files": 30.0, "passes": 30.0}
    each = [row("paper", name, phases=phases, whole=True) for name in CHAPTERS]
    images = sum(drawn.images_of(suite("mini")).size(name, "test") for name in suite("mini").names)
    theirs = sum(paper_data_sets()[name]["sizes"]["test"] for name in suite("paper").names)
    minutes = len(CHAPTERS) * (0.5 + 0.5 * theirs / images)
    (told,) = card.goals(each)
    assert told.startswith(f"minutes of `tasklab paper vitb32`: {minutes:.2f} (<= 30: ")
    each[0]["whole"] = False
    (told,) = card.goals(each)
    assert ", at least: " in told and ("not met" if minutes > 30 else "not known") in told
    each[1]["phases"] = {"files": 3000.0}
    assert "(<= 30: not met)" in card.goals(each)[0] and not card.goals(each[1:])
