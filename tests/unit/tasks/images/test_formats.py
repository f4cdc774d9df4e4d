"""Data sets that are damaged, incomplete, or lie in a folder in a way that can be misread."""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.tasks.images import archives, formats, layouts, soundness
from tests import layouts as made_by
from tests.helpers import refuses
from tests.layouts import images, picture

NAMES = ["ant", "bee", "cow"]
COUNT = 6  # images of a split
LABELS = [i % 3 for i in range(COUNT)]


def table(file, labels=LABELS, names=NAMES, *, cells=None, **columns):
    cells = cells or [{"bytes": picture(3), "path": None} for _ in labels]
    return made_by.parquet(file, cells, labels, names, rows=2, **columns)


def sizes(found):
    return {name: len(split) for name, split in found.items()}


def decoded(split):
    rows, chunks = set(range(len(split))), range(len(split.bounds) - 1)
    return [image for n in chunks for _, image in split.read(n, rows)]


SIZES = {"train": COUNT, "test": COUNT}
THREE = {"train": COUNT, "val": COUNT, "test": COUNT}


def hub(root):
    table(root / "data" / "train-00000-of-00001.parquet")
    table(root / "data" / "test-00000-of-00001.parquet")


PLACES = ("airplane", "beach", "chaparral")
MADE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "mnist": ("MNIST", lambda root: made_by.mnist(root, SIZES, 3)),
    "svhn": ("SVHN", lambda root: made_by.svhn(root, SIZES, 3)),
    "cars": ("Cars", lambda root: made_by.cars(root, SIZES, NAMES)),
    "dtd": ("DTD", lambda root: made_by.dtd(root, THREE, NAMES)),
    "gtsrb": ("GTSRB", lambda root: made_by.gtsrb(root, SIZES, 3)),
    "resisc": ("RESISC45", lambda root: made_by.resisc(root, THREE, PLACES)),
    "sun": ("SUN397", lambda root: made_by.sun(root, SIZES, NAMES)),
    "hub": ("DTD", hub),
}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "html": lambda data: b"<html>404 not found</html>\n" * 20,
    "latin-1": lambda data: b"caf\xe9/x.jpg;1\n" * 20,
    "pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n",
}
FILES = {
    "mnist": ("MNIST/raw/train-labels-idx1-ubyte", "MNIST/raw/train-images-idx3-ubyte"),
    "svhn": ("train_32x32.mat",),
    "cars": ("stanford_cars/devkit/cars_train_annos.mat", "stanford_cars/devkit/cars_meta.mat"),
    "hub": ("data/train-00000-of-00001.parquet",),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(("made", "file"), [(m, f) for m, files in FILES.items() for f in files])
def test_a_damaged_file_is_one_line(made, file, how, tmp_path):
    name, make = MADE[made]
    make(tmp_path)
    broken = tmp_path / file
    broken.write_bytes(DAMAGE[how](broken.read_bytes()))
    text = refuses("", layouts.splits_in, tmp_path, name)
    whole = made == "hub" or how == "pointer"  # torchvision does not say which of its files it is
    assert text.startswith(f"{name}: {broken if whole else tmp_path}") and "\n" not in text
    assert whole or archives.ARCHIVES[name].mark in text
    assert ("git lfs pull" if how == "pointer" else "Fetch it again.") in text


@pytest.mark.parametrize(
    ("made", "file", "text", "says"),
    [
        ("dtd", "dtd/dtd/labels/test1.txt", b"caf\xe9/x.jpg", "labels is not the test.*utf-8"),
        ("dtd", "dtd/dtd/labels/test1.txt", None, "test1.txt is missing"),
        ("dtd", "dtd/dtd/labels/test1.txt", b"", "no images of split test"),
        (
            "gtsrb",
            "gtsrb/GT-final_test.csv",
            b"Filename;W\n0.ppm;9\n",
            "test .*KeyError: 'ClassId'",
        ),
        ("gtsrb", "gtsrb/GT-final_test.csv", None, "GT-final_test.csv is missing"),
        ("sun", "Training_01.txt", b"/a/yak/x.jpg", "1 of 1 listed images are missing .*x.jpg"),
        (
            "sun",
            "Testing_01.txt",
            None,
            "has no Testing_01.txt, which belongs to the papers' split",
        ),
        ("cars", "stanford_cars/cars_test_annos_withlabels.mat", None, "test .*not found"),
        ("cars", "stanford_cars/devkit/cars_meta.mat", None, "cars_meta.mat is missing"),
        ("cars", "stanford_cars/cars_test/1.jpg", None, "1 of 6 listed images are .*1.jpg. Fetch"),
        ("gtsrb", "gtsrb/GTSRB/Final_Test/Images/1.ppm", None, "1 of 6 listed .*1.ppm. Fetch"),
        ("sun", "a/bee/Testing1.jpg", None, "1 of 6 listed .*Testing1.jpg. Fetch"),
        ("resisc", "NWPU-RESISC45/beach/beach_val1.jpg", None, "1 of 6 .*beach_val1.jpg. Fetch"),
        ("dtd", "dtd/dtd/images/bee/train1.jpg", None, "1 of 6 listed .*train1.jpg. Fetch"),
        ("dtd", "dtd/dtd/images/bee", None, "2 of 6 listed images .*train1.jpg, train4.jpg"),
    ],
)
def test_lists_and_files_that_are_not_as_they_should_be(made, file, text, says, tmp_path):
    name, make = MADE[made]
    make(tmp_path)
    place = tmp_path / file
    if text is None:
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    else:
        place.write_bytes(text)
    refuses(f"^{name}: .*{says}", layouts.splits_in, tmp_path, name)


def test_matlab_files_of_other_variables_or_without_classes(tmp_path):
    made_by.svhn(tmp_path / "svhn", SIZES, 3, x="images")
    refuses("train .*KeyError: 'X'", layouts.splits_in, tmp_path / "svhn", "SVHN")
    made_by.cars(tmp_path / "cars", SIZES, NAMES)
    rows = np.zeros(COUNT, dtype=[("fname", object), ("width", object)])
    file = tmp_path / "cars/stanford_cars/cars_test_annos_withlabels.mat"
    savemat(file, {"annotations": rows})
    refuses(
        "not the test images as torchvision's StanfordCars reads them",
        layouts.splits_in,
        tmp_path / "cars",
        "Cars",
    )


@pytest.mark.parametrize("name", ["MNIST", "SVHN"])
def test_as_many_images_as_labels(name, tmp_path):
    getattr(made_by, name.lower())(tmp_path, SIZES, 3, images=COUNT - 2)
    refuses("has 4 train images and 6 labels", layouts.splits_in, tmp_path, name)


@pytest.mark.parametrize("made", ["mnist", "svhn", "hub"])
def test_a_file_that_is_damaged_after_it_was_found(made, tmp_path):
    name, make = MADE[made]
    make(tmp_path)
    split = layouts.splits_in(tmp_path, name)["train"]
    assert len(decoded(split)) == COUNT
    file = next(Path(file) for file in split.files if "train" in file)
    file.write_bytes(file.read_bytes()[:40])
    os.utime(file, (1, 1))
    named = made == "hub"  # torchvision does not say which of its files it is
    refuses(f"{file.name} is not a whole" if named else "is not the train images", decoded, split)


@pytest.mark.parametrize(
    ("labels", "cells", "says"),
    [
        ([[0], [1]], None, "column 'label' holds list"),
        ([0.5, 1.0], None, "column 'label' holds double"),
        ([0, None], None, "1 rows have no 'label'"),
        ([0, 1], ["a.jpg", "b.jpg"], "column 'image' holds string, not images"),
        ([0, 1], [["a"], ["b"]], "column 'image' holds list"),
        ([], None, "no images of split train"),
    ],
)
def test_columns_that_hold_something_else(labels, cells, says, tmp_path):
    table(tmp_path / "train.parquet", labels, cells=cells)
    refuses(says, layouts.splits_in, tmp_path)


def test_columns_and_cards_of_other_forms(tmp_path):
    file = table(tmp_path / "train.parquet", image="img")
    refuses(f"DTD: {file} has the columns img, label.*rename", layouts.splits_in, tmp_path, "DTD")
    assert sizes(layouts.splits_in(tmp_path, image="img")) == {"train": COUNT}
    table(tmp_path / "train.parquet", names=None)
    (tmp_path / "README.md").write_bytes(b"---\nx: caf\xe9\n---\n")
    assert layouts.splits_in(tmp_path)["train"].names is None
    (tmp_path / "classes.txt").write_bytes("\r\n".join(NAMES).encode("utf-8-sig") + b"\r\n")
    assert layouts.splits_in(tmp_path)["train"].names == tuple(NAMES)
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    refuses("classes.txt is not a list of classes in UTF-8", layouts.splits_in, tmp_path)


@pytest.mark.parametrize("hashed", [False, True])
def test_shards_are_whole_and_agree_on_labels(hashed, tmp_path):
    ends = ["-6b3f7b2a5f2f5f5e", "-0123456789abcdef"] if hashed else ["", ""]
    files = [tmp_path / f"train-0000{i}-of-00002{end}.parquet" for i, end in enumerate(ends)]
    for file in files:
        table(file)
    assert sizes(layouts.splits_in(tmp_path)) == {"train": 2 * COUNT}
    table(files[1], names=NAMES[::-1])
    refuses("numbers ant, bee, cow, .* cow, bee, ant. They are not", layouts.splits_in, tmp_path)
    table(files[1], [NAMES[label] for label in LABELS], None)
    refuses("different labels|texts in some", layouts.splits_in, tmp_path)
    files[1].unlink()
    refuses("1 files are missing: train-00001-of-00002", layouts.splits_in, tmp_path)


def test_configurations_are_not_mixed(tmp_path):
    for config in ("a", "b"):
        table(tmp_path / config / "train.parquet")
    refuses(r"several configurations \(a, b\): say which", layouts.splits_in, tmp_path)
    refuses(r"\(a, b\) and none called 'c'", layouts.splits_in, tmp_path, config="c")
    assert sizes(layouts.splits_in(tmp_path, config="b")) == {"train": COUNT}
    shutil.rmtree(tmp_path / "a")
    assert sizes(layouts.splits_in(tmp_path)) == {"train": COUNT}
    assert sizes(layouts.splits_in(tmp_path, "DTD", config="c")) == {"train": COUNT}
    refuses("no configuration 'c'; it has b", layouts.splits_in, tmp_path, config="c")


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train/a/0.parquet", "train/b/0.parquet", "test/0.parquet"),
        ("default/train/0000.parquet", "default/test/0000.parquet"),
        ("Train.parquet", "TEST.parquet", ".cache/train.parquet"),
    ],
)
def test_one_configuration(names, tmp_path):
    for name in names:
        table(tmp_path / name)
    assert layouts.splits_in(tmp_path, config="default").keys() == {"train", "test"}


