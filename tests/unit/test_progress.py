"""Progress: one line, in a form for each place where it can end up."""

import io
import sys
from types import SimpleNamespace

import pytest

from tasklab import progress


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel.zmqshell", raising=False)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.delenv(progress.FORM, raising=False)
    assert progress._open == []
    yield
    assert progress._open == []


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Seen:
    """A screen that keeps what it is shown."""

    every = 10.0

    def __init__(self):
        self.lines, self.last = [], None

    def show(self, text, share):
        self.lines.append((text, round(share, 3)))

    def end(self, text, seconds):
        self.last = text


def test_where_output_goes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Tty())
    assert progress.output() == "terminal"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.output() == "log"
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", object())
    assert progress.output() == "log"  # it is loaded, and no kernel runs
    shell = SimpleNamespace(kernel=object(), execution_count=3)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert progress.output() == "notebook" and progress.cell() == 3
    monkeypatch.setenv(progress.FORM, "lines")
    assert progress.output() == "log"


@pytest.mark.parametrize(
    ("where", "out"), [("notebook", "a.\n"), ("terminal", ""), ("log", "")], ids=str
)
def test_a_sentence_is_no_error_in_a_notebook(monkeypatch, capsys, where, out):
    monkeypatch.setattr(progress, "output", lambda: where)
    progress.tell("a.")
    assert capsys.readouterr() == (out, "" if out else "a.\n")


def run(seconds, steps=100, initial=0):
    """Return the lines of `steps` steps that take `seconds` together."""
    clock, out = Clock(), io.StringIO()
    screen = progress.Log(out)
    with progress.Bar(steps, "Cars", done=initial, screen=screen, clock=clock) as shown:
        for _ in range(steps - initial):
            clock.now += seconds / (steps - initial)
            shown.set_postfix_str("loss 0.5")
            shown.update()
    return out.getvalue()


def test_few_plain_lines_and_none_for_no_time():
    text = run(35.0)
    lines = text.splitlines()
    assert "\r" not in text and len(lines) == 5
    assert lines[1].startswith("Cars: step 33 of 100, about 24 s left, loss 0.5")
    assert lines[-1] == "Cars: 100 steps in 35 s, loss 0.5"
    assert run(15.0, initial=50).splitlines()[1].startswith("Cars: step 89 of 100, about 4 s")
    assert run(0.5) == ""


def test_paces_follow_the_steps_and_shares():
    clock, screen = Clock(), Seen()
    with progress.Bar(400, "train", screen=screen, clock=clock) as shown:
        for seconds in (40, 10, 10):  # the first imports
            clock.now += seconds
            shown.update()
    texts = [text for text, _ in screen.lines]
    assert texts[0] == "train: step 2 of 400"
    assert texts[-1] == "train: step 4 of 400, about 66 min left"
    clock, screen = Clock(), Seen()
    with progress.Bar(2, "compare", screen=screen, clock=clock):
        for _ in range(2):  # parts of the first step
            with progress.Bar(10, "features", screen=screen, clock=clock) as part:
                for _ in range(4):
                    clock.now += 10
                    part.update()
    assert screen.lines[-1][0] == "compare: step 1 of 2, about 3 min left, features: step 5 of 10"
    with pytest.raises(ValueError), progress.Bar(2, "a", screen=Seen()):
        progress.Bar(2, "b", screen=Seen())
        raise ValueError


def test_what_is_inside_is_told_in_one_line_and_counts_for_the_time_left():
    clock, screen = Clock(), Seen()
    with progress.Bar(4, "train", unit="run", screen=screen, clock=clock) as outer:
        outer.update()
        for _ in range(2):  # one after the other, each with a screen that is not used
            unused = Seen()
            with progress.Bar(2, "Cars", screen=unused, clock=clock) as inner:
                clock.now += 30
                inner.update()
                assert unused.lines == [] and unused.last is None
            outer.update()
    assert screen.lines == [
        ("train: run 2 of 4, about 2 min left, Cars: step 2 of 2", 0.375),
        ("train: run 3 of 4, about 60 s left, Cars: step 2 of 2", 0.625),
    ]
    assert screen.last == "train: 3 of 4 runs in 60 s"


def test_what_takes_long_is_said_before_it_begins():
    clock, screen = Clock(), Seen()
    with (
        progress.Bar(2, "train", unit="run", screen=screen, clock=clock),
        progress.Bar(9, "Signs", screen=screen, clock=clock) as inner,
    ):
        inner.say("compiling, once")
        (line,) = screen.lines
        assert line == ("train: run 1 of 2, Signs: step 1 of 9, compiling, once", 0.0)
        inner.set_postfix_str("")
        clock.now = 1.0
        inner.update()
    assert screen.lines[1:] == []  # not again within its ten seconds


def test_bars_that_a_failed_cell_left_open_do_not_hold_those_of_the_next(monkeypatch):
    monkeypatch.setattr(progress, "cell", lambda: 1)
    left = progress.Bar(2, "a", screen=Seen())
    monkeypatch.setattr(progress, "cell", lambda: 2)
    screen = Seen()
    with progress.Bar(1, "b", screen=screen) as bar:
        left.update()
        left.close()
        bar.update()
    assert screen.last.startswith("b: 1 step in")


def test_the_log_form_is_chosen_and_writes_to_stderr(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with progress.bar(3, "Cars", done=1) as shown:
        shown.start -= 60
        shown.last -= 60
        shown.update()
    assert out.getvalue().startswith("Cars: step 3 of 3, about 60 s left\nCars: 2 of 3 steps in 60")


def test_a_terminal_has_one_line_that_is_wiped(monkeypatch):
    out = Tty()
    monkeypatch.setattr(sys, "stderr", out)
    for item in progress.track("abc", 3, "Cars"):
        progress._open[0].last -= 60
        assert item in "abc"
    assert "Cars: step 2 of 3" in out.getvalue() and "\n" not in out.getvalue()
    assert out.getvalue().split("\r")[-2].strip() == ""


@pytest.mark.parametrize("seconds, told", [(5, ""), (65, "Cars: 1 step in 65 s")])
def test_a_notebook_has_one_output_without_a_widget(monkeypatch, seconds, told):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data)

    def display(data, raw, display_id):
        shown.append(data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    clock = Clock()
    with progress.Bar(1, "Cars", screen=progress.Notebook(), clock=clock) as bar:
        clock.now = seconds
        bar.refresh()
        bar.update()
    assert len(shown) >= 2 and all(set(data) == {"text/html", "text/plain"} for data in shown)
    assert "<progress" in shown[0]["text/html"] and "Cars: step 1 of 1" in shown[0]["text/plain"]
    assert shown[-1]["text/plain"] == told and "<progress" not in shown[-1]["text/html"]


@pytest.mark.parametrize("switched_off", ["argument", "variable"])
def test_no_bar(monkeypatch, switched_off):
    out = Tty()
    monkeypatch.setattr(sys, "stderr", out)
    if switched_off == "variable":
        monkeypatch.setenv("TQDM_DISABLE", "1")
    with progress.bar(3, "Cars", on=switched_off == "variable") as shown:
        shown.update(3)
        shown.set_postfix_str("loss", refresh=False)
    assert out.getvalue() == ""


def test_without_an_error_stream_nothing_reaches_the_output(monkeypatch, capsys):
    """As under pythonw: `print` to no file is to stdout, where a program's answer is."""
    monkeypatch.setattr(sys, "stderr", None)
    progress.tell("nine of ten")
    progress.Log().show("half", 0.5)
    assert capsys.readouterr().out == ""
