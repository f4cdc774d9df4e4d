"""Names of everything in the drawn world, its nine tasks and their sizes; standard library only."""

from __future__ import annotations

import re
from typing import Any

COLOURS = {
    "red": (0.85, 0.13, 0.13), "green": (0.13, 0.62, 0.20), "blue": (0.13, 0.28, 0.85),
    "yellow": (0.95, 0.85, 0.20), "orange": (0.95, 0.53, 0.10), "purple": (0.52, 0.20, 0.70),
    "pink": (0.95, 0.55, 0.72), "brown": (0.48, 0.30, 0.14), "black": (0.07, 0.07, 0.07),
    "white": (0.95, 0.95, 0.95), "gray": (0.50, 0.50, 0.50), "cyan": (0.20, 0.80, 0.85),
}  # fmt: skip
SHAPES = (
    "circle", "square", "triangle", "star", "cross", "ring", "heart", "hexagon", "diamond",
    "crescent", "arrow", "oval", "gear", "flower", "dome", "hook", "tee", "bar", "hourglass",
    "frame",
)  # fmt: skip
TEXTURES = (
    "striped", "banded", "checkered", "dotted", "grid", "wavy", "zigzag", "grainy", "blotchy",
    "marbled", "bricked", "spiral", "radial", "woven", "scaly", "cracked",
)  # fmt: skip
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
GLYPHS = DIGITS + LETTERS
VEHICLES = (
    "sedan", "hatchback", "van", "bus", "truck", "pickup", "coupe", "jeep", "tanker", "tractor",
)  # fmt: skip
LAND = (
    "forest", "river", "highway", "houses", "factory", "cropland", "pasture", "lake", "orchard",
    "heath",
)  # fmt: skip
PLACES = (
    "airport", "bridge", "roundabout", "harbor", "crossroads", "parking", "baseball field",
    "round farm", "tennis court", "stadium", "island", "beach", "storage tanks", "railway", "pool",
)  # fmt: skip
SCENES = (
    "mountain", "desert", "sea", "city", "meadow", "snowfield", "road", "sunset", "night sky",
    "canyon", "village", "lighthouse", "waterfall", "pyramid", "windmill", "cave",
)  # fmt: skip
PLATES = ("circle", "triangle", "octagon", "diamond", "square")
RIMS = ("red", "blue", "yellow", "green", "black", "orange")
SYMBOLS = (
    "arrow", "cross", "bar", "dot", "one", "three", "five", "eight", "letter a", "letter p",
    "letter h",
)  # fmt: skip
SIGNS = (
    ("circle", "red", "one"), ("circle", "red", "three"), ("circle", "red", "five"),
    ("circle", "red", "eight"), ("circle", "blue", "arrow"), ("circle", "red", "bar"),
    ("circle", "blue", "cross"), ("triangle", "red", "bar"), ("triangle", "red", "dot"),
    ("triangle", "red", "cross"), ("triangle", "red", "arrow"), ("octagon", "red", "letter a"),
    ("diamond", "yellow", "dot"), ("diamond", "yellow", "arrow"), ("square", "blue", "letter p"),
    ("square", "blue", "letter h"), ("square", "green", "arrow"), ("square", "blue", "cross"),
)  # fmt: skip

TASKS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "stand_in_for": other, "classes": classes, "templates": templates}
    for name, other, classes, templates in (
        ("Vehicles", "Cars", tuple(f"{p} {v}" for v in VEHICLES[:8] for p in ("plain", "striped")),
         ("a photo of a {}", "a picture of a {} vehicle")),
        ("Textures", "DTD", TEXTURES, ("a {} texture", "a photo of a {} pattern")),
        ("LandCover", "EuroSAT", LAND, ("a satellite photo of {}", "an aerial view of {}")),
        ("Signs", "GTSRB", tuple(f"{rim} {plate} sign with {mark}" for plate, rim, mark in SIGNS),
         ("a photo of a {}", "a {}")),
        ("Handwritten", "MNIST", DIGITS, ("a handwritten digit {}", "the digit {}")),
        ("Places", "RESISC45", PLACES, ("satellite imagery of a {}", "an aerial photo of a {}")),
        ("Scenes", "SUN397", SCENES, ("a photo of a {}", "a scene with a {}")),
        ("HouseNumbers", "SVHN", DIGITS, ("a house number {}", "a photo of the digit {}")),
        ("Objects", "ImageNet", SHAPES, ("a photo of a {}", "a picture of a {}")),
    )
)  # fmt: skip
TASKS[-1]["control"] = True
VERSION = "mini-2"  # in the keys of caches and in cards
# Images of each split, and those of the control where they differ.
SIZES = {"train": 3000, "val": 500, "test": 1000}
CONTROL_SIZES = {"val": 2000, "test": 2000}


def with_articles(text: str) -> str:
    """Return an English text with "an" for "a" where a vowel follows.

    >>> with_articles("satellite imagery of a airport and a bridge")
    'satellite imagery of an airport and a bridge'
    """
    return re.sub(r"\b([aA]) (?=[aeiouAEIOU])", r"\1n ", text)
