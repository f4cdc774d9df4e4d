"""The twelve data sets that make twenty tasks, as their archives unpack and torchvision reads them.

The grey level of an image tells its class. Checksums of the true files are taken as right.
"""

import csv
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision.datasets import cifar, fer2013, flowers102, stl10

from tasklab.tasks import own, suites
from tasklab.tasks.images import archives, finding
from tasklab.tasks.images.loader import DecodedImages
from tests import layouts as made_by
from tests.helpers import refuses
from tests.layouts import listed, picture, some, write

COUNT = 6  # images of a split
SIZES = {"train": COUNT, "test": COUNT}
LABELS = some(COUNT, 3)
NAMES = ["ant", "bee", "cow"]


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    for module in (cifar, fer2013, flowers102, stl10):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: True)


def flat(side):
    """Return images of three channels, each in a row."""
    return np.repeat(20 * np.array(LABELS, np.uint8)[:, None], 3 * side * side, 1)


def pickled(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content))


def cifar10(root):
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pickled(root / "cifar-10-batches-py" / name, {"data": flat(32), "labels": LABELS})
    pickled(root / "cifar-10-batches-py/batches.meta", {"label_names": NAMES})


def cifar100(root):
    for name in ("train", "test"):
        pickled(root / "cifar-100-python" / name, {"data": flat(32), "fine_labels": LABELS})
    pickled(root / "cifar-100-python/meta", {"fine_label_names": NAMES})


def fer(root):
    file = root / "fer2013/fer2013.csv"
    file.parent.mkdir(parents=True)
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["emotion", "pixels", "Usage"])
        for usage in ("Training", "PublicTest", "PrivateTest"):
            rows.writerows([label, " ".join([str(20 * label)] * 48**2), usage] for label in LABELS)


def flowers(root):
    labels = [label for _ in range(3) for label in LABELS]
    for i, label in enumerate(labels, 1):
        write(root / f"flowers-102/jpg/image_{i:05d}.jpg", label)
    numbers = np.arange(1, len(labels) + 1).reshape(3, -1)
    splits = dict(zip(("trnid", "valid", "tstid"), numbers, strict=True))
    savemat(root / "flowers-102/setid.mat", splits)
    savemat(root / "flowers-102/imagelabels.mat", {"labels": np.array(labels) + 1})


def food(root):
    for split in SIZES:
        told = {name: [f"{name}/{split}{i}" for i in range(2)] for name in NAMES}
        for label, name in enumerate(NAMES):
            for one in told[name]:
                write(root / f"food-101/images/{one}.jpg", label)
        listed(root / f"food-101/meta/{split}.json", [json.dumps(told)])


def pets(root):
    for split in ("trainval", "test"):
        names = [f"{NAMES[label]}_{split}{i}" for i, label in enumerate(LABELS)]
        for name, label in zip(names, LABELS, strict=True):
            write(root / f"oxford-iiit-pet/images/{name}.jpg", label)
        lines = [f"{one} {label + 1} 1 1" for one, label in zip(names, LABELS, strict=True)]
        listed(root / f"oxford-iiit-pet/annotations/{split}.txt", lines)


def sst(root):
    for split in ("train", "valid", "test"):
        for i, label in enumerate(some(COUNT, 2)):
            write(root / f"rendered-sst2/{split}/{('negative', 'positive')[label]}/{i}.png", label)


def stl(root):
    (root / "stl10_binary").mkdir()
    (root / "stl10_binary/class_names.txt").write_text("\n".join(NAMES))
    for split in SIZES:
        flat(96).tofile(root / f"stl10_binary/{split}_X.bin")
        (np.array(LABELS, np.uint8) + 1).tofile(root / f"stl10_binary/{split}_y.bin")


DIGITS = ("emnist-digits-train", "emnist-digits-test")
TWELVE: dict[str, Callable[[Path], None]] = {
    "CIFAR10": cifar10,
    "CIFAR100": cifar100,
    "EMNIST": lambda root: made_by.mnist(root, SIZES, 3, kind="EMNIST", stems=DIGITS),
    "FashionMNIST": lambda root: made_by.mnist(root, SIZES, 3, kind="FashionMNIST"),
    "FER2013": fer,
    "Flowers102": flowers,
    "Food101": food,
    "KMNIST": lambda root: made_by.mnist(root, SIZES, 3, kind="KMNIST"),
    "OxfordIIITPet": pets,
    "RenderedSST2": sst,
    "STL10": stl,
}


