"""Task vectors that a command has read, their model with images, and files of the result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tasklab
from tasklab import bench, exchange, models
from tasklab.analyses.merging import registry
from tasklab.bench.parameters import Parameters
from tasklab.cli.parsing import Given
from tasklab.cli.runs import checked, suite_of
from tasklab.errors import TasklabError, abridged, shown
from tasklab.exchange.places import Outputs
from tasklab.models.zoo import closed
from tasklab.progress import tell
from tasklab.tasks.suites import Task

if TYPE_CHECKING:
    from torch import Tensor

_ALIKE = 0.8  # cosine of two vectors that mostly lead to a common start


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """Task vectors that were read, in the order of their words."""

    sources: Sequence[exchange.merged.Source]
    given: Given  #: Notebook parameters, those that are given
    base: str | None  #: The checkpoint that published ones start from
    own: Mapping[str, Task]  #: Tasks of one's own, which stand in for the suite's
    outputs: Outputs  #: What `write` writes

    @property
    def method(self) -> str:
        """How the first was fine-tuned."""
        return self.sources[0].method

    @functools.cached_property
    def weights(self) -> str:
        """Hash of their common theta_0; raises if they have none."""
        return exchange.merged.together(self.sources)

    @property
    def start(self) -> str:
        """Where theta_0 comes from, in words."""
        first = self.sources[0]
        return self.base or f"{first.model} ({first.init})"

    def of_task(self) -> dict[str, tasklab.TaskVector]:
        """Return the vectors by their tasks; raise if two have one."""
        found: dict[str, exchange.merged.Source] = {}
        for one in self.sources:
            if one.task in found:
                raise TasklabError(
                    f"{found[one.task].name} and {one.name} are both of the task {one.task}: give "
                    "one vector for each task, or TASK=VECTOR."
                )
            found[one.task] = one
        return {task: one.vector for task, one in found.items()}

    def check_tasks(self, instead: str = "") -> None:
        """Check that each vector's task has images.

        Args:
            instead: What else can be done, for the message.
        """
        given = {**self.given, "model": self.sources[0].model}
        check_tasks({one.task: one.name for one in self.sources}, self.own, given, instead)

    def check_model_out(self) -> None:
        """Raise unless the model that the vectors belong to can be written, if that is asked."""
        into, first = self.outputs.model, self.sources[0]
        if into is not None and first.linear:
            raise TasklabError(
                f"{first.name} belongs in the linearized model, which no checkpoint of open_clip "
                "or transformers is: leave --model-out out."
            )
        if into is not None and not self.given.get("model"):  # else it was checked before
            exchange.publishing.check_model(into, first.model, first.init, self.base)

    def lab(self, tasks: Sequence[str] = ()) -> bench.Lab:
        """Return their model with the images of their tasks, and heads that classify them.

        Heads are zero-shot, made of class names; where the model has no text tower, linear probes.

        Args:
            tasks: Those to load images of; by default all that have a vector.
        """
        own, given = self.own, dict(self.given)
        tasks = tasks or list(dict.fromkeys(one.task for one in self.sources))
        if self.sources:
            given |= {"model": self.sources[0].model, "init": self.sources[0].init}
        if closed(given.get("model") or "mini") and not given.get("head"):
            given["head"] = "probe"
        parameters = Parameters(**given)
        about: dict[str, Any] = {"use": "evaluate", "images_of": tasks, "base": self.base}
        if own:
            lab = bench.Lab(parameters, own=[own[task] for task in tasks], **about)
        else:
            control = suite_of(parameters).control.name
            lab = bench.Lab(parameters, tasks=[t for t in tasks if t != control] or None, **about)
        if self.sources:
            exchange.merged.check_start(lab.clip.encoder, self.weights, self.base)
        return lab

    def heads(self, lab: bench.Lab) -> dict[str, models.heads.Head]:
        """Return the classifiers of checkpoints by task, for a model without a text tower.

        A head must have a row for each class of its task, in the order of the classes' names. Where
        none fits, linear probes are fitted to features of the model that is evaluated.
        """
        if lab.parameters.vocabulary != "closed":
            return {}
        found: dict[str, models.heads.Head] = {}
        for one in self.sources:
            heads, used = {task or one.task: head for task, head in one.heads.items()}, list[str]()
            for task in (there := [task for task in heads if task in lab.suite.names]):
                weight, classes = heads[task]["weight"], len(lab.suite[task].classes)
                if len(weight) != classes:
                    tell(
                        f"{one.name} has a head of {len(weight)} classes, and {task} has "
                        f"{classes}: linear probes are fitted in its place."
                    )
                    continue
                head = models.heads.Head(weight, heads[task].get("bias"), normalise=False)
                found[task] = head.to(lab.clip.encoder.device)
                used.append(f"the {classes} classes of {task}")
            if used:
                tell(f"{one.name} has a head of its own, for {', '.join(used)} in order.")
            if heads and not there:
                here = f"tasks here ({', '.join(lab.suite.names)})"
                tell(
                    f"{one.name} has a head of its own, and {one.task} is none of the {here}: "
                    f"TASK={one.name} uses it."
                    if "" in one.heads
                    else f"{one.name} has heads of {abridged(heads)}, none of the {here}: "
                    "--data TASK=FOLDER names images by these tasks."
                )
        return found

    @functools.cached_property
    def kept(self) -> dict[str, Mapping[str, Tensor]]:
        """The checkpoints' classifiers by task, which a merged vector's file keeps."""
        known = Parameters(**{"device": "cpu", **self.given, "model": self.sources[0].model})
        if known.vocabulary != "closed":
            return {}
        found = exchange.merged.heads_of(self.sources)
        if left := {task or one.task for one in self.sources for task in one.heads} - {*found}:
            tell(
                f"Several vectors have a head of {abridged(sorted(left))}, each another one: the "
                "merge keeps none."
            )
        return found

    def rows(self, result: tasklab.TaskVector | None = None) -> list[dict[str, Any]]:
        """Return a row of each vector for JSON, cards and reports.

        Args:
            result: The merge of them; rows then have each vector's cosine with it.
        """
        return [
            {"vector": one.name, "task": one.task, "method": one.method, "sha256": one.sha256}
            | {"notes": [*one.notes], "norm": one.vector.norm()}
            | ({} if result is None else {"cosine": one.vector.cosine(result)})
            for one in self.sources
        ]

    def encoder(self, lab: bench.Lab | None = None) -> models.Encoder:
        """Return their model's encoder, or that of a lab."""
        first, base = self.sources[0], self.base
        if lab is not None:
            return lab.clip.encoder
        if base is not None:
            return exchange.bases.clip_of(base, first.model, texts=False).encoder
        return models.load(first.model, init=first.init).encoder

    def write(
        self,
        merged: tasklab.TaskVector | None,
        method: str,
        options: Mapping[str, Any],
        *,
        vector: str,
        lab: bench.Lab | None = None,
        more: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Write all outputs, or none if one cannot be written.

        The model is the last to be there, so that a command that was killed can be repeated.

        Args:
            merged: The merged vector, its coefficient multiplied in; `None` if no file has it.
            method: The rule that merged it.
            options: Its options, for the vector's file and the model's card.
            vector: The option that names the vector's file, e.g. `"--out"`.
            lab: Whose encoder is edited; by default it is loaded.
            more: Further entries of the model's card: `options` in place of those above, `vectors`.
            texts: Content of the other files, by option.
        """
        outputs, base, by = self.outputs, self.base, registry.method(method)
        made = {"method": method, "options": options}
        with contextlib.ExitStack() as stack:
            if outputs.model is not None and merged is not None:
                encoder = self.encoder(lab)
                exchange.merged.check_start(encoder, self.weights, base)
                about: dict[str, Any] = {
                    **made,
                    "title": by.title,
                    "paper": by.paper,
                    "base": self.start,
                }
                about |= {"weights": self.weights, "vectors": self.rows(), **(more or {})}
                if vector in outputs.files and self.kept:
                    about["heads"] = {outputs.files[vector].name: [*self.kept]}
                theta = merged.apply(encoder.params)
                written = exchange.publishing.written(outputs.model, theta, encoder, about, base)
                stack.enter_context(written)
            stack.enter_context(outputs.drafts(texts or {}))
            if vector in outputs.files and merged is not None:
                place = outputs.files[vector]
                exchange.merged.write_vector(place, merged, self.sources, made, heads=self.kept)


def check_tasks(
    vectors: Mapping[str, str], own: Mapping[str, Task], given: Given, instead: str = ""
) -> None:
    """Check that each vector's task has images.

    Args:
        vectors: Names of vectors by task.
        own: Tasks of one's own, in place of the suite's.
        given: The notebook parameters that are given.
        instead: What else can be done, for the message.
    """
    parameters = checked(given)
    there = tuple(own) or suite_of(parameters).names
    for task, name in vectors.items():
        if task not in there:
            where = "--data names" if own else f"suite {parameters.suite} has"
            raise TasklabError(
                f"{name} belongs to the task {shown(task)}, and {where} {', '.join(there)}: say "
                f"which of them by TASK={name}, or give its images by --data TASK=FOLDER{instead}."
            )


def check_near(sources: Sequence[exchange.merged.Source]) -> None:
    """Point out vectors too long, or too parallel, to come from theta_0; raise for both."""
    far = exchange.findings.AWAY
    away = [one for one in sources if any(far in note for note in one.notes)]
    for one, other in itertools.combinations(away, 2):
        if (cosine := one.vector.cosine(other.vector)) > _ALIKE:
            raise TasklabError(
                f"{one.name} and {other.name} are both far from the base, and nearly in the same "
                f"direction (cosine {cosine:.2f}): give the checkpoint they start from as --base."
            )
    for one, other, cosine in exchange.merged.parallel(sources, _ALIKE):
        tell(
            f"{one.name} and {other.name} have nearly the same direction (cosine {cosine:.2f}), as "
            "vectors of two tasks do not: they share a start other than theta_0, or one was "
            "trained from the other. Give the checkpoint they start from as --base."
        )
    if away:
        tell(
            f"{', '.join(one.name for one in away)}: more than half of theta_0's norm away from "
            "it. Vectors of several bases do not add up: check which --base they start from."
        )
