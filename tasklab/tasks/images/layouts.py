"""The layouts that torchvision gives the data sets of the papers, with their lists of images.

Each function returns the splits that it finds in a folder, or `{}` if the layout is another one.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError
from tasklab.tasks.images import formats
from tasklab.tasks.images.classes import class_folders
from tasklab.tasks.images.formats import Split
from tasklab.tasks.images.opening import absent, sound

Splits = dict[str, Split]


def _cars(root: Path) -> Splits:
    """`devkit/`, `cars_train/`, `cars_test/` and `cars_test_annos_withlabels.mat`."""
    images = {split: root / f"cars_{split}" for split in ("train", "test")}
    if not any(folder.is_dir() for folder in images.values()):
        return {}
    _need(root, ["devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train", "cars_test"])
    labelled = "cars_test_annos_withlabels.mat"
    at = next((p for p in (root, root / "devkit") if (p / labelled).is_file()), root)
    _need(at, [labelled])
    notes = {"train": root / "devkit" / "cars_train_annos.mat", "test": at / labelled}
    names = [str(name) for name in _matlab(root / "devkit" / "cars_meta.mat", "class_names")]
    found = {}
    for split, note in notes.items():
        nested = images[split] / images[split].name  # as some archives are
        base = nested if nested.is_dir() else images[split]
        with sound(note, "a list of images with classes"):
            rows = _matlab(note, "annotations")
            files = [base / str(row["fname"]) for row in rows]
            labels = [int(row["class"]) - 1 for row in rows]
        found[split] = formats.image_files(files, labels, names)
    return found


def _matlab(file: Path, variable: str) -> Iterable[Any]:
    from scipy.io import loadmat

    with sound(file, "a whole MATLAB file of the data set"):
        return loadmat(file, squeeze_me=True)[variable]


def _need(root: Path, names: Iterable[str]) -> None:
    """Raise a `TasklabError` that names what a folder lacks."""
    if missing := [name for name in names if not (root / name).exists()]:
        raise TasklabError(
            f"{root} has no {', '.join(missing)}, which belongs to the data set: put it there."
        )


def _dtd(root: Path) -> Splits:
    """`dtd/images/<class>/` with `dtd/labels/{train,val,test}1.txt`, split 1 of ten."""
    base = next((p for p in (root / "dtd", root) if (p / "labels/train1.txt").is_file()), None)
    if base is None:
        return {}
    lists = {s: _lines(base / "labels" / f"{s}1.txt") for s in ("train", "val", "test")}
    names = sorted({line.partition("/")[0] for lines in lists.values() for line in lines})
    found = {}
    for split, lines in lists.items():
        labels = [names.index(line.partition("/")[0]) for line in lines]
        found[split] = formats.image_files([base / "images" / x for x in lines], labels, names)
    return found


def _eurosat(root: Path) -> Splits:
    """`2750/<class>/`, without splits."""
    images = class_folders(root / "2750") if (root / "2750").is_dir() else None
    return {"all": images} if images else {}


def _gtsrb(root: Path) -> Splits:
    """`GTSRB/Training/<class>/`, `GTSRB/Final_Test/Images/` and `GT-final_test.csv`."""
    training, answers = root / "GTSRB" / "Training", root / "GT-final_test.csv"
    train = class_folders(training) if training.is_dir() else None
    if train is None:
        return {}
    _need(root, [answers.name])
    with (
        sound(answers, "a list with the columns Filename and ClassId, separated by semicolons"),
        answers.open(newline="") as stream,
    ):
        rows = list(csv.DictReader(stream, delimiter=";", skipinitialspace=True))
        files = [root / "GTSRB" / "Final_Test" / "Images" / row["Filename"] for row in rows]
        labels = [int(row["ClassId"]) for row in rows]
    return {"train": train, "test": formats.image_files(files, labels, train.names)}


def _mnist(root: Path) -> Splits:
    """`raw/train-images-idx3-ubyte` and so on, compressed or not."""
    found: Splits = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        for ending in ("", ".gz"):
            pair = [
                next(root.rglob(f"{stem}-{part}-ubyte{ending}"), None)
                for part in ("images-idx3", "labels-idx1")
            ]
            if all(pair):
                found.setdefault(split, formats.idx(*pair))
    return found


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
    found = {}
    for split, file in lists.items():
        names = [Path(line).name for line in _lines(file)]
        if gone := [base / name for name in names if name not in at]:
            raise absent(gone, len(names))
        rows = sorted(at[name] for name in names)
        files = [Path(whole.files[row]) for row in rows]
        found[split] = formats.files_split(files, whole.labels[rows], whole.names)
    return found


def _sun(root: Path) -> Splits:
    """Images under letters, with `ClassName.txt` and `Training_01.txt`, `Testing_01.txt`."""
    listed = next(root.rglob("ClassName.txt"), None)
    if listed is None:
        return {}
    names = _lines(listed)
    base = next((p for p in (listed.parent, root, root / "SUN397") if (p / "a").is_dir()), root)
    number = {name: label for label, name in enumerate(names)}
    found = {}
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
        found[split] = formats.image_files([base / x.lstrip("/") for x in lines], labels, names)
    return found


def _svhn(root: Path) -> Splits:
    """`train_32x32.mat` and `test_32x32.mat`."""
    files = {split: root / f"{split}_32x32.mat" for split in ("train", "test")}
    return {split: formats.mat(file) for split, file in files.items() if file.is_file()}


def _lines(file: Path) -> list[str]:
    with sound(file, "a list in UTF-8"):
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]


LAYOUTS: dict[str, Callable[[Path], Splits]] = {
    "Cars": _cars,
    "DTD": _dtd,
    "EuroSAT": _eurosat,
    "GTSRB": _gtsrb,
    "MNIST": _mnist,
    "RESISC45": _resisc,
    "SUN397": _sun,
    "SVHN": _svhn,
}
