"""Which folders are splits, which are classes, and which files are images."""

import itertools
import logging
import re

import numpy as np
import pytest

from tasklab.tasks import own, suites
from tasklab.tasks.images import layouts, trees
from tasklab.tasks.images.loader import DecodedImages
from tests.helpers import refuses
from tests.layouts import images


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trees, "_told", set())


def made(root, text):
    """Write images in `a/c`, `a/d`, `b/c`, `b/d` and `e` of `a,b/c,d; e`, and none in `f!`."""
    for path in text.split("; "):
        for parts in itertools.product(*(part.split(",") for part in path.split("/"))):
            name = "/".join(parts)
            images(root / name.rstrip("!"), count=0 if name.endswith("!") else 2)


def found(root):
    return {
        name: dict(zip(split.names, np.bincount(split.labels).tolist(), strict=True))
        for name, split in layouts.splits_in(root).items()
    }


PETS = {"cat": 2, "dog": 2}
BOTH = {"train": PETS, "test": PETS}
WORDS = "{} is read, after the words in the names."


@pytest.mark.parametrize(
    ("folders", "expected", "told"),
    [
        ("train,test/cat,dog", BOTH, []),
        ("train,test_set/cat,dog", BOTH, [WORDS.format("test_set/ as test")]),
        ("Training Set,Test/cat,dog", BOTH, ["Training Set/ as train"]),
        ("seg_train/seg_train/cat,dog; seg_test/seg_test/cat,dog", BOTH, ["seg_test/ as test"]),
        ("birds_train,birds_test/cat,dog", BOTH, ["birds_test/ as test, birds_train/ as train"]),
        ("trainset,test-images/cat,dog", BOTH, ["test-images/ as test, trainset/ as train"]),
        ("train2017,TESTING/cat,dog", BOTH, ["train2017/ as train"]),
        ("TRAIN,Valid/cat,dog", {"train": PETS, "val": PETS}, []),
        ("train,dev/cat,dog", {"train": PETS, "val": PETS}, []),
        ("train,val/cat,dog; test/cat!", {"train": PETS, "val": PETS}, ["test has no images"]),
        ("cat,dog/train,test", BOTH, []),
        ("cat,dog/train,val,Test", BOTH | {"val": PETS}, []),
        ("cat,dog/train", {"train": PETS}, []),
        ("train/cat,dog; .test", {"train": PETS}, []),
        ("car,train", {"all": {"car": 2, "train": 2}}, []),
        ("vehicles/train,bus; cat", {"all": {"cat": 2, "vehicles": 4}}, None),
        ("cup,test_cup,train; test_cup/a", {"all": {"cup": 2, "test_cup": 4, "train": 2}}, None),
        (
            "fold0,fold1/images/cat,dog",  # one folder in each is none of several classes
            {"all": {"fold0": 4, "fold1": 4}}, None,
        ),
        ("fold0/cat,dog; fold1/cat,cow", {"all": {"fold0": 4, "fold1": 4}}, None),
        (
            "photo,sketch/cat,dog", {"all": {"photo": 4, "sketch": 4}},
            ["the classes are photo, sketch; .*photo/cat, photo/dog, sketch/cat, sketch/dog"],
        ),
        (
            "train,val,test_set,old/cat,dog", BOTH | {"val": PETS},
            [
                "test_set/, train/, val/ are read, and not old/ .4 images., which names no split",
                WORDS.format("test_set/ as test"),
            ],
        ),
    ],
)  # fmt: skip
def test_splits_and_classes_by_names(folders, expected, told, tmp_path, caplog):
    made(tmp_path, folders)
    assert found(tmp_path) == expected == found(tmp_path)  # which is told once
    for record, part in zip(caplog.records, told or (), strict=told is not None):
        assert re.search(part, record.message)


FOLDS = "in each of {0}, {1}, which look like folds"
NO_CLASSES = "has 2 images, but not one folder for each class"


@pytest.mark.parametrize(
    ("folders", "says"),
    [
        ("fold0,fold1/cat,dog", FOLDS.format("fold0", "fold1")),
        ("Fold A,Fold B/cat,dog", FOLDS.format("Fold A", "Fold B")),
        ("split_1,split_2/train,test/cat,dog", FOLDS.format("split_1", "split_2")),
        ("cat,dog/train,test; cow/train", "cow has no images of test"),
        ("cat,dog/train,test; dog", "dog has 2 images in no split"),
        ("cat,dog/train,test; dog/masks", "dog has 2 images in no split"),
        ("train/cat,dog; Test", NO_CLASSES),
        ("train/cat,dog; testing", NO_CLASSES),
        ("train/cat,dog; test_set/unknown", NO_CLASSES),
        ("train/cat,dog; val", NO_CLASSES),
        ("train/cat,dog; bus", r"train/ with classes in it, .* bus/ \(2 images\)"),
        ("train_images,test_images", "test_images, train_images"),
        ("val,dev/cat,dog", "dev and .*val are both 'val'"),
    ],
)
def test_folders_that_can_be_misread_are_refused(folders, says, tmp_path):
    made(tmp_path, folders)
    refuses(says, found, tmp_path)


