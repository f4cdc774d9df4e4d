"""Large artifacts: at hand at once, written meanwhile, whole or not there."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest
import safetensors.torch
import torch

from tasklab.errors import TasklabError
from tasklab.storage import writing
from tasklab.storage.store import Store

VALUE = torch.arange(4096.0)
ASKED = {"a": 1}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "LARGE", VALUE.nbytes)
    yield Store(tmp_path / "store")
    writing.finish()


@pytest.fixture
def disk(monkeypatch):
    usual, told = safetensors.torch.save_file, threading.Event()

    def save(tensors, file, metadata=None):
        assert told.wait(30)
        usual(tensors, file, metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    yield told
    told.set()
    writing.finish()


def made(workdir):
    (workdir / "checkpoint").write_text("half way")
    return {"w": VALUE}, {"loss": 0.5}


def never(workdir):
    raise AssertionError("it was made again")


def test_an_artifact_is_at_hand_before_it_is_written(store, disk):
    artifact = store.get("vector", ASKED, made)
    assert not artifact.path.exists() and store.has("vector", ASKED)
    assert not artifact.written and artifact.record == {"loss": 0.5} and artifact.config == ASKED
    for one in (artifact, store.find("vector", ASKED), store.get("vector", ASKED, never)):
        assert torch.equal(one.tensors()["w"], VALUE)
    assert not store.making("vector", ASKED)  # by another process: nobody would have to wait

    lock = filelock.FileLock(store.root / "locks" / f"vector-{artifact.key}.lock")
    with pytest.raises(filelock.Timeout):
        lock.acquire(timeout=0)
    assert (store.root / "partial" / "vector" / artifact.key / "checkpoint").exists()

    disk.set()
    assert artifact.file.is_file() and artifact.written
    writing.finish()
    lock.acquire(timeout=0)
    lock.release()
    again = Store(store.root).get("vector", ASKED, never)
    assert again.file == artifact.file and again.version == artifact.version
    assert again.checksum == artifact.writing.wait() and again.writing is None
    assert torch.equal(again.tensors()["w"], VALUE) and torch.equal(artifact.tensors()["w"], VALUE)
    assert not list((store.root / "partial" / "vector").iterdir())


def test_a_store_of_another_name_waits_for_no_lock_of_its_own(store, disk, tmp_path):
    (tmp_path / "link").symlink_to("store")
    artifact = store.get("vector", ASKED, made)
    assert Store(tmp_path / "link").get("vector", ASKED, never) is artifact
    threading.Timer(1.5, disk.set).start()
    store.discard("vector", ASKED)
    assert not store.has("vector", ASKED) and not list((store.root / "tmp").iterdir())


def test_small_artifacts_are_written_and_listed_at_once(store):
    artifact = store.get("vector", ASKED, lambda _: ({"w": VALUE[:-1].clone()}, {}))
    assert artifact.writing is None and artifact.path.is_dir()
    store.get("vector", ASKED, made)
    assert list(store.configs("vector")) == [ASKED]


def test_no_more_than_two_are_in_memory(store, disk):
    for n in range(2):
        store.get("vector", {"n": n}, made)
    third = threading.Thread(target=store.get, args=("vector", {"n": 2}, made))
    third.start()
    third.join(0.3)
    assert third.is_alive()  # waits for the disk
    disk.set()
    third.join(30)
    writing.finish()
    assert len(list(store.configs("vector"))) == 3


@pytest.mark.parametrize("asks", ["artifact", "store", "end"])
def test_a_full_disk_is_told_once(store, monkeypatch, asks):
    def full(tensors, file, metadata=None):
        Path(file).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        artifact = store.get("vector", ASKED, made)
        while not artifact.written or writing._ON_THEIR_WAY:
            pass
    with pytest.raises(TasklabError, match="No space left.*Free some space"):
        if asks == "artifact":
            artifact.tensors()
        elif asks == "store":
            store.get("other", {}, made)
        else:
            writing.finish()
    writing.finish()
    assert store.find("vector", ASKED) is None and not list((store.root / "tmp").iterdir())
    work = store.root / "partial" / "vector" / artifact.key
    assert (work / "checkpoint").exists()  # the next call goes on from it
    assert store.get("vector", ASKED, made).file.is_file()


def test_changes_in_place_never_reach_the_disk(store, disk):
    mine, note = VALUE.clone(), {"losses": [0.5]}
    artifact = store.get("vector", ASKED, lambda _: ({"w": mine}, note))
    for held in (mine, artifact.tensors()["w"], store.find("vector", ASKED).tensors()["w"]):
        held.zero_()
    for told in (note, artifact.record):
        told["losses"].append(9)
    artifact.config["a"] = 2
    assert torch.equal(artifact.tensors()["w"], VALUE)
    disk.set()
    writing.finish()
    again = Store(store.root).find("vector", ASKED)
    assert torch.equal(again.tensors()["w"], VALUE) and again.record == {"losses": [0.5]}
    assert torch.equal(artifact.tensors()["w"], VALUE)


def test_tensors_are_on_the_cpu_at_any_time(store, disk):
    from tests import pretended

    with pretended.cuda():
        there = VALUE.clone().to("cuda")
        artifact = store.get("vector", ASKED, lambda _: ({"w": there}, {}))
        early = artifact.tensors()["w"]
        assert there.device.type == "cuda" and early.device.type == "cpu"
        disk.set()
        writing.finish()
        assert artifact.tensors()["w"].device == early.device and torch.equal(early, VALUE)


SCRIPT = """
import errno, os, sys, time
import safetensors.torch, torch
from tasklab.errors import TasklabError
from tasklab.storage import writing
from tasklab.storage.store import Store

writing.LARGE = 1
usual = safetensors.torch.save_file
store = Store(sys.argv[1])
def made(_):
    return {"w": torch.arange(4096.0)}, {}
"""


def run(tmp_path, text):
    command = [sys.executable, "-c", SCRIPT + text, str(tmp_path / "store")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_script_that_asks_no_more_ends_with_status_1_if_the_disk_is_full(tmp_path):
    text = """
def full(tensors, file, metadata=None):
    time.sleep(0.5)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
safetensors.torch.save_file = full
store.get("vector", {}, made)
print("the script's last line")
"""
    done = run(tmp_path, text)
    assert done.returncode == 1 and done.stdout == "the script's last line\n"
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1
    done = run(tmp_path, text.replace("raise", "return usual(tensors, file, metadata)\n    raise"))
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no forks")
def test_a_fork_says_who_writes_and_waits_for_it(tmp_path):
    text = """
def slow(tensors, file, metadata=None):
    time.sleep(1)
    usual(tensors, file, metadata)
safetensors.torch.save_file = slow
artifact = store.get("vector", {}, made)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
assert artifact.tensors()["w"][-1] == 4095
try:
    artifact.file
except TasklabError as error:
    assert "forked from: ask the store" in str(error), error
else:
    raise AssertionError("it is not there yet")
again = store.get("vector", {}, made)
assert again.writing is None and again.tensors()["w"][-1] == 4095
store.get("vector", {"of": "the child"}, made)
"""
    done = run(tmp_path, text)
    assert done.returncode == 0 and done.stderr == ""
    assert len(list(Store(tmp_path / "store").configs("vector"))) == 2
