"""What a killed process left beside its files goes with the next; a living one keeps its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from tasklab.storage import rooms
from tasklab.storage.rooms import room

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tasklab.storage import atomic, rooms
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
with rooms.room(here, ".merge-", [here / name]) as place:
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
    (tmp_path / ".merge-mine.txt").write_text("mine")
    dead, living = started(tmp_path, "one"), started(tmp_path, "two")
    left = {one.name for one in tmp_path.iterdir()}
    assert len(left) == 5
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with room(tmp_path, ".merge-", [tmp_path / "three"]) as place:
        assert place.is_dir()
        now = {one.name for one in tmp_path.iterdir()} - {place.name}
    assert len(now) == 3 and now < left and ".merge-mine.txt" in now
    (draft,) = [name for name in now if name.endswith(".partial")]
    assert draft.startswith(".two.") and living.poll() is None
    assert {one.name for one in tmp_path.iterdir()} == now


@pytest.mark.skipif(os.name == "nt", reason="kills by a signal")
def test_killed_before_any_step_the_next_one_leaves_nothing(tmp_path):
    for step in range(1, 30):
        asked = words(tmp_path, "vector", step)
        if (code := subprocess.run(asked).returncode) != -signal.SIGKILL:
            break
        with room(tmp_path, ".merge-"):
            pass
        assert not [*tmp_path.iterdir()], step
    assert code == 0 and step > 8


def test_a_draft_without_a_lock_goes_at_once_and_its_living_owner_makes_another(
    tmp_path, monkeypatch
):
    (tmp_path / ".new.merge-dead").mkdir()
    assert [one.name for one in rooms.sweep(tmp_path, ".merge-")] == [".new.merge-dead"]
    assert not [*tmp_path.iterdir()]
    acquire, taken = filelock.FileLock.acquire, []

    def swept(lock, **more):
        draft = Path(lock.lock_file).parent
        if not taken:
            taken.extend(rooms.sweep(tmp_path, ".merge-"))
        acquire(lock, **more)
        if len(taken) == 1:  # it was looked at before
            taken.append(draft)
            rooms._remove(draft)

    monkeypatch.setattr(filelock.FileLock, "acquire", swept)
    with room(tmp_path, ".merge-") as place:
        assert len(taken) == 2 and place.is_dir() and place.name not in taken[1].name
        assert rooms.sweep(tmp_path, ".merge-") == []
    assert not [*tmp_path.iterdir()]
    with pytest.raises(FileNotFoundError), room(tmp_path / "none", ".merge-"):
        pass


def test_a_room_without_a_lock_goes_when_it_is_old(tmp_path):
    for name, hours in (("new", 0), ("old", 2)):
        (tmp_path / f".merge-{name}").mkdir()
        then = time.time() - 3600 * hours
        os.utime(tmp_path / f".merge-{name}", (then, then))
    with pytest.raises(ValueError, match="within"), room(tmp_path, ".merge-"):
        raise ValueError("within")
    assert [one.name for one in tmp_path.iterdir()] == [".merge-new"]
