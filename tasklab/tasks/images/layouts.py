"""How data sets lie in a folder: files of the hub, torchvision's layouts, lists, class folders.

Each function returns the splits that it finds, by the data set's own names for them, or `{}` if the
layout is another one.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images import formats
from tasklab.tasks.images.lists import by_list
from tasklab.tasks.images.published import LAYOUTS
from tasklab.tasks.images.soundness import check_shards, sound
from tasklab.tasks.images.trees import Splits, by_class, note, split_of, visible
from tasklab.tasks.suites import spoken


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
            if not splits and name in LAYOUTS:
                splits = LAYOUTS[name](root)
            elif not splits and not name:
                splits = by_list(root)
            splits = splits or by_class(root, nested=name == "SUN397")
            splits = splits if name else _of_the_same_classes(root, splits)
        if empty := [split for split, images in splits.items() if not len(images)]:
            raise TasklabError(f"{root} has no images of split {', '.join(empty)}: fetch it again.")
    except TasklabError as error:
        if not name or str(error).startswith(name):
            raise
        raise TasklabError(f"{name}: {error}") from error
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