def test_images_are_counted_once(tmp_path):
    root = tmp_path / "pets"
    for name in ("cat", "cat/fluffy", "cat/.ipynb_checkpoints", "cat/__MACOSX", "dog", ".git"):
        images(root / name)
    (root / "cat" / "loop").symlink_to(root / "cat")
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "friend").symlink_to(root / "dog")
    (root / "above").symlink_to(tmp_path)
    found = layouts.splits_in(root)["all"]
    assert found.names == ("cat", "dog")
    assert np.bincount(found.labels).tolist() == [4, 2]
    (root / "hound").symlink_to(root / "dog")
    refuses("dog and .*hound are the same folder", layouts.splits_in, root)


def test_a_link_that_leads_nowhere(tmp_path):
    for name in NAMES:
        images(tmp_path / name)
    (tmp_path / "ant" / "dead.png").symlink_to(tmp_path / "nowhere.png")
    refuses("1 of 7 listed images are missing in .*ant: dead.png", layouts.splits_in, tmp_path)


def test_classes_do_not_vanish(tmp_path):
    for name in ("cat", "dog"):
        images(tmp_path / name)
    for name in ("elk.jfif", "fox.avif")[: 2 if ".avif" in formats.SUFFIXES else 1]:
        kind = {".jfif": "JPEG", ".avif": "AVIF"}[Path(name).suffix]
        (tmp_path / name[:3]).mkdir()
        Image.new("RGB", (5, 4)).save(tmp_path / name[:3] / name, kind)
    found = layouts.splits_in(tmp_path)["all"]
    assert found.names[:3] == ("cat", "dog", "elk") and len(decoded(found)) == len(found)
    (tmp_path / "bee").mkdir()
    (tmp_path / "bee" / "1.heic").write_bytes(b"x")
    (tmp_path / "yak").mkdir()
    refuses(r"that can be read: bee \(.heic\), yak \(empty\)", layouts.splits_in, tmp_path)


