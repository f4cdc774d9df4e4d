"""Splits are drawn once, kept whole, and drawn again when what is kept is not what was drawn."""

import logging
import os
import shutil
import subprocess
import sys

import pytest
import torch

from tasklab import mini
from tasklab.storage import atomic
from tasklab.storage.tensors import write_tensors
from tasklab.tasks import drawn
from tasklab.tasks.drawn import DrawnImages, Images
from tasklab.tasks.suites import suite
from tests.helpers import flip, refuses

SMALL = {"train": 60, "val": 20, "test": 40}


@pytest.fixture(autouse=True)
def drawings(monkeypatch):
    drawings, sample = [], mini.sample

    def count(task, split, n):
        drawings.append((task, split, n))
        return sample(task, split, n)

    monkeypatch.setattr(drawn, "SIZES", SMALL)
    monkeypatch.setattr(drawn, "CONTROL_SIZES", {"test": 50})
    monkeypatch.setattr(mini, "sample", count, raising=False)
    monkeypatch.setattr(drawn, "_MEMORY", {})
    return drawings


def images(cache):
    drawn._MEMORY.clear()
    return DrawnImages(suite("mini"), cache)


def listed(monkeypatch, sha256):
    monkeypatch.setattr(drawn, "_checksums", lambda: {f"{mini.VERSION}/Signs/val/20": sha256})


def test_types_sizes_and_parts(tmp_path):
    x, y = images(tmp_path).load("Vehicles", "train")
    assert x.shape == (60, 3, 32, 32) and x.dtype == torch.uint8
    assert y.shape == (60,) and y.dtype == torch.int64
    assert len(images(tmp_path).load("Objects", "test").y) == 50
    whole = images(tmp_path).load("Signs", "val")
    part = images(tmp_path).load("Signs", "val", n=7)
    assert torch.equal(part.x, whole.x[:7]) and torch.equal(part.y, whole.y[:7])


def test_drawn_once_and_the_same_afterwards(tmp_path, drawings):
    first = images(tmp_path).load("Signs", "val")
    second = images(tmp_path).load("Signs", "val")
    assert drawings == [("Signs", "val", 20)]
    assert torch.equal(first.x, second.x) and torch.equal(first.y, second.y)
    (file,) = (entry for entry in tmp_path.rglob("*") if entry.is_file())
    assert file.match(f"{mini.VERSION}/Signs-val-20-*.safetensors")


def test_writing_to_the_tensors_does_not_change_the_cache(tmp_path):
    world = images(tmp_path)
    first = world.load("Signs", "val")
    before = first.x.clone()
    first.x.zero_()
    assert torch.equal(world.load("Signs", "val").x, before)
    assert torch.equal(images(tmp_path).load("Signs", "val").x, before)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:500]),
    "cut at the end": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "a pickle": lambda file: torch.save({"x": torch.zeros(1)}, file),
    "a bit of the header": lambda file: flip(file, 12),
    "a bit of a label": lambda file: flip(file, -20 * 8),
    "a bit of a pixel": lambda file: flip(file, -20 * 8 - 3),
    "a bit of the first pixel": lambda file: flip(file, -20 * 8 - 20 * 3 * 32 * 32),
    "the last bit": lambda file: flip(file, -1),
}


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_drawn_again(how, same_process, tmp_path, drawings, caplog):
    world = images(tmp_path)
    first, version = world.load("Signs", "val"), world.version("Signs", "val")
    (file,) = tmp_path.rglob("*.safetensors")
    DAMAGES[how](file)
    world = world if same_process else images(tmp_path)
    with caplog.at_level(logging.WARNING):
        again = world.load("Signs", "val")
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y) and len(drawings) == 2
    assert len(caplog.messages) == 1 and f"{file} is damaged" in caplog.text
    assert images(tmp_path).version("Signs", "val") == version
    assert len(drawings) == 2  # and is whole again


def test_the_file_of_another_split_is_noticed(tmp_path, drawings):
    world = images(tmp_path)
    first, other = world.load("Signs", "val"), world.load("Textures", "val")
    files = {file.name.split("-")[0]: file for file in tmp_path.rglob("*.safetensors")}
    shutil.copy(files["Textures"], files["Signs"])
    assert torch.equal(images(tmp_path).load("Signs", "val").x, first.x)
    assert not torch.equal(first.x, other.x) and len(drawings) == 3


