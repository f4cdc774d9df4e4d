"""Folders of images: which folder is a split, which a class, and which files are images.

    root/CLASS/*.png    root/train/CLASS/*.png    root/CLASS/train/*.png

Folders of images that are not read are named in an error or in a line of the log.
"""

from __future__ import annotations

import collections
import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images.formats import SUFFIXES, Split, image_files, is_image
from tasklab.tasks.images.soundness import absent

SPLITS = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"val": "val", "validation": "val", "valid": "val", "dev": "val"},
    **{"eval": "val", "evaluation": "val"},  # the test, where there is no other
}
_WORD = re.compile(rf"(?:^|[-_./\s])({'|'.join(SPLITS)})(?=[-_./\s]|$)", re.IGNORECASE)
_NAMES_SPLIT = re.compile(rf"{_WORD.pattern}|split", re.IGNORECASE)
_FOLD = re.compile(r"(?:k?[-_ ]?folds?|cv|splits?|partitions?)[-_ ]*(?:\d+|[a-e])", re.IGNORECASE)
_PLAIN = re.compile(rf"({'|'.join(SPLITS)})(?:sets?|data|images?|imgs?)?")
_FILLERS = {"set", "data", "dataset", "image", "images", "img", "imgs", "split", "folder", "files"}
# What systems and programs keep for themselves, besides all that begins with a dot.
_PROGRAMS = {"__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information"}
_PROGRAMS |= {"lost+found", "thumbs.db", "desktop.ini", "icon\r"}
_NOTES = {".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".md", ".yaml", ".yml", ".html"}
_NOTES |= {".py", ".ini", ".log", ".db"}
_MASKS = r"masks?|segmentations?|segmaps?|seg|gt|ground[-_ ]?truths?|annotations?"
_OF_MASKS = re.compile(_MASKS, re.IGNORECASE)
_OF_IMAGES = re.compile(r"images?|imgs?|photos?|pictures?|inputs?|jpegimages", re.IGNORECASE)
_MASK = re.compile(rf"(.+)[-_. ](?:{_MASKS})(?:[-_ ]?\d+)?", re.IGNORECASE)  # x_mask, of x
_told: set[str] = set()
_log = logging.getLogger(__name__)
Splits = dict[str, Split]


def split_of(path: str) -> str | None:
    """Return the split that a path names, by the last word in it that names one, or `None`.

    >>> split_of("cropped_digits/train-00000-of-00001.parquet"), split_of("data/0000.parquet")
    ('train', None)
    """
    words = _WORD.findall(path.removesuffix(".parquet"))
    return SPLITS[words[-1].lower()] if words else None


def split_named(name: str) -> str | None:
    """Return the split that is a folder's whole name, or `None`.

    >>> [split_named(name) for name in ("Test Set", "train2017", "valid", "test_tube", "latest")]
    ['test', 'train', 'val', None, None]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]+", name)
    found = [word.lower() for word in words if word.lower() not in _FILLERS]
    match = _PLAIN.fullmatch(found[0]) if len(found) == 1 else None
    return SPLITS[match[1]] if match else None


def by_class(root: Path, *, nested: bool = False) -> Splits:
    """Return the splits of folders of images: by split and class, by class and split, or by class.

    A folder is a split if it is called so and has folders of classes in it; of names with other
    words, such as `birds_test`, two must be splits. Without splits the one split is called `all`.
    With `nested`, as for SUN397, a folder within a class is a class of its own.
    """
    folders = folders_in(root)
    named = {one: split_named(one.name) or split_of(one.name) for one in folders}
    inside = {
        one: images
        for one, split in named.items()
        if split and (images := class_folders(_inside(one), nested=nested))
    }
    if any(split_named(one.name) for one in inside) or len({named[one] for one in inside}) > 1:
        _check_splits(root, named, inside)
        return {str(named[one]): images for one, images in inside.items()}
    _check_folds(root, folders)
    if splits := _splits_within(root, folders):
        return splits
    images = class_folders(root, nested=nested)
    if images is None:
        return {}
    names = images.names or ()
    plain = {name: split for name in names if (split := split_named(name))}
    flat = plain if len(set(plain.values())) > 1 else {name: split_of(name) for name in names}
    if None not in flat.values() and len(set(flat.values())) > 1:
        raise TasklabError(
            f"{root} has {', '.join(flat)}: they look like splits, not classes, and have no folder "
            "for each class in them. Put the images of each into one folder per class, or list "
            "them with their classes in a .csv file."
        )
    notes = (one for one in root.iterdir() if one.suffix.lower() in _NOTES)
    if lists := [x.name for x in notes if _NAMES_SPLIT.search(x.stem) or split_named(x.stem)]:
        note(
            f"{root}: {abridged(sorted(lists))} are not read, and test images are drawn at random. "
            "Put images into folders train and test, or write the lists as .csv."
        )
    return {"all": images}


def _inside(folder: Path) -> Path:
    """Return the only folder in a folder if it has the same name, as archives make them."""
    inner = folders_in(folder)
    same = len(inner) == 1 and inner[0].name.lower() == folder.name.lower()
    return inner[0] if same else folder


def _check_splits(
    root: Path, named: Mapping[Path, str | None], inside: Mapping[Path, Split]
) -> None:
    splits: dict[str, Path] = {}
    places: dict[str, Path] = {}
    for folder in inside:
        split, place = str(named[folder]), os.path.realpath(folder)
        if split in splits:
            raise TasklabError(f"{splits[split]} and {folder} are both {split!r}: remove one.")
        if place in places:
            raise TasklabError(f"{places[place]} and {folder} are the same folder: remove one.")
        splits[split], places[place] = folder, folder
    others = {one: images for one in named if one not in inside and (images := count(one))}
    listed = abridged(f"{one.name}/ ({images:,} images)" for one, images in others.items())
    mine = ", ".join(f"{one.name}/" for one in inside)
    if bare := [one.name for one in named if split_named(one.name) and not count(one, 1)]:
        note(f"{root}: {abridged(bare)} has no images: only {mine} are read.")
    if flat := [one for one in others if split_named(one.name)]:
        raise TasklabError(
            f"{flat[0]} has {others[flat[0]]:,} images, but not one folder for each class as "
            f"{mine} of {root.name} has: their classes are not known. Put the images of each class "
            "into a folder, or let the name begin with a dot, to leave it out."
        )
    if others and len(inside) == 1:
        raise TasklabError(
            f"{root} has {mine} with classes in it, and beside it {listed}: it is not clear which "
            "are splits and which are classes. Call splits train, test and val; let the names of "
            "folders to leave out begin with a dot."
        )
    if others:
        note(f"{root}: {mine} are read, and not {listed}, which names no split.")
    if odd := [one for one in inside if one.name.lower() not in SPLITS]:
        told = ", ".join(f"{one.name}/ as {named[one]}" for one in odd)
        note(f"{root}: {told} is read, after the words in the names.")


def _check_folds(root: Path, folders: Sequence[Path]) -> None:
    """Raise if folders are called fold1, fold2, ... and have the same folders of images in each."""
    filled = [folder for folder in folders if count(folder, 1)]
    if len(filled) > 1 and all(_FOLD.fullmatch(folder.name) for folder in filled):
        inside = [[one.name for one in folders_in(folder) if count(one, 1)] for folder in filled]
        if len(inside[0]) > 1 and all(one == inside[0] for one in inside):
            raise TasklabError(
                f"{root} has the same folders ({abridged(inside[0], 4)}) in each of "
                f"{abridged((one.name for one in filled), 4)}, which look like folds and not like "
                "classes: give one of them, or put the images of some into train and of others "
                "into test, with one folder for each class."
            )


def _splits_within(root: Path, classes: Sequence[Path]) -> Splits:
    """Return the splits of `root/<class>/<split>/`, or `{}` if they are none."""
    inner: dict[Path, dict[Path, str]] = {}
    for folder in (one for one in classes if count(one, 1)):
        found = ((one, split_named(one.name)) for one in folders_in(folder))
        inner[folder] = {one: split for one, split in found if split and count(one, 1)}
    words = [set(named.values()) for named in inner.values()]
    whole = set().union(*words)
    if len(inner) < 2 or not (all(words) or any(len(one) > 1 for one in words)):
        return {}
    for folder, named in inner.items():
        lacking = sorted(whole - set(named.values()))
        more = count(folder) - sum(map(count, named))
        if lacking or more:
            problem = f"no images of {' and '.join(lacking)}" if lacking else ""
            besides = f"{more:,} images in no split" if more else ""
            raise TasklabError(
                f"{root} has splits within its classes, but {folder.name} has "
                f"{' and '.join(filter(None, (problem, besides)))}: give each class the same "
                "splits, and put all images into them."
            )
    splits: Splits = {}
    for split in sorted(whole):
        places = {f: [one for one in named if named[one] == split] for f, named in inner.items()}
        if images := _read(root, places):
            splits[split] = images
    return splits


def class_folders(root: Path, *, nested: bool = False) -> Split | None:
    """Return a split of a folder with one folder of images per class, or `None` if it has none.

    The classes are in alphabetical order, as torchvision's `ImageFolder` numbers them. Folders
    within a class are searched too. Hidden folders, and those of systems, are passed over, as are
    links back to a folder above and folders that were seen already. A file is an image by its
    suffix, or by its contents if it has another.
    """
    return _read(root, {folder: [folder] for folder in folders_in(root)}, nested)


def _tops(root: Path, classes: Iterable[Path]) -> tuple[list[Path], set[str]]:
    """Return folders of classes, and the places that files below them must not lead to."""
    top = Path(os.path.realpath(root))
    above = {str(folder) for folder in (top, *top.parents)}
    tops: dict[str, Path] = {}
    for folder in classes:
        place = os.path.realpath(folder)
        if place in tops:
            raise TasklabError(f"{tops[place]} and {folder} are the same folder: remove one.")
        if place not in above:
            tops[place] = folder
    return list(tops.values()), above | tops.keys()


def _without_images(root: Path, kinds: Mapping[str, set[str]]) -> TasklabError:
    listed = {name: ", ".join(filter(None, sorted(endings))) for name, endings in kinds.items()}
    names = [f"{name} ({endings or 'empty'})" for name, endings in sorted(listed.items())]
    return TasklabError(
        f"{root} has folders without an image that can be read: {abridged(names, 4)}. "
        f"Images are {', '.join(SUFFIXES)}. Convert them, remove the folders, or let the "
        "names of those that are no classes begin with a dot."
    )


def _read(root: Path, classes: Mapping[Path, Sequence[Path]], nested: bool = False) -> Split | None:
    tops, seen = _tops(root, classes)
    members: dict[str, list[Path]] = {}
    bare: dict[str, set[str]] = {}  # and the kinds of files in them
    gone: list[Path] = []
    unread: list[Path] = []
    inner: set[str] = set()
    for folder in tops:
        entries = [entry for one in classes[folder] for entry in files_below(one, seen)]
        images = [entry for entry in entries if _is_image(entry)]
        taken = {entry.path for entry in images}
        odd = [Path(entry.path) for entry in entries if entry.path not in taken]
        unread += [file for file in odd if file.suffix.lower() not in _NOTES]
        for entry in images:
            file = Path(entry.path)
            name = file.parent.relative_to(root).as_posix() if nested else folder.name
            members.setdefault(name, []).append(file)
            if file.parent not in classes[folder]:
                inner.add(file.parent.relative_to(root).as_posix())
            if not entry.is_file():  # a link to nowhere
                gone.append(file)
        if not images:
            bare[folder.name] = {file.suffix.lower() for file in odd}
    if len(members) < 2:
        return None
    if bare:
        raise _without_images(root, bare)
    if gone:
        raise absent(gone, sum(map(len, members.values())))
    _check_masks(root, members)
    with os.scandir(root) as around:
        beside = [Path(e.path) for e in around if e.name.lower().endswith(SUFFIXES)]
    _tell_unread(root, unread, "in folders of classes are no images that can be read")
    if inner and not nested:
        note(
            f"{root}: the classes are {abridged(sorted(members), 4)}; folders within them are read "
            f"as parts ({abridged(sorted(inner), 4)}). If these are the classes, give one of the "
            "others as the folder, or put these beside each other."
        )
    _tell_unread(root, beside, "lie beside the folders of classes and are not read")
    names = sorted(members)
    labels = [label for label, name in enumerate(names) for _ in members[name]]
    files = [file for name in names for file in sorted(members[name])]
    return image_files(files, labels, names, seen=True)


def _check_masks(root: Path, members: Mapping[str, Sequence[Path]]) -> None:
    """Raise if one class is of images and another of their masks; log masks beside their images."""
    of_masks = [name for name in members if _OF_MASKS.fullmatch(name)]
    if of_masks and (of_images := [name for name in members if _OF_IMAGES.fullmatch(name)]):
        raise TasklabError(
            f"{root} has {of_images[0]} and {of_masks[0]}: they look like images and their masks, "
            "not like classes. Put the images of each class into one folder."
        )
    files = [file for one in members.values() for file in one]
    stems = {file.with_suffix("") for file in files}
    masks = [
        file
        for file in files
        if ((of := _MASK.fullmatch(file.stem)) and file.with_name(of[1]) in stems)
        or (_OF_MASKS.fullmatch(file.parent.name) and file.parent.parent != root)
    ]
    if masks:
        note(
            f"{root}: {len(masks):,} of {len(files):,} images look like masks of others beside "
            f"them ({abridged((file.relative_to(root).as_posix() for file in masks), 2)}), and are "
            "read as images of their class. Move them to a folder whose name begins with a dot."
        )


def _is_image(entry: os.DirEntry[str]) -> bool:
    if entry.name.lower().endswith(SUFFIXES):
        return True
    noted = Path(entry.name).suffix.lower() in _NOTES
    return not noted and entry.is_file() and is_image(Path(entry.path))


def _tell_unread(root: Path, files: Sequence[Path], what: str) -> None:
    if files:
        kinds = collections.Counter(file.suffix.lower() or "without a suffix" for file in files)
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(6))
        names = abridged((file.relative_to(root).as_posix() for file in files), 2)
        note(
            f"{root}: {len(files):,} files {what} ({listed}; {names}). Convert or move them, or "
            "remove them."
        )


def note(text: str) -> None:
    """Log a sentence once a process: a folder is read for its names and for its images."""
    if text not in _told:
        _told.add(text)
        _log.warning("%s", text)


def visible(name: str) -> bool:
    """Return whether a file or folder is the user's, not a program's hidden one."""
    return not name.startswith(".") and name.lower() not in _PROGRAMS


def folders_in(root: Path) -> list[Path]:
    """Return the user's folders in a folder."""
    with os.scandir(root) as entries:
        return sorted(Path(e.path) for e in entries if visible(e.name) and e.is_dir())


def count(folder: Path, most: int | None = None) -> int:
    """Count the files in and below a folder that are called like images, at most so many."""
    images = (x for x in files_below(folder) if x.name.lower().endswith(SUFFIXES))
    return sum(1 for _ in itertools.islice(images, most))


def files_below(folder: Path, seen: set[str] | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield the files in and below a folder, but not in those whose real paths are `seen`."""
    seen = {os.path.realpath(folder)} if seen is None else seen
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        if not visible(entry.name):
            continue
        if not entry.is_dir():
            yield entry
        elif (place := os.path.realpath(entry.path)) not in seen:
            seen.add(place)
            yield from files_below(Path(entry.path), seen)
