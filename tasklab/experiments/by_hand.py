"""What a lab does with task vectors by hand: get, merge, evaluate and plot them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from tasklab import experiments
from tasklab.analyses import merging
from tasklab.errors import Advised, TasklabError, choose, shown, texts
from tasklab.exchange import importing, merged
from tasklab.experiments.answers import Evaluation
from tasklab.isolation import isolated
from tasklab.progress import track
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import LINEAR, of_sum

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


SPLITS = ("test", "val", "train")


class ByHand(Advised):  # `self` is a `Lab`, which is made of this
    """The part of a `Lab` for edits one at a time."""

    _advice = MappingProxyType(
        {
            "model network encoder pretrained": (
                "lab.clip is the model, lab.clip.encoder its image tower"
            ),
            "init preset seed seeds steps lr precision": "lab.parameters has it",
            "methods": "`tasklab list methods`; lab.vector(task, method) takes one",
            "train fit finetune fine_tune": 'lab.vector("TASK") fine-tunes what is missing',
            "accuracy acc test score add apply edit": "lab.evaluate(vector), lab.evaluate(a + b)",
            "zero_shot zeroshot baseline": "lab.evaluate() is the pre-trained model's accuracy",
            "cosines cosine similarity": "a.cosine(b), or experiments.cosines(lab, methods)",
            "help": "help(lab), or the page of `Lab` in the reference",
            "forget negate subtract": 'lab.evaluate(-0.5 * lab.vector("TASK"))',
            "search compare merges best_merge best": (
                'lab.merge("ties", search=True), or `tasklab compare` for all'
            ),
            "xi interference disentanglement": (
                "tasklab.analyses.pair_errors.pair_errors(lab.evaluator, lab.vectors(), [1.0])"
            ),
            "head heads": 'lab.evaluator.head("TASK")',
            "data dataset load images": 'lab.evaluator.images("TASK", "test")',
        }
    )

    @property
    def tasks(self: Any) -> tuple[str, ...]:
        """Names of the tasks."""
        return self.suite.names

    @property
    def device(self: Any) -> torch.device:
        """Where the model is."""
        return self.clip.encoder.device

    @isolated
    def vector(
        self: Any, task: str | Path, method: str = "nonlinear", seed: int | None = None
    ) -> TaskVector:
        """Return a task vector, fine-tuned if it is not in the store, or read from a file.

        Args:
            task: Name of a task; or a file, a folder, or the name of an imported vector, as
                `tasklab merge` takes it.
        """
        if not isinstance(task, str | Path):
            raise TasklabError("a vector is of one task: lab.vectors(tasks=[...]) has several.")
        if str(task) in self.suite.names:
            return self.vectors(method, seed, [str(task)])[str(task)]
        there = isinstance(task, Path) or "/" in task or "." in task or Path(task).exists()
        names = [one["name"] for one in self.store.configs("imported")]
        if not there and task not in names:
            choose("task", task, self.suite.names)  # raises with the nearest name
        p = self.parameters
        found = merged.find(str(task), self.store, p.model, init=p.init, base=self.base)
        weights = self.clip.encoder.weights_hash
        if found.weights not in (None, weights):
            raise TasklabError(
                f"{task} starts from the weights {found.weights[:12]}, and this lab's model has "
                f"{weights[:12]}: use a lab of the model that it starts from."
            )
        importing.tell(task, found.notes)
        base = found.vector.base
        if base is None or base.method:
            return found.vector
        return found.vector.starting_from(base._replace(method=found.method))

    @isolated
    def evaluate(
        self: Any,
        vector: TaskVector | None = None,
        tasks: Sequence[str] | str | None = None,
        split: str = "test",
        *,
        alpha: float = 1.0,
        linear: bool | None = None,
    ) -> Evaluation:
        """Return the accuracy on every task before and after an edit.

        Args:
            vector: What is added; by default nothing.
            tasks: Names; by default all, and the control task.
            split: `"test"`, `"val"` or `"train"`.
            alpha: Times the vector.
            linear: Whether to edit the linearized model; by default where the vector's method is
                one of it.
        """
        choose("split", split, SPLITS)
        control = self.suite.control.name
        every = (*self.suite.names, control)
        seen = every if tasks is None else texts("tasks", tasks, every)
        vector = TaskVector({}) if vector is None else vector
        if not isinstance(vector, TaskVector):
            raise TasklabError(
                f"a model is edited by a TaskVector, not {type(vector).__name__}: "
                'lab.vector("TASK") returns one, and a + b adds two.'
            )
        base, weights = vector.base, self.clip.encoder.weights_hash
        if base is not None and base.weights != weights:
            raise TasklabError(
                f"this vector starts from {base.model} ({base.init}, weights {base.weights[:12]}), "
                f"and the lab's model has the weights {weights[:12]}."
            )
        one = vector.method if linear is None else vector.method.partition("+")[0]
        method = of_sum(one)
        linear = method in LINEAR if linear is None else linear
        evaluator = self.evaluator
        if self.parameters.vocabulary == "closed":  # whose probes the control task has not
            seen = tuple(task for task in seen if task != control)
            evaluator = self.evaluator_of(method, tasks=seen)
        edited, about = bool(vector) and alpha != 0, {"unit": "task", "on": self.progress}
        listed = track(seen, len(seen), "evaluating the pre-trained model", **about)
        before = {task: evaluator.start(task, split).right for task in listed}
        after = before
        if edited:
            edit = functools.partial(evaluator.answers, vector, alpha=alpha, linear=linear)
            listed = track(seen, len(seen), "evaluating the edited model", **about)
            after = {task: edit(task, split) for task in listed}
        kind = "linearized, " if linear else ""
        title = f"{self.parameters.model}, {kind}{split} images"
        copies = {task: evaluator.copies(task, split) for task in seen}
        return Evaluation(title=title, before=before, after=after, control=control, copies=copies)

    @isolated
    def merge(
        self: Any,
        name: str = "arithmetic",
        vectors: Mapping[str, TaskVector] | Sequence[TaskVector] | None = None,
        *,
        search: bool = False,
        **options: Any,
    ) -> TaskVector:
        """Return the merge of task vectors, its coefficient multiplied in.

        Args:
            name: One of `merging.METHODS`, e.g. `"ties"`, `"tsv_m"`.
            vectors: By their tasks' names, or in the order of the lab's tasks; by default those of
                all tasks, fine-tuned without linearization.
            search: Whether to choose coefficient and option on validation images; by default they
                are the recommended ones (`merging.METHODS[name].recommended`).
            **options: Of the method, in place of the recommended ones.
        """
        registry, contest = merging.registry, experiments.contest
        if not isinstance(name, str) or isinstance(vectors, TaskVector):
            raise TasklabError('first the method, then vectors: lab.merge("ties", [a, b]).')
        name = registry.named(name)
        registry.check(name, options)
        tasks = self.suite.names
        if vectors is None:
            vectors = self.vectors()
        elif not isinstance(vectors, Mapping) and len(vectors) > len(tasks):
            raise TasklabError(f"{len(vectors)} vectors for {len(tasks)} tasks: name their tasks.")
        named = dict(vectors if isinstance(vectors, Mapping) else zip(tasks, vectors, strict=False))
        texts("tasks of vectors", [*named], tasks)
        for one in named.values():
            if not isinstance(one, TaskVector):
                raise TasklabError(f"a merge takes TaskVectors, not {shown(one)}.")
        methods = {vector.method for vector in named.values()} - {""}
        method = of_sum("+".join(sorted(methods)))
        bench = contest.Bench(contest.Given.of(self, named, method))
        if search:
            if options:
                raise TasklabError(f"search=True chooses {', '.join(options)}: leave one out.")
            return contest.searched(self, named, method, name)[0]
        options = registry.method(name).usual(len(named), options) | options
        return merging.merge(name, bench.vectors, **bench.statistics(name), **options)

    @isolated
    def plot(
        self: Any, what: TaskVector | Evaluation | pd.DataFrame | None = None, **options: Any
    ) -> Figure:
        """Return a figure of what an experiment returned, or of a vector along its coefficient.

        Args:
            what: Records of an experiment (each has its figure), what `evaluate` returned, or a
                vector, whose accuracies on validation images are drawn for coefficients from 0.
            **options: Of the figure.
        """
        from tasklab.figures import by_experiment  # start-up: matplotlib

        if isinstance(what, Evaluation):
            return by_experiment.evaluation(what.table(), edited=what.edited)
        if isinstance(what, TaskVector):
            return by_experiment.along(self._along(what, **options))
        return by_experiment.draw(what, **options)

    def _along(
        self: Any,
        vector: TaskVector,
        tasks: Sequence[str] | str | None = None,
        alphas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
    ) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
        names = self.suite.names if tasks is None else texts("tasks", tasks, self.suite.names)
        each = (self.evaluator.evaluate(vector, task, "val", alphas) for task in names)
        return {task: (alphas, values) for task, values in zip(names, each, strict=True)}
