"""The suite of the third world: definitions from WordNet as tasks, and their texts as data."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

import torch

from tasklab.tasks import wordnet
from tasklab.tasks.drawn import DrawnImages, Images
from tasklab.tasks.suites import GLOSSES, Suite, Task
from tasklab.tasks.texts import encoded

_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def suite() -> Suite:
    """Return the sixteen tasks and the control, with the default eight and the drawn sets."""
    tasks = tuple(map(_task, wordnet.TASKS))
    control = _task(wordnet.CONTROL)
    return Suite(GLOSSES, tasks, control, usual=wordnet.DEFAULT, sets=wordnet.sets())


def _task(name: str) -> Task:
    terms: dict[str, Any] = {"classes": wordnet.classes(name), "templates": wordnet.TEMPLATES}
    return Task(name=name, stand_in_for=name, control=name == wordnet.CONTROL, **terms)


@dataclasses.dataclass(frozen=True)
class Glosses(DrawnImages):
    """The texts of the third world, which ship: bytes (`tasks.texts`) in place of pixels."""

    def _sizes(self, task: str) -> dict[str, int]:
        sizes = wordnet.sizes(task)
        return {ours: n for ours, theirs in _SPLITS.items() if (n := sizes.get(theirs, 0))}

    def _version(self, task: str, split: str) -> str:
        prompts = "\n".join(self.suite[task].prompts())
        words = hashlib.sha256(prompts.encode()).hexdigest()  # of classes in templates
        return f"{wordnet.VERSION}/{task}/{split}/{_glosses(task, split)[1][:12]}/{words[:12]}"

    def _checked(self, task: str, split: str) -> tuple[Images, str]:
        return _glosses(task, split)


@functools.cache
def _glosses(task: str, split: str) -> tuple[Images, str]:
    written, labels = wordnet.texts(task, _SPLITS[split])
    images = Images(encoded(written), torch.tensor(labels))
    return images, images.sha256()
