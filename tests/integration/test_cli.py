"""The command line: every mistake ends in one line and exit status 2."""

import errno
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from safetensors.torch import save_file

import tasklab
from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.cli import COMMANDS, names, parsing
from tasklab.evidence.study import recording, results
from tasklab.models import loading, zoo
from tasklab.storage import termination
from tasklab.tasks import suites
from tasklab.tuning import methods
from tests.helpers import mistaken


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "--model", "vitb23"], "did you mean 'vitb32'"),
        (["report", "--preset", "ful"], "did you mean 'full'"),
        (["report", "--steps", "-3"], "steps"),
        (["report", "--seeds", "1,x"], "seeds"),
        (["record", "tangent", "--init", "pretraind"], "did you mean 'pretrained'"),
        (["record", "tangnet"], "did you mean 'tangent'"),
        (["fetch", "mimi"], "did you mean 'mini'"),
        (["list", "model"], "did you mean 'models'"),
        (["retort"], "unknown command 'retort': did you mean 'report'"),
        ([], "name a command: compare, merge"),
        (["report", "--presett", "quick"], "did you mean '--preset'"),
        (["report", "--steps"], "--steps needs a value"),
        (["record"], "record takes a CHAPTER, or --all: `tasklab record --help`"),
        (["record", "--all", "--part", "maps"], "leave out --part, --out"),
        (["list", "models", "tasks"], "list does not take 'tasks': see `tasklab list --help`"),
        (["evaluate", "mini", "--add", "a", "b"], "repeat it, --add 'b'"),
        (["evaluate", "--model", "mini"], "evaluate takes its MODEL without --model"),
        (["--completion", "bsh"], "did you mean 'bash'"),
        (["import"], "import takes a FILE"),
        (["import", "x.pt"], "import takes --model"),
        (["import", "x.pt", "--model", "mini"], "import takes --task"),
        (["import", "no/such/x.pt", "--model", "mini", "--task", "Cars"], "no checkpoint"),
        (["export", "--chapter", "tangnet"], "did you mean 'tangent'"),
        (["export", "--model", "mini_xs", "--task", "Sings"], "did you mean 'Signs'"),
        (["export", "--model", "mini_xs", "--method", "attention"], "none of 8 runs is in"),
    ],
)
def test_a_mistake_is_one_line(words, expected, capsys):
    assert expected in mistaken(words, capsys)


def test_an_end_while_words_are_read_is_no_wrong_word(monkeypatch, capsys):
    def ended(*_, **__):
        raise termination.Terminated("asked to end")

    monkeypatch.setattr(parsing.tyro, "cli", ended)
    with pytest.raises(termination.Terminated):
        parsing.call("list", ["models"])


