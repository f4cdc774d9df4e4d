"""The store: whole or absent, whatever happens to the disk, the files and the processes."""

import errno
import fcntl
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from tasklab.storage import checksums
from tasklab.storage.store import Store, free_first, load_checkpoint, read_tensors, save_checkpoint
from tests.helpers import flip, refuses

CONFIG = {"task": "Signs", "steps": 3, "lr": 1e-4, "nested": {"b": [1, 2], "a": None}}
VALUE = torch.arange(6.0).reshape(2, 3)


class Maker:
    """Counts how often a result is computed."""

    def __init__(self, tensors=None):
        self.calls, self.tensors = 0, {"w": VALUE} if tensors is None else tensors

    def __call__(self, workdir):
        self.calls += 1
        assert workdir.is_dir()
        return self.tensors, {"loss": 0.5, "calls": self.calls}


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_made_once_and_found_again(store):
    make = Maker()
    assert store.find("vector", CONFIG) is None
    first, second = (store.get("vector", CONFIG, make) for _ in range(2))
    assert make.calls == 1 and first == second == store.find("vector", CONFIG)
    assert torch.equal(second.tensors()["w"], VALUE)
    assert second.record == {"loss": 0.5, "calls": 1} and second.config == CONFIG
    assert second.path == store.root / "vector" / second.key
    expected = ["config.json", "record.json", "tensors.safetensors"]
    assert sorted(path.name for path in second.path.iterdir()) == expected
    assert len({path.stat().st_mode for path in second.path.iterdir()}) == 1  # the usual one
    assert not any((store.root / "partial" / "vector").iterdir())
    left = store.root / "partial" / "vector" / first.key / "checkpoint"
    left.mkdir(parents=True)  # its maker was killed before it removed this
    assert store.get("vector", CONFIG, make).path == first.path and make.calls == 1
    assert not any((store.root / "partial" / "vector").iterdir())
    left.mkdir(parents=True)
    assert store.has("vector", CONFIG)  # as `tasklab train` asks
    assert not any((store.root / "partial" / "vector").iterdir())


def test_keys_depend_on_content_only(store):
    shuffled = {name: CONFIG[name] for name in reversed(CONFIG)}
    assert store.key(CONFIG) == store.key(shuffled) and len(store.key(CONFIG)) == 20
    assert store.key({"a": (1, 2)}) == store.key({"a": [1, 2]})
    assert len({store.key({"a": a}) for a in (1, 1.5, "1", True, None, [1])}) == 6
    assert store.key({"a": 1}) == "015abd7f5cc57a2dd94b"  # a key must never change by itself


@pytest.mark.parametrize("config", [{"a": float("nan")}, {"a": Path()}, {"a": {1: 2}}, {1: 2}])
def test_what_json_cannot_hold_has_no_key(store, config):
    refuses("config", store.key, config)


def test_a_record_that_json_cannot_hold_publishes_nothing(store):
    refuses("record", store.get, "vector", CONFIG, lambda work: ({}, {"loss": float("inf")}))
    assert store.find("vector", CONFIG) is None


@pytest.mark.parametrize("kind", ["partial", "locks", "../x", "A", ""])
def test_kinds_that_are_not_allowed(store, kind):
    refuses("kind", store.find, kind, CONFIG)


def test_any_layout_and_type_of_tensor_comes_back(store):
    whole = torch.arange(12.0)
    tensors = {
        "left": whole[:6], "tied": whole, "also tied": whole, "transposed": VALUE.T,
        "half": VALUE.half(), "brain": VALUE.bfloat16(), "integers": torch.tensor([3]),
        "scalar": torch.tensor(2.0, dtype=torch.float64), "none": torch.zeros(0, 3),
        "trainable": VALUE.clone().requires_grad_(),
    }  # fmt: skip
    assert store.get("vector", {"none": 1}, Maker({})).tensors() == {}
    back = store.get("vector", CONFIG, Maker(tensors)).tensors()
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name


def test_a_large_artifact_is_read_once_for_its_checksum(store, monkeypatch):
    monkeypatch.setattr(checksums, "PART", 64)
    monkeypatch.setattr(checksums, "_SEEN", {})
    reads, usual = [], checksums._tree
    monkeypatch.setattr(checksums, "_tree", lambda file: reads.append(file.name) or usual(file))
    artifact = store.get("vector", CONFIG, Maker({"w": torch.arange(500.0)}))
    for _ in range(3):
        store.get("vector", CONFIG, Maker()).tensors()
    assert reads == ["tensors.safetensors"]  # where it was written
    assert "tensors_sha256-8m" in (artifact.path / "record.json").read_text()
    assert artifact.sha256 == hashlib.sha256(artifact.file.read_bytes()).hexdigest()
    flip(artifact.file, -3)
    refuses("Ask the store for it again", artifact.tensors)
    assert torch.equal(store.get("vector", CONFIG, Maker()).tensors()["w"], VALUE)


