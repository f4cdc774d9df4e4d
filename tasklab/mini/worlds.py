"""The drawn world: how each task shows its things.

Each task has a style of its own that pre-training pictures lack: fine-tuning closes that
gap. How hard each task is was set once, on validation images, by the levels of the
non-linear model.

Every processor draws the same bytes: pictures are made by elementwise IEEE operations and the
functions of `exact` alone (tests/unit/mini/test_exact.py refuses any other). A new world also draws
in float64; `mini-2` draws in float32, as its first drawing did, from which it differs in the few
grey values of corrections.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasklab.mini.camera import Camera
from tasklab.mini.draw import Range


@dataclass(frozen=True, kw_only=True)
class Look:
    """How the pictures of a task look; a range is drawn from uniformly for each picture."""

    size: Range = (1.0, 1.0)  #: Of the thing; 1 is about half of the picture's width
    turn: Range = (0.0, 0.0)  #: Its rotation in radians
    #: Its distance from the middle, along each axis; 1 is half of the picture's width.
    shift: Range = (0.0, 0.0)
    frequency: Range = (6.0, 8.0)  #: Of a texture or of fields
    jitter: float = 0.06  #: Standard deviation of colours around their names
    background: float = 0.0  #: Contrast of the texture behind the thing
    ink: Range = (0.3, 0.7)  #: Contrast of a number on its wall, of the two colours of a texture
    others: float = 0.0  #: Probability of each neighbour of a number
    camera: Camera = field(default_factory=Camera)  #: What the picture goes through


def _around(limit: float) -> Range:
    return (-limit, limit)


_ANY = (0.0, 6.28)
LOOKS: Mapping[str, Look] = {
    "Vehicles": Look(
        size=(0.75, 0.95), turn=_around(0.25), shift=_around(0.1), jitter=0.1, background=0.15,
        camera=Camera(noise=0.03, tint=0.1, contrast=0.2, filter="relief+night"),
    ),
    "Textures": Look(
        size=(0.8, 1.3), turn=_around(0.5), shift=_around(0.6), frequency=(7, 12),
        ink=(0.45, 0.85),
        camera=Camera(noise=0.03, contrast=0.3, filter="drawing+heat"),
    ),
    "LandCover": Look(
        turn=_ANY, frequency=(5, 9), jitter=0.06,
        camera=Camera(noise=0.04, contrast=0.3, filter="relief+heat"),
    ),
    "Signs": Look(
        size=(0.65, 0.9), turn=_around(0.35), shift=_around(0.15), background=0.3,
        camera=Camera(noise=0.03, contrast=0.3, filter="negative+hue"),
    ),
    "Handwritten": Look(
        size=(0.7, 0.95), turn=_around(0.25), shift=_around(0.15), camera=Camera(noise=0.05)
    ),
    "Places": Look(
        size=(0.7, 1.15), turn=_ANY, jitter=0.08,
        camera=Camera(noise=0.04, contrast=0.3, filter="relief+night"),
    ),
    "Scenes": Look(
        size=(0.8, 1.3), turn=_around(0.5), shift=_around(0.2), jitter=0.1,
        camera=Camera(noise=0.04, contrast=0.3, filter="drawing"),
    ),
    "HouseNumbers": Look(
        size=(0.55, 0.85), turn=_around(0.25), ink=(0.4, 0.8), others=0.6,
        camera=Camera(noise=0.04, contrast=0.3, blur=0.5),
    ),
    "Objects": Look(
        size=(0.5, 0.8), turn=_around(0.5), shift=_around(0.25), jitter=0.12, background=0.3,
        camera=Camera(noise=0.04, contrast=0.4, tint=0.15),
    ),
}  # fmt: skip
