"""Progress: one form for each place where it can end up."""

from __future__ import annotations

import io
import sys

import pytest

from tasklab import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", object())
    for name in progress._FRONTENDS:
        monkeypatch.delenv(name, raising=False)


def test_where_output_goes(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel.zmqshell", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert progress.output() == "terminal"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.output() == "log"


def test_a_kernel_that_nobody_looks_at_is_a_log(kernel, monkeypatch):
    assert progress.output() == "log"
    monkeypatch.setenv("JPY_SESSION_NAME", "tangent.ipynb")
    assert progress.output() == "notebook"


def run(seconds, steps=100, initial=0, every=10.0):
    """Return the lines of `steps` steps that take `seconds` together."""
    now, out = [0.0], io.StringIO()
    lines = progress.Lines(
        total=steps, desc="Cars", initial=initial, file=out, every=every, clock=lambda: now[0]
    )
    with lines:
        for _ in range(steps - initial):
            now[0] += seconds / (steps - initial)
            lines.set_postfix_str("loss 0.5")
            lines.update()
    return out.getvalue()


def test_few_plain_lines():
    text = run(35.0)
    lines = text.splitlines()
    assert "\r" not in text and len(lines) == 4
    assert lines[0].startswith("Cars: 29/100 steps, 10 s, about 2") and "loss 0.5" in lines[0]
    assert lines[-1] == "Cars: 100/100 steps, 35 s, loss 0.5"


def test_a_resumed_run_counts_its_own_time_only():
    assert run(15.0, initial=50).splitlines()[0].startswith("Cars: 84/100 steps, 10 s, about 5 s")


def test_nothing_for_what_takes_no_time():
    assert run(0.5) == ""


def test_the_log_form_is_chosen_and_writes_to_stderr(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.delitem(sys.modules, "ipykernel.zmqshell", raising=False)
    with progress.bar(3, "Cars", done=1) as shown:
        assert isinstance(shown, progress.Lines) and shown.done == 1
        shown.every = 0.0
        shown.update(2)
    assert out.getvalue() == "Cars: 3/3 steps, 0 s\n"


def test_a_bar_in_a_terminal(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.delitem(sys.modules, "ipykernel.zmqshell", raising=False)
    assert list(progress.track("abc", 3, "Cars")) == ["a", "b", "c"]
    assert "Cars" in out.getvalue() and "\r" in out.getvalue()


@pytest.mark.parametrize("switched_off", ["argument", "variable"])
def test_no_bar(monkeypatch, switched_off):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    if switched_off == "variable":
        monkeypatch.setenv("TQDM_DISABLE", "1")
    with progress.bar(3, "Cars", on=switched_off == "variable") as shown:
        shown.update(3)
        shown.set_postfix_str("loss", refresh=False)
    assert out.getvalue() == ""
