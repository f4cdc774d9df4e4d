"""What a killed process left beside its files goes with the next; a living one keeps its own."""

import os
import signal
import subprocess
import sys

import pytest

from tasklab.storage.atomic import room

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tasklab.storage import atomic
here, name, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
lasts, writing = not left, os.O_WRONLY | os.O_RDWR

def counted(event, args):
    global left
    writes = event == "open" and isinstance(args[2], int) and args[2] & writing
    if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(counted)
with atomic.room(here, ".merge", [here / name]) as place:
    (place / "vector.safetensors").write_bytes(b"x" * 1000)
    if lasts:
        with atomic.replacing(here / name) as draft:
            draft.write_bytes(b"half")
            print("there", flush=True)
            time.sleep(60)
"""


def words(*asked):
    return [sys.executable, "-c", SCRIPT, *map(str, asked)]


@pytest.fixture
def started():
    running = []

    def start(folder, name):
        asked = words(folder, name, 0)
        running.append(subprocess.Popen(asked, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout.readline() == "there\n"
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.communicate()


@pytest.mark.skipif(os.name == "nt", reason="kills by a signal")
def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path, started):
    (tmp_path / ".merge.mine.txt").write_text("mine")
    dead, living = started(tmp_path, "one"), started(tmp_path, "two")
    left = {one.name for one in tmp_path.iterdir()}
    assert len(left) == 5
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with room(tmp_path, ".merge", [tmp_path / "three"]) as place:
        assert place.is_dir()
        now = {one.name for one in tmp_path.iterdir()} - {place.name}
    assert len(now) == 3 and now < left and ".merge.mine.txt" in now
    (draft,) = [name for name in now if name.endswith(".partial")]
    assert draft.startswith(".two.") and living.poll() is None
    assert {one.name for one in tmp_path.iterdir()} == now


@pytest.mark.skipif(os.name == "nt", reason="kills by a signal")
def test_killed_before_any_step_the_next_one_leaves_nothing(tmp_path):
    for step in range(1, 30):
        asked = words(tmp_path, "vector", step)
        if (code := subprocess.run(asked).returncode) != -signal.SIGKILL:
            break
        with room(tmp_path, ".merge"):
            pass
        assert not [*tmp_path.iterdir()], step
    assert code == 0 and step > 3


def test_a_room_goes_with_an_error_and_needs_a_folder(tmp_path):
    with pytest.raises(ValueError, match="within"), room(tmp_path, ".merge"):
        raise ValueError("within")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(FileNotFoundError), room(tmp_path / "none", ".merge"):
        pass
