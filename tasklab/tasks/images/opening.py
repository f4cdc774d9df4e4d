"""Open files that may be damaged, missing or something else: one line about it, no traceback."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from tasklab.errors import TasklabError, some

_POINTER = b"version https://git-lfs"
# Those that `classes.SUFFIXES` names. Pillow knows more; for some it starts other programs.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "AVIF")
_SIXTEEN = (("I", "PNG"), ("I", "PPM"))  # read into 32 bits, but from 0 to 65,535


@contextlib.contextmanager
def sound(where: Path | str, what: str, advice: str = "Fetch it again.") -> Iterator[None]:
    """Say in one line what is wrong with a file or folder that is read inside.

    Args:
        where: The file or folder, for the message.
        what: What it should be, e.g. `"a whole parquet file"`.
        advice: What to do if it is not.

    Raises:
        TasklabError: If anything goes wrong inside; damaged files raise nearly everything.
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
    if _is_pointer(where):
        return f"{where} is a pointer of git-lfs, not the file: run `git lfs pull` in its folder."
    return f"{where} is not {what} ({_brief(error)}). {advice}"


def _brief(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "Pillow does not know its format"
    line = (str(error).strip().splitlines() or [""])[0]
    if line and not isinstance(error, LookupError):
        return line
    return f"{type(error).__name__}: {line}".removesuffix(": ")


def _is_pointer(file: Path) -> bool:
    """Return whether git left only the address of a large file in its place."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return those of `FORMATS` that this Pillow can read; its list is empty until it is asked."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def absent(gone: Sequence[Path], count: int) -> TasklabError:
    """Return the error for images that are not there, of `count`; it names the first few."""
    base = os.path.commonpath([file.parent for file in gone])
    names = [os.path.relpath(file, base) for file in gone[:4]]
    return TasklabError(
        f"{len(gone):,} of {count:,} listed images are missing in {base}: {some(names, 3)}. "
        "Fetch them again; remove links to nowhere."
    )


def rgb(source: str | io.BytesIO, where: str, advice: str = "Remove or replace it.") -> Image.Image:
    """Return an image as RGB, as torchvision's `default_loader` does.

    Transparency is dropped and the orientation that a camera notes (EXIF) is not applied, as there.
    Grey levels of 16 bits are scaled to 8 bits; Pillow by itself would cut them off at 255.

    Args:
        source: Path, or the bytes of a file.
        where: What to call it in messages.
        advice: What to do if it cannot be decoded.

    Raises:
        TasklabError: If it cannot be decoded, or its grey levels have no known range.
    """
    with (
        sound(where, "an image that can be decoded", advice),
        Image.open(source, formats=_formats()) as image,
    ):
        if image.mode.startswith("I;16") or (image.mode, image.format) in _SIXTEEN:
            grey = np.asarray(image).astype(np.float64) / 257  # 65,535 becomes 255
            return Image.fromarray(np.rint(grey).astype(np.uint8)).convert("RGB")
        if image.mode in ("I", "F"):
            raise TasklabError(
                f"{where} has pixels of 32 bits (Pillow's mode {image.mode}), whose range is not "
                "known: save it with 8 or 16 bits."
            )
        return image.convert("RGB")
