"""The fine-tuning runs of one model on some tasks: its parameters, images, store and trainer."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from tasklab import bench, exchange, machine, tuning
from tasklab import tasks as suites
from tasklab.analyses import evaluation
from tasklab.bench import preflight
from tasklab.bench.parameters import Parameters, with_parameters
from tasklab.bench.provenance import provenance
from tasklab.bench.scale import REHEARSED_TASKS, less_of, notice, scale_of
from tasklab.errors import LeftOutError, TasklabError, choose, texts
from tasklab.errors.advice import Advised
from tasklab.isolation import isolated
from tasklab.models import loading
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import small
from tasklab.progress import track
from tasklab.storage.store import Store, free_first
from tasklab.tasks import drawn
from tasklab.tasks.suites import OWN, Suite, Task, inputs, pairs_of, suite
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import POSTHOC
from tasklab.tuning.methods import method as method_of
from tasklab.tuning.recipe import FineTune

if TYPE_CHECKING:
    from tasklab.bench.published_vectors import PublishedVectors
    from tasklab.tasks.images.loader import DecodedImages
    from tasklab.tuning import finetune

_log = logging.getLogger(__name__)
Use = Literal["train", "evaluate", "plan"]
USES = get_args(Use)


@functools.cache
def _say_once(message: str) -> None:
    """Print a warning once for all labs of a notebook."""
    _log.warning(message)


class Runs(Advised):
    """The fine-tuning runs of a model on some tasks.

    Args:
        parameters, given: Parameters of a notebook, and single ones by name.
        tasks, own: Names of tasks of the suite, or tasks of your own in its place.
        base: Checkpoint in place of the pre-trained weights.
        use: `"train"`, `"evaluate"` or `"plan"` (`Lab`).
        images_of: Tasks whose images must be here; by default all.
        progress: Whether to show bars.
    """

    chapter: str | None = None  #: The chapter that opened it (`chapters.open`)

    @isolated
    def __init__(
        self,
        parameters: Parameters | str | None = None,
        *,
        tasks: Sequence[str] | str | None = None,
        own: Sequence[Task] | Task = (),
        base: Path | str | None = None,
        use: Use = "train",
        images_of: Sequence[str] | None = None,
        progress: bool = True,
        **given: Any,
    ) -> None:
        use = _former(given, use)
        p, own = Parameters.read(parameters, given), suites.own.listed(own) if own else ()
        p = dataclasses.replace(p, suite=OWN) if own else p  # type: ignore[arg-type]  # no choice
        choose("use", use, USES)
        machine.keep_freed_memory(small(p.model) or p.light)
        self.began, self.progress = time.perf_counter(), progress
        self.parameters, self.own, self.base, self.scale = p, own, base, scale_of(p)
        self.suite, self.store = tasks_of(p, own, tasks), Store(p.store_root)
        self.published = _published(p, self.store, self.suite.names)
        use = "evaluate" if use == "train" and self.published is not None else use
        images = preflight.images_of(p, self.suite, progress=progress)
        preflight.complete(p, images, use=use, tasks=images_of, weights=base is None)
        self.clip = self._model(use)
        self.suite = _with_images(self.suite, images, self.clip.encoder)
        counts = self.scale.counts
        self.evaluator = evaluation.Evaluator(self.clip, self.suite, self.store, counts=counts)
        if self.rehearsal and use == "train":
            _say_once(notice(p))

    def _model(self, use: Use) -> loading.Clip:
        p = self.parameters
        if self.base is not None:
            zero_shot = p.vocabulary == "open"
            return exchange.bases.clip_of(self.base, p.model, texts=zero_shot, device=str(p.device))
        if self.light and self.published is None:
            return loading.shared(p.model, init=p.init, device=str(p.device), **less_of(p))
        load = loading.outline if use == "plan" else loading.shared
        return load(p.model, init=p.init, device=str(p.device))

    @functools.cached_property
    def trainer(self) -> finetune.Trainer:
        """The training loop of this model on these tasks; it returns stored runs."""
        if self.published is not None:
            return cast("finetune.Trainer", bench.published_vectors.untrained)
        return tuning.finetune.Trainer(self.clip, self.store, self.suite, progress=self.progress)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of fine-tuning."""
        return cast("tuple[int, ...]", self.parameters.seeds)  # settled when they were checked

    @property
    def rehearsal(self) -> bool:
        """Whether runs only test the code."""
        return self.parameters.rehearsal

    @property
    def light(self) -> bool:
        """Whether a full-size model is rehearsed: its first blocks, on few tasks."""
        return self.parameters.light

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return self.suite.names

    def __repr__(self) -> str:
        p = self.parameters
        images = ", ".join(f"{split} {count}" for split, count in self.image_counts().items())
        kind = "rehearsal" if self.rehearsal else p.preset
        if self.published is None:
            run, start = self.run(self.suite.names[0]), f"{p.model} ({p.init})"
            about = f"{run.steps} steps, seeds {list(self.seeds)}"
            training = f"fine-tuning in {run.precision}"
        else:
            start, about, training = p.model, str(self.published), "no fine-tuning"
        return (
            f"{start} on suite {p.suite}, {kind}: {about}\ntasks: {', '.join(self.suite.names)}\n"
            f"{inputs(str(p.suite))} per task: {images}\ndevice {p.device}, {training}"
        )

    def image_counts(self) -> dict[str, str]:
        """Count the evaluated images by split, and those of the control task.

        Tasks may have fewer images than the preset's number; different counts are a range.
        """
        data, most = drawn.images_of(self.suite), self.scale.counts

        def range_of(tasks: Iterable[Task], split: str, limit: str) -> str:
            sizes = [data.size(task.name, split) for task in tasks]
            sizes = [min(size, most.get(limit, size)) for size in sizes]
            return " to ".join(map(str, sorted({min(sizes), max(sizes)})))

        tasks = self.suite.tasks
        counts = {split: range_of(tasks, split, split) for split in ("val", "test")}
        return counts | {"control": range_of([self.suite.control], "test", "control")}

    def run(self, task: str, method: str = "nonlinear", seed: int | None = None) -> FineTune:
        """Return the fine-tuning run behind a method's vector.

        Args:
            task: Name of a task of the suite.
            method: One of `EDITS`; a post-hoc one has the run of the method whose vectors it uses.
            seed: Of the run; by default the first one.
        """
        seed = self.seeds[0] if seed is None else seed
        method = POSTHOC.get(method, method)
        others = self.suite.names if method_of(method).others else None
        return self.parameters.recipe(task, method, seed, others)

    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of tasks to add: the preset's, or all tasks of a smaller suite.

        For a suite with drawn sets of tasks, all of them present, these sets' sizes.
        """
        if self.suite.sets:
            return tuple(self.suite.sets)
        count = len(self.suite.names)
        return tuple(n for n in self.scale.n_tasks if n <= count and count % n == 0) or (count,)

    @isolated
    def evaluator_of(
        self, method: str = "nonlinear", seed: int | None = None, tasks: Iterable[str] | None = None
    ) -> evaluation.Evaluator:
        """Return the evaluator with the heads that belong to a method's vectors.

        Heads that were trained with the encoder or probed are the run's own, else the same for all
        runs. A probe is fitted before its vector is trained.

        Args:
            method: One of `EDITS`.
            seed: Of the runs; by default the first one.
            tasks: Only their heads; `None` is the whole suite.
        """
        own, names = {}, [*(tasks or self.suite.names)]
        for task in track(names, len(names), "heads", unit="task", on=self.progress):
            run = self.run(task, method, seed)
            if run.head == "probe":
                own[task] = tuning.probes.fit(
                    run.probe, self.clip, self.suite, task, self.store
                ).head
            elif run.head != "zero_shot":
                head = self.tune(task, method, seed).head
                assert head is not None, "it was trained along"
                own[task] = head
        return self.evaluator.with_heads(own) if own else self.evaluator

    @isolated
    def vectors(
        self,
        method: str = "nonlinear",
        seed: int | None = None,
        tasks: Iterable[str] | str | None = None,
    ) -> dict[str, TaskVector]:
        """Return the task vectors of a method, fine-tuning those missing in the store.

        Args:
            method: One of `EDITS`.
            seed: By default the lab's first.
            tasks: Only these; `None` is the whole suite.
        """
        if not isinstance(method, str) or method in self.suite.names:
            raise TasklabError("method is a name; tasks are named by lab.vectors(tasks=[...]).")
        chosen = texts("tasks", tasks) if tasks else self.suite.names
        if self.published is not None:
            weights = self.clip.encoder.weights_hash
            found = {task: self.published.vector(task, method, weights) for task in chosen}
            return {t: _edited_by(vector, method, {"task": t}) for t, vector in found.items()}
        runs = {task: self.identity(task, method, seed) for task in chosen}
        order = free_first(chosen, lambda task: self.store.making("finetune", runs[task]))
        listed = track(order, len(chosen), "fine-tuning", unit="task", on=self.progress)
        for task in listed:  # no vector of another task in memory while one is trained
            if not self.store.has("finetune", runs[task]):
                self.tune(task, method, seed)
        return {t: _edited_by(self.tune(t, method, seed).vector, method, runs[t]) for t in chosen}

    @isolated
    def tune(self, task: str, method: str = "nonlinear", seed: int | None = None) -> finetune.Run:
        """Fine-tune on a task, or return the run from the store.

        Args:
            task: Name of a task of the suite.
            method: One of `EDITS`.
            seed: Of the run; by default the first one.

        Raises:
            LeftOutError: If vectors are published ones: their runs are not known.
        """
        if self.published is not None:
            raise LeftOutError(
                f"needs the whole run of {task} ({method}), and only its vector is published"
            )
        if prepare := getattr(self.suite.data, "prepare", None):  # finds bad images of any task
            prepare(*self.suite.names)
        return self.trainer(self.run(task, method, seed))

    @isolated
    def identity(
        self, task: str, method: str = "nonlinear", seed: int | None = None
    ) -> dict[str, Any]:
        """Return the key of a run in the store: all that determines it.

        Args:
            task: Name of a task of the suite.
            method: One of `EDITS`.
            seed: Of the run; by default the first one.
        """
        if self.published is not None:
            return self.published.identity(task, method)
        return self.trainer.identity(self.run(task, method, seed))

    @isolated
    def provenance(self) -> dict[str, Any]:
        """Return the origin of these numbers, to be written beside them."""
        p = self.parameters
        example = self.run(self.suite.names[0], "nonlinear")
        extra = {
            **{"model": p.model, "init": p.init, "suite": p.suite, "seeds": list(self.seeds)},
            "weights": self.clip.encoder.weights_hash,
            "data": drawn.images_of(self.suite).version(self.suite.names[0], "test"),
            "recipe": {k: v for k, v in example.identity().items() if k not in ("task", "seed")}
            if self.published is None
            else str(self.published),
            "images": dict(self.scale.counts) or "whole splits",
            "evaluation": "float32",  # on every device, without TF32
        }
        about: dict[str, Any] = {"threads": machine.threads(), "preset": p.preset}
        about["gpu"] = machine.gpu_name(p.device or "cpu")
        seconds = round(time.perf_counter() - self.began, 1)
        return provenance(extra, **about, seconds=seconds)

    def needs_training(self, what: str) -> None:
        """Raise a `LeftOutError` that names the training, if this lab's vectors are published."""
        if self.published is not None:
            raise LeftOutError(f"needs training: {what}")

    def able(self, methods: Sequence[str]) -> Sequence[str]:
        """Return the methods that this lab can use; others are left out by name.

        Raises:
            LeftOutError: If it is able to use none of them.
        """
        if self.published is None:
            return methods
        kept = [one for one in methods if one == "pretrained" or self.published.has(one)]
        missing = [one for one in methods if one not in kept]
        if missing and not kept:
            raise LeftOutError(self.published.lacks(missing))
        if missing:
            bench.published_vectors.leave_out(self.published.lacks(missing))
        return kept


