"""Result of a comparison of merges: entries, the recommended merge, and its certainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tasklab.analyses import shares
from tasklab.analyses.merging import registry
from tasklab.analyses.shares import Answers, Copies, Estimate

NEAR = 1.0  # points on validation images within which merges count as alike, if not surely apart


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One model and its answers on test images."""

    name: str  #: `"pretrained"`, or a merge's (`merging.registry`)
    title: str  #: For people
    answers: Answers  #: Task -> which of its N test images it classifies correctly
    copies: Copies | None = None  #: Which test images are the same; `None`: all differ
    validation: float | None = None  #: Mean accuracy on validation images in %; `None`: not read
    held: Answers | None = None  #: Answers on validation images, where labels chose
    loss: float | None = None  #: E(tau) / E(0) there, where it chose in the place of labels
    alpha: float = 0.0  #: Coefficient of the merged vector
    option: float | None = None  #: Value of the method's option, if it has one
    looks: int = 0  #: Evaluations on validation images behind the choice
    seconds: float = 0.0  #: That merging and choosing took
    norm: float = 0.0  #: Of the merged vector times its coefficient
    #: Answers on test images of tasks that have no vector: what an edit may have forgotten.
    others: Answers = dataclasses.field(default_factory=dict)

    def accuracy(self, task: str) -> float:
        """Return the accuracy in % on a task's test images."""
        return 100 * float(self.answers[task].mean())

    @property
    def mean(self) -> Estimate:
        """Mean accuracy over tasks in %; its interval draws images and fixes the tasks."""
        return shares.accuracy(self.answers, self.copies)

    def forgot(self, start: Entry, task: str) -> Estimate:
        """Return the gain over another model on a task that has no vector, in points."""
        return shares.gain({task: self.others[task]}, {task: start.others[task]})

    def gain(self, start: Entry) -> Estimate:
        """Return the mean gain over another model on the same images, in points."""
        return shares.gain(self.answers, start.answers, self.copies)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two vectors: their cosine, and the loss by each other at a common coefficient."""

    tasks: tuple[str, str]  #: Their tasks
    cosine: float  #: Of the two vectors
    #: Share of predictions that the other vector changes (tangent, equation 3), mean over both
    #: tasks, in %.
    xi: float
    lost: float  #: Accuracy that it costs, mean over both tasks, in points


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """Result of a comparison."""

    start: Entry  #: The pre-trained model
    alone: Mapping[str, Entry]  #: Task -> the model with its own vector, with answers on that task
    merges: Sequence[Entry]  #: Every merge, best on validation images first, or of least E
    pairs: Sequence[Pair]  #: All pairs of vectors
    alpha: float  #: Coefficient at which pairs were measured: that of the plain sum
    #: The fine-tuned model of highest mean accuracy on all tasks' validation images; `None` without
    #: labels.
    single: Entry | None = None

    @property
    def leader(self) -> Entry:
        """The merge with the highest mean accuracy on validation images, or of least E."""
        return self.merges[0]

    @property
    def best(self) -> Entry:
        """The recommended merge: the cheapest of those within noise of the leader."""
        return min(self.alike, key=lambda one: registry.costs(one.name))

    @property
    def alike(self) -> list[Entry]:
        """The leader, and merges within its noise on validation images.

        They are at most `NEAR` points worse, and the interval of the difference on the same images
        contains 0. Without labels the leader is alone.
        """
        first = self.leader
        return [first, *(one for one in self.merges[1:] if _alike(one, first))]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(self.alone)

    @property
    def labels(self) -> bool:
        """Whether labels of validation images chose."""
        return self.best.loss is None

    @property
    def over_single(self) -> float | None:
        """How probably the merge to take beats the best fine-tuned model on all tasks, 0 to 1."""
        if self.single is None:
            return None
        return shares.probability(self.best.gain(self.single))

    @property
    def gains(self) -> bool:
        """Whether the best merge beats the pre-trained model, by the images that chose it."""
        if self.best.loss is not None:
            return self.best.loss < 1
        return (self.best.validation or 0.0) > (self.start.validation or 0.0)

    def distinct(self, task: str) -> int:
        """Return the number of a task's test images, copies counted once."""
        copies = self.start.copies
        return len(np.unique(copies[task])) if copies else len(self.start.answers[task])

    def useless(self) -> list[str]:
        """Return the tasks whose own vector does not surely raise their accuracy (`shares`)."""
        return [task for task, one in self.alone.items() if one.gain(self.start).low <= 0]


def _alike(one: Entry, first: Entry) -> bool:
    if one.held is None or first.held is None or one.validation is None:
        return False
    apart = shares.gain(one.held, first.held)
    return apart.value >= -NEAR and apart.high >= 0
