"""From a drawing's name to what it shows: words without those of style, size or skin."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

STYLES = frozenset(
    "outline outlined filled fill line linear solid bold light thin regular duotone twotone two "
    "tone round rounded sharp broken baseline duo flat fluent color colored colour mono monochrome "
    "remix o alt alternate variant sm lg xl md ios bulk stroke freehand v1 v2 v3 glyph pixel poly "
    "ltr rtl md small large medium big".split()
)
_SIZE = re.compile(r"\d+(px|x\d+)?")
# Hands and people come in these; a drawing of one in each is enough.
SKIN = re.compile(r"skin-tone|-(light|medium-light|medium|medium-dark|dark)$")


@functools.cache
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name without style words and sizes at its ends.

    >>> words("outline-shopping-cart-24-filled"), words("home-3--home-house-roof"), words("bold")
    (('shopping', 'cart'), ('home',), ('bold',))
    """
    parts = [part for part in name.split("--")[0].split("-") if part]
    kept = list(parts)
    while len(kept) > 1 and _style(kept[-1]):
        kept.pop()
    while len(kept) > 1 and _style(kept[0]) and not _SIZE.fullmatch(kept[0]):
        kept.pop(0)
    return tuple(re.sub(r"(?<=[a-z]{3})\d{1,2}$", "", word) for word in kept)


def _style(word: str) -> bool:
    return word in STYLES or bool(_SIZE.fullmatch(word))


def concept(name: str) -> str:
    """Return the concept that a name gives a drawing."""
    return " ".join(words(name))


def trademark(name: str, brands: Collection[str]) -> bool:
    """Return whether a drawing is, or may be, a firm's mark."""
    said = words(name)
    return bool({"logo", "logos", "brand", "brands"} & set(said)) or "-".join(said) in brands