def test_folders_that_may_not_be_read(tmp_path, monkeypatch):
    for name in NAMES:
        images(tmp_path / name)
    listed = os.scandir

    def scan(folder):
        if Path(folder).name == "bee":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scan)
    refuses("bee cannot be read: permission denied", layouts.splits_in, tmp_path)


@pytest.mark.parametrize("letter", ["", "a/"])
def test_sun397_in_folders_within_classes(letter, tmp_path):
    for split in ("train", "test"):
        for name in ("abbey", "apse/indoor", "apse/outdoor"):
            images(tmp_path / split / f"{letter}{name}")
    found = layouts.splits_in(tmp_path, "SUN397")["test"]
    assert found.names == tuple(f"{letter}{n}" for n in ("abbey", "apse/indoor", "apse/outdoor"))
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    if not letter:
        assert layouts.splits_in(tmp_path)["test"].names == ("abbey", "apse")


RAMP = np.linspace(0, 65535, 48 * 64).reshape(48, 64)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_grey_levels_of_16_bits_are_scaled(name, tmp_path):
    file = tmp_path / name
    Image.fromarray(RAMP.astype(np.uint16)).save(file)
    (shown,) = decoded(formats.image_files([file], [0], None))
    exact = np.rint(RAMP.astype(np.uint16) / 257)
    assert np.array_equal(np.asarray(shown), np.repeat(exact[..., None], 3, axis=2))


