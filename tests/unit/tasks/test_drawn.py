"""Splits are drawn once, kept whole, and drawn again when what is kept is no use."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.tasks import drawn as datasets

SMALL = {"mini": {"train": 60, "val": 20, "test": 40}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Make splits small, and return the list of what is drawn."""
    drawn = []
    sample = mini.sample

    def count(task: str, split: str, n: int):
        drawn.append((task, split, n))
        return sample(task, split, n)

    monkeypatch.setattr(datasets, "SIZES", SMALL)
    monkeypatch.setattr(datasets, "CONTROL_SIZES", {"mini": {"test": 50}})
    monkeypatch.setattr(mini, "sample", count, raising=False)
    return drawn


def test_types_sizes_and_labels(tmp_path: Path) -> None:
    x, y = datasets.load("mini", "Vehicles", "train", cache=tmp_path)
    assert x.shape == (60, 3, 32, 32) and x.dtype == torch.uint8
    assert y.shape == (60,) and y.dtype == torch.int64
    assert len(datasets.load("mini", "Objects", "test", cache=tmp_path).y) == 50


def test_drawn_once_and_the_same_afterwards(tmp_path: Path, small: list) -> None:
    first = datasets.load("mini", "Signs", "val", cache=tmp_path)
    second = datasets.load("mini", "Signs", "val", cache=tmp_path)
    assert small == [("Signs", "val", 20)]
    assert torch.equal(first.x, second.x) and torch.equal(first.y, second.y)
    assert not list(tmp_path.rglob("*.partial"))


def test_the_first_n_are_a_part_of_the_same_split(tmp_path: Path) -> None:
    whole = datasets.load("mini", "Signs", "val", cache=tmp_path)
    part = datasets.load("mini", "Signs", "val", n=7, cache=tmp_path)
    assert torch.equal(part.x, whole.x[:7]) and torch.equal(part.y, whole.y[:7])


def test_writing_to_the_tensors_does_not_change_the_cache(tmp_path: Path) -> None:
    datasets.load("mini", "Signs", "val", cache=tmp_path)
    images = datasets.load("mini", "Signs", "val", cache=tmp_path)
    before = images.x.clone()
    images.x.zero_()
    assert torch.equal(datasets.load("mini", "Signs", "val", cache=tmp_path).x, before)


def test_a_damaged_cache_is_drawn_again(
    tmp_path: Path, small: list, caplog: pytest.LogCaptureFixture
) -> None:
    first = datasets.load("mini", "Signs", "val", cache=tmp_path)
    (file,) = tmp_path.rglob("*.x.npy")
    file.write_bytes(file.read_bytes()[:500])
    with caplog.at_level(logging.WARNING):
        again = datasets.load("mini", "Signs", "val", cache=tmp_path)
    assert torch.equal(first.x, again.x) and len(small) == 2
    assert file.name in caplog.text
    datasets.load("mini", "Signs", "val", cache=tmp_path)
    assert len(small) == 2  # and is whole again


def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        images = datasets.load("mini", "Signs", "val", cache=blocked)
    assert len(images.y) == 20
    assert "not kept" in caplog.text


def test_the_environment_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path / "images"))
    datasets.load("mini", "Signs", "val")
    assert list((tmp_path / "images" / "mini").glob("Signs-val-*.npy"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("paper", "Signs", "val"), "suite"),
        (("mini", "Sings", "val"), "did you mean 'Signs'"),
        (("mini", "Signs", "valid"), "did you mean 'val'"),
    ],
)
def test_unknown_names(arguments: tuple[str, str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(TasklabError, match=message):
        datasets.load(*arguments, cache=tmp_path)


@pytest.mark.parametrize("n", [0, -1, 21])
def test_too_many_or_no_images(n: int, tmp_path: Path) -> None:
    with pytest.raises(TasklabError, match="from 1 to 20"):
        datasets.load("mini", "Signs", "val", n=n, cache=tmp_path)


def test_versions_tell_splits_apart() -> None:
    versions = {
        datasets.version("mini", task, split)
        for task in ("Signs", "Objects")
        for split in ("train", "val", "test")
    }
    assert len(versions) == 6
    assert all(mini.VERSION in version for version in versions)
