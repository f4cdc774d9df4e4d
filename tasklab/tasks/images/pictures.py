"""One image file: which files are read as images, and their pixels."""

from __future__ import annotations

import functools
import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, features

from tasklab.errors import TasklabError
from tasklab.tasks.images.checks import sound

SUFFIXES = (  # of the files that are taken for images
    *(".jpg", ".jpeg", ".jfif", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *([".avif"] if "avif" in features.modules and features.check_module("avif") else []),
)
# What they may hold. Pillow knows more; for some it starts other programs.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "AVIF")
_SIXTEEN = (("I", "PNG"), ("I", "PPM"))  # read into 32 bits, but from 0 to 65,535


def rgb(source: str | io.BytesIO, where: str, advice: str = "Remove or replace it.") -> Image.Image:
    """Return an image as RGB, as torchvision's `default_loader` does.

    Transparency is dropped and the orientation that a camera notes (EXIF) is not applied, as there.
    Grey levels of 16 bits are scaled to 8 bits; Pillow by itself would cut them off at 255.
    """
    with (
        sound(where, "an image that can be decoded", advice),
        Image.open(source, formats=_known_formats()) as image,
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


def is_image(file: Path) -> bool:
    """Return whether a file begins as an image of a format that is read, whatever its name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its size, which is told where it is decoded
            Image.open(file, formats=_known_formats()).close()
    except Exception:  # readers raise what they like
        return False
    return True


@functools.cache
def _known_formats() -> tuple[str, ...]:
    """Return those of `FORMATS` that this Pillow can read; its list is empty until it is asked."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)
