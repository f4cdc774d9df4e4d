"""Folders of exported runs: whole or not there, cards whose code runs, and what goes wrong."""

import dataclasses
import errno
import itertools
import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from tasklab.__main__ import main
from tasklab.bench import runs
from tasklab.bench.parameters import Parameters
from tasklab.cli import checkpoints as commands
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.exchange import exporting
from tasklab.storage import atomic
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune, tangent
from tests.helpers import refuses

FILES = {exporting.VECTOR_FILE, exporting.CARD_FILE, exporting.CONFIG_FILE}


class Killed(BaseException):
    """Stands for the end of the process: nothing is cleaned after it."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*")}


STOPS = [  # what is there already, the step that fails, and after how many others
    ("nothing", "write_tensors", 0), ("nothing", "publish", 0), ("an empty folder", "publish", 1),
    ("the export", "write_tensors", 0), ("the export", "publish", 0), ("the export", "publish", 2),
]  # fmt: skip


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Killed()])
@pytest.mark.parametrize(("there", "step", "after"), STOPS)
def test_an_export_that_stops_can_be_repeated(
    run_of, tmp_path, monkeypatch, there, step, after, error
):
    run, encoder = run_of()
    folder = tmp_path / "out" / "run"
    if there == "the export":
        exporting.write_run(run, encoder, folder, base=True)
        (folder / "LICENSE").write_text("of one's own")
    elif there != "nothing":
        folder.mkdir(parents=True)
    before = contents(folder)
    row = {"method": "nonlinear", "value": 61.5, "n": 500, "split": "test"}
    place, calls = exporting if step == "write_tensors" else atomic, itertools.count()
    usual = getattr(place, step)

    def fails(*args):
        if next(calls) == after:
            raise error
        usual(*args)

    with monkeypatch.context() as patch, pytest.raises((TasklabError, Killed)) as told:
        patch.setattr(place, step, fails)
        if isinstance(error, Killed):
            patch.setattr(atomic, "remove", lambda path: None)
        exporting.write_run(run, encoder, folder, accuracies=[row], base=True)
    now = contents(folder)
    assert {name for name in before if now[name] != before[name]} <= (FILES if after else set())
    if there == "the export":
        assert now.keys() == before.keys()
        tensors = load_file(folder / exporting.VECTOR_FILE)
        assert TaskVector(tensors) == TaskVector(run.tensors())
        assert json.loads(now[exporting.CONFIG_FILE])["sha256"] == run.sha256
    if isinstance(error, OSError):
        assert [*folder.parent.iterdir()] == [folder] * folder.exists()
        expected = f"cannot write to {folder}: No space left on device. Free some space, or choose "
        assert str(told.value).startswith(f"{expected}another folder with --out.")
    monkeypatch.setattr(atomic, "is_left", lambda draft: True)  # its writer is dead
    again = there != "the export"  # theta_0 was asked for once: it stays
    exporting.write_run(run, encoder, folder, accuracies=[row], base=again)
    assert [*folder.parent.iterdir()] == [folder]  # nothing is left of the draft
    now = contents(folder)
    assert now.keys() == before.keys() | FILES | {exporting.BASE_FILE}
    assert b"theta_0.safetensors" in now[exporting.CARD_FILE]
    assert b"| 500 | 61.50 |" in now[exporting.CARD_FILE]
    assert now.get("LICENSE") == before.get("LICENSE")
    assert TaskVector(load_file(folder / exporting.BASE_FILE)) == TaskVector(encoder.params)


@pytest.mark.parametrize("where", ["run", "out"])
def test_a_file_in_the_way_is_named(run_of, tmp_path, where):
    run, encoder = run_of()
    folder = tmp_path / "out" / "run"
    file = {"run": folder, "out": folder.parent}[where]
    file.parent.mkdir(exist_ok=True)
    file.write_text("x")
    with pytest.raises(TasklabError, match=r"Move the file .* another folder with --out\.") as told:
        exporting.write_run(run, encoder, folder)
    assert "store" not in str(told.value) and file.read_text() == "x"


def test_the_card_tells_the_rate_that_a_search_chose(run_of, tmp_path):
    run, encoder = run_of(lr=None)
    run = dataclasses.replace(run, record={**run.record, "lr": 3e-4})
    card = (exporting.write_run(run, encoder, tmp_path / "out") / exporting.CARD_FILE).read_text()
    assert re.search(r"highest learning rate \| 0\.0003 \|", card)


@pytest.mark.parametrize("step", ["iterdir", "mkdir"])
def test_a_folder_without_permission_is_named(run_of, tmp_path, monkeypatch, step):
    run, encoder = run_of()
    (tmp_path / "out").mkdir()
    denied = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, step, denied)
    refuses("Permission denied.*--out", exporting.write_run, run, encoder, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # torch's own
@pytest.mark.parametrize("model", ["mini_xs", "mini_sup_few", "mini_convnext", "mini_t5"])
@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_the_cards_code_is_the_librarys(run_of, tmp_path, method, model, monkeypatch):
    run, encoder = run_of(method, model, record={"losses": [2.0, 1.5, 1.25]}, steps=3)
    rows = [{"method": m, "value": 61.5, "n": 500, "split": "test"} for m in ("pretrained", method)]
    folder = exporting.write_run(run, encoder, tmp_path / "out", base=True, accuracies=rows)
    card = (folder / exporting.CARD_FILE).read_text()
    for part in (encoder.weights_hash, "| steps | 3 |", "| 500 | 61.50 |", "2.0000, 1.2500"):
        assert part in card
    assert not re.search(r"https?://|licen[cs]e: ", card)
    monkeypatch.chdir(folder)
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=draw, dtype=torch.uint8)
    if model == "mini_t5":
        images = torch.randint(1, 50, (2, 12), generator=draw)
    x, tau = encoder.preprocess(images), TaskVector(run.tensors())
    if method == "linearized":
        expected = tangent.jvp(encoder, encoder.params, tau, x).at(1.0)
        assert "f_lin(x; theta_0 + tau) = f(x; theta_0) + J(x; theta_0) tau" in card
    else:
        expected = encoder(tau.apply(encoder.params), x)
        assert "tangent" not in card
    with_it, without = re.findall(r"```python\n(.*?)```", card, re.S)
    assert "tasklab" in with_it and "tasklab" not in without
    fast = torch.backends.mha.get_fastpath_enabled()
    plain = {"network": encoder.module, "x": x}
    for code, given in ((with_it, {"images": images}), (without, plain)):
        try:
            exec(code, given)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        torch.testing.assert_close(given["features"], expected, rtol=1e-4, atol=1e-4)
    alone = exporting.write_run(run, encoder, tmp_path / "alone")
    assert "Without tasklab" not in (alone / exporting.CARD_FILE).read_text()


@pytest.mark.parametrize("steps", [9, 10])
def test_the_card_says_what_a_rehearsal_is_worth(run_of, steps):
    run, _ = run_of(steps=steps)
    told = f"| steps | {steps} |\n| rehearsal | yes: with fewer than 10 steps the numbers here mean"
    assert (told in exporting.card(run, (), head=False, base=False)) == (steps < 10)
    assert Parameters(steps=steps).rehearsal == (steps < exporting.REHEARSAL_STEPS)


@pytest.mark.parametrize("suite", ["own", "mini"])
def test_accuracies_are_those_of_the_very_run_on_the_same_images(store, run_of, suite):
    run, encoder = run_of(suite=suite)
    common = {"experiment": "single", "suite": suite, "weights": encoder.weights_hash}
    longer = {**run.config, "steps": 4}
    for method, tuned, images, value in (
        ("nonlinear", run.config, "mine", 80.0), ("posthoc", run.config, "mine", 70.0),
        ("nonlinear", longer, "mine", 90.0), ("pretrained", None, "mine", 30.0),
        ("pretrained", None, "others", 40.0),
    ):  # fmt: skip
        about = {"method": method, "runs": {"Signs": tuned} if tuned else {}}
        row = {"task": "Signs", "split": "test", "n": 10, "method": method, "value": value}
        rows = [row, {**row, "task": "Scenes"}]
        config = {**common, **about, "data": {"Signs": [images, images]}}
        store.get("records", config, lambda _, rows=rows: ({}, {"rows": rows}))
    found = {row["value"] for row in exporting.accuracies_of(store, [run])[run.key]}
    assert found == {80, 70, 30} | ({40} if suite == "mini" else set())  # one's own name is any


# The command line.
def words_of(store, out):
    here = ["--model", "mini_xs", "--store-root", str(store.root), "--out", str(out)]
    return ["export", *here, "--preset", "quick", "--steps", "4"]


@pytest.fixture
def made(store):
    """A store with one run."""
    own = Lab(
        Parameters(model="mini_xs", steps=4, store_root=store.root, device="cpu"), progress=False
    )
    tau = {name: torch.full_like(x, 0.01) for name, x in own.clip.encoder.params.items()}
    config = finetune.identity(own.run("Signs", "nonlinear", 0), own.clip)
    store.get("finetune", config, lambda _: (tau, {"losses": [1.0]}))
    return store


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], ""),
        (["--task", "Signs"], ""),
        (["--task", "Signs", "--task", "Scenes"], "no run of Scenes is in the store\n"),
        (["--task", "Signs", "--method", "linearized", "--method", "nonlinear"], "1 of 2 runs are"),
        (["--task", "Signs", "--chapter", "tangent"], "1 of 2 runs are not in the store, such as"),
        (["--task", "Signs", "--method", "nonlinear", "--seeds", "2"], "1 of 2 runs are not in"),
    ],
)
def test_only_what_was_asked_for_by_name_is_missed(made, tmp_path, capfd, more, expected):
    runs._say_once.cache_clear()  # as in a process of its own
    assert main([*words_of(made, tmp_path / "out"), *more]) == 0
    out, err = capfd.readouterr()
    folder, count, *missed = out.splitlines(keepends=True)
    assert folder == f"{tmp_path / 'out'}/mini_xs-Signs-nonlinear-seed0\n"
    assert count == "1 run exported\n" and not err  # nor a word of cells and rehearsals
    assert "".join(missed).startswith(expected) and bool(missed) == bool(expected)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1e-7, "less than 0.01 %"), (0.0123, "1.2 %"), (0.1, "10 %"), (1.1, "110 %"), (12, "1,200 %")],
)
def test_percentages_read_well(share, expected):
    assert commands._percent(share) == expected
