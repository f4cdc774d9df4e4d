"""What is served is what the files hold now, and what was decoded of them, bit for bit."""

import json
import logging
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.tasks import own, suites
from tasklab.tasks.images import decoding, pixels
from tasklab.tasks.images.loader import DecodedImages
from tests.helpers import flip, refuses

SPLITS = ("train", "val", "test")


@pytest.fixture
def root(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        for i in range(12):
            file = tmp_path / "pets" / name / f"{i}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 36), (10 * i, 100 * label, 0)).save(file)
            os.utime(file, (1, 1))
    return tmp_path / "pets"


def images(root):
    pixels._SOUND.clear()
    suite = suites.Suite.from_tasks(own.from_folder(root))
    cache = root.parent / "cache"
    return DecodedImages(suite=suite, side=32, cache=cache, progress=False, jobs=1)


def served(data):
    return {split: tuple(map(torch.clone, data.load("pets", split))) for split in SPLITS}


def agree(data):
    return all(torch.equal((x[:, 1].amax((1, 2)) > 50).long(), y) for x, y in served(data).values())


def arrays(root):
    return sorted((root.parent / "cache").rglob("x.npy"))


def test_class_folders_that_change_places(root):
    assert agree(images(root))
    (root / "cat").rename(root / "x")
    (root / "dog").rename(root / "cat")
    (root / "x").rename(root / "dog")
    data = images(root)
    assert not agree(data)  # the cats are green now
    assert all(torch.equal((x[:, 1].amax((1, 2)) < 50).long(), y) for x, y in served(data).values())


def test_a_file_of_the_same_name_size_and_time(root):
    before = served(images(root))
    for file in root.rglob("*.bmp"):
        Image.open(file).point(lambda value: 255 - value).save(file)
        os.utime(file, (1, 1))
    after = served(images(root))
    assert not any(torch.equal(before[split][0], after[split][0]) for split in SPLITS)


def test_files_that_only_moved_are_not_decoded_again(root, monkeypatch):
    before = served(images(root))
    shutil.copytree(root, root.parent / "copy")
    shutil.rmtree(root)
    (root.parent / "copy").rename(root)
    monkeypatch.setattr(decoding.Job, "run", None)
    (memory,) = (root.parent / "cache").rglob("contents.json")
    file = root / "cat" / "0.bmp"
    for text in (memory.read_text(), "", "[]", '{"a": 1}', json.dumps({str(file): None})):
        memory.write_text(text)
        after = served(images(root))
        assert all(torch.equal(before[split][0], after[split][0]) for split in SPLITS)


@pytest.mark.parametrize("seed", range(12))
def test_a_bit_of_the_decoded_images(seed, root, caplog, monkeypatch):
    data = images(root)
    before, random = served(data), np.random.default_rng(seed)
    file = arrays(root)[seed % 3].with_name(["x", "x", "y", "sizes"][seed // 3] + ".npy")
    flip(file, random.integers(128, file.stat().st_size), 1 << random.integers(8))
    with caplog.at_level(logging.WARNING):
        after = served(images(root))
    assert all(torch.equal(a, b) for s in SPLITS for a, b in zip(before[s], after[s], strict=True))
    assert caplog.text.count("decoded again") == (file.name == "x.npy")
    assert images(root).damaged() == []


def test_folders_of_decoded_images_that_change_places(root):
    before = served(images(root))
    first, second, _ = (file.parent for file in arrays(root))
    first.rename(root.parent / "x")
    second.rename(first)
    (root.parent / "x").rename(second)
    after = served(images(root))
    assert all(torch.equal(a, b) for s in SPLITS for a, b in zip(before[s], after[s], strict=True))


def test_a_bit_while_the_originals_are_gone(root):
    data = images(root)
    data.prepare()
    task = own.from_folder(root)
    shutil.rmtree(root)
    kept = DecodedImages(suite=suites.Suite.from_tasks(task), side=32, cache=data.cache)
    assert len(kept.load("pets", "train").y) == 18
    for file in arrays(root):
        flip(file, -5)
    assert len(kept.damaged()) == 3
    refuses("has no images in folders", kept.load, "pets", "train")
    with pytest.raises(TasklabError, match="has no images in folders"):
        next(kept.batches("pets", lambda step, n: torch.arange(4), range(1), seed=0, device="cpu"))


def test_batches_on_a_card_are_the_cpus(root, pretended):
    def batches(device):
        order = lambda step, count: torch.arange(4 * step, 4 * step + 4) % count  # noqa: E731
        return [*images(root).batches("pets", order, range(5), seed=0, device=device)]

    here = batches("cpu")
    with pretended.cuda(count=2):
        there = batches("cuda:1")
        assert {x.device for batch in there for x in batch} == {torch.device("cuda:1")}
        there = [[x.cpu() for x in batch] for batch in there]
    for one, two in zip(here, there, strict=True):
        torch.testing.assert_close(two[0], one[0])
        assert torch.equal(two[1], one[1])


def test_a_damaged_split_is_not_trained_on(root):
    def first(data):
        order = lambda step, count: torch.arange(6)  # noqa: E731
        return next(data.batches("pets", order, range(1), seed=0, device="cpu")).x

    before = first(images(root))
    for file in arrays(root):
        flip(file, -4000, 128)
    assert torch.equal(first(images(root)), before)
