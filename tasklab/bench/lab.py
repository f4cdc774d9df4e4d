"""A model with its tasks, whose vectors are made, merged and evaluated one at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

import tasklab
from tasklab import bench, exchange
from tasklab.analyses import merging
from tasklab.bench.answers import Evaluation
from tasklab.bench.parameters import Parameters
from tasklab.bench.runs import Runs
from tasklab.errors import LeftOutError, TasklabError, choose, shown, texts, unknown
from tasklab.isolation import isolated
from tasklab.models.zoo import FAMILIES, family, text_suite
from tasklab.progress import tell, track
from tasklab.tasks.suites import OF_TEXTS, OWN, Suite, Task, inputs, pairs_of, suite
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import LINEAR, of_sum

if TYPE_CHECKING:
    from tasklab.models.heads import Head

SPLITS = ("test", "val", "train")


class Lab(Runs):
    """A model, tasks, a store, a trainer and an evaluator.

    Args:
        parameters: All parameters, or the name of the model alone: `Lab("mini")`.
        tasks: Only these tasks of the suite, one or several names, or `"all"` of them.
        own: Tasks of your own (`tasklab.tasks.own`), in place of the suite's.
        base: A checkpoint whose weights stand in for the model's published ones, which then need
            not be on this machine; the text tower too, if it has one.
        use: `"train"` checks memory and disk for fine-tuning, `"evaluate"` the memory of the model;
            `"plan"` builds no shipped model, and only finds runs in the store.
        images_of: The tasks whose images must be there, or the control task; `None` for all.
        progress: Whether to show progress bars.
        **given: Single parameters in place of `parameters`, as in `Lab(model="mini", steps=60)`.

    Raises:
        TasklabError: If weights or images are missing, or memory or disk do not suffice; it names
            all of that, within seconds.
    """

    _advice = MappingProxyType(
        {
            "model network encoder pretrained theta0 theta_0 base": (
                "lab.clip is the model, lab.clip.encoder its image tower"
            ),
            "init preset seed seeds steps lr precision": "lab.parameters has it",
            "methods": "`tasklab list methods`; lab.vector(task, method) takes one",
            "train fit finetune fine_tune task_vector": (
                'lab.vector("TASK") fine-tunes what is missing'
            ),
            "accuracy acc test score add apply edit": "lab.evaluate(vector), lab.evaluate(a + b)",
            "zero_shot zeroshot baseline": "lab.evaluate() is the pre-trained model's accuracy",
            "cosines cosine similarity": "a.cosine(b), or experiments.cosines(lab, methods)",
            "help": "help(lab), or the page of `Lab` in the reference",
            "forget negate subtract": 'lab.evaluate(-0.5 * lab.vector("TASK"))',
            "search compare merges best_merge best ties tsv_m regmean average": (
                'lab.merge("ties", search=True), or `tasklab compare` for all'
            ),
            "xi interference disentanglement": (
                "tasklab.analyses.pair_errors.pair_errors(lab.evaluator, lab.vectors(), [1.0])"
            ),
            "figure draw": "lab.plot(evaluation), lab.plot(vector)",
            "head heads": 'lab.evaluator.head("TASK")',
            "save": "vector.save(path); `tasklab export` writes checkpoints",
            "load": 'lab.vector(path) reads a vector, Lab("mini", base=path) a checkpoint',
            "to cuda cpu": 'Lab("mini", device="cuda") chooses the device',
            "data dataset images": 'lab.evaluator.images("TASK", "test")',
        }
    )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.clip.encoder.device

    @isolated
    def vector(
        self, task: str | Path, method: str = "nonlinear", seed: int | None = None
    ) -> TaskVector:
        """Return a task vector, fine-tuned if it is not in the store, or read from a file.

        Args:
            task: Name of a task; or a file, a folder, or the name of an imported vector, as
                `tasklab merge` takes it.
            method: One of `EDITS`.
            seed: Of the run; by default the first one.
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
        about: dict[str, Any] = {"init": p.init, "base": self.base and str(self.base)}
        found = exchange.merged.named_source(str(task), self.store, p.model, **about)
        weights = self.clip.encoder.weights_hash
        if found.weights not in (None, weights):
            raise TasklabError(
                f"{task} starts from the weights {found.weights[:12]}, and this lab's model has "
                f"{weights[:12]}: use a lab of the model that it starts from."
            )
        exchange.importing.log_notes(task, found.notes)
        base = found.vector.base
        if base is None or base.method:
            return found.vector
        return found.vector.starting_from(base._replace(method=found.method))

    @isolated
    def evaluate(
        self,
        vector: TaskVector | None = None,
        tasks: Sequence[str] | str | None = None,
        split: str = "test",
        *,
        alpha: float = 1.0,
        linear: bool | None = None,
        heads: Mapping[str, Head] | None = None,
    ) -> Evaluation:
        """Return the accuracy on every task before and after an edit.

        Args:
            vector: Task vector that is added; by default none.
            tasks: Names; by default all, and the control task.
            split: `"test"`, `"val"` or `"train"`.
            alpha: Times the vector.
            linear: Whether to edit the linearized model; by default where the vector's method is
                one of it.
            heads: Of a model without a text tower, the heads that came with a vector from
                elsewhere, by task. Of other tasks probes are fitted to the features of the model,
                before and after the edit. By default each task has the lab's own head.
        """
        choose("split", split, SPLITS)
        control = self.suite.control.name
        every = (*self.suite.names, control)
        seen = every if tasks is None else texts("tasks", tasks, every)
        vector = TaskVector({}) if vector is None else vector
        self._check_start(vector)
        one = vector.method if linear is None else vector.method.partition("+")[0]
        method = of_sum(one)
        linear = method in LINEAR if linear is None else linear
        evaluator = fitted = self.evaluator
        if heads and self.parameters.vocabulary != "closed":
            raise TasklabError(f"heads of {self.parameters.model} are made of prompts: give none.")
        if self.parameters.vocabulary == "closed":  # whose probes the control task has not
            seen = tuple(task for task in seen if task != control)
            if heads is None:
                evaluator = fitted = self.evaluator_of(method, tasks=seen)
            else:
                trial = bench.Given.of(self, dict.fromkeys(seen, vector), method, heads)
                evaluator, fitted = trial.evaluator, trial.edited(vector, alpha, linear=linear)
        edited = bool(vector) and alpha != 0
        evaluating = functools.partial(track, seen, len(seen), unit="task", on=self.progress)
        listed = evaluating("evaluating the pre-trained model")
        before = {task: evaluator.start(task, split).right for task in listed}
        after = before
        if edited:
            edit = functools.partial(fitted.answers, vector, alpha=alpha, linear=linear)
            listed = evaluating("evaluating the edited model")
            after = {task: edit(task, split) for task in listed}
        kind = "linearized, " if linear else ""
        read = inputs(self.suite.name)
        title = f"{self.parameters.model}, {kind}{split} {read}"
        copies = {task: evaluator.copies(task, split) for task in seen}
        found = Evaluation(
            title=title, before=before, after=after, control=control, copies=copies, inputs=read
        )
        if found.harmful and self.reaches_far(vector, alpha):  # what forgets is worse on purpose
            tell(
                f"This edit is worse than the pre-trained model: {found.gain:+.1f} points. It is "
                "longer than recorded vectors: take a smaller coefficient (0.3 * vector, or "
                "VECTOR:0.3 in the command), or let validation images choose one "
                "(lab.merge(search=True), `tasklab merge --search`)."
            )
        return found

    def _check_start(self, vector: TaskVector) -> None:
        """Raise unless a task vector starts from the lab's model."""
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

    def reaches_far(self, vector: TaskVector, alpha: float = 1.0) -> bool:
        """Return whether alpha times a vector is longer than recorded fine-tuning makes one.

        Lengths are relative to the model's weights: 0.16 at most (`merging.defaults.LENGTHS`).
        """
        if not vector:
            return False
        known = merging.defaults.Known.of([vector], self.clip.encoder.params)
        return abs(alpha) * known.relative > merging.defaults.LENGTHS[1]

    @isolated
    def merge(
        self,
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
        registry = merging.registry
        if not isinstance(name, str) or isinstance(vectors, TaskVector):
            raise TasklabError('first the method, then vectors: lab.merge("ties", [a, b]).')
        name = registry.named(name)
        registry.check(name, options)
        tasks = self.suite.names
        if vectors is None:
            vectors = self.vectors()
        elif not len(vectors):
            raise TasklabError('there are no vectors to merge: lab.merge("ties", [a, b]).')
        elif not isinstance(vectors, Mapping) and len(vectors) > len(tasks):
            raise TasklabError(f"{len(vectors)} vectors for {len(tasks)} tasks: name their tasks.")
        named = dict(vectors if isinstance(vectors, Mapping) else zip(tasks, vectors, strict=False))
        texts("tasks of vectors", [*named], tasks)
        for one in named.values():
            if not isinstance(one, TaskVector):
                raise TasklabError(f"a merge takes TaskVectors, not {shown(one)}.")
        methods = {vector.method for vector in named.values()} - {""}
        method = of_sum("+".join(sorted(methods)))
        merges = bench.Bench(bench.Given.of(self, named, method))
        if search:
            if options:
                raise TasklabError(f"search=True chooses {', '.join(options)}: leave one out.")
            return bench.contest.searched(self, named, method, name)[0]
        known = merging.defaults.Known.of(named.values(), self.clip.encoder.params, method)
        options = registry.method(name).usual(known, options) | options
        return merging.merge(name, merges.vectors, **merges.statistics(name), **options)

    def plot(self, what: Any = None, **options: Any) -> Any:
        """Return a figure of records, an evaluation, or a vector along its coefficient.

        Args:
            what: Table of an experiment or of `evaluate`, or a vector, whose accuracies on
                validation images are drawn for coefficients from 0.
            **options: Of the figure.
        """
        along = self if isinstance(what, TaskVector) else None
        return tasklab.figures.plot(what, along, **options)  # the package's face has them

    @property
    def family(self) -> dict[str, str]:
        """The models that this one is compared with, by role; in a light rehearsal shipped ones.

        They run the same code on less, because a ViT-L/14 needs gigabytes for a step.
        """
        roles, own = family(self.parameters.model), self.parameters.model
        if not self.light:
            return roles
        return {role: own if name == own else FAMILIES[0][role] for role, name in roles.items()}

    def sibling(self, *, tasks: Sequence[str] | str | None = None, **changes: Any) -> Lab:
        """Return a lab of another model or initialisation, with the same preset and store.

        Args:
            tasks: Only these tasks of its suite.
            **changes: Of the parameters, e.g. `model="mini_s"`.
        """
        for name in changes:
            choose("parameter", name, Parameters.names())
        parameters, own = self.changed(changes)
        with self._or_left_out():
            return Lab(parameters, progress=self.progress, tasks=tasks, own=own)

    def changed(self, changes: Mapping[str, Any]) -> tuple[Parameters, tuple[Task, ...]]:
        """Return the parameters and own tasks of a sibling, without loading it."""
        own = self.own
        texts = self.parameters.suite in OF_TEXTS
        if text_suite(changes.get("model", "")):
            changes, own = {"suite": None, **changes}, ()
        elif "model" in changes and (texts or self.parameters.suite == "mini"):
            changes = {"suite": None, **changes}
        return dataclasses.replace(self.parameters, **changes), own

    def relative(self, role: str) -> Lab:
        """Return a lab of a model that this one is compared with.

        Except in the preset `full`, it has only the first pair of tasks that maps are drawn of.

        Args:
            role: One of `zoo.family`, or `"random"` for this model with random weights.
        """
        parameters, there = self.relative_terms(role)
        own = self.own if parameters.suite == OWN else ()
        with self._or_left_out():
            return Lab(parameters, progress=self.progress, tasks=there.names, own=own)

    def relative_terms(self, role: str) -> tuple[Parameters, Suite]:
        """Return the parameters and the tasks of a relative, without loading it.

        Raises:
            LeftOutError: If the model has no such relative, as those of the second world.
        """
        roles = self.family
        if role not in ("random", *roles):
            if role in FAMILIES[0]:
                name = self.parameters.model
                raise LeftOutError(f"{name} has no relative of the role {role!r}")
            raise unknown("role", role, ("random", *roles))
        if self.light:  # a comparison of the model with itself is its own experiments once more
            roles = FAMILIES[0]
        changes = {"init": "random"} if role == "random" else {"model": roles[role]}
        parameters, own = self.changed(changes)
        assert parameters.suite, "it is settled"
        there = Suite.from_tasks(*own) if own else suite(parameters.suite).by_default()
        if self.parameters.preset != "full" or self.rehearsal:
            there = dataclasses.replace(there, tasks=tuple(there[n] for n in pairs_of(there)[0]))
        return parameters, there

    @contextlib.contextmanager
    def _or_left_out(self) -> Iterator[None]:
        """Turn a missing model into a part that is left out, where vectors are published."""
        try:
            yield
        except TasklabError as error:
            if self.published is None or isinstance(error, LeftOutError):
                raise
            raise LeftOutError(str(error).partition("\n")[0]) from error