@pytest.mark.parametrize(("kind", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_grey_levels_of_unknown_range_are_an_error(kind, mode, tmp_path):
    file = tmp_path / "a.tif"
    Image.fromarray(RAMP.astype(kind)).save(file)
    with pytest.raises(TasklabError, match=f"a.tif has pixels of 32 bits .Pillow's mode {mode}."):
        decoded(formats.image_files([file], [0], None))


def test_a_row_that_cannot_be_decoded_is_named(tmp_path):
    good = {"bytes": picture(3), "path": None}
    table(tmp_path / "train-00000-of-00002.parquet")
    second = tmp_path / "train-00001-of-00002.parquet"
    for cell, says in ((b"\xff\xd8 no image", "does not know its format"), (None, "no bytes")):
        cells = [good] * 4 + [{"bytes": cell, "path": "x.png"}, good]
        table(second, cells=cells)
        split = layouts.splits_in(tmp_path)["train"]
        assert split.location(COUNT + 4) == f"{second}, row 4"
        text = refuses("", decoded, split)
        assert text.startswith(f"{second}, row 4") and says in text
        assert text.endswith(f"Fetch {second} again.") and "BytesIO" not in text


def test_a_file_that_is_no_image_or_may_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"no image")
    split = formats.image_files([tmp_path / "a.png"], [0], None)
    refuses(r"a.png is not an image .* Remove or replace it.", decoded, split)

    def denied(file, formats):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr(formats.Image, "open", denied)
    refuses("a.png cannot be read: permission denied", decoded, split)
    for kind in (MemoryError, ImportError):
        with pytest.raises(kind), soundness.sound(tmp_path, "a folder"):
            raise kind


def test_images_above_pillows_limit_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    pixels = np.arange(3 * 20 * 30, dtype=np.uint8).reshape(20, 30, 3)
    file = tmp_path / "x.png"
    Image.fromarray(pixels).save(file)
    for source in (str(file), io.BytesIO(file.read_bytes())):
        assert np.array_equal(np.asarray(formats.rgb(source, "x.png")), pixels)
    assert Image.MAX_IMAGE_PIXELS == 100 and formats.is_image(file)
    few = machine.Memory(8 * 600 - 1, 8 * 600 - 1)
    monkeypatch.setattr(machine, "memory", lambda: few)
    refuses("0 megapixels, which take .* make it smaller", formats.rgb, str(file), "x.png")
    assert Image.MAX_IMAGE_PIXELS == 100
