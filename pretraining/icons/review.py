"""What looking at the contact sheets showed: drawings that do not show what their class says.

They were taken out after the tasks had been drawn, and never come into the corpus either.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pretraining.icons import unlike
from pretraining.icons.tasks import CONTROL, LEAST, Part, World

# Names with two meanings, of which the sets draw the other one too often.
AMBIGUOUS = frozenset(
    (
        "trolley", "palm", "ram", "water", "lightning", "tape", "scale", "bow", "cap", "cricket",
        "cards", "card", "carousel", "window", "table", "album", "stream", "live", "loop", "note",
        "notes", "badge", "prompt", "like", "dislike", "male", "female", "slide",
    )
)  # fmt: skip
# Words of firms and their products, wherever they stand in a name.
MARKS = frozenset(
    "airplay airbnb adobe amazon android apple behance bluetooth chrome chromecast discord docker "
    "dribbble dropbox facebook figma firefox framer github gitlab google imac instagram "
    "ipad iphone ipod java javascript kaggle kotlin lego linkedin linux macbook mastercard "
    "messenger microsoft netflix nintendo npm paypal php pinterest playstation python "
    "react reddit safari skype slack snapchat spotify steam stripe tesla telegram "
    "tiktok twitch twitter uber vimeo visa wechat whatsapp wordpress xbox yahoo "
    "youtube".split()
)
_BROKEN = "broken"  # a style in one set, and in others what the drawing shows
_STYLED = "solar"


def kept(world: World, row: int) -> bool:
    """Return whether a drawing stays."""
    said = world.names[row].split("--")[0].split("-")
    of_set = world.sets[world.of[row]].about["prefix"]
    return not (
        world.concepts[row] in AMBIGUOUS
        or MARKS & set(said)
        or (_BROKEN in said and of_set != _STYLED)
    )


def reviewed(
    world: World, task: str, labels: list[str], parts: Mapping[str, Part]
) -> tuple[list[str], dict[str, Part]]:
    """Return a task without these drawings, and without classes that have too few then."""
    stay = {
        split: np.array([kept(world, row) for row in part.rows], bool)
        for split, part in parts.items()
    }
    if task == unlike.COLOURS:
        for split, part in parts.items():
            if len(part.rows):
                stay[split] &= unlike.colour(world.pictures(part.rows), near=True) == part.labels
    least = {} if task == unlike.DRAWN_BY else LEAST
    chosen = [
        label
        for label in range(len(labels))
        if all(
            (parts[split].labels[stay[split]] == label).sum() >= count
            for split, count in least.items()
            if not (task == CONTROL and split == "train")
        )
    ]
    number = np.full(len(labels), -1)
    number[chosen] = np.arange(len(chosen))
    result = {}
    for split, part in parts.items():
        mask = stay[split] & (number[part.labels] >= 0)
        result[split] = Part(part.rows[mask], number[part.labels[mask]])
    return [labels[label] for label in chosen], result
