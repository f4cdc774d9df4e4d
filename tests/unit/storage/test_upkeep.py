"""What is damaged is found, what nobody holds can go, and all else stays."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
import torch

from tasklab.__main__ import main
from tasklab.storage import atomic, upkeep
from tests.helpers import flip, mistaken


def made(store, kind, number):
    tensors = {"w": torch.full((50,), float(number))}
    return store.get(kind, {"number": number}, lambda _: (tensors, {"loss": 0.5}))


def edit(file, old, new):
    file.write_text(file.read_text().replace(old, new))


def replace(path, make):
    path.unlink() if path.is_file() else path.rename(path.with_name("other"))
    make(path)


DAMAGES = {
    "a bit of a tensor": lambda path: flip(path / "tensors.safetensors", -3),
    "half a file": lambda path: os.truncate(path / "tensors.safetensors", 100),
    "an empty file": lambda path: os.truncate(path / "tensors.safetensors", 0),
    "no tensors": lambda path: (path / "tensors.safetensors").unlink(),
    "a bit of the record": lambda path: edit(path / "record.json", "0.5", "0.6"),
    "no record": lambda path: (path / "record.json").unlink(),
    "half a record": lambda path: os.truncate(path / "record.json", 60),
    "an empty record": lambda path: (path / "record.json").write_text(""),
    "a record of something else": lambda path: (path / "record.json").write_text("[]"),
    "a record that is nested": lambda path: (path / "record.json").write_text("[" * 100_000),
    "another configuration": lambda path: (path / "config.json").write_text('{"number": 9}'),
    "a number as configuration": lambda path: (path / "config.json").write_text("3"),
    "no text": lambda path: (path / "config.json").write_bytes(b"\xff\xfe"),
    "no configuration": lambda path: (path / "config.json").unlink(),
    "a folder in place of a file": lambda path: replace(path / "config.json", Path.mkdir),
    "a pipe in place of a file": lambda path: replace(path / "record.json", os.mkfifo),
    "a file in place of the folder": lambda path: replace(path, Path.touch),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_found_set_aside_and_made_again(store, damage, caplog):
    paths = [made(store, kind, number).path for kind in ("a", "b") for number in range(3)]
    assert upkeep.verify(store, progress=False) == (6, {})
    DAMAGES[damage](paths[4])
    count, damaged = upkeep.verify(store, progress=False)
    assert paths[4] in damaged and count in (6, 7)
    assert {path.parent.name for path in damaged} == {"b"}
    assert all(what.partition(" ")[0] in os.listdir(paths[0]) for what in damaged.values())
    assert paths[3].exists() and not (store.root / "damaged").exists()
    if paths[4].is_dir():
        assert made(store, "b", 1).tensors()["w"].tolist() == [1] * 50
        (aside,) = (store.root / "damaged").iterdir()
        assert aside.name.startswith(f"b-{paths[4].name}")
        (warning,) = caplog.messages
        assert f"{paths[4]} was damaged" in warning and str(aside) in warning


def old(path, days):
    for one in (path, *path.rglob("*")):
        os.utime(one, (time.time() - days * 86_400,) * 2)


@pytest.mark.parametrize("held", [False, True])
def test_what_nobody_holds_can_go(store, held):
    finished, key = made(store, "a", 1), store.key({"number": 2})
    draft = store.root / "tmp" / f"a-{key}-12345678"
    done = store.root / "partial" / "a" / finished.key
    fresh = store.root / "partial" / "a" / key
    given_up = store.root / "partial" / "b" / key
    aside = store.root / "damaged" / f"a-{key}-12345678"
    for folder in (draft, done, fresh, given_up, aside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 100)
    old(given_up, 8)
    locks = [store.root / "locks" / f"{name}-{key}.lock" for name in "ab"]
    for lock in locks:
        lock.touch()
    holders = [filelock.FileLock(lock) for lock in locks] if held else []
    for holder in holders:
        holder.acquire()
    lock_of_done = store.root / "locks" / f"a-{finished.key}.lock"
    expected = {aside, done, lock_of_done}
    expected |= set() if held else {draft, given_up, *locks}
    before = sorted(store.root.rglob("*"))
    told = upkeep.collect(store, dry_run=True)
    assert {one.path for one in told} == expected and sorted(store.root.rglob("*")) == before
    assert {one.size for one in told} == {0, 100}
    assert {one.path for one in upkeep.collect(store)} == expected
    for holder in holders:
        holder.release()
    assert not any(path.exists() for path in expected)
    assert fresh.exists() and (held == draft.exists() == given_up.exists())
    assert store.find("a", {"number": 1}) == finished
    assert fresh in {one.path for one in upkeep.collect(store, days=0)}


def test_sizes_are_by_kind(store, tmp_path):
    for number in range(3):
        made(store, "a", number)
    made(store, "b", 1)
    (store.root / "note").write_text("x" * 5)
    sizes = upkeep.sizes(store.root)
    assert list(sizes)[:2] == ["a", "b"] and sizes["note"] == (1, 5)
    assert sizes["a"] == (3, sum(p.stat().st_size for p in (store.root / "a").rglob("*.*")))
    assert upkeep.sizes(tmp_path / "absent") == {}


def test_the_commands(store, capsys, monkeypatch):
    monkeypatch.setenv("TASKLAB_STORE", str(store.root))
    monkeypatch.setenv("TASKLAB_DATA", str(store.root / "absent"))
    path = made(store, "a", 1).path
    assert main(["store", "verify"]) == 0
    assert "1 results in" in capsys.readouterr().out
    flip(path / "tensors.safetensors", -3)
    assert main(["store", "verify"]) == 1
    assert f"{path}: tensors.safetensors is not what was written" in capsys.readouterr().out
    assert main(["store", "size"]) == 0
    assert "a (1)" in capsys.readouterr().out
    assert store.find("a", {"number": 1}) is None
    assert main(["store", "gc", "--dry-run", "--days", "0"]) == 0
    out = capsys.readouterr().out
    assert "set aside as damaged" in out and "2 leftovers could be removed" in out
    assert main(["store", "gc"]) == 0 and not any((store.root / "damaged").iterdir())
    capsys.readouterr()
    (store.root / "file").touch()
    for words, expected in (
        (["gc", "--days", "nan"], "days must be a finite number"),
        (["size", "--store-root", "~nosuchuser"], "a user who is not here"),
        (["verify", "--store-root", str(store.root / "file")], "in the way of a folder"),
    ):
        assert expected in mistaken(["store", *words], capsys)
    (path.parent / "x").mkdir(parents=True)
    (path.parent / "x" / "config.json").write_text(json.dumps({"number": 1}))
    assert main(["store", "verify"]) == 1  # the key is not that of its configuration


def other(path, *, process=None, machine=None):
    """Return the path of a draft of another process or machine."""
    path = atomic.marked(path)
    mark = path.name.rpartition(".")[2].split("-")
    changed = "-".join([machine or mark[0], str(process or mark[1]), mark[2]])
    return path.with_name(path.name.replace("-".join(mark), changed))


def drafted(path, **of):
    path = other(path.with_name(f".{path.name}"), **of)
    return path.with_name(f"{path.name}{atomic.PARTIAL}")


@pytest.fixture
def dead():
    """Return the number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_drafts_of_images_can_go(store, tmp_path, monkeypatch, dead):
    data, far = tmp_path / "data", "00000000"
    monkeypatch.setenv("TASKLAB_DATA", str(data))
    pets = data / "pictures" / "pets"
    stem = "train-whole37-0123456789ab"
    gone = [drafted(data / "mini-2" / "a.st", process=dead), pets / f"{stem}.partial"]
    gone += [drafted(data / "pretrained" / "run" / "last.safetensors", machine=far)]
    kept = [data / "mini-2" / "a.st", drafted(data / "mini-2" / "b.st")]
    kept += [pets / f"val-{stem[6:]}.partial", drafted(pets / "c.json", machine=far)]
    for path in (*gone, *kept):
        file = path / "x.npy" if path.parent == pets and path.name[0] != "." else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"1234")
    for path in (*gone[1:], kept[0], kept[1]):
        old(path, 8)
    old(kept[2], 2)  # a decoding may rest longer than what is written in seconds
    found = upkeep.collect(store, dry_run=True)
    assert sorted(one.path for one in found) == sorted(gone) and all(map(Path.exists, gone))
    upkeep.collect(store)
    assert not any(map(Path.exists, gone)) and all(map(Path.exists, kept))
    with filelock.FileLock(kept[2].with_suffix(".lock")):
        old(kept[2], 8)
        assert upkeep.collect(store) == []


