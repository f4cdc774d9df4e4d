"""Which folders are splits, which are classes, and which files are images."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasklab.tasks import own, suites
from tasklab.tasks.images import layouts, trees
from tasklab.tasks.images.loader import DecodedImages
from tests.helpers import refuses

_next = iter(range(10**6))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trees, "_told", set())


def images(*folders, count=2):
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            number = next(_next)
            colour = number % 256, number // 256 % 256, 0
            Image.new("RGB", (5, 4), colour).save(folder / f"{i}.png")


def found(root):
    return {
        name: dict(zip(split.names, np.bincount(split.labels).tolist(), strict=True))
        for name, split in layouts.splits_in(root).items()
    }


PETS = {"cat": 2, "dog": 2}


@pytest.mark.parametrize(
    ("first", "second", "split"),
    [
        ("train", "test_set", "test"), ("Training Set", "Test", "test"),
        ("seg_train/seg_train", "seg_test/seg_test", "test"), ("birds_train", "birds_test", "test"),
        ("trainset", "test-images", "test"), ("train2017", "TESTING", "test"),
        ("TRAIN", "Valid", "val"), ("train", "dev", "val"),
    ],
)  # fmt: skip
def test_splits_by_words_in_names(first, second, split, tmp_path):
    images(*(tmp_path / word / name for word in (first, second) for name in PETS))
    assert found(tmp_path) == {"train": PETS, split: PETS}


def test_splits_that_are_not_read_are_told(tmp_path, caplog):
    images(*(tmp_path / split / name for split in ("train", "val") for name in PETS))
    (tmp_path / "test" / "cat").mkdir(parents=True)
    assert found(tmp_path) == {"train": PETS, "val": PETS}
    assert "test has no images" in caplog.text


@pytest.mark.parametrize("inner", ["", "train/", "images/"])
@pytest.mark.parametrize(
    "names", [("fold0", "fold1"), ("Fold A", "Fold B"), ("split_1", "split_2")]
)
def test_folds_of_the_same_classes_are_refused(names, inner, tmp_path):
    images(*(tmp_path / fold / f"{inner}{name}" for fold in names for name in PETS))
    if inner == "images/":  # one folder in each is none of several classes
        assert found(tmp_path) == {"all": dict.fromkeys(names, 4)}
        return
    if inner:
        images(*(tmp_path / fold / "test" / name for fold in names for name in PETS))
    refuses(f"in each of {names[0]}, {names[1]}, which look like folds", found, tmp_path)


def test_the_same_folders_in_each_class_are_told(tmp_path, caplog):
    images(*(tmp_path / domain / name for domain in ("photo", "sketch") for name in PETS))
    assert found(tmp_path) == {"all": {"photo": 4, "sketch": 4}}
    assert "the classes are photo, sketch; " in caplog.text
    assert "(photo/cat, photo/dog, sketch/cat, sketch/dog)" in caplog.text


def test_names_with_other_words_are_told(tmp_path, caplog):
    images(*(tmp_path / s / n for s in ("train", "val", "test_set", "old") for n in PETS))
    assert found(tmp_path) == dict.fromkeys(("test", "train", "val"), PETS)
    assert found(tmp_path)  # and is told once
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "test_set/, train/, val/ are read, and not old/ (4 images), which names no split.",
        "test_set/ as test is read, after the words in the names.",
    ]


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val", "Test"), ("train",)])
def test_splits_within_classes(splits, tmp_path):
    images(*(tmp_path / name / split for name in PETS for split in splits))
    assert found(tmp_path) == {split.lower(): PETS for split in sorted(splits, key=str.lower)}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("cow/train", "cow has no images of test"),
        ("dog", "dog has 2 images in no split"),
        ("dog/masks", "dog has 2 images in no split"),
    ],
)
def test_splits_within_some_classes_are_refused(more, says, tmp_path):
    images(*(tmp_path / name / split for name in PETS for split in ("train", "test")))
    images(tmp_path / more)
    refuses(says, found, tmp_path)


def test_a_folder_within_a_class_may_be_called_as_a_split(tmp_path):
    images(tmp_path / "vehicles" / "train", tmp_path / "vehicles" / "bus", tmp_path / "cat")
    assert found(tmp_path) == {"all": {"cat": 2, "vehicles": 4}}


def test_classes_with_words_of_splits(tmp_path):
    names = "spoon", "test_tube", "train"
    images(*(tmp_path / name for name in names))
    images(tmp_path / "test_tube" / "a", tmp_path / "test_tube" / "b")
    assert found(tmp_path) == {"all": {"spoon": 2, "test_tube": 6, "train": 2}}


@pytest.mark.parametrize("flat", ["test", "Test", "testing", "test_set/unknown", "val"])
def test_a_split_without_classes_is_refused(flat, tmp_path):
    images(*(tmp_path / "train" / name for name in PETS), tmp_path / flat)
    refuses(r"has 2 images, but not one folder for each class", found, tmp_path)
    top = tmp_path / Path(flat).parts[0]
    top.rename(tmp_path / f".{top.name}")
    assert found(tmp_path) == {"train": PETS}


def test_one_split_beside_other_folders_is_refused(tmp_path):
    images(*(tmp_path / "train" / name for name in PETS), tmp_path / "bus")
    refuses(r"train/ with classes in it, .* bus/ \(2 images\)", found, tmp_path)


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


@pytest.mark.parametrize("kind", ["files", "all"])
def test_images_of_the_test_that_are_trained_on_are_told(kind, tmp_path, caplog):
    tops = (
        (tmp_path / "pets",) if kind == "all" else (tmp_path / "pets/train", tmp_path / "pets/test")
    )
    images(*(top / name for top in tops for name in PETS), count=20)
    task = own.from_folder(tmp_path / "pets")

    def make():
        return DecodedImages(suite=suites.Suite.from_tasks(task), side=32, cache=tmp_path / "c")

    size = make().size("pets", "test")
    assert not caplog.records
    if kind == "all":
        for file in (tmp_path / "pets" / "cat").iterdir():
            file.write_bytes((tmp_path / "pets" / "cat" / "0.png").read_bytes())
    else:
        for i in range(3):
            file = tmp_path / "pets/test/cat" / f"{i}.png"
            file.write_bytes((tmp_path / "pets/train/dog" / f"{i}.png").read_bytes())
    assert make().size("pets", "test") == size
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    same = int(record.args[1])
    assert same == 3 if kind == "files" else 1 < same < size


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
