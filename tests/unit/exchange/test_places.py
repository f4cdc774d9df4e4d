"""Places of outputs: each has its own, and nothing of others is replaced."""

import errno
import os
from pathlib import Path

import pytest

from tasklab.__main__ import main
from tasklab.exchange import places
from tasklab.storage import atomic
from tests.helpers import mistaken, refuses


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    return tmp_path


@pytest.mark.parametrize(
    ("outputs", "model"),
    [
        ({"--merged": "x.safetensors"}, "x.safetensors"),
        ({"--merged": "x.safetensors"}, "folder/../x.safetensors"),
        ({"--merged": "folder/x.safetensors"}, "link/x.safetensors"),
        ({"--merged": "folder/x.safetensors"}, "folder"),
        ({"--out": "x.md"}, "x.safetensors"),
        ({"--out": "x.json"}, "x.pt"),
        ({"--out": "x", "--csv": "./x"}, None),
    ],
)
@pytest.mark.usefixtures("at")
def test_two_outputs_in_one_place_are_refused(outputs, model):
    outputs = {option: Path(place) for option, place in outputs.items()}
    into = None if model is None else places.target(Path(model))
    refuses("a place of its own", places.check_apart, outputs, into)


@pytest.mark.usefixtures("at")
def test_places_that_are_apart_are_taken():
    outputs = {"--out": Path("x.html"), "--csv": Path("folder/x.csv")}
    places.check_apart(outputs, places.target(Path("x.safetensors")))
    places.check_apart({"--out": Path("x.safetensors")}, places.target(Path("folder")))


@pytest.mark.parametrize("command", ["compare", "merge"])
def test_commands_refuse_before_they_read_a_vector(at, capsys, command):
    out = "--merged" if command == "compare" else "--out"
    words = ["a.safetensors", "b.safetensors", out, "x.safetensors", "--model-out"]
    told = mistaken([command, *words, "x.safetensors"], capsys)
    assert f"{out} and --model-out are the same" in told
    assert [path.name for path in at.iterdir()] == ["folder", "link"] or not (at / "x").exists()


@pytest.mark.usefixtures("at")
@pytest.mark.parametrize("option", ["--out", "--csv", "--merged", "--model-out"])
def test_an_empty_name_is_one_sentence(capsys, option):
    words = ["compare", "a.safetensors", "b.safetensors", f"{option}="]
    assert f"{option} is empty: give it a path" in mistaken(words, capsys)


def test_only_a_card_and_settings_of_a_model_that_is_not_there_are_replaced(at):
    (at / "m.md").write_text('{"file_sha256": "0"}')
    assert places.target(at / "m.safetensors")
    (at / "m.json").write_text('{"vision_cfg": {}}')
    assert places.target(at / "m.safetensors")
    for foreign in ('{"my": "settings"}', "[1]", "3", "no JSON"):
        (at / "m.json").write_text(foreign)
        refuses("is there already", places.target, at / "m.safetensors")
    assert main(["merge", "a", "b", "--model-out", str(at / "m.safetensors")]) == 2


@pytest.mark.parametrize(("option", "name"), [("--out", "report.html"), ("--csv", "rows.csv")])
def test_a_file_of_others_is_not_replaced(at, capsys, option, name):
    (at / name).write_text("my own results")
    words = ["compare", "a.safetensors", "b.safetensors", option, name]
    assert f"{name} holds something else: choose another file" in mistaken(words, capsys)
    assert (at / name).read_text() == "my own results"


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "Free some space"), (errno.EFBIG, "Raise the largest size of files")],
)
def test_outputs_are_written_together_or_not_at_all(at, monkeypatch, number, advice):
    files = {"--csv": at / "rows.csv", "--out": at / "report.html"}
    files["--csv"].write_text("before")
    fill = atomic.fill

    def full(draft, text):
        fill(draft, text[:3])
        if "report" in draft.name:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic, "fill", full)
    outputs = places.Outputs(files)

    def write():
        with outputs.drafts({"--csv": "a,b", "--out": "<html>"}):
            pytest.fail("not all drafts are written")

    assert advice in refuses("or choose another folder with --out", write)
    assert sorted(one.name for one in at.iterdir()) == ["folder", "link", "rows.csv"]
    assert files["--csv"].read_text() == "before"
    monkeypatch.undo()
    with outputs.drafts({"--csv": "a,b", "--out": "<html>"}):
        assert files["--csv"].read_text() == "before"
    assert (files["--csv"].read_text(), files["--out"].read_text()) == ("a,b", "<html>")