def test_a_file_that_is_gone_is_drawn_again(tmp_path, drawings):
    world = images(tmp_path)
    world.load("Signs", "val")
    shutil.rmtree(tmp_path / mini.VERSION)
    world.load("Signs", "val")
    assert len(drawings) == 2 and list(tmp_path.rglob("*.safetensors"))


def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path, drawings, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    world = images(blocked)
    with caplog.at_level(logging.WARNING):
        assert len(world.load("Signs", "val").y) == 20
        world.load("Signs", "val")
    assert len(drawings) == 1  # and kept in memory
    assert "cannot keep drawn images" in caplog.text and len(caplog.messages) == 1


def test_the_environment_names_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "images"))
    images(None).load("Signs", "val")
    assert list((tmp_path / "images" / mini.VERSION).glob("Signs-val-*.safetensors"))


def test_a_suite_without_images():
    refuses("suite 'paper' has no images yet", lambda: drawn.images_of(suite("paper")))


def test_results_are_keyed_by_the_pixels_that_are_read(tmp_path, monkeypatch, caplog):
    plain = f"{mini.VERSION}/Signs/val/20"
    sha256 = Images(*mini.sample("Signs", "val", 20)).sha256()
    assert images(tmp_path).version("Signs", "val") == f"{plain}/{sha256[:12]}"  # not listed
    listed(monkeypatch, sha256)
    drawn._warn_of_others.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert images(tmp_path).version("Signs", "val") == plain
        assert not caplog.messages
        kept = set(tmp_path.rglob("*.safetensors"))
        listed(monkeypatch, "f" * 64)  # as drawn on other machines
        assert images(tmp_path).version("Signs", "val") == f"{plain}/{sha256[:12]}"
        assert images(tmp_path).version("Signs", "val") == f"{plain}/{sha256[:12]}"
    assert len(caplog.messages) == 1 and "keys of their own" in caplog.text
    assert set(tmp_path.rglob("*.safetensors")) == kept  # nobody else gets them


def test_what_another_machine_drew_otherwise_is_drawn_here(tmp_path, monkeypatch, drawings, caplog):
    """A shared folder that has images by other rounding, as written by an earlier version."""
    right = Images(*mini.sample("Signs", "val", 20))
    listed(monkeypatch, right.sha256())
    images(tmp_path).load("Signs", "val")
    (file,) = tmp_path.rglob("*.safetensors")
    other = Images(right.x ^ 1, right.y)
    name = f"{mini.VERSION}/Signs/val/20"
    write_tensors(other._asdict(), file, {"images": name, "sha256": other.sha256()})
    with caplog.at_level(logging.WARNING):
        assert torch.equal(images(tmp_path).load("Signs", "val").x, right.x)
        assert torch.equal(images(tmp_path).load("Signs", "val").x, right.x)
    assert len(drawings) == 3 and not caplog.messages  # replaced, in silence


def test_versions_tell_splits_and_sizes_apart(tmp_path):
    world = images(tmp_path)
    versions = {
        world.version(task, split)
        for task in ("Signs", "Objects")
        for split in ("train", "val", "test")
    }
    assert len(versions) == 6
    assert all(mini.VERSION in version for version in versions)
    plain = DrawnImages(suite("mini"), tmp_path).version("Signs", "val")
    assert DrawnImages(suite("mini"), tmp_path, side=32).version("Signs", "val") == plain
    larger = DrawnImages(suite("mini"), tmp_path, side=224).version("Signs", "val")
    assert larger == f"{plain}/enlarged{drawn.ENLARGED}"


def test_drafts_of_killed_processes_are_removed(tmp_path):
    folder = tmp_path / mini.VERSION
    folder.mkdir()
    own = atomic.marked(folder / ".a.safetensors")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead = own.name.replace(f"-{os.getpid()}-", f"-{process.pid}-")
    stale, young = folder / f"{dead}.partial", folder / f"{own.name}.partial"
    foreign = folder / ".b.safetensors.2.partial"
    for draft in (stale, young, foreign):
        draft.touch()
    os.utime(foreign, (0, 0))
    images(tmp_path).load("Signs", "val")
    assert not stale.exists() and young.exists() and foreign.exists()
