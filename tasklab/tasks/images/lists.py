"""Lists of images with their classes, in CSV files beside the images.

    root/labels.csv              root/images/*.png
    root/train.csv, test.csv     root/train/*.png, root/test/*.png

One rule reads all of them, with or without a header, in any order of columns:

- images: the column whose entries name images in the folder, by their path or its end, with or
  without the suffix;
- splits: a column of words such as train and test, or one that is called is_test or the like and
  has 0 and 1; else the word in the list's name; else the folders of the images;
- classes: the column that is called label, class, category or target; else the only other one.

`columns` finds these roles, and a line of the log names them. If folders of classes agree with a
list, the folders are read. Anything ambiguous is refused.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasklab.errors import TasklabError, abridged
from tasklab.tasks.images import columns
from tasklab.tasks.images.formats import SUFFIXES, image_files
from tasklab.tasks.images.soundness import absent
from tasklab.tasks.images.trees import Splits, files_below, folders_in, note, split_named, split_of

_LOOKED_AT = 200  # rows that tell what a column holds
_MANY = 20  # folders in which a list is looked for


@dataclasses.dataclass(frozen=True)
class _List:
    """A list whose rows name images: of each row the image, class and split.

    A missing image is returned as its name; an ambiguous name as two images.
    """

    file: Path
    split: str | None  # that its name, or its folder's, tells
    rows: list[tuple[Sequence[Path | str], str, str | None]]
    named: bool  # whether the column of classes is called so
    roles: tuple[str, str, str]  # columns of images, classes and splits, in words


def by_list(root: Path) -> Splits:
    """Return the splits that lists in a folder, or in the folders in it, give to its images."""
    places = [root, *folders_in(root)[:_MANY]]
    files = sorted(f for p in places for f in p.iterdir() if f.suffix.lower() in (".csv", ".tsv"))
    if not files:
        return {}
    there = _images(root)
    folders = {one.parent.name for one in there[""] if one.parent != root}
    folders = {name for name in folders if not split_named(name)}
    try:
        found = [one for file in files if (one := _read(root, file, there)) is not None]
        rows = _rows_of(root, found, there[""])
    except TasklabError as error:
        if len(folders) < 2:
            raise
        note(f"{error} It is not read: folders are the classes.")
        return {}
    if rows and _by_folders(root, rows, found):
        parts = {part for one, _, _ in rows for part in one.relative_to(root).parts[:-1]}
        above = {one.parent.parent for one, _, _ in rows}
        within = len(above) == 1 and root not in above  # which `by_class` does not look into
        if any(map(split_named, parts)) or not (within or all(split for _, _, split in rows)):
            return {}
        rows = [(image, image.parent.name, split) for image, _, split in rows]  # lists tell splits
        found = [
            dataclasses.replace(one, roles=(one.roles[0], "folders of images", one.roles[2]))
            for one in found
        ]
    return _splits(root, rows, found) if rows else {}


def _rows_of(
    root: Path, lists: Sequence[_List], there: Sequence[Path]
) -> list[tuple[Path, str, str]]:
    if any(one.split for one in lists):
        for one in (one for one in lists if not one.split):
            note(f"{one.file} is not read: others there are lists of train or test.")
        lists = [one for one in lists if one.split]
    rows: list[tuple[Path, str, str]] = []
    gone: list[Path] = []
    for one in lists:
        for images, label, split in one.rows:
            if len(images) > 1:
                raise TasklabError(
                    f"{one.file} names {images[0]} or {images[1]}, which is not clear: write paths "
                    "from the list."
                )
            gone += [one.file.parent / images[0]] if isinstance(images[0], str) else []
            rows.append((Path(images[0]), label, split or one.split or ""))
    if gone:
        raise absent(gone, len(rows))
    counts = collections.Counter(image for image, _, _ in rows)
    if twice := [image for image, count in counts.items() if count > 1]:
        raise TasklabError(
            f"{len(twice):,} images are in {_names(lists)} more than once, such as {twice[0]}: "
            "write one row for each image, with one class."
        )
    if rows and (left := sorted(set(there) - counts.keys())):
        examples = abridged((one.relative_to(root).as_posix() for one in left), 2)
        note(f"{root}: {len(left):,} images are not in {_names(lists)} ({examples}): not read.")
    return rows


def _splits(root: Path, rows: Sequence[tuple[Path, str, str]], lists: Sequence[_List]) -> Splits:
    how = "names of lists"
    if not any(split for _, _, split in rows):
        how = "drawn at random"
        folders = {image.parent for image, _, _ in rows}
        named = {one: split_of(f"{one.relative_to(root).as_posix()}/") or "" for one in folders}
        if all(named.values()) and len(set(named.values())) > 1:
            rows = [(image, label, named[image.parent]) for image, label, _ in rows]
            how = "folders of images"
    names = sorted({label for _, label, _ in rows})
    if all(re.fullmatch(r"\d{1,9}", name) for name in names):
        names.sort(key=int)
    if 2 * len(names) > len(rows):
        raise TasklabError(
            f"{root}: lists have {len(names):,} different classes for {len(rows):,} images, such "
            f"as {abridged(names, 3)}: these are no classes. Name the column of classes label."
        )
    parts = {name: re.split(r"[|;,\s]+", name) for name in names}
    if several := [name for name in names if len(parts[name]) > 1 and {*parts[name]} <= {*names}]:
        note(f"{root}: {abridged(several, 3)} are read as classes, and look like several each.")
    number = {name: label for label, name in enumerate(names)}
    if len(names) < 2:
        raise TasklabError(f"{root}: lists have one class, {names[0]!r}, and a task needs two.")
    used = {image for image, _, _ in rows}
    lists = [one for one in lists if not used.isdisjoint(x for i, _, _ in one.rows for x in i)]
    for roles in dict.fromkeys(one.roles for one in lists):
        mine = [one for one in lists if one.roles == roles]
        files = _names(mine)
        note(
            f"{root}: {files} is read as images: {roles[0]}, classes: {roles[1]} "
            f"({abridged(names, 4)}), split: {roles[2] or how}."
        )
    return {
        split or "all": image_files(
            [image for image, _, mine in rows if mine == split],
            [number[label] for _, label, mine in rows if mine == split],
            names,
            seen=True,
        )
        for split in sorted({split for _, _, split in rows})
    }


def _by_folders(root: Path, rows: Sequence[tuple[Path, str, str]], lists: Sequence[_List]) -> bool:
    """Return whether folders give the classes as well, or no column is named after classes."""
    pairs = {
        (image.parent.name, label)
        for image, label, _ in rows
        if image.parent != root and not split_named(image.parent.name)
    }
    folders, labels = {folder for folder, _ in pairs}, {label for _, label in pairs}
    if len(folders) < 2:
        return False
    if len(pairs) == len(folders) == len(labels):
        return True
    if not all(one.named for one in lists):
        note(f"{root}: the column of {_names(lists)} is not read: folders are the classes.")
        return True
    raise TasklabError(
        f"{root} has folders ({abridged(sorted(folders), 4)}), and {_names(lists)} gives their "
        f"images other classes ({abridged(sorted(labels), 4)}): put all images into one folder, or "
        "remove the list."
    )


def _images(root: Path) -> dict[str, list[Path]]:
    there: dict[str, list[Path]] = {"": []}
    for entry in files_below(root):
        if entry.name.lower().endswith(SUFFIXES):
            path = Path(entry.path)
            parts = path.relative_to(root).parts
            there[""].append(path)
            for start in range(len(parts)):
                end = _composed("/".join(parts[start:]))
                for key in (end, end.removesuffix(_composed(path.suffix))):
                    there.setdefault(key, []).append(path)
    return there


def _read(root: Path, file: Path, there: dict[str, list[Path]]) -> _List | None:
    split = _named(file.stem) or split_named(file.parent.name)

    def images_of(entry: str) -> Sequence[Path | str]:
        name = re.sub(r"^(\.\.?/)+", "", _composed(entry.strip().replace("\\", "/")))
        if name not in there:  # as from the folder above, or from the top of a disk
            name = f"/{name}".rpartition(f"/{_composed(root.name)}/")[2].removeprefix("/")
        found = there.get(name, []) if name else []
        if len(found) > 1:
            exact = [one for one in found if one == file.parent / name]
            mine = [one for one in found if split and _named(one.parent.name) == split]
            found = exact or (mine if len(mine) == 1 else found)
        return found or [name]

    try:
        some = list(itertools.islice(_rows(file), _LOOKED_AT + 1))
        column = columns.of_images(file, some, images_of)
        if column is None:
            return None
        headed = columns.headed(some, column, images_of)
        rows = list(_rows(file))
    except (UnicodeDecodeError, csv.Error) as error:
        note(f"{file} is no list in UTF-8 and is not read ({error}).")
        return None
    head = rows.pop(0) if headed else []
    if odd := next((n for n, row in enumerate(rows) if len(row) != len(rows[0])), None):
        raise TasklabError(
            f"{file} has {len(rows[0])} columns in its first rows and {len(rows[odd])} in row "
            f"{odd + 1 + headed}: write all alike."
        )
    if not rows:
        return None
    if headed and len(head) < len(rows[0]):
        raise TasklabError(f"{file} names {len(head)} of its {len(rows[0])} columns: name all.")
    roles = columns.roles_of(file, head, rows, column)
    if (label := roles.classes) is None:
        note(f"{file} names images and no classes: it is not read.")
        return None
    if empty := [n for n, row in enumerate(rows) if row[label].strip().lower() in ("", "nan")]:
        raise TasklabError(
            f"{file} has {len(empty):,} rows without a class, the first in line "
            f"{empty[0] + 1 + headed}: write them, or remove these rows."
        )
    both = zip(rows, roles.words, strict=True)
    read = [(images_of(row[column]), row[label].strip(), word) for row, word in both]
    return _List(file, split, read, roles.named, roles.told)


def _rows(file: Path) -> Iterator[list[str]]:
    with file.open(newline="", encoding="utf-8-sig") as stream:
        told = (line for line in stream if line[0] != "#" or not {*line}.isdisjoint(",;\t|"))
        head = next(filter(str.strip, told), "")
        mark = max("\t;,|" if file.suffix.lower() == ".tsv" else ",;\t|", key=head.count)
        lines = itertools.chain([head], told)
        for row in csv.reader(lines, delimiter=mark, skipinitialspace=True):
            if any(one.strip() for one in row):
                yield row


def _composed(text: str) -> str:
    """Return a text with composed accents: macOS's file names have them decomposed."""
    return unicodedata.normalize("NFC", text)


def _named(name: str) -> str | None:
    return split_named(name) or split_of(name)


def _names(lists: Sequence[_List]) -> str:
    return abridged((one.file.name for one in lists), 3)
