"""SIGTERM waits where it was asked to, and ends the process with its status elsewhere."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tasklab.storage import termination


def test_a_request_waits_and_the_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(termination.Terminated), termination.deferred() as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.asked
        raise termination.Terminated("kept")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_request_that_nobody_looked_at_is_handed_on():
    with pytest.raises(termination.Terminated) as ended, termination.handled("all is kept"):
        with termination.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the request was lost")
    assert ended.value.code == 143


def test_other_threads_go_on_as_usual():
    seen = []

    def work():
        with termination.deferred() as request, termination.handled("never said"):
            seen.append(request.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_an_uncaught_end_has_the_status_and_one_sentence():
    code = (
        "import os, signal\nfrom tasklab.storage import termination\n"
        "with termination.handled('all is kept'):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (143, "all is kept\n")


def test_the_command_line_ends_with_the_status_and_one_sentence():
    code = (
        "import io, os, signal, sys\nfrom tasklab.__main__ import main\n"
        "class Out(io.StringIO):\n"
        "    def write(self, text):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.stdout = Out()\nsys.exit(main(['list', 'models']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 143, ended.stderr
    assert ended.stderr.splitlines() == [
        "tasklab: asked to end; what is finished is kept, the same command goes on"
    ]
