"""Checks of what users give: each refusal is one short sentence with the option's name."""

import itertools
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import tasklab
from tasklab import TaskVector, errors
from tasklab.errors import TasklabError
from tests.helpers import refuses

HUGE = 10**5000


class Odd:
    def __repr__(self):
        raise RuntimeError

    def __float__(self):
        raise OverflowError


def short(value):
    return errors.shown(value)[:20]


def refused(check, *args, words="."):
    message = refuses(words, check, "option", *args)
    assert message.startswith(("option", "each of option", "unknown ")) and message.endswith(".")
    assert len(message) < 700 and "\n" not in message
    return message


@pytest.mark.parametrize(
    "value",
    [HUGE, -HUGE, "1" * 5000, "9" * 50, 2**63, True, None, 1.5, math.inf, math.nan, 0, -1, "", "x",
     "1\x002", [], Odd(), "y" * 10**6, b"1", 1e300, {"a": HUGE}], ids=short)  # fmt: skip
def test_no_whole_number(value):
    refused(errors.whole, value, 1)


@pytest.mark.parametrize("value", [8, "12", b"1", None, [], [0], ["x"], [1, [2]]], ids=short)
def test_no_list_of_whole_numbers(value):
    refused(errors.wholes, value, 1)


@pytest.mark.parametrize("value", [0, "0", -1, "x", None, math.inf], ids=short)
def test_no_positive_number(value):
    refused(errors.positive, value)


def test_numbers_seeds_and_lists_are_converted():
    for value in (3, 3.0, " 3 ", "+3", np.int64(3), np.float32(3)):
        assert errors.whole("n", value, 1, 3) == 3
    refused(errors.whole, 4, 1, 3, words="at most 3, not 4")
    assert errors.whole("n", 2**63 - 1, 0) == 2**63 - 1
    assert errors.real("lr", "1e-3") == 1e-3 and errors.real("lr", np.float32(0.5)) == 0.5
    assert errors.real("alpha", -2, -math.inf) == -2
    assert "between" not in refused(errors.real, math.nan, -math.inf)
    refused(errors.real, 1.5, 0, 1, words="of at least 0 and at most 1, not 1.5")
    assert errors.seeds("seeds", "2") == (0, 1) == errors.seeds("seeds", np.array(2))
    assert errors.seeds("seeds", iter([3, "1"])) == (3, 1)
    for value in (10**9, 0, -1, "x", [], [1, 1], [2**63], [-1], [HUGE], None, range(2000)):
        refused(errors.seeds, value)
    refused(errors.seeds, itertools.count())
    assert errors.texts("tasks", "A") == ("A",) == errors.texts("tasks", iter(["A"]))
    for value in ([], "", " ", [""], [None], None, 3, b"A", {"a": 1}.values(), [["A"]], HUGE):
        refused(errors.texts, value)
    refused(errors.texts, "Signz", ("Signs", "Cars"), words="did you mean 'Signs'")


@pytest.mark.parametrize(
    "value",
    [HUGE, "1" * 5000, "nan", math.inf, True, None, "", "x" * 10**6, [1], Odd(), 1j, -0.1],
    ids=short,
)
def test_no_real_number(value):
    refused(errors.real, value)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "~nosuchuser/x", "a\0b", "x" * 300, "y/" * 5000, "\ud800", None, 3, b"a", ["a"],
        HUGE,
    ],
    ids=short,
)  # fmt: skip
@pytest.mark.parametrize("kind", [None, "file", "folder"])
def test_no_path(value, kind):
    refused(errors.path, value, kind)


def test_paths(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "round").symlink_to("round")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert errors.path("option", "~/file", "file") == tmp_path / "file"
    assert errors.path("option", "~", "folder") == tmp_path
    assert errors.path("option", "not/there") == Path("not/there")
    for name, kind, words in (
        ("absent", "file", "there is no file of that name"),
        ("file", "folder", "is not a folder"),
        ("", "file", "is a folder, and should be a file"),
        ("file/x", "file", "Not a directory"),
        ("round", None, "symbolic links"),
    ):
        refused(errors.path, tmp_path / name, kind, words=words)
    assert errors.path("option", tmp_path / "file" / "x")  # whoever writes there says more


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for read in (
        lambda place: errors.path("it", place, "file"),
        TaskVector.load,
        lambda place: tasklab.merge(place, [place], alpha=1.0),
        lambda place: tasklab.merge({"w": torch.ones(1)}, [place], alpha=1.0),
    ):
        refuses("is a device or a pipe", read, tmp_path / "pipe.safetensors")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give up rights")
def test_a_path_that_is_not_ours_to_read(tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir(mode=0o700)
    (folder / "file").touch()
    for path in tmp_path.parents[:-2]:
        os.chmod(path, 0o755)
    os.seteuid(65534)
    try:
        refused(errors.path, folder / "file", "file", words="Permission denied")
    finally:
        os.seteuid(0)


def test_messages_are_cut():
    error = TasklabError(f"begins{'x' * 10**6}and ends.")
    text = str(error)
    assert len(text) <= errors.LONGEST and text.startswith("begins") and text.endswith("and ends.")
    assert str(pickle.loads(pickle.dumps(error))) == text
    assert len(str(errors.unknown("model", "x" * 10**6, ["mini"]))) < 200


@pytest.mark.parametrize(
    "value", [HUGE, "x" * 10**6, b"x" * 10**6, Odd(), [HUGE], ["x" * 999] * 99], ids=short
)
def test_what_is_shown_is_short(value):
    assert len(errors.shown(value)) <= 80


def test_a_notebook_shows_the_sentence_without_the_way_to_it(capsys, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of one that is not its own
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_cell("from tasklab.errors import choose\nchoose('model', 'vitb23', ['vitb32'])")
    told = capsys.readouterr().out.splitlines()
    assert told == ["TasklabError: unknown model 'vitb23': did you mean 'vitb32'? Choices: vitb32."]
    shell.run_cell("1 / 0")
    assert "Traceback" in capsys.readouterr().out