def test_processes_have_no_traceback():
    command = [sys.executable, "-m", "tasklab", "report", "--model", "nothing"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(name in result.stderr for name in zoo.MODELS)
    command = [sys.executable, "-m", "tasklab", "list"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    with running.stderr as told:
        assert told.read() == ""
    assert running.wait(120) == 141


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_and_has_an_example_that_can_be_parsed(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    out = capsys.readouterr().out
    about = COMMANDS[command]
    assert not stop.value.code and "usage: tasklab" in out
    assert about.summary in out and f"Example: tasklab {command} {about.example}" in out
    calls = []

    @functools.wraps(parsing.function_of(command))
    def instead(*args, **more):
        calls.append((args, more))

    monkeypatch.setattr(parsing, "function_of", lambda _: instead)
    assert main([command, *about.example.split()]) == 0
    assert len(calls) == 1


@pytest.mark.parametrize("command", ["report", "record", "export", "train"])
def test_a_command_takes_every_parameter(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    out = capsys.readouterr().out
    for name in Parameters.names():  # --live is of chapters that are executed
        assert (f"--{name.replace('_', '-')} " in out) == (name != "live" or command == "report")


def test_versions_lists_and_fetch(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tasklab {tasklab.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        main(["--completion", "bash"])
    assert not stop.value.code
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS) and "--store-root" in out
    assert "'paper', 'icons', 'wordnet']" in out and "'None'" not in out
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*zoo.MODELS, *methods.EDITS, *suites.SUITES, "Signs"))
    assert main(["fetch", "mini"]) == 0
    assert capsys.readouterr().out.startswith("mini: ready")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "_toc.yml").write_text("root: index\nchapters:\n- file: notebooks/one\n")
    (tmp_path / "book" / "_toc.yml").symlink_to(tmp_path / "_toc.yml")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "notebooks" / "one.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def checkpoint(tmp_path):
    params = loading.load("mini_xs").encoder.params
    save_file({name: x + 0.01 for name, x in params.items()}, tmp_path / "x.safetensors")
    return str(tmp_path / "x.safetensors")


def words_of(command, checkpoint):
    return {
        "report": ["report"],
        "record": ["record", "tangent", "--model", "mini_xs", "--device", "cpu"],
        "import": ["import", checkpoint, "--model", "mini_xs", "--task", "Signs"],
        "list": ["import", "--list"],
        "export": ["export", "--model", "mini_xs"],
    }[command]


@pytest.mark.parametrize("command", ["report", "record", "import", "list", "export"])
@pytest.mark.parametrize(("below", "given"), [("", "TASKLAB_STORE"), ("below", "--store-root")])
def test_a_store_that_is_a_file(command, below, given, clone, checkpoint, monkeypatch, capsys):
    (clone / "file").write_text("x")
    words, store = words_of(command, checkpoint), str(clone / "file" / below)
    if given == "TASKLAB_STORE":
        monkeypatch.setenv(given, store)
    else:
        words += [given, store]
    assert str(clone / "file") in mistaken(words, capsys)
    assert (clone / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("command", "number"),
    [("report", errno.EACCES), ("record", errno.EROFS), ("import", errno.ENOSPC)],
)
def test_a_store_that_cannot_be_written(command, number, clone, checkpoint, monkeypatch, capsys):
    store, mkdir = clone / "store", Path.mkdir

    def refuse(self, *args, **more):
        if self.is_relative_to(store):
            raise OSError(number, os.strerror(number), str(self))
        mkdir(self, *args, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    words = [*words_of(command, checkpoint), "--store-root", str(store)]
    told = mistaken(words, capsys)
    assert f"cannot write to the store {store}: {os.strerror(number)}" in told
    assert ("Free some space" in told) == (number == errno.ENOSPC)


def test_a_site_that_cannot_be_written(clone, capsys):
    (clone / "book" / "_build").write_text("x")
    told = mistaken(["report"], capsys)
    assert told == f"tasklab: {clone}/book/_build: File exists\n"


def test_records_that_cannot_be_written(clone, monkeypatch, capsys):
    """It is said before anything is computed, or a model loaded."""
    (clone / "file").write_text("x")
    monkeypatch.setattr(recording, "Lab", None)
    for out, message in (
        ("file/x.csv", "cannot write records to"),
        (".", "records are written as .csv or .csv.xz"),
        ("x.txt", "records are written as .csv or .csv.xz, not 'x.txt'"),
    ):
        words = [*words_of("record", ""), "--out", str(clone / out)]
        assert message in mistaken(words, capsys)
    monkeypatch.setattr(results, "RECORDED", clone / "lib" / "site-packages" / "tasklab")
    told = mistaken(words_of("record", ""), capsys)
    assert "belongs to the installed package: say by --out" in told


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "some/file"),
         "some/file: Permission denied"),
        (PermissionError(errno.EACCES, "Permission denied", b"some/file"),
         "some/file: Permission denied"),
        (OSError(errno.EIO, "Input/output error", 7), "7: Input/output error"),
        (OSError(errno.ENOSPC, "No space left on device"),
         "No space left on device. Free some space."),
        (OSError(errno.EFBIG, "File too large"),
         "File too large. Raise the largest size of files (ulimit -f)."),
        (OSError("of a library,\nin two lines"), "of a library,"),
        (TimeoutError(), "TimeoutError"),
    ],
)  # fmt: skip
def test_what_nothing_else_looked_after_is_one_line(error, expected, monkeypatch, capsys):
    def fails(table):
        raise error

    monkeypatch.setattr(names, "rows", fails)
    assert mistaken(["list", "models"], capsys) == f"tasklab: {expected}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_an_output_that_is_full():
    command = [sys.executable, "-m", "tasklab", "list"]
    with open("/dev/full", "w") as out:
        result = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    assert result.returncode == 2
    assert result.stderr == "tasklab: No space left on device. Free some space.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no ulimit")
def test_too_few_addresses_are_told_before_pytorch_is_loaded():
    command = f"ulimit -v 3000000; {sys.executable} -m tasklab evaluate mini_xs --task Signs"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "PyTorch needs 3.5 GiB of them" in result.stderr


@pytest.mark.parametrize(
    "words", [["report"], ["paper", "vitb32"], ["paper", "vitb32", "--dry-run"]]
)
def test_the_book_is_executed_by_its_extra(words, capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nbformat" else there(name)
    )
    assert "needs nbformat: install them by pip install 'tasklab[book]'" in mistaken(words, capsys)
