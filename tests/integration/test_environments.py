"""The same numbers, or one sentence, wherever a process runs."""

import asyncio
import concurrent.futures
import gc
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tasklab import Lab, models
from tests import environments
from tests.helpers import refuses

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, limits and umasks")
ODD = "Mäp %s 100% 'a' \"b\" 名 $HOME; x"


def in_a_thread(rest):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(rest).result()


def in_a_loop(rest):
    async def run():
        return rest()

    return asyncio.run(run())


def seeded():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


def printed_shortly():
    torch.set_printoptions(precision=1, sci_mode=True)
    np.set_printoptions(precision=1, threshold=3)
    pd.set_option("display.precision", 1, "display.max_rows", 2)


def without_streams():
    """As under pythonw, or a service whose terminal is gone."""
    sys.stdin = sys.stderr = None
    os.close(0)


def ignored(number):
    signal.signal(number, signal.SIG_IGN)


def with_files_of_ones_own():
    os.umask(0o077)


def with_nothing_told():
    """As cron or `env -i` starts it, with a home that nobody can write to."""
    os.environ.clear()
    os.environ.update(HOME="/proc/self", TMPDIR="/nowhere", TZ="Pacific/Chatham", LC_ALL="C")
    tempfile.tempdir = None
    time.tzset()


SETTINGS = {
    "of libraries": {
        "float64": lambda: torch.set_default_dtype(torch.float64),
        "a device": lambda: torch.set_default_device("meta"),
        "deterministic": lambda: torch.use_deterministic_algorithms(True),
        "no gradients": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "strict warnings": lambda: warnings.simplefilter("error"),
        "seeds": seeded,
        "short numbers": printed_shortly,
        "no garbage": gc.disable,
        "no log": lambda: logging.disable(logging.CRITICAL),
    },
    "of the process": {
        "no streams": without_streams,
        "one's own files": with_files_of_ones_own,
        "few open files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        "no children": lambda: ignored(signal.SIGCHLD),
        "no interrupts": lambda: ignored(signal.SIGINT),
        "no name": lambda: sys.argv.__setitem__(slice(None), [""]),
        "a loop": lambda: in_a_loop,
        "a thread": lambda: in_a_thread,
    },
    "of its surroundings": {
        "nothing told": with_nothing_told,
    },
}  # fmt: skip


def child(folder, kind, names):
    """Run the work in a fork under settings that lambdas could not bring along."""
    torch.set_num_threads(1)
    environments.outcome(folder, [SETTINGS[kind][name] for name in names])


def result(forks, folder, kind, names):
    folder.mkdir(parents=True)
    process = forks.Process(target=child, args=(folder, kind, names))
    process.start()
    process.join(300)
    assert process.exitcode == 0, (kind, names)
    return json.loads((folder / "outcome.json").read_text())


@pytest.fixture(scope="module")
def quiet(forks, tmp_path_factory):
    found = result(forks, tmp_path_factory.mktemp("quiet") / "plain", "of libraries", [])
    assert set(found.get("numbers", ())) == {*environments.TASKS, "merge", "evaluate", "compare"}, (
        found
    )
    return found


@pytest.mark.parametrize("kind", SETTINGS)
def test_numbers_do_not_depend_on_settings(kind, forks, quiet, tmp_path):
    """All of a kind at once; where they differ, each alone, to name those that do it."""
    found = result(forks, tmp_path / ODD, kind, [*SETTINGS[kind]])
    if found != quiet:
        alone = {
            name: result(forks, tmp_path / f"{ODD} {at}", kind, [name])
            for at, name in enumerate(SETTINGS[kind])
        }
        guilty = {name: one for name, one in alone.items() if one != quiet}
        pytest.fail(f"{[*guilty]}: {guilty or found}"[:4000])


def test_nor_on_how_the_interpreter_starts(quiet, tmp_path):
    """Without docstrings and assertions, in ASCII, with other hashes, and warnings as errors."""
    folder = tmp_path / ODD
    folder.mkdir()
    env = os.environ | {
        "PYTHONOPTIMIZE": "2", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
        "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "5",
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "TkAgg",
    }  # fmt: skip
    script = Path(environments.__file__)
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((folder / "outcome.json").read_text()) == quiet


def test_a_removed_working_folder_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refuses(
        "^the working folder was removed: change to one that is there.$", models.load, "mini_xs"
    )


@pytest.mark.parametrize("place", ["/proc/nowhere", "a file"])
def test_a_store_that_cannot_be_made_is_one_sentence(place, tmp_path):
    (tmp_path / "a file").write_text("")
    root = tmp_path / place
    said = refuses(
        str(root), lambda: Lab(environments.MODEL, tasks=("Signs",), steps=2, progress=False,
                               store_root=root).vector("Signs"),
    )  # fmt: skip
    assert "\n" not in said
