"""Large artifacts: at hand at once, written meanwhile, whole or not there."""

import errno
import os
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
