"""The worlds: how each task shows its things, and what its prompts say.

In both worlds the things and the kinds of picture are the same. A task has a look of its own, none
of which is that of the pre-training pictures: that gap is what fine-tuning closes. In the first
world part of it is noise, which nothing closes; in the second it is style, viewpoint and palette.
How hard each task is was set once, on validation images, by the levels of the non-linear model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasklab.mini.camera import Camera
from tasklab.mini.catalog import TASKS, with_articles

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How the pictures of a task look; a range is drawn from uniformly for each picture.

    Attributes:
        size: Of the thing; 1 is about half of the picture's width.
        turn: Its rotation in radians.
        shift: Its distance from the middle, along each axis; 1 is half of the picture's width.
        frequency: Of a texture or of fields.
        jitter: Standard deviation of colours around their names.
        background: Contrast of the texture behind the thing.
        ink: Contrast of a number on its wall, of the two colours of a texture.
        others: Probability of each neighbour of a number.
        camera: What the picture goes through.
    """

    size: Range = (1.0, 1.0)
    turn: Range = (0.0, 0.0)
    shift: Range = (0.0, 0.0)
    frequency: Range = (6.0, 8.0)
    jitter: float = 0.06
    background: float = 0.0
    ink: Range = (0.3, 0.7)
    others: float = 0.0
    camera: Camera = field(default_factory=Camera)


@dataclass(frozen=True, kw_only=True)
class World:
    """A complete description.

    Attributes:
        version: Its name in the keys of caches and in cards.
        looks: How each task looks.
        articles: Whether prompts have "an" where English does.
        sizes: Images of each task in each split.
        control_sizes: Those of the control task, where they differ.
    """

    version: str
    looks: Mapping[str, Look]
    articles: bool
    sizes: Mapping[str, int]
    control_sizes: Mapping[str, int]


def _around(limit: float) -> Range:
    return (-limit, limit)


_ANY = (0.0, 6.28)
FIRST = World(
    version="mini-1",
    articles=False,
    sizes={"train": 3000, "val": 500, "test": 1000},
    control_sizes={"test": 2000},
    looks={
        "Vehicles": Look(
            size=(0.6, 0.95), turn=_around(0.3), shift=_around(0.15), jitter=0.1, background=0.25,
            camera=Camera(noise=0.08, tint=0.15, contrast=0.3, occlusion=0.2, blur=0.5),
        ),
        "Textures": Look(
            size=(0.8, 1.3), turn=_around(0.5), shift=_around(0.6), frequency=(7, 16),
            ink=(0.25, 0.6),
            camera=Camera(noise=0.08, contrast=0.3, blur=0.6),
        ),
        "LandCover": Look(
            turn=_ANY, frequency=(5, 9), jitter=0.09,
            camera=Camera(noise=0.08, contrast=0.4, infrared=1.0, blur=0.6),
        ),
        "Signs": Look(
            size=(0.5, 0.85), turn=_around(0.25), shift=_around(0.2), background=0.4,
            camera=Camera(noise=0.06, tint=0.2, contrast=0.6, blur=1.0, occlusion=0.2),
        ),
        "Handwritten": Look(
            size=(0.7, 0.95), turn=_around(0.25), shift=_around(0.15), camera=Camera(noise=0.1)
        ),
        "Places": Look(
            size=(0.65, 1.15), turn=_ANY, jitter=0.12,
            camera=Camera(noise=0.10, contrast=0.4, gray=1.0, blur=0.5),
        ),
        "Scenes": Look(
            size=(0.8, 1.3), turn=_around(0.5), shift=_around(0.2), jitter=0.16,
            camera=Camera(noise=0.08, tint=0.4, contrast=0.5, occlusion=0.4, negative=0.5),
        ),
        "HouseNumbers": Look(
            size=(0.55, 0.85), turn=_around(0.25), others=0.6,
            camera=Camera(noise=0.1, contrast=0.3, blur=1.0),
        ),
        "Objects": Look(
            size=(0.45, 0.8), turn=_around(0.5), shift=_around(0.25), jitter=0.12, background=0.3,
            camera=Camera(noise=0.10, contrast=0.4, tint=0.15, occlusion=0.2),
        ),
    },
)  # fmt: skip
SECOND = World(
    version="mini-2",
    articles=True,
    sizes={"train": 3000, "val": 500, "test": 1000},
    control_sizes={"val": 2000, "test": 2000},
    looks={
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
    },
)  # fmt: skip
WORLDS = {1: FIRST, 2: SECOND}


def prompts(task: Mapping, world: int) -> list[str]:
    """Return the prompts of a task: for each class, one of each template."""
    texts = [form.format(name) for name in task["classes"] for form in task["templates"]]
    return [with_articles(text) for text in texts] if WORLDS[world].articles else texts


def size(task: str, split: str, world: int) -> int:
    """Return how many images a task has in a split.

    Args:
        task: Name of a task.
        split: `"train"`, `"val"` or `"test"`.
        world: Version of the drawn world.
    """
    control = any(t["name"] == task and t.get("control") for t in TASKS)
    chosen = WORLDS[world]
    return (chosen.control_sizes if control else {}).get(split, chosen.sizes[split])
