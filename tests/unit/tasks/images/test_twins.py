"""Images with the same bytes in two splits, or in two classes."""

import logging

import numpy as np
import pytest

from tasklab.tasks.images import formats, twins
from tasklab.tasks.images.finding import Part

NAMES = ("cat", "dog")


def told(caplog, **parts):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        twins.tell_twins("pets", parts)
    return [(int(r.args[1]), int(r.args[2]), r.args[4]) for r in caplog.records]


def split(folder, contents, labels):
    folder.mkdir()
    files = [folder / f"{n}.png" for n in range(len(contents))]
    for file, letter in zip(files, contents, strict=True):
        file.write_text(letter * 9000)
    return Part(formats.image_files(files, labels, NAMES), np.arange(len(files)))


def test_files_in_two_splits_are_named(tmp_path, caplog):
    train = split(tmp_path / "train", "abcd", [0, 0, 1, 1])
    test = split(tmp_path / "test", "xbyd", [0, 0, 1, 1])
    ((count, of, which),) = told(caplog, train=train, test=test)
    assert (count, of) == (2, 4)
    pairs = [f"{tmp_path}/test/{n}.png and {tmp_path}/train/{n}.png" for n in (1, 3)]
    assert which == "; ".join(pairs)
    assert not told(caplog, train=train, test=Part(test.split, np.array([0, 2])))


def test_test_images_of_two_classes_are_named(tmp_path, caplog):
    train = split(tmp_path / "train", "aabb", [0, 0, 1, 1])  # twice in a class is no matter
    test = split(tmp_path / "test", "xyxzz", [0, 0, 1, 1, 1])
    (count, of, which), (copies, _, pairs) = told(caplog, train=train, test=test)
    assert (count, of, copies) == (2, 5, 2)
    assert which.startswith(f"{tmp_path}/test/0.png and {tmp_path}/test/2.png")
    assert pairs.startswith(f"{tmp_path}/test/3.png and {tmp_path}/test/4.png")
    assert "intervals each image once" in caplog.text


def test_rows_are_compared_by_their_bytes(tmp_path, caplog):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parts = {}
    for name, contents, labels in (("train", "abc", [0, 1, 0]), ("test", "dbd", [0, 1, 1])):
        images = [{"bytes": letter.encode(), "path": None} for letter in contents]
        pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / f"{name}.parquet")
        parts[name] = Part(formats.parquet([tmp_path / f"{name}.parquet"]), np.arange(3))
    first, second = told(caplog, **parts)
    assert first == (1, 3, f"{tmp_path}/test.parquet, row 1 and {tmp_path}/train.parquet, row 1")
    assert second[:2] == (2, 3)