def test_nothing_of_others_goes(store, tmp_path, monkeypatch, dead):
    data, key = tmp_path / "data", store.key({"number": 1})
    monkeypatch.setenv("TASKLAB_DATA", str(data))
    made(store, "a", 1)
    places = [data, data / "pictures", data / "pictures" / "pets", store.root / "a" / key]
    places += [store.root / name for name in ("", "a", "tmp", "locks", "damaged", "partial")]
    places += [store.root / "partial" / "a"]
    foreign = []
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name in (
            ".notes.partial", "thesis.partial", ".x.lock", "x.lock", "draft.tmp", ".hidden", "old",
            f"a-{key}", f"a-{key}-mine", f"a-{key}.lock.txt", f"{key[:-1]}", "grid-1", f"b-{key}.1",
            "train-whole37-mine.partial",
        ):  # fmt: skip
            (place / name).mkdir()
            foreign += [place / name / "thesis.txt", place / f"{name}.1.partial"]
            for file in foreign[-2:]:
                file.write_text("mine")
    for path in foreign:
        os.utime(path, (0, 0))
        os.utime(path.parent, (0, 0))
    mine = other(store.root / "tmp" / f"a-{key}", process=dead)
    mine.mkdir()
    lock = store.root / "locks" / f"a-{key}.lock"
    assert {one.path for one in upkeep.collect(store, days=0)} == {mine, lock}
    assert all(path.read_text() == "mine" for path in foreign) and not mine.exists()


def test_without_locks_nothing_that_one_guards_goes(store, monkeypatch):
    made(store, "a", 1)
    key = store.key({"number": 2})
    for path in (store.root / "tmp" / f"a-{key}-12345678", store.root / "partial" / "a" / key):
        path.mkdir(parents=True)
    (store.root / "locks" / f"a-{key}.lock").touch()

    def refusing(opened, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refusing)
    assert upkeep.collect(store, days=0) == []
