"""Task vectors of one method and seed on some of a lab's tasks, with the heads that fit them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasklab import tuning
from tasklab.bench.scale import FULL
from tasklab.storage.placement import placed
from tasklab.tuning.methods import LINEAR

if TYPE_CHECKING:
    from torch import Tensor

    from tasklab.analyses.evaluation import Evaluator
    from tasklab.bench.lab import Lab
    from tasklab.models.heads import Head
    from tasklab.taskvector import TaskVector

VALIDATED = 1000  # validation images of all tasks together that choose among what is brought


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One method with one seed, on some of a lab's tasks."""

    lab: Lab
    method: str  #: One of `EDITS`, or `"pretrained"`
    seed: int
    tasks: Sequence[str] = ()  #: Whose vectors are used; none stand for all of the lab's

    @property
    def linear(self) -> bool:
        """Whether the edited model is the linearized one."""
        return self.method in LINEAR

    @functools.cached_property
    def vectors(self) -> dict[str, TaskVector]:
        """The task vectors, fine-tuned if they are not in the store."""
        return self.lab.vectors(self.method, self.seed, self.tasks)

    @property
    def vectors_on_device(self) -> dict[str, TaskVector]:
        """The task vectors, where the model is."""
        return placed(self.vectors, self.lab.clip.encoder.device)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The model with the heads that belong to the method's vectors."""
        return self.lab.evaluator_of(self.method, self.seed, self.tasks)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Given(Trial):
    """A trial of vectors that are brought along."""

    given: Mapping[str, TaskVector]  #: The vectors, by their tasks
    #: Heads that came with the vectors, by their tasks; others are probes.
    heads: Mapping[str, Head] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        lab: Lab,
        vectors: Mapping[str, TaskVector],
        method: str,
        heads: Mapping[str, Head] | None = None,
    ) -> Given:
        """Return the trial of some vectors by their tasks; none stand for all tasks of the lab.

        Args:
            lab: Whose model they edit.
            vectors: Task vectors by the names of their tasks.
            method: How they were fine-tuned: a linear method's are edited in the tangent model.
            heads: Heads that came with them, for a model without a text tower.
        """
        tasks = tuple(vectors) or lab.suite.names
        of: dict[str, Any] = {"lab": lab, "method": method, "seed": lab.seeds[0], "tasks": tasks}
        return cls(**of, given=vectors, heads=heads or {})

    @functools.cached_property
    def vectors(self) -> dict[str, TaskVector]:
        """The vectors."""
        return dict(self.given)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The model with zero-shot heads, or where it has no text tower with given ones or probes.

        Of few tasks it reads more validation images than the preset's experiments (`more`).
        """
        found = self.lab.evaluator
        if self.lab.parameters.vocabulary == "closed":
            if without := [task for task in self.tasks if task not in self.heads]:
                found = self.lab.evaluator_of(self.method, self.seed, without)
            found = found.with_heads(self.heads)
        return found.with_counts(**more(self.lab, self.tasks))

    @functools.cached_property
    def probed(self) -> tuple[str, ...]:
        """The tasks whose head is a probe of the pre-trained features, as none came with them."""
        if self.lab.parameters.vocabulary != "closed":
            return ()
        run = functools.partial(self.lab.run, method=self.method, seed=self.seed)
        return tuple(t for t in self.tasks if t not in self.heads and run(t).head == "probe")

    def edited(
        self, vector: TaskVector, alpha: float = 1.0, *, linear: bool | None = None
    ) -> Evaluator:
        """Return the evaluator of an edited model, whose own features its probes are fitted to.

        Other heads are as they were.

        Args:
            vector: The edit of the model.
            alpha: Times the vector.
            linear: Whether to edit the linearized model; by default as the method does.
        """
        if not (vector and alpha and self.probed):
            return self.evaluator
        found, own, tangent = self.evaluator, {}, self.linear if linear is None else linear
        for task in self.probed:

            def features(count: int, task: str = task) -> tuple[Tensor, Tensor]:
                some = found.with_counts(train=count)
                at = some.edited(vector, task, "train", linear=tangent)
                return at(alpha).float(), some.images(task, "train").y

            about = self.lab.clip, self.lab.suite, task, self.lab.store
            probe = self.lab.run(task, self.method, self.seed).probe
            own[task] = tuning.probes.again(probe, *about, features)
        return found.with_heads(own)


def more(lab: Lab, tasks: Sequence[str]) -> dict[str, int]:
    """Return the number of validation images of each task that choose among given vectors.

    They are `VALIDATED` of all tasks together, at least the preset's and at most the full one's.
    """
    most = lab.scale.counts.get("val")
    if lab.rehearsal or most is None:
        return {}
    full = max(most, FULL.counts["val"])
    return {"val": min(full, max(most, round(VALIDATED / max(1, len(tasks)))))}