def test_an_artifact_with_a_plain_checksum_stays_valid_whatever_its_size(store, monkeypatch):
    artifact = store.get("vector", CONFIG, Maker())
    assert artifact.checksum[0] == "sha256"
    monkeypatch.setattr(checksums, "PART", 8)
    monkeypatch.setattr(checksums, "_SEEN", {})
    assert store.find("vector", CONFIG) == artifact
    flip(artifact.file, -3)
    assert store.find("vector", CONFIG) is None
    assert len(list((store.root / "damaged").iterdir())) == 1


def test_a_failure_keeps_the_checkpoints_for_the_next_call(store):
    def fails(workdir):
        (workdir / "note").write_text("half way")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get("vector", CONFIG, fails)

    def resumes(workdir):
        return {"w": VALUE}, {"found": (workdir / "note").read_text()}

    artifact = store.get("vector", CONFIG, resumes)
    assert artifact.record == {"found": "half way"}
    assert not list((store.root / "partial").rglob("note"))


FULL, LOCKED = (OSError(code, os.strerror(code)) for code in (errno.ENOSPC, errno.EROFS))
AS_RUST = safetensors.SafetensorError(f"I/O error: it failed (os error {errno.ENOSPC})")


def failing(patch, place, step, error, within):
    """Have a step of writing fail half-way, of files in a folder."""
    usual = getattr(place, step)

    def fails(*args, **named):
        file = Path(args[1] if step == "save_file" else args[0])
        if not file.is_relative_to(within):
            return usual(*args, **named)
        if step in ("save_file", "write_text"):
            file.write_bytes(b"half of it")
        raise error

    patch.setattr(place, step, fails)


@pytest.mark.parametrize(
    ("place", "step", "error", "told"),
    [
        (safetensors.torch, "save_file", FULL, "No space left.*TASKLAB_STORE"),
        (safetensors.torch, "save_file", AS_RUST, "No space left.*TASKLAB_STORE"),
        *((Path, step, LOCKED, "Read-only file s") for step in ("write_text", "rename", "mkdir")),
    ],
)
def test_a_failure_at_any_step_publishes_nothing(store, monkeypatch, place, step, error, told):
    old = store.get("vector", {"a": 1}, Maker())
    with monkeypatch.context() as patch:
        failing(patch, place, step, error, store.root / "tmp")
        refuses(told, store.get, "vector", CONFIG, Maker())
    assert store.find("vector", CONFIG) is None and store.find("vector", {"a": 1}) == old
    assert not list((store.root / "tmp").iterdir())
    assert torch.equal(store.get("vector", CONFIG, Maker()).tensors()["w"], VALUE)


@pytest.fixture
def read_only():
    folder = Path(tempfile.mkdtemp())
    store = Store(folder)
    store.get("vector", {"a": 1}, Maker())
    folder.chmod(0o555)
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)
    yield store
    if privileged:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_store_can_be_read_and_says_how_to_write(read_only):
    assert torch.equal(read_only.find("vector", {"a": 1}).tensors()["w"], VALUE)
    make = Maker()
    got = refuses("Permission denied.*TASKLAB_STORE", read_only.get, "vector", CONFIG, make)
    assert str(read_only.root) in got and make.calls == 0


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    refuses("cannot write", Store(tmp_path / "file" / "store").get, "vector", CONFIG, Maker())


META = {"step": 3, "losses": [0.1, 1 / 3]}


def test_checkpoints_come_back_bit_for_bit_without_pickles(tmp_path):
    path = tmp_path / "c.safetensors"
    tensors = {"a": torch.randn(3, 4).T, "b": torch.tensor(1 / 3), "c": VALUE.bfloat16()}
    assert load_checkpoint(path) is None
    save_checkpoint(path, {"old": VALUE}, {"step": 1})
    save_checkpoint(path, tensors, META)
    back, meta = load_checkpoint(path)
    assert meta == META and everything_in(tmp_path) == ["c.safetensors"]
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"a": 1}))
    refuses("never loaded", read_tensors, path)
    refuses("no file", lambda: read_tensors(tmp_path / "absent.safetensors"))


