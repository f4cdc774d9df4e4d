"""Read files of images safely: pointers, missing shards and damage are one sentence each."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import UnidentifiedImageError

from tasklab.errors import TasklabError, abridged, first_line

_POINTER = b"version https://git-lfs"
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(-[0-9a-f]{16})?\.parquet$")


@contextlib.contextmanager
def sound(where: Path | str, what: str, advice: str = "Fetch it again.") -> Iterator[None]:
    """Raise any failure of a block that reads a file or folder as one `TasklabError`.

    Args:
        where: The file or folder.
        what: What it should hold, in the message.
        advice: What to do with a damaged one, in the message.
    """
    try:
        yield
    except (TasklabError, MemoryError, ImportError):
        raise
    except Exception as error:  # the readers' errors have no common base
        raise TasklabError(_said(Path(where), what, error, advice)) from error


def _said(where: Path, what: str, error: Exception, advice: str) -> str:
    named = getattr(error, "filename", None)
    file = named if isinstance(named, str) else str(where)
    if isinstance(error, PermissionError):
        return f"{file} cannot be read: permission denied. Give yourself the right to read it."
    if isinstance(error, FileNotFoundError):
        return f"{file} is missing. {advice}"
    if is_pointer(where):
        return f"{where} is a pointer of git-lfs, not the file: run `git lfs pull` in its folder."
    why = first_line(error, typed=isinstance(error, LookupError))
    if isinstance(error, UnidentifiedImageError):
        why = "Pillow does not know its format"
    return f"{where} is not {what} ({why}). {advice}"


def is_pointer(file: Path) -> bool:
    """Return whether a file is a pointer of git-lfs in the place of a large one."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def absent(gone: Sequence[Path], count: int) -> TasklabError:
    """Return the error for missing images, of `count`; it names the first few."""
    base = os.path.commonpath([file.parent for file in gone])
    names = [os.path.relpath(file, base) for file in gone[:4]]
    return TasklabError(
        f"{len(gone):,} of {count:,} listed images are missing in {base}: {abridged(names, 3)}. "
        "Fetch them again; remove links to nowhere."
    )


def check_shards(split: str, files: Sequence[Path]) -> None:
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
            f"{abridged(missing, 3)}. Fetch them again."
        )


def class_names(file: Path, label: str) -> tuple[str, ...] | None:
    """Return class names from `classes.txt` or the data set's card, at most three folders up."""
    for folder in list(file.parents)[:4]:
        listed = folder / "classes.txt"
        if listed.is_file():
            with sound(listed, "a list of classes in UTF-8", "Write one name a line."):
                if text := listed.read_text("utf-8-sig").rstrip("\n"):
                    return tuple(text.split("\n"))
        card = folder / "README.md"
        if card.is_file() and (names := _names_of_card(card, label)):
            return names
    return None


def _names_of_card(card: Path, label: str) -> tuple[str, ...] | None:
    import yaml

    # A card is for people: what it does not say, or not so, it does not say.
    with contextlib.suppress(LookupError, OSError, TypeError, ValueError, yaml.YAMLError):
        info = yaml.safe_load(card.read_text("utf-8").split("---")[1])["dataset_info"]
        for one in info if isinstance(info, list) else [info]:
            for feature in one["features"]:
                if feature["name"] == label and "class_label" in feature["dtype"]:
                    names = feature["dtype"]["class_label"]["names"]
                    if isinstance(names, dict):
                        names = [names[key] for key in sorted(names, key=int)]
                    return tuple(str(name) for name in names)
    return None
