"""Three tasks unlike the others: who drew a picture, how far it is turned, and its colour.

Their drawings have names that no class of the other tasks has.
"""

from __future__ import annotations

import collections

import numpy as np
from numpy.typing import NDArray

from pretraining.icons import clean
from pretraining.icons.tasks import MOST, SPLITS, VAL_SHARE, Part, World, order, sides

DRAWN_BY, TURNED, COLOURS = "DrawnBy", "Turned", "Colours"
SETS = (
    "iconmind", "mdi", "tabler", "game-icons", "hugeicons", "fluent", "pinhead",
    "icon-park-outline", "carbon", "whh", "reicon", "fa7-solid", "lucide", "boxicons",
    "streamline-freehand", "iconoir", "solar", "pepicons-pencil", "ph", "emojione-monotone",
)  # fmt: skip
ANGLES = tuple(range(0, 360, 30))
UPRIGHT = frozenset(("Emoji", "Thematic", "Flags / Maps"))  # categories of sets of things
PAPER = 225  # what is lighter in all channels is no ink
MAJORITY = 60  # % of the ink
NEAR = 75  # distance in RGB
PALETTE = {
    "black": (30, 30, 30), "gray": (140, 145, 150), "brown": (125, 75, 50), "red": (220, 45, 45),
    "orange": (245, 140, 40), "yellow": (250, 205, 60), "lime": (165, 205, 70),
    "green": (60, 160, 75), "teal": (40, 160, 160), "light blue": (100, 195, 240),
    "blue": (45, 110, 220), "dark blue": (35, 60, 110), "purple": (130, 80, 190),
    "pink": (240, 110, 160), "beige": (250, 205, 160),
}  # fmt: skip


def free(world: World, spoken: set[str]) -> NDArray[np.bool_]:
    """Return which drawings no class can have."""
    return ~world.marked & np.array([concept not in spoken for concept in world.concepts])


def drawn_by(world: World, rows: NDArray[np.int64]) -> tuple[list[str], dict[str, Part]]:
    """Return the task to tell sets apart: one drawing a concept, split by concepts."""
    titles, found = [], {}
    by_prefix = {one.about["prefix"]: index for index, one in enumerate(world.sets)}
    for label, prefix in enumerate(prefix for prefix in SETS if prefix in by_prefix):
        of_set = rows[world.of[rows] == by_prefix[prefix]]
        found[label] = _one_a_concept(world, of_set)
        titles.append(world.sets[by_prefix[prefix]].about["title"])
    tested = {label: [_coin(world.concepts[row]) for row in found[label]] for label in found}
    return titles, _parts(world, found, tested)


def turned(world: World, rows: NDArray[np.int64]) -> tuple[list[str], dict[str, Part]]:
    """Return the task to tell angles apart: each drawing is shown once, at one angle."""
    upright = {i for i, one in enumerate(world.sets) if one.about["category"] in UPRIGHT}
    chosen = _one_a_concept(world, rows[[world.of[row] in upright for row in rows]])
    labels = np.array([int(order("angle", world.said(row)), 16) % len(ANGLES) for row in chosen])
    found = {label: chosen[labels == label] for label in range(len(ANGLES))}
    return [f"{angle} degrees" for angle in ANGLES], _by_family(world, found)


def colours(world: World, rows: NDArray[np.int64]) -> tuple[list[str], dict[str, Part]]:
    """Return the task to name the colour of most of a drawing's ink."""
    coloured = {i for i, one in enumerate(world.sets) if one.pictures.shape[1] == 3}
    chosen = rows[[world.of[row] in coloured for row in rows]]
    if not len(chosen):
        return list(PALETTE), _by_family(world, dict.fromkeys(range(len(PALETTE)), chosen))
    labels = np.concatenate(
        [colour(world.pictures(part)) for part in np.array_split(chosen, len(chosen) // 500 + 1)]
    )
    found = {k: _one_a_concept(world, chosen[labels == k]) for k in range(len(PALETTE))}
    return list(PALETTE), _by_family(world, found)


def colour(pictures: NDArray[np.uint8], near: bool = False) -> NDArray[np.int64]:
    """Return the colour of each picture (n, 3, S, S), an index into `PALETTE`; -1 without one.

    Args:
        pictures: The pictures.
        near: Whether only pixels count that are near a colour of the palette.
    """
    table = np.array(list(PALETTE.values()), np.int32)
    pixels = pictures.astype(np.int32).transpose(0, 2, 3, 1)
    distances = ((pixels[..., None, :] - table) ** 2).sum(-1)
    nearest = distances.argmin(-1)
    if near:
        nearest[distances.min(-1) > NEAR**2] = -1
    ink = pixels.min(-1) < PAPER
    counts = ((nearest[..., None] == np.arange(len(table))) & ink[..., None]).sum((1, 2))
    return np.where(100 * counts.max(1) >= MAJORITY * ink.sum((1, 2)), counts.argmax(1), -1)


def _coin(word: str) -> bool:
    return int(order("side", word), 16) % 2 == 1


def _one_a_concept(world: World, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one drawing of each set and concept, in random order."""
    first: dict[tuple[int, str], int] = {}
    for row in sorted(rows, key=lambda row: order("one", world.said(row))):
        first.setdefault((world.of[row], world.concepts[row]), row)
    return np.array(list(first.values()), np.int64)[:6000]


def _by_family(world: World, found: dict[int, NDArray[np.int64]]) -> dict[str, Part]:
    families = collections.Counter(world.family(row) for rows in found.values() for row in rows)
    test = sides(families)
    tested = {k: [world.family(row) in test for row in rows] for k, rows in found.items()}
    return _parts(world, found, tested)


def _parts(
    world: World, found: dict[int, NDArray[np.int64]], tested: dict[int, list[bool]]
) -> dict[str, Part]:
    """Return the splits without near copies, with at most an equal share for each class."""
    rows = np.concatenate(list(found.values()))
    mask = np.concatenate([np.array(tested[label], bool) for label in found])
    ordered = np.concatenate([rows[mask], rows[~mask]])
    kept = set(ordered[clean.distinct(world.grey(ordered))].tolist())
    result = {}
    for split in SPLITS:
        cap = MOST[split] // len(found)
        chosen: list[tuple[int, int]] = []
        for label, rows in found.items():
            sides_of = list(zip(rows.tolist(), tested[label], strict=True))
            test = [row for row, side in sides_of if side and row in kept]
            train = [row for row, side in sides_of if not side and row in kept]
            n_val = round(VAL_SHARE * len(train))
            pool = {"train": train[n_val:], "val": train[:n_val], "test": test}[split]
            chosen += [(row, label) for row in pool[:cap]]
        chosen.sort(key=lambda pair: order(split, world.said(pair[0])))
        result[split] = Part(
            np.array([row for row, _ in chosen], np.int64),
            np.array([label for _, label in chosen], np.int64),
        )
    return result


def svg_turned(svg: str, angle: int) -> str:
    """Return a drawing turned about its middle and made so small that all of it is seen."""
    head, _, rest = svg.partition(">")
    box = head.partition('viewBox="')[2].partition('"')[0]
    left, top, width, height = map(float, box.split())
    x, y = left + width / 2, top + height / 2
    move = f"translate({x} {y}) rotate({angle}) scale(0.72) translate({-x} {-y})"
    return f'{head}><g transform="{move}">{rest.removesuffix("</svg>")}</g></svg>'
