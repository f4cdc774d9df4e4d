"""Decodings that are killed, stopped or waited for, in processes of their own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tasklab.tasks.images import decoding, formats, pixels
from tests.decoded import CENTRE, SIDE, expected, images, rows_of


@pytest.fixture
def split(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK", 4)
    return images(tmp_path / "data", 40)


SLOWLY = """
import sys, time
from pathlib import Path
import numpy as np
sys.path.insert(0, {here!r})
from tasklab.tasks.images import decoding, formats, pixels
from tasklab.tasks.images.decoding import Transform
formats.CHUNK = 4
read = formats.Split.read
def slow(*args):
    time.sleep({pause})
    yield from read(*args)
formats.Split.read = slow
files = sorted(Path({data!r}).glob("*.png"))
split = formats.image_files(files, [i % 3 for i in range(len(files))], ["a", "b", "c"])
rows = np.random.default_rng(1).permutation(len(split))[:{count}]
pixels.decode(Path({out!r}), split, rows, Transform("centre", {side}), jobs={jobs}, progress=False)
"""


def script(root, *, pause, count=30, side=SIDE, jobs=1):
    return SLOWLY.format(
        here=str(Path(pixels.__file__).parents[3]), data=str(root / "data"), out=str(root / "out"),
        pause=pause, count=count, side=side, jobs=jobs,
    )  # fmt: skip


def test_a_killed_decoding_goes_on_where_it_was(split, tmp_path, monkeypatch):
    rows, work = rows_of(split), tmp_path / "out.partial"
    process = subprocess.Popen([sys.executable, "-c", script(tmp_path, pause=0.2)])
    log, limit = work / "done.jsonl", time.monotonic() + 60
    while time.monotonic() < limit:
        if log.exists() and len(log.read_text().splitlines()) >= 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = [json.loads(line)["chunk"] for line in log.read_text().splitlines()]
    assert 3 <= len(done) < 10 and not (tmp_path / "out").exists()
    with log.open("a") as file:
        file.write('{"chunk": 9, "sha')  # killed while it wrote
    at = int(np.flatnonzero(np.isin(rows, range(4 * done[0], 4 * done[0] + 4)))[0])
    mapped = np.load(work / "x.npy", mmap_mode="r+")
    mapped[at] += 1  # damage to what the first chunk left
    mapped.flush()
    again, decode = [], decoding.Job.decode

    def count(self, chunk):
        again.append(chunk)
        return decode(self, chunk)

    monkeypatch.setattr(decoding.Job, "decode", count)
    made = pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False, jobs=1)
    assert np.array_equal(made.x, expected(split, rows))
    assert done[0] in again and not set(done[1:]) & set(again)
    assert not work.exists()


@pytest.mark.parametrize("jobs", [1, 4])
def test_ctrl_c_ends_a_decoding_after_the_chunks_that_are_begun(jobs, split, tmp_path):
    """What they print is not the user's; what is finished is kept."""
    code = script(tmp_path, pause=0.3, count=40, jobs=jobs)
    # A shell that runs the tests in the background lets them, and what they start, ignore Ctrl-C.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "out.partial" / "done.jsonl"
    waited_for(lambda: log.exists() and log.read_text())
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert told.count("Traceback") == 1 and "KeyboardInterrupt" in told, told
    assert 1 <= len(log.read_text().splitlines()) < 10


def waited_for(condition):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_who_waits_for_another_process_says_so(split, tmp_path, caplog):
    code = f"import filelock, time; lock = filelock.FileLock({str(tmp_path / 'out.lock')!r}); "
    code += f"lock.acquire(); open({str(tmp_path / 'held')!r}, 'w').close(); time.sleep(1.5)"
    with subprocess.Popen([sys.executable, "-c", code]):
        waited_for((tmp_path / "held").exists)
        pixels.decode(tmp_path / "out", split, np.arange(9), CENTRE, progress=False, title="mine")
    assert "mine: waiting for another process that decodes" in caplog.text


def test_memory_does_not_grow_with_the_data(tmp_path):
    images(tmp_path / "data", 24, scale=20)  # 400 x 360 and more
    peak = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    code = script(tmp_path, pause=0, count=4, side=512) + peak
    code += f"rows, out = np.random.permutation(24), Path({str(tmp_path / 'all')!r})\n"
    code += (
        "pixels.decode(out, split, rows, Transform('centre', 512), jobs=1, progress=False)" + peak
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    first, second = map(int, out.stdout.split())
    grown = (second - first) * (1024 if sys.platform != "darwin" else 1)
    assert grown < 8e6 < 20 * 3 * 512**2, f"{grown / 1e6:.0f} MB more"
