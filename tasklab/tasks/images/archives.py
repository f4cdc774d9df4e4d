"""Data sets as their archives unpack, read by torchvision's classes: the papers' and twelve more.

The twelve are those that make twenty tasks of the papers' eight, as later papers merge them. What
torchvision's class finds in no place, or cannot read, is refused with the place that it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_Splits = Mapping[str, Mapping[str, Any]]
_TRAIN: _Splits = {"train": {"train": True}, "test": {"train": False}}
_TWO: _Splits = {"train": {"split": "train"}, "test": {"split": "test"}}
_THREE: _Splits = {**_TWO, "val": {"split": "val"}}
_DIGITS: _Splits = {split: {**given, "split": "digits"} for split, given in _TRAIN.items()}
_PETS: _Splits = {**_TWO, "train": {"split": "trainval"}}


class Archive(NamedTuple):
    """How torchvision reads one data set."""

    kind: str  #: Its class in `torchvision.datasets`
    mark: str  #: What tells its layout: a file or folder below the class's `root`
    splits: _Splits  #: Arguments of the class for each of our splits


ARCHIVES = {
    "Cars": Archive("StanfordCars", "stanford_cars/devkit", _TWO),
    "DTD": Archive("DTD", "dtd/dtd/labels", _THREE),
    "EuroSAT": Archive("EuroSAT", "eurosat/2750", {"all": {}}),
    "GTSRB": Archive("GTSRB", "gtsrb/GTSRB/Training", _TWO),
    "MNIST": Archive("MNIST", "MNIST/raw", _TRAIN),
    "SVHN": Archive("SVHN", "train_32x32.mat", _TWO),
    "CIFAR10": Archive("CIFAR10", "cifar-10-batches-py/batches.meta", _TRAIN),
    "CIFAR100": Archive("CIFAR100", "cifar-100-python/meta", _TRAIN),
    "EMNIST": Archive("EMNIST", "EMNIST/raw", _DIGITS),  # on their side, as torchvision gives them
    "FashionMNIST": Archive("FashionMNIST", "FashionMNIST/raw", _TRAIN),
    "FER2013": Archive("FER2013", "fer2013/fer2013.csv", _TWO),
    "Flowers102": Archive("Flowers102", "flowers-102/setid.mat", _THREE),
    "Food101": Archive("Food101", "food-101/meta", _TWO),
    "KMNIST": Archive("KMNIST", "KMNIST/raw", _TRAIN),
    "OxfordIIITPet": Archive("OxfordIIITPet", "oxford-iiit-pet/annotations", _PETS),
    "PCAM": Archive("PCAM", "pcam/camelyonpatch_level_2_split_train_x.h5", _THREE),
    "RenderedSST2": Archive("RenderedSST2", "rendered-sst2/train", _THREE),
    "STL10": Archive("STL10", "stl10_binary/train_X.bin", _TWO),
}


def found(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the archives in a folder, with the root that their class takes.

    Args:
        folder: The root, or the folder in it that the archive unpacks to.
        names: Keys of `ARCHIVES` that are looked for.
    """
    there = {}
    for name in names:
        mark = ARCHIVES[name].mark
        above = [folder.parent] if mark.startswith(f"{folder.name}/") else []
        for root in (one for one in (folder, *above) if (one / mark).exists()):
            there[name] = root
    return there


def files(name: str, root: Path, split: str) -> list[Path]:
    """Return the files that hold a split, and perhaps others of the archive."""
    top, _, below = ARCHIVES[name].mark.partition("/")
    inside = (root / top).rglob("*") if below else root.glob(f"{split}_*.mat")
    return sorted(file for file in inside if file.is_file())


@functools.lru_cache(maxsize=1)  # an array of all images may take 300 MB
def opened(name: str, root: str, split: str, stamps: tuple[int, ...]) -> Any:
    """Return a split as torchvision's class reads it.

    Args:
        name: Key of `ARCHIVES`.
        root: As the class takes it.
        split: One of the archive's.
        stamps: When its files changed last: what is kept is of this state.
    """
    from torchvision import datasets  # here, for it takes seconds

    kind = getattr(datasets, ARCHIVES[name].kind)
    if name == "SVHN":  # copies that were written anew have other checksums
        own = {"_check_integrity": lambda self: True, "classes": [*"0123456789"]}
        kind = type(name, (kind,), own)
    return kind(root, **ARCHIVES[name].splits[split])


def labels(dataset: Any) -> np.ndarray:
    """Return the classes (N,) of an opened split; torchvision has no common name for them."""
    for name in ("targets", "labels", "_labels"):
        if hasattr(dataset, name):
            return np.asarray(getattr(dataset, name), dtype=np.int64)
    if not hasattr(dataset, "_samples"):  # PCAM's, which are in a file of their own
        file = dataset._base_folder / dataset._FILES[dataset._split]["targets"][0]
        with dataset.h5py.File(file) as inside:
            return np.asarray(inside["y"][:], dtype=np.int64).reshape(-1)
    return np.array([label for _, label in dataset._samples], dtype=np.int64)


def images(dataset: Any) -> list[Path] | None:
    """Return the files of the images of an opened split, or `None` if it holds their pixels."""
    samples = getattr(dataset, "samples", getattr(dataset, "_samples", ()))
    listed = [path for path, _ in samples if isinstance(path, str)]
    listed = listed or getattr(dataset, "_image_files", getattr(dataset, "_images", []))
    return list(map(Path, listed)) or None


def names(dataset: Any, count: int) -> tuple[str, ...]:
    """Return the names of the classes of an opened split: numbers, where torchvision has none.

    Args:
        dataset: The split.
        count: How many classes there are.
    """
    listed = getattr(dataset, "classes", None) or map(str, range(count))
    return tuple(one.partition(" - ")[0] for one in listed)  # MNIST has "0 - zero"
