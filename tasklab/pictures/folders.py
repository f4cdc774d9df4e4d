"""How data sets lie in a folder: files of the hub, torchvision's layouts, folders of images.

Each function returns the splits that it finds, by the data set's own names for them, or `{}`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tasklab.errors import TasklabError
from tasklab.pictures import formats
from tasklab.pictures.formats import Split

SPLITS = {"train": "train", "test": "test", "val": "val", "validation": "val", "valid": "val"}
_WORD = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val)(?=[-_./]|$)")
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.parquet$")
Splits = dict[str, Split]


def find(root: Path, name: str = "", *, config: str | None = None, **columns: str) -> Splits:
    """Return the splits of a data set in a folder, whatever its layout.

    Args:
        root: The folder.
        name: Name of a data set of the papers, to look for torchvision's layout of it.
        config: Which of several configurations of parquet files, by the name of their folder.
        **columns: `image` and `label`, of parquet files.

    Raises:
        TasklabError: If the data are there in part.
    """
    if not root.is_dir():
        return {}
    found = hub(root, config=config, **columns)
    if not found and name in _OWN:
        found = _OWN[name](root)
    return found or by_class(root)


def hub(root: Path, *, config: str | None = None, **columns: str) -> Splits:
    """Return the splits of parquet files anywhere in a folder, by the names of files and folders.

    Files of other splits, such as `extra`, are left out.

    Raises:
        TasklabError: If one of several files of a split is missing.
    """
    parts: dict[str, list[Path]] = {}
    files = sorted(root.rglob("*.parquet"))
    if config and any(config in file.relative_to(root).parts for file in files):
        files = [file for file in files if config in file.relative_to(root).parts]
    for file in files:
        if split := split_of(file.relative_to(root).as_posix()):
            parts.setdefault(split, []).append(file)
    for split, group in parts.items():
        _whole(split, group)
    return {split: formats.parquet(group, **columns) for split, group in parts.items()}


def split_of(path: str) -> str | None:
    """Return the split that a parquet file belongs to, by its path, or `None`.

    >>> split_of("cropped_digits/train-00000-of-00001.parquet"), split_of("data/0000.parquet")
    ('train', None)
    """
    words = _WORD.findall(path.removesuffix(".parquet"))
    return SPLITS[words[-1]] if words else None


def _whole(split: str, files: Sequence[Path]) -> None:
    """Raise a `TasklabError` if shards are missing, as after an interrupted download."""
    missing = set()
    for file in files:
        if match := _SHARD.match(file.name):
            stem, count = match[1], int(match[3])
            wanted = [f"{stem}-{i:05d}-of-{count:05d}.parquet" for i in range(count)]
            missing |= {name for name in wanted if not (file.parent / name).exists()}
    if missing:
        names = sorted(missing)
        raise TasklabError(
            f"of split {split!r} in {files[0].parent}, {len(names)} files are missing: "
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}. Fetch them again."
        )


def by_class(root: Path) -> Splits:
    """Return the splits of folders of images: `root/<split>/<class>/`, or `root/<class>/`.

    Without folders of splits the one split is called `all`.
    """
    found: Splits = {}
    for word, split in SPLITS.items():
        if (root / word).is_dir() and (images := formats.class_folders(root / word)):
            found.setdefault(split, images)
    if found:
        return found
    images = formats.class_folders(root)
    return {"all": images} if images else {}


def _cars(root: Path) -> Splits:
    """`devkit/`, `cars_train/`, `cars_test/` and `cars_test_annos_withlabels.mat`."""
    from scipy.io import loadmat

    found = {}
    notes = {
        "train": root / "devkit" / "cars_train_annos.mat",
        "test": root / "cars_test_annos_withlabels.mat",
    }
    meta = root / "devkit" / "cars_meta.mat"
    for split, note in notes.items():
        if note.is_file() and meta.is_file() and (root / f"cars_{split}").is_dir():
            names = [str(name) for name in loadmat(meta, squeeze_me=True)["class_names"]]
            rows = loadmat(note, squeeze_me=True)["annotations"]
            files = [root / f"cars_{split}" / str(row["fname"]) for row in rows]
            found[split] = formats.image_files(files, [int(r["class"]) - 1 for r in rows], names)
    return found


def _dtd(root: Path) -> Splits:
    """`dtd/images/<class>/` with `dtd/labels/{train,val,test}1.txt`, split 1 of ten."""
    base = next((p for p in (root / "dtd", root) if (p / "labels/train1.txt").is_file()), None)
    if base is None:
        return {}
    names = sorted(path.name for path in (base / "images").iterdir() if path.is_dir())
    found = {}
    for split in ("train", "val", "test"):
        lines = _lines(base / "labels" / f"{split}1.txt")
        labels = [names.index(line.partition("/")[0]) for line in lines]
        found[split] = formats.image_files([base / "images" / x for x in lines], labels, names)
    return found


def _eurosat(root: Path) -> Splits:
    """`2750/<class>/`, without splits."""
    images = formats.class_folders(root / "2750") if (root / "2750").is_dir() else None
    return {"all": images} if images else {}


def _gtsrb(root: Path) -> Splits:
    """`GTSRB/Training/<class>/`, `GTSRB/Final_Test/Images/` and `GT-final_test.csv`."""
    training, answers = root / "GTSRB" / "Training", root / "GT-final_test.csv"
    train = formats.class_folders(training) if training.is_dir() else None
    if train is None or not answers.is_file():
        return {}
    with answers.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=";", skipinitialspace=True))
    files = [root / "GTSRB" / "Final_Test" / "Images" / row["Filename"] for row in rows]
    test = formats.image_files(files, [int(row["ClassId"]) for row in rows], train.names)
    return {"train": train, "test": test}


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
    whole = formats.class_folders(base)
    if whole is None:
        return {}
    at = {Path(file).name: row for row, file in enumerate(whole.files)}
    found = {}
    for split, file in lists.items():
        rows = sorted(at[name] for name in _lines(file) if name in at)
        files = [Path(whole.files[row]) for row in rows]
        found[split] = formats.image_files(files, whole.labels[rows], whole.names)
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
        labels = [number[line.rpartition("/")[0]] for line in lines]
        found[split] = formats.image_files([base / x.lstrip("/") for x in lines], labels, names)
    return found


def _svhn(root: Path) -> Splits:
    """`train_32x32.mat` and `test_32x32.mat`."""
    files = {split: root / f"{split}_32x32.mat" for split in ("train", "test")}
    return {split: formats.mat(file) for split, file in files.items() if file.is_file()}


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]


_OWN: dict[str, Callable[[Path], Splits]] = {
    "Cars": _cars,
    "DTD": _dtd,
    "EuroSAT": _eurosat,
    "GTSRB": _gtsrb,
    "MNIST": _mnist,
    "RESISC45": _resisc,
    "SUN397": _sun,
    "SVHN": _svhn,
}