def test_a_test_that_is_a_link_to_train_is_refused(tmp_path):
    images(*(tmp_path / "train" / name for name in PETS))
    (tmp_path / "test").symlink_to(tmp_path / "train")
    refuses("are the same folder", found, tmp_path)


def test_underscores_are_the_users_and_programs_folders_are_not(tmp_path):
    images(*(tmp_path / name for name in ("__background__", "_x", "cat", "a__b")))
    images(*(tmp_path / name for name in ("__MACOSX", "@eaDir", ".cache", "__pycache__")))
    (tmp_path / "cat" / "Thumbs.db").write_bytes(b"x")
    assert own.from_folder(tmp_path).classes == ("background", "x", "a b", "cat")


def test_files_are_read_by_contents_or_named(tmp_path, caplog):
    images(*(tmp_path / name for name in PETS))
    picture = (tmp_path / "cat" / "0.png").read_bytes()
    for name in ("a.JPG", "b.jpe", "c", "d.image", "e.PNG"):
        (tmp_path / "cat" / name).write_bytes(picture)
    assert found(tmp_path) == {"all": {"cat": 7, "dog": 2}} and not caplog.records
    for name in ("f.heic", "g.svg", "h", "notes.txt", ".hidden.heic"):
        (tmp_path / "cat" / name).write_bytes(b"no image")
    (tmp_path / "beside.png").write_bytes(picture)
    assert found(tmp_path) == {"all": {"cat": 7, "dog": 2}}
    unread, beside = (record.message for record in caplog.records)
    assert "3 files" in unread and all(x in unread for x in (".heic 1", ".svg 1", "suffix 1"))
    assert "notes.txt" not in unread and "1 files lie beside" in beside


def test_images_of_the_test_that_are_trained_on_are_told(tmp_path, caplog):
    train, test = tmp_path / "pets/train", tmp_path / "pets/test"
    images(*(top / name for top in (train, test) for name in PETS), count=20)
    task = own.from_folder(tmp_path / "pets")

    def make():
        return DecodedImages(suite=suites.Suite.from_tasks(task), side=32, cache=tmp_path / "c")

    size = make().size("pets", "test")
    assert not caplog.records
    for i in range(3):
        (test / f"cat/{i}.png").write_bytes((train / f"dog/{i}.png").read_bytes())
    assert make().size("pets", "test") == size
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and int(record.args[1]) == 3


def test_classes_are_the_same_if_only_writing_differs(tmp_path, caplog):
    names = {
        "caf\N{LATIN SMALL LETTER E WITH ACUTE}": "Cafe\N{COMBINING ACUTE ACCENT}",
        "tea": "tea ",
    }
    for count, (name, other) in enumerate({**names, "2": "02", "10": "10"}.items(), 1):
        images(tmp_path / "train" / name, count=count)
        images(tmp_path / "test" / other, count=count)
    splits = found(tmp_path)
    assert splits["train"] == splits["test"] == {"caf\xe9": 1, "tea": 2, "2": 3, "10": 4}
    assert not caplog.text
    images(tmp_path / "test" / "2")  # beside 02: two classes
    refuses("different classes", own.from_folder, tmp_path)


def test_names_that_begin_with_numbers_are_told(tmp_path, caplog):
    images(*(tmp_path / name for name in ("n01440764", "n01443537")))
    assert own.from_folder(tmp_path, classes=["tench", "goldfish"]).classes == ("tench", "goldfish")
    assert "prompts" not in caplog.text
    own.from_folder(tmp_path)
    assert "prompts call the classes n01440764, n01443537" in caplog.text


@pytest.mark.parametrize("name", ["split_zhou_Pets.json", "test.txt", "test_list.txt"])
def test_lists_of_splits_that_are_not_read_are_told(name, tmp_path, caplog):
    images(*(tmp_path / pet for pet in PETS))
    (tmp_path / name).write_text("{}")
    assert found(tmp_path) == {"all": PETS}
    assert f"{name} are not read, and test images are drawn at random" in caplog.text


def test_masks_are_told_or_refused(tmp_path, caplog):
    made(tmp_path / "a", "images,masks")
    refuses("images and their masks", layouts.splits_in, tmp_path / "a")
    made(tmp_path / "b", "train,test/img,Segmentation")
    refuses("images and their masks", layouts.splits_in, tmp_path / "b")
    made(tmp_path / "c", "mask,no_mask")  # faces
    assert found(tmp_path / "c") == {"all": {"mask": 2, "no_mask": 2}}
    assert not caplog.text
    for file in sorted((tmp_path / "c" / "mask").iterdir()):
        file.with_stem(f"{file.stem}_mask").write_bytes(file.read_bytes() + b"0")
    found(tmp_path / "c")
    assert "2 of 6 images look like masks of others beside them" in caplog.text
    made(tmp_path / "d", "cat,dog/images,masks")
    found(tmp_path / "d")
    assert "4 of 8 images look like masks" in caplog.text
