"""The source package: icon sets with their licences and authors, checked by its hash."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasklab.errors import TasklabError

PACKAGE = "@iconify/json@2.2.535"
FILE = "iconify-json-2.2.535.tgz"
SHA256 = "1a545f86fa224d6531d8fb101dcbe83aac2b28689a21cbed6fc68318a5af4d91"

# Where the package names no address of a set's work, or of its licence
SET_PAGE = "https://icon-sets.iconify.design/{}/"
LICENCE_PAGE = "https://spdx.org/licenses/{}.html"
# Licences that allow copies and changes for any purpose, without conditions on what is around.
LICENCES = frozenset(
    ("MIT", "Apache-2.0", "CC-BY-4.0", "CC-BY-3.0", "CC0-1.0", "ISC", "OFL-1.1", "Unlicense",
     "BSD-3-Clause")
)  # fmt: skip
# Trade marks, the symbols of programs, and flags; animated sets have no first picture.
LEFT_OUT = frozenset(("Logos", "Programming"))
SETS_LEFT_OUT = frozenset(
    ("cif", "circle-flags", "devicon-line", "devicon-original", "emblemicons", "fa-brands",
     "fa6-brands", "fad", "flag", "flagpack", "geo", "line-md", "svg-spinners", "academicons",
     "bpmn", "nrk")
)  # fmt: skip
# Authors whose sets draw on each other's; others with the same author are one family as well.
_KIN = {
    "Material": (
        "ic", "material-symbols", "material-symbols-light", "mdi", "mdi-light", "zmdi", "memory",
        "noto", "noto-v1",
    ),
    "Ionicons": ("ion", "famicons"),
    "Feather": ("feather", "lucide", "lucide-lab"),
    "Heroicons": ("heroicons", "heroicons-outline", "heroicons-solid", "sidekickicons"),
    "Maps": ("maki", "temaki", "pinhead", "osmic", "roentgen", "map", "gis"),
    "Streamline": ("guidance", "covid"),
    "Gerrit Halfmann": ("pixelarticons", "majesticons"),
    "Mono": ("mono-icons", "mi"),
    "Emoji One": ("emojione", "emojione-monotone"),
}  # fmt: skip
FAMILIES = {prefix: family for family, members in _KIN.items() for prefix in members}


@dataclass(frozen=True)
class IconSet:
    """A set of drawings by one author, under one licence."""

    prefix: str  #: Its short name
    title: str
    author: str
    url: str  #: Of the author or the set's repository
    licence: str  #: SPDX identifier
    licence_url: str
    family: str  #: Sets of a family draw on each other's
    coloured: bool
    category: str
    affixes: tuple[str, ...]  #: What the set's names begin or end with to name a style
    drawings: dict[str, str]  #: Name -> SVG


def check(path: Path) -> None:
    """Raise if the package is absent or another one."""
    if not path.is_file():
        raise TasklabError(
            f"{path} is missing: fetch it by `npm pack {PACKAGE}` (104 MB), and give "
            f"--source {FILE}."
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise TasklabError(f"{path} is not {PACKAGE}: its SHA-256 is {found}, not {SHA256}.")


def sets(path: Path) -> Iterator[IconSet]:
    """Yield every set of the package, its drawings by name, without aliases and hidden ones."""
    with tarfile.open(path) as package:
        for member in package:
            if member.name.startswith("package/json/") and member.name.endswith(".json"):
                file = package.extractfile(member)
                assert file is not None  # a regular file
                yield _parsed(json.load(file))


def allowed(one: IconSet) -> bool:
    """Return whether the drawings of a set may be used and shipped."""
    return (
        one.licence in LICENCES and one.category not in LEFT_OUT and one.prefix not in SETS_LEFT_OUT
    )


def _parsed(entry: dict) -> IconSet:
    info = entry.get("info", {})
    licence, author = info.get("license", {}), info.get("author", {})
    width, height = entry.get("width", 16), entry.get("height", 16)
    prefix = entry["prefix"]
    return IconSet(
        prefix=prefix,
        title=info.get("name", prefix),
        author=author.get("name", ""),
        url=author.get("url") or SET_PAGE.format(prefix),
        licence=licence.get("spdx", ""),
        licence_url=licence.get("url") or LICENCE_PAGE.format(licence.get("spdx", "")),
        family=FAMILIES.get(prefix, author.get("name", prefix)),
        coloured=bool(info.get("palette")),
        category=info.get("category") or "",
        affixes=tuple(x for x in (*entry.get("suffixes", {}), *entry.get("prefixes", {})) if x),
        drawings={
            name: _svg(icon, width, height)
            for name, icon in sorted(entry["icons"].items())
            if not icon.get("hidden")
        },
    )


def _svg(icon: dict, width: float, height: float) -> str:
    box = (icon.get("left", 0), icon.get("top", 0), icon.get("width", width),
           icon.get("height", height))  # fmt: skip
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="32" height="32" color="#000" viewBox="{" ".join(map(str, box))}">'
        f"{icon['body']}</svg>"
    )
