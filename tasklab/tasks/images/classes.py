"""Folders of images, one per class: what counts as a class, and what counts as its image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from PIL import features

from tasklab.errors import TasklabError, some
from tasklab.tasks.images.formats import Split, files_split
from tasklab.tasks.images.opening import absent

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *([".avif"] if "avif" in features.modules and features.check_module("avif") else []),
)


def class_folders(root: Path, *, nested: bool = False) -> Split | None:
    """Return a split of a folder with one folder of images per class, or `None` if it has none.

    The classes are in alphabetical order, as torchvision's `ImageFolder` numbers them. Folders
    within a class are searched too. Hidden folders, and those that begin with `__`, are passed
    over, as are links back to a folder above and folders that were seen already.

    Args:
        root: The folder.
        nested: Whether a folder within a class is a class of its own, as in SUN397.

    Raises:
        TasklabError: If one of several classes has no image that can be read, or is another one's
            folder, or an image is a link that leads nowhere.
    """
    top = Path(os.path.realpath(root))
    above = {str(folder) for folder in (top, *top.parents)}
    tops: dict[str, Path] = {}
    for folder in folders_in(root):
        place = os.path.realpath(folder)
        if place in tops:
            raise TasklabError(f"{tops[place]} and {folder} are the same folder: remove one.")
        if place not in above:
            tops[place] = folder
    seen = above | tops.keys()
    found: dict[str, list[Path]] = {}
    bare: dict[str, set[str]] = {}  # and the kinds of files in them
    gone: list[Path] = []
    for folder in tops.values():
        entries = list(_files(folder, seen))
        images = [entry for entry in entries if entry.name.lower().endswith(SUFFIXES)]
        for entry in images:
            file = Path(entry.path)
            name = file.parent.relative_to(root).as_posix() if nested else folder.name
            found.setdefault(name, []).append(file)
            if not entry.is_file():  # a link to nowhere
                gone.append(file)
        if not images:
            bare[folder.name] = {Path(entry.name).suffix.lower() for entry in entries}
    if len(found) < 2:
        return None
    if bare:
        raise TasklabError(_says_bare(root, bare))
    if gone:
        raise absent(gone, sum(map(len, found.values())))
    names = sorted(found)
    labels = [label for label, name in enumerate(names) for _ in found[name]]
    return files_split([file for name in names for file in sorted(found[name])], labels, names)


def visible(name: str) -> bool:
    """Return whether a file or folder is the user's, not one that a program keeps for itself."""
    return not name.startswith((".", "__"))


def folders_in(root: Path) -> list[Path]:
    """Return the user's folders in a folder."""
    with os.scandir(root) as entries:
        return sorted(Path(e.path) for e in entries if visible(e.name) and e.is_dir())


def _files(folder: Path, seen: set[str]) -> Iterator[os.DirEntry[str]]:
    """Yield the files in and below a folder, but not in those whose real paths are `seen`."""
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        if not entry.is_dir():
            if not entry.name.startswith("."):
                yield entry
        elif visible(entry.name) and (place := os.path.realpath(entry.path)) not in seen:
            seen.add(place)
            yield from _files(Path(entry.path), seen)


def _says_bare(root: Path, bare: dict[str, set[str]]) -> str:
    def write(name: str, kinds: set[str]) -> str:
        return f"{name} ({', '.join(filter(None, sorted(kinds))) or 'empty'})"

    names = [write(*item) for item in sorted(bare.items())]
    return (
        f"{root} has folders without an image that can be read: {some(names, 4)}. "
        f"Images are {', '.join(SUFFIXES)}. Convert them,"
        " remove the folders, or let the names of those that are no classes begin with a dot."
    )
