"""How data sets lie in a folder: files of the hub, archives, lists, folders of classes.

Each function returns the splits that it finds, by the data set's own names for them, or `{}` if the
layout is another one.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images import archives, formats
from tasklab.tasks.images.lists import by_list
from tasklab.tasks.images.soundness import absent, check_shards, sound
from tasklab.tasks.images.trees import Splits, by_class, class_folders, note, split_of, visible
from tasklab.tasks.suites import paper_data_sets, spoken

# Data sets without a class in torchvision that knows the papers' split: lists of images tell it.
_LISTED = {
    "RESISC45": {split: f"resisc45-{split}.txt" for split in ("train", "val", "test")},
    "SUN397": {"train": "Training_01.txt", "test": "Testing_01.txt"},
}


def splits_in(root: Path, name: str = "", *, config: str | None = None, **columns: str) -> Splits:
    """Return the splits of a data set in a folder of any known layout.

    Args:
        root: The folder.
        name: Of the data set, in messages.
        config: Which of several configurations of parquet files, by the name of their folder. A
            data set of the papers need not have it.
        columns: `image` and `label` of parquet files.
    """
    try:
        with sound(root, f"a folder of {name or 'images'} that can be read"):
            if not root.is_dir():
                return {}
            splits = hub(root, config=config, must=not name, **columns)
            splits = splits or _archive(root, name)
            if not splits and name in _LISTED:
                splits = _by_partition(root, name)
            elif not splits and not name:
                splits = by_list(root)
            splits = splits or _by_class(root, name)
            splits = splits if name else _of_the_same_classes(root, splits)
        if empty := [split for split, images in splits.items() if not len(images)]:
            raise TasklabError(f"{root} has no images of split {', '.join(empty)}: fetch it again.")
    except TasklabError as error:
        if not name or str(error).startswith(name):
            raise
        raise TasklabError(f"{name}: {error}") from error
    return splits


def _by_class(root: Path, name: str) -> Splits:
    try:
        return by_class(root, nested=name == "SUN397")
    except TasklabError as error:
        if not name:
            raise
        layout = paper_data_sets()[name]["layout"]
        raise TasklabError(f"{error} Of its archive, this is read: {layout}.") from error


def _archive(root: Path, name: str) -> Splits:
    """Return the splits of an archive in a folder, of any data set if none is named."""
    wanted = archives.ARCHIVES if not name else {name} & archives.ARCHIVES.keys()
    there = archives.found(root, wanted)
    if len(there) > 1:
        raise TasklabError(f"{root} has {', '.join(there)}: give the folder of one of them.")
    return {
        split: formats.archive(known, top, split)
        for known, top in there.items()
        for split in archives.ARCHIVES[known].splits
    }


def _by_partition(root: Path, name: str) -> Splits:
    """Return the splits that lists of images make of folders of classes."""
    found = {split: next(root.rglob(file), None) for split, file in _LISTED[name].items()}
    files = {split: file for split, file in found.items() if file is not None}
    if not files:
        return {}
    if lacking := [_LISTED[name][split] for split in found if split not in files]:
        raise TasklabError(
            f"{root} has no {', '.join(lacking)}, which belongs to the papers' split: put it there."
        )
    top = next((one for one in (root / "NWPU-RESISC45", root / "SUN397") if one.is_dir()), root)
    whole = class_folders(top, nested=name == "SUN397")
    if whole is None:
        return {}
    at = {Path(file).name: row for row, file in enumerate(whole.files)}
    at |= {Path(file).relative_to(top).as_posix(): row for row, file in enumerate(whole.files)}
    splits = {}
    for split, file in files.items():
        with sound(file, "a list in UTF-8"):
            listed = [line.strip().lstrip("/") for line in file.read_text("utf-8").splitlines()]
        keys = [line if line in at else Path(line).name for line in filter(None, listed)]
        if gone := [top / key for key in keys if key not in at]:
            raise absent(gone, len(keys))
        rows = np.sort([at[key] for key in keys])
        images = [Path(whole.files[row]) for row in rows]
        splits[split] = formats.image_files(images, whole.labels[rows], whole.names, seen=True)
    return splits


def _of_the_same_classes(root: Path, splits: Splits) -> Splits:
    """Return splits with the classes of the training images; others may lack some.

    Names are the same if numbers are, or if they differ in case, spaces and the form of letters.
    """
    train = splits.get("train")
    every = () if train is None or train.names is None else train.names
    keys = list(map(_key, every))
    for split, images in splits.items():
        own = list(map(_key, images.names or ()))
        alone = len({*keys}) == len(keys) and len({*own}) == len(own)
        if own and images.names != every and alone and {*own} <= {*keys}:
            if lacking := [name for name, key in zip(every, keys, strict=True) if key not in own]:
                note(f"{root}: {split} has no images of {abridged(lacking, 4)}.")
            labels = np.array([keys.index(one) for one in own])[images.labels]
            splits = splits | {split: dataclasses.replace(images, names=every, labels=labels)}
    return splits


def _key(name: str) -> str:
    return str(int(name)) if name.isdecimal() else spoken(name)


def hub(root: Path, *, config: str | None = None, must: bool = False, **columns: str) -> Splits:
    """Return the splits of parquet files anywhere in a folder, by the names of files and folders.

    Files of other splits, such as `extra`, are left out, and so are those in hidden folders.

    Args:
        root: The folder.
        config: The data set's configuration (a folder), where it has several.
        must: Whether to print which files are left out.
        columns: `image` and `label` of `formats.parquet`.

    Raises:
        TasklabError: If there are several configurations, or files of a split are missing.
    """
    paths = (file.relative_to(root) for file in sorted(root.rglob("*.parquet")))
    there = [path for path in paths if all(map(visible, path.parts))]
    files = {path: root / path for path in there if split_of(path.as_posix())}
    if must and files and len(files) < len(there):
        unnamed = abridged(path.as_posix() for path in there if path not in files)
        note(f"{root}: {unnamed} are not read: train, test or validation is not in their names.")
    if config and any(config in path.parts for path in files):
        files = {path: file for path, file in files.items() if config in path.parts}
    else:
        _one_configuration(root, {_configuration(path) for path in files}, config, must)
    parts: dict[str, list[Path]] = {}
    for path, file in files.items():
        parts.setdefault(str(split_of(path.as_posix())), []).append(file)
    for split, group in parts.items():
        check_shards(split, group)
    return {split: formats.parquet(group, **columns) for split, group in parts.items()}


def _configuration(path: Path) -> str:
    """Return the folders of a parquet file above the first that names a split, without `data`."""
    above = itertools.takewhile(lambda part: not split_of(part), path.parts)
    return "/".join(part for part in above if part != "data")


def _one_configuration(root: Path, there: set[str], config: str | None, must: bool) -> None:
    listed = ", ".join(sorted(one or "one without a name" for one in there))
    if len(there) > 1:
        none = f" and none called {config!r}" if config else ""
        raise TasklabError(
            f"{root} has several configurations ({listed}){none}: say which with `config=` of "
            "`own.from_hub`, or leave only one of them there."
        )
    if must and there and config and not (there == {""} and config == "default"):
        raise TasklabError(f"{root} has no configuration {config!r}; it has {listed}.")