def greys(split):
    rows = set(range(len(split)))
    chunks = range(len(split.bounds) - 1)
    return [round(np.asarray(x).mean() / 20) for n in chunks for _, x in split.read(n, rows)]


@pytest.mark.parametrize("name", TWELVE)
def test_an_archive_becomes_a_task_of_ones_own(name, tmp_path):
    TWELVE[name](tmp_path)
    made = own.from_folder(tmp_path, name=name)
    splits = finding.splits_in(made.place, tmp_path)
    assert {"train", "test"} <= splits.keys() <= {"train", "val", "test"}
    for split in splits.values():
        assert split.labels.tolist() == greys(split) and len(split) >= COUNT
    assert made.classes == tuple(one.replace("_", " ") for one in splits["train"].names)
    if name in ("CIFAR10", "CIFAR100", "Food101", "STL10"):
        assert list(made.classes) == NAMES
    top = tmp_path / archives.ARCHIVES[name].mark.partition("/")[0]
    assert own.from_folder(top, name=name).classes == made.classes  # the unpacked folder itself


def test_pcam_is_read_with_h5py_alone(tmp_path, monkeypatch):
    """It is no requirement: here another reader stands for it, of files of another form."""
    labels = some(COUNT, 2)
    greys_of = np.repeat(20 * np.array(labels, np.uint8), 96 * 96 * 3).reshape(-1, 96, 96, 3)
    (tmp_path / "pcam").mkdir()
    for split in ("train", "valid", "test"):
        for part, held in (("x", greys_of), ("y", np.array(labels).reshape(-1, 1, 1, 1))):
            file = tmp_path / "pcam" / f"camelyonpatch_level_2_split_{split}_{part}.h5"
            with file.open("wb") as stream:
                np.savez(stream, **{part: held})
    monkeypatch.setitem(sys.modules, "h5py", None)
    refuses("torchvision's PCAM reads them .h5py is not found", own.from_folder, tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=np.load))
    made = own.from_folder(tmp_path, classes=["no tumour", "tumour"])
    splits = finding.splits_in(made.place, tmp_path)
    assert splits.keys() == {"train", "val", "test"}
    assert all(split.labels.tolist() == greys(split) == labels for split in splits.values())


def test_archives_beside_each_other_or_not_as_torchvision_unpacks_them(tmp_path):
    for name in ("KMNIST", "FashionMNIST"):
        TWELVE[name](tmp_path)
    refuses("has FashionMNIST, KMNIST: give the folder of one", own.from_folder, tmp_path)
    assert own.from_folder(tmp_path / "KMNIST").classes[:2] == ("o", "ki")
    (tmp_path / "x/cifar-10-batches-bin").mkdir(parents=True)
    (tmp_path / "x/cifar-10-batches-bin/data_batch_1.bin").write_bytes(picture(1))
    refuses("one class with images, 'cifar-10-batches-bin'", own.from_folder, tmp_path / "x")
    (tmp_path / "y/FashionMNIST").mkdir(parents=True)
    (tmp_path / "y/FashionMNIST/train-images-idx3-ubyte.gz").write_bytes(b"")
    refuses("torchvision reads FashionMNIST at FashionMNIST/raw", own.from_folder, tmp_path / "y")


def test_pickles_of_other_checksums_are_not_opened(tmp_path, monkeypatch):
    monkeypatch.undo()
    cifar10(tmp_path)
    refuses("CIFAR10 reads them .Dataset not found or corrupted", own.from_folder, tmp_path)


def test_an_archive_is_decoded_by_several_threads(tmp_path):
    made_by.mnist(tmp_path, {"train": 600, "test": 300}, 3, kind="KMNIST")
    made = own.from_folder(tmp_path / "KMNIST", name="letters")
    suite = suites.Suite.from_tasks(made)
    images = DecodedImages(suite=suite, cache=tmp_path / "cache", side=32, jobs=2, progress=False)
    for split, count in {"train": 540, "val": 60, "test": 300}.items():
        x, y = images.load("letters", split)
        assert len(y) == count and torch.equal(x.double().mean((1, 2, 3)).div(20).round().long(), y)