def _published(
    parameters: Parameters, store: Store, tasks: Sequence[str]
) -> PublishedVectors | None:
    if parameters.vectors is None:
        return None
    return bench.published_vectors.PublishedVectors.of(parameters, store, tasks)


def _former(given: dict[str, Any], use: Use) -> Use:
    """Pop the former arguments `trains` and `computes`, and return the use that they name."""
    trains, computes = given.pop("trains", True), given.pop("computes", True)
    return "plan" if not computes else "evaluate" if not trains else use


def tasks_of(
    p: Parameters, own: Sequence[Task] = (), tasks: Sequence[str] | str | None = None
) -> Suite:
    """Return the tasks of a lab: its own, or some of the suite's, by default the suite's usual.

    Args:
        p: The lab's parameters.
        own: Tasks in place of the suite's.
        tasks: Names; `"all"` of the suite.
    """
    whole = Suite.from_tasks(*own) if own else suite(str(p.suite))
    if p.light and not own:  # a text tower takes longer for prompts than the encoder for images
        less, control = map(_with_one_template, whole.tasks), _with_one_template(whole.control)
        whole = dataclasses.replace(whole, tasks=tuple(less), control=control)
    if tasks is not None:
        every = whole.names  # without the control task
        names = every if tasks == "all" else texts("tasks", tasks, every)
        chosen = tuple(whole[name] for name in dict.fromkeys(names))
        sets = whole.sets if len(chosen) == len(every) else {}
        return dataclasses.replace(whole, tasks=chosen, sets=sets)
    usual = whole.by_default()
    if p.light and not own:
        few = [*dict.fromkeys((*pairs_of(usual)[0], *usual.names))][:REHEARSED_TASKS]
        return dataclasses.replace(usual, tasks=tuple(map(usual.__getitem__, few)))
    return usual


def _with_one_template(task: Task) -> Task:
    return dataclasses.replace(task, templates=task.templates[:1])


def _with_images(tasks: Suite, images: DecodedImages | None, encoder: Encoder) -> Suite:
    """Return a suite whose images have the size that the encoder takes."""
    how = encoder.image_size, encoder.shorter, encoder.resize
    if images is not None:
        return dataclasses.replace(tasks, data=images.at(*how))
    if encoder.image_size != drawn.SIDE and tasks.name in drawn.PICTURES:
        return dataclasses.replace(tasks, data=drawn.images_of(tasks, *how))
    return tasks


def _edited_by(vector: TaskVector, method: str, run: Mapping[str, Any]) -> TaskVector:
    """Return a vector with a label and the method by which a model is edited with it."""
    if method in POSTHOC and vector.base:
        vector = vector.starting_from(vector.base._replace(method=method))
    vector.label = ", seed ".join(str(run[key]) for key in ("task", "seed") if key in run)
    return vector


Runs.__init__.__signature__ = with_parameters(Runs.__init__)  # type: ignore[attr-defined]
