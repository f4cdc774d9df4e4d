"""The command line: every mistake ends in one line and exit status 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasklab import choices
from tasklab.__main__ import main

COMMANDS = ("report", "study", "fetch", "decode", "import", "export", "list", "doctor", "grid")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "usage: tasklab" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "--model", "vitb23"], "did you mean 'vitb32'"),
        (["report", "--preset", "ful"], "did you mean 'full'"),
        (["report", "--steps", "-3"], "steps"),
        (["report", "--seeds", "1,x"], "seeds"),
        (["study", "tangent", "--init", "pretraind"], "did you mean 'pretrained'"),
        (["study", "tangnet"], "did you mean 'tangent'"),
        (["fetch", "mimi"], "did you mean 'mini'"),
        (["list", "model"], "did you mean 'models'"),
    ],
)
def test_a_mistake_is_one_line(words, expected, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tasklab: ")
    assert err.count("\n") == 1
    assert expected in err


def test_a_mistake_has_no_traceback_in_a_process_of_its_own():
    command = [sys.executable, "-m", "tasklab", "report", "--model", "nothing"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(name in result.stderr for name in choices.MODELS)


def test_a_reader_that_stops_is_no_mistake():
    command = [sys.executable, "-m", "tasklab", "list"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    with running.stderr as told:
        assert told.read() == ""
    assert running.wait(120) == 141


@pytest.mark.parametrize("words", [["retort"], [], ["report", "--presett", "quick"]])
def test_an_unknown_word_shows_the_usage(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: tasklab" in capsys.readouterr().err


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in (*choices.MODELS, *choices.EDITS, *choices.SUITES, "Signs")
    )


def test_fetch_mini(capsys):
    assert main(["fetch", "mini"]) == 0
    assert capsys.readouterr().out.startswith("mini: ready")