DAMAGES = {
    "bit": lambda file: flip(file, -3),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 5),
    "empty": lambda file: file.write_bytes(b""),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "another's": lambda file: safetensors.torch.save_file({"a": VALUE}, file),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_ignored(tmp_path, damage, caplog):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": VALUE}, META)
    DAMAGES[damage](path)
    assert load_checkpoint(path) is None
    assert str(path) in caplog.text and "ignored" in caplog.text


def test_a_full_disk_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": VALUE}, META)
    with monkeypatch.context() as patch:
        failing(patch, safetensors.torch, "save_file", AS_RUST, tmp_path)
        refuses("No space left", lambda: save_checkpoint(path, {"a": VALUE + 1}, {"step": 4}))
    back, meta = load_checkpoint(path)
    assert meta == META and torch.equal(back["a"], VALUE)
    assert everything_in(tmp_path) == ["c.safetensors"]


def test_what_another_makes_is_left_for_later(store):
    began, done = threading.Event(), threading.Event()

    def make(_):
        began.set()
        assert done.wait(60)
        return {}, {"by": "the other"}

    other = threading.Thread(target=store.get, args=("thing", {"n": 1}, make))
    assert not store.making("thing", {"n": 1})
    other.start()
    try:
        assert began.wait(60)
        assert store.making("thing", {"n": 1}) and not store.making("thing", {"n": 2})
        order = free_first([1, 2, 3], lambda n: store.making("thing", {"n": n}))
        assert [next(order), next(order)] == [2, 3]
    finally:
        done.set()
        other.join()
    assert not store.making("thing", {"n": 1})
    assert store.get("thing", {"n": 1}, lambda _: ({}, {"by": "me"})).record["by"] == "the other"


def test_whoever_cannot_lock_is_not_told_to_wait(store):
    (store.root / "locks" / f"thing-{store.key({'n': 1})}.lock").mkdir(parents=True)
    assert not store.making("thing", {"n": 1})


def test_seconds_of_artifacts(store):
    def inner(_):
        time.sleep(0.3)
        return {}, {}

    def outer(_):
        store.get("part", {"n": 1}, inner)
        time.sleep(0.1)
        return {}, {}

    made = store.get("whole", {"n": 1}, outer)
    assert 0.1 <= made.seconds < 0.3 <= store.find("part", {"n": 1}).seconds
    assert store.get("whole", {"n": 1}, outer).seconds == made.seconds
    made = store.get("whole", {"n": 1}, lambda _: ({}, {}))
    file = made.path / "record.json"
    note = json.loads(file.read_text())
    del note["seconds"]
    file.write_text(json.dumps(note))
    assert store.find("whole", {"n": 1}).seconds is None


def test_a_disk_without_locks_modes_and_flushed_folders_holds_a_store(store, monkeypatch, caplog):
    def refusing(number):
        def call(*given, **more):
            raise OSError(number, os.strerror(number))

        return call

    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))
    monkeypatch.setattr(Path, "chmod", refusing(errno.EPERM))
    usual = os.open
    folders = lambda path, *more: refusing(errno.EACCES)() if Path(path).is_dir() else None  # noqa: E731
    monkeypatch.setattr(os, "open", lambda path, *more: folders(path) or usual(path, *more))
    make = Maker()
    for _ in range(2):
        assert torch.equal(store.get("vector", CONFIG, make).tensors()["w"], VALUE)
    assert make.calls == 1 and not store.making("vector", {"another": 1})
    assert sum("has no locks" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("checkpoint", [True, False])
def test_where_locks_hold_on_one_machine_only_the_late_one_takes_the_first(
    store, tmp_path, checkpoint
):
    first = Store(tmp_path / "of another machine").get("vector", CONFIG, Maker())

    def late(work):
        shutil.copytree(first.path, store.root / "vector" / first.key)
        shutil.rmtree(work)  # as the first does when it is ready
        if checkpoint:
            save_checkpoint(work / "c.safetensors", {}, {})
        return {"w": -VALUE}, {"loss": 9.0}

    for artifact in (store.get("vector", CONFIG, late), store.find("vector", CONFIG)):
        assert torch.equal(artifact.tensors()["w"], VALUE) and artifact.record["loss"] == 0.5
    assert not list((store.root / "tmp").glob("*"))


def test_a_failure_of_the_maker_stays_one_if_nobody_was_first(store):
    def fails(work):
        shutil.rmtree(work)
        save_checkpoint(work / "c.safetensors", {}, {})

    refuses("No such file", store.get, "vector", CONFIG, fails)
