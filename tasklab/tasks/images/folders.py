"""How data sets lie in a folder: files of the hub, torchvision's layouts, folders of images.

Each function returns the splits that it finds, by the data set's own names for them, or `{}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tasklab.errors import TasklabError, some
from tasklab.tasks.images import formats, layouts
from tasklab.tasks.images.classes import class_folders, folders_in, visible
from tasklab.tasks.images.formats import Split
from tasklab.tasks.images.opening import sound

SPLITS = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"val": "val", "validation": "val", "valid": "val", "dev": "val"},
}
_WORD = re.compile(rf"(?:^|[-_./])({'|'.join(SPLITS)})(?=[-_./]|$)", re.IGNORECASE)
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(-[0-9a-f]{16})?\.parquet$")
Splits = dict[str, Split]


def find(root: Path, name: str = "", *, config: str | None = None, **columns: str) -> Splits:
    """Return the splits of a data set in a folder, whatever its layout.

    Args:
        root: The folder.
        name: Name of a data set of the papers, to look for torchvision's layout of it.
        config: Which of several configurations of parquet files, by the name of their folder. A
            data set of the papers need not have it.
        **columns: `image` and `label`, of parquet files.

    Raises:
        TasklabError: If the data are there in part, or cannot be read.
    """
    try:
        with sound(root, f"a folder of {name or 'images'} that can be read"):
            if not root.is_dir():
                return {}
            found = hub(root, config=config, must=not name, **columns)
            if not found and name in layouts.LAYOUTS:
                found = layouts.LAYOUTS[name](root)
            found = found or by_class(root, nested=name == "SUN397")
        if empty := [split for split, images in found.items() if not len(images)]:
            raise TasklabError(f"{root} has no images of split {', '.join(empty)}: fetch it again.")
    except TasklabError as error:
        if not name or str(error).startswith(name):
            raise
        raise TasklabError(f"{name}: {error}") from error
    return found


def hub(root: Path, *, config: str | None = None, must: bool = False, **columns: str) -> Splits:
    """Return the splits of parquet files anywhere in a folder, by the names of files and folders.

    Files of other splits, such as `extra`, are left out, and so are those in hidden folders.

    Args:
        root: The folder.
        config: Which of several configurations, by the name of their folder.
        must: Whether it is an error if the only configuration is another one.
        **columns: `image` and `label`.

    Raises:
        TasklabError: If one of several files of a split is missing, or it is not said which
            configuration is meant.
    """
    files = {}
    for file in sorted(root.rglob("*.parquet")):
        path = file.relative_to(root)
        if split_of(path.as_posix()) and all(visible(part) for part in path.parts):
            files[path] = file
    if config and any(config in path.parts for path in files):
        files = {path: file for path, file in files.items() if config in path.parts}
    else:
        _one_configuration(root, {_configuration(path) for path in files}, config, must)
    parts: dict[str, list[Path]] = {}
    for path, file in files.items():
        parts.setdefault(split_of(path.as_posix()), []).append(file)
    for split, group in parts.items():
        _whole(split, group)
    return {split: formats.parquet(group, **columns) for split, group in parts.items()}


def split_of(path: str) -> str | None:
    """Return the split that a parquet file belongs to, by its path, or `None`.

    >>> split_of("cropped_digits/train-00000-of-00001.parquet"), split_of("data/0000.parquet")
    ('train', None)
    """
    words = _WORD.findall(path.removesuffix(".parquet"))
    return SPLITS[words[-1].lower()] if words else None


def _configuration(path: Path) -> str:
    """Return the folders of a parquet file above the first that names a split, without `data`."""
    above = []
    for part in path.parts:
        if split_of(part):
            break
        above.append(part)
    return "/".join(part for part in above if part != "data")


def _one_configuration(root: Path, there: set[str], config: str | None, must: bool) -> None:
    """Raise a `TasklabError` unless it is clear which configuration is meant."""
    listed = ", ".join(sorted(one or "one without a name" for one in there))
    if len(there) > 1:
        none = f" and none called {config!r}" if config else ""
        raise TasklabError(
            f"{root} has several configurations ({listed}){none}: say which with `config=` of "
            "`own.from_hub`, or leave only one of them there."
        )
    if must and there and config and not (there == {""} and config == "default"):
        raise TasklabError(f"{root} has no configuration {config!r}; it has {listed}.")


def _whole(split: str, files: Sequence[Path]) -> None:
    """Raise a `TasklabError` if shards are missing, as after an interrupted download."""
    there: dict[tuple[Path, str, str], dict[int, str]] = {}
    for file in files:
        if match := _SHARD.match(file.name):
            stem, number, count, suffix = match.groups()
            key = file.parent, f"{stem}-{{:05d}}-of-{count}", count
            there.setdefault(key, {})[int(number)] = suffix or ""
    missing = [
        f"{form.format(number)}{'-*' if any(numbers.values()) else ''}.parquet"
        for (_, form, count), numbers in sorted(there.items())
        for number in range(int(count))
        if number not in numbers
    ]
    if missing:
        raise TasklabError(
            f"of split {split!r} in {files[0].parent}, {len(missing)} files are missing: "
            f"{some(missing, 3)}. Fetch them again."
        )


def by_class(root: Path, *, nested: bool = False) -> Splits:
    """Return the splits of folders of images: `root/<split>/<class>/`, or `root/<class>/`.

    Without folders of splits the one split is called `all`.

    Args:
        root: The folder.
        nested: Whether a folder within a class is a class of its own, as in SUN397.

    Raises:
        TasklabError: If two folders are the same split, or splits would become classes.
    """
    found, places = {}, {}
    for folder in folders_in(root):
        split = SPLITS.get(folder.name.lower())
        if split and (images := class_folders(folder, nested=nested)):
            if split in found:
                raise TasklabError(
                    f"{places[split]} and {folder} are both images of split {split!r}: remove one."
                )
            found[split], places[split] = images, folder
    if found:
        return found
    images = class_folders(root, nested=nested)
    if images is None:
        return {}
    words = {name: split_of(name) for name in images.names}
    if len(set(filter(None, words.values()))) > 1:
        named = ", ".join(name for name, split in words.items() if split)
        raise TasklabError(
            f"{root} has {named}: they look like splits, not classes. Call them train, test and "
            "val, and put the images of each into one folder per class."
        )
    return {"all": images}
