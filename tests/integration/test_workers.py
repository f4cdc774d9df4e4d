"""Workers end with what started them, and a study says in one sentence that one was ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasklab.errors import TasklabError
from tasklab.evidence.study import workers
from tests.helpers import refuses

SCRIPT = """
import sys
from tests_workers import nap
from tasklab.evidence.study import workers
if __name__ == "__main__":
    folder = sys.argv[1]
    workers.share(nap, [(folder, i) for i in range(3)], 2, title="naps", unit="nap")
"""
NAP = """
import os, pathlib, time
def nap(folder, number):
    (pathlib.Path(folder) / f"pid{os.getpid()}").touch()
    time.sleep(120)
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


@pytest.fixture
def started(tmp_path):
    (tmp_path / "tests_workers.py").write_text(NAP)
    (tmp_path / "main.py").write_text(SCRIPT)
    root = Path(workers.__file__).parents[3]
    path = os.pathsep.join([str(tmp_path), str(root)])
    environment = {**os.environ, "PYTHONPATH": path, "TQDM_DISABLE": "1"}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py"), str(tmp_path)],
        env=environment, stderr=subprocess.PIPE, text=True,
        # A shell that runs tests in the background has them ignore Ctrl-C, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert until(lambda: len(list(tmp_path.glob("pid*"))) == 2)
    pids = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
    yield process, pids
    for pid in (process.pid, *pids):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.stderr.close()
    process.wait()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(started, number):
    process, pids = started
    os.kill(process.pid, number)
    assert until(lambda: not any(alive(pid) for pid in pids), 60)  # a busy machine is slow
    process.wait(20)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_killed_worker_is_one_sentence(started):
    process, pids = started
    os.kill(pids[0], signal.SIGKILL)
    last = process.communicate(timeout=60)[1].strip().splitlines()[-1]
    assert last.startswith("tasklab.errors.TasklabError: a worker was ended from")
    assert until(lambda: not any(alive(pid) for pid in pids), 60)  # a busy machine is slow


def fail(number):
    raise TasklabError(f"task {number} fails")


def test_what_a_task_raises_is_raised():
    refuses("task 0 fails", workers.share, fail, [(0,)], 1, title="tasks", unit="task")


def meet(folder):
    (Path(folder) / str(os.getpid())).touch()
    assert until(lambda: len(list(Path(folder).iterdir())) == 2)


def test_who_has_nothing_left_helps(tmp_path):
    """One task of two processes ends once both are at it."""
    workers.share(meet, [(str(tmp_path),)], 2, title="meetings", unit="meeting", helped=True)


def test_tasks_are_shared(tmp_path):
    tasks = [(str(tmp_path / f"{i}"),) for i in range(3)]
    workers.share(os.mkdir, tasks, 2, title="folders", unit="folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
