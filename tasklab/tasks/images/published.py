"""Layouts of the papers' data sets: torchvision's, and archives' own.

Each function returns the splits that it finds in a folder, or `{}` if its layout is another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError
from tasklab.tasks.images import formats
from tasklab.tasks.images.soundness import absent, sound
from tasklab.tasks.images.trees import Splits, class_folders, visible

_MANY = 20  # folders of one level in which a list is looked for


def _cars(root: Path) -> Splits:
    """`cars_train/`, `cars_test/` and three lists, in `devkit/` or beside the folders."""
    images = {split: root / f"cars_{split}" for split in ("train", "test")}
    if not any(folder.is_dir() for folder in images.values()):
        return {}
    lists = ("cars_meta", "cars_train_annos", "cars_test_annos_withlabels")
    found = {one: _first(root, rf"{one}( ?\(\d+\))?\.mat") for one in lists}
    at = {one: file for one, file in found.items() if file is not None}
    _need(root, [f"{one}.mat" for one in lists if one not in at])
    _need(root, [folder.name for folder in images.values() if not folder.is_dir()])
    names = [str(name) for name in _matlab(at["cars_meta"], "class_names")]
    splits = {}
    for split, note in zip(("train", "test"), (at[one] for one in lists[1:]), strict=True):
        nested = images[split] / images[split].name  # as some archives are
        base = nested if nested.is_dir() else images[split]
        with sound(note, "a list of images with classes"):
            rows = _matlab(note, "annotations")
            files = [base / str(row["fname"]) for row in rows]
            labels = [int(row["class"]) - 1 for row in rows]
        splits[split] = formats.image_files(files, labels, names)
    return splits


def _first(root: Path, pattern: str, deep: int = 2) -> Path | None:
    """Return the file of a name, in a folder or at most so many below, the highest first."""
    level = [root]
    for _ in range(deep + 1):
        entries = [one for folder in level for one in sorted(folder.iterdir())]
        for one in entries:
            if re.fullmatch(pattern, one.name, re.IGNORECASE) and one.is_file():
                return one
        level = [one for one in entries if visible(one.name) and one.is_dir()]
        level = level[:_MANY]  # a folder for each class has no lists in it
    return None


def _matlab(file: Path, variable: str) -> Iterable[Any]:
    from scipy.io import loadmat

    with sound(file, "a whole MATLAB file of the data set"):
        return loadmat(file, squeeze_me=True)[variable]


def _need(root: Path, missing: Iterable[str]) -> None:
    if names := ", ".join(missing):
        raise TasklabError(f"{root} has no {names}, which belongs to the data set: put it there.")


def _dtd(root: Path) -> Splits:
    """`dtd/images/<class>/` with `dtd/labels/{train,val,test}1.txt`, split 1 of ten."""
    base = next((p for p in (root / "dtd", root) if (p / "labels/train1.txt").is_file()), None)
    if base is None:
        return {}
    lists = {s: _lines(base / "labels" / f"{s}1.txt") for s in ("train", "val", "test")}
    names = sorted({line.partition("/")[0] for lines in lists.values() for line in lines})
    splits = {}
    for split, lines in lists.items():
        labels = [names.index(line.partition("/")[0]) for line in lines]
        splits[split] = formats.image_files([base / "images" / x for x in lines], labels, names)
    return splits


def _eurosat(root: Path) -> Splits:
    images = class_folders(root / "2750") if (root / "2750").is_dir() else None
    return {"all": images} if images else {}


def _gtsrb(root: Path) -> Splits:
    """Folders of classes to train on, a folder of test images, and a list of their classes.

    `GTSRB/Training/` with `GTSRB/Final_Test/Images/` and `GT-final_test.csv` are the papers' (and
    torchvision's). The competition's archive has `GTSRB/Final_Training/Images/` instead, and a copy
    of it `Train/`, `Test/` and `Test.csv`: these are read, so that their sizes can be compared.
    """
    tops = [one for one in (root / "GTSRB", root) if one.is_dir()]
    words = ("Training", "Final_Training/Images", "Train")
    training = next((t / word for t in tops for word in words if (t / word).is_dir()), None)
    train = class_folders(training) if training else None
    if train is None:
        return {}
    answers = _first(root, r"GT-final_test\.csv|Test\.csv")
    if answers is None:
        return {"train": train}
    import pandas as pd

    with sound(answers, "a list with the columns Filename (or Path) and ClassId"):
        rows = pd.read_csv(answers, sep="[;,] *", engine="python", encoding="utf-8-sig")
        listed = [Path(one).name for one in rows["Path" if "Path" in rows else "Filename"]]
        labels = rows["ClassId"].astype(int).tolist()
    tests = [t / word for t in tops for word in ("Final_Test/Images", "Test")]
    folder = next((one for one in tests if one.is_dir()), tests[0])
    files = [folder / name for name in listed]
    return {"train": train, "test": formats.image_files(files, labels, train.names)}


def _mnist(root: Path) -> Splits:
    """`raw/train-images-idx3-ubyte` and so on, compressed or not, also with a dot before `idx`."""
    splits: Splits = {}
    for split, stem in (("train", "train"), ("test", "(t10k|test)")):
        for ending in ("", r"\.gz"):
            pair = [
                _first(root, f"{stem}[-_.]{part}[-_.]ubyte{ending}", deep=3)
                for part in ("images[-_.]idx3", "labels[-_.]idx1")
            ]
            files = [file for file in pair if file is not None]
            if len(files) == 2:
                splits.setdefault(split, formats.idx(*files))
    return splits


def _resisc(root: Path) -> Splits:
    """`NWPU-RESISC45/<class>/` with `resisc45-{train,val,test}.txt`, as the protocol has it."""
    base = next((p for p in (root / "NWPU-RESISC45", root) if (p / "airplane").is_dir()), None)
    lists = {s: root / f"resisc45-{s}.txt" for s in ("train", "val", "test")}
    if base is None or not all(file.is_file() for file in lists.values()):
        return {}
    whole = class_folders(base)
    if whole is None:
        return {}
    at = {Path(file).name: row for row, file in enumerate(whole.files)}
    splits = {}
    for split, file in lists.items():
        names = [Path(line).name for line in _lines(file)]
        if gone := [base / name for name in names if name not in at]:
            raise absent(gone, len(names))
        rows = sorted(at[name] for name in names)
        files = [Path(whole.files[row]) for row in rows]
        splits[split] = formats.image_files(files, whole.labels[rows], whole.names, seen=True)
    return splits


def _sun(root: Path) -> Splits:
    """Images under letters, with `ClassName.txt` and `Training_01.txt`, `Testing_01.txt`."""
    listed = next(root.rglob("ClassName.txt"), None)
    if listed is None:
        return {}
    names = _lines(listed)
    base = next((p for p in (listed.parent, root, root / "SUN397") if (p / "a").is_dir()), root)
    number = {name: label for label, name in enumerate(names)}
    splits = {}
    for split, stem in (("train", "Training_01"), ("test", "Testing_01")):
        file = next(root.rglob(f"{stem}.txt"), None)
        if file is None:
            raise TasklabError(
                f"SUN397: {root} has no {stem}.txt. There are two incompatible splits; the papers "
                "take partition 01, from the data set's archive Partitions.zip."
            )
        lines = _lines(file)
        with sound(file, f"a list of images in the classes of {listed.name}"):
            labels = [number[line.rpartition("/")[0]] for line in lines]
        splits[split] = formats.image_files([base / x.lstrip("/") for x in lines], labels, names)
    return splits


def _svhn(root: Path) -> Splits:
    files = {split: root / f"{split}_32x32.mat" for split in ("train", "test")}
    return {split: formats.mat(file) for split, file in files.items() if file.is_file()}


def _lines(file: Path) -> list[str]:
    with sound(file, "a list in UTF-8"):
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]


LAYOUTS: dict[str, Callable[[Path], Splits]] = {
    "Cars": _cars, "DTD": _dtd, "EuroSAT": _eurosat, "GTSRB": _gtsrb, "MNIST": _mnist,
    "RESISC45": _resisc, "SUN397": _sun, "SVHN": _svhn,
}  # fmt: skip
