"""What the experiments of one notebook share: its parameters, model, tasks, store and records."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tasklab import chapters, machine, records
from tasklab.analyses import evaluation
from tasklab.errors import LeftOutError, TasklabError, choose, texts, unknown
from tasklab.exchange import bases
from tasklab.experiments import outlook
from tasklab.experiments.by_hand import ByHand
from tasklab.experiments.parameters import Parameters, with_parameters
from tasklab.experiments.preflight import complete
from tasklab.experiments.published_vectors import FromPublished, NoTrainer, PublishedVectors
from tasklab.experiments.scale import REHEARSED_BLOCKS, REHEARSED_TASKS, scale_of
from tasklab.isolation import isolated
from tasklab.models import loading
from tasklab.models.zoo import FAMILIES, family, small, text_suite
from tasklab.progress import tell, track
from tasklab.storage.store import Store, free_first
from tasklab.tasks import drawn
from tasklab.tasks import own as own_tasks
from tasklab.tasks.images.loader import DecodedImages
from tasklab.tasks.suites import OWN, Suite, Task, suite
from tasklab.tasks.suites import pairs_of as pairs_of
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune, probes
from tasklab.tuning.methods import LINEAR as LINEAR
from tasklab.tuning.methods import POSTHOC
from tasklab.tuning.methods import method as method_of
from tasklab.tuning.recipe import FineTune

_log = logging.getLogger(__name__)


@functools.cache
def _say_once(message: str) -> None:
    """Warn of what holds for all labs of a notebook: siblings do not repeat it."""
    _log.warning(message)


class Lab(ByHand, FromPublished):
    """The model, the tasks and the store of one notebook.

    Args:
        parameters: What to study, or the name of the model alone: `Lab("mini")`.
        chapter: That it is made for, one of `chapters.CHAPTERS` or its appendix (`tangent_more`):
            models that it compares with this one are looked for beforehand, and a model that it
            cannot be read with is refused.
        progress: Whether to show progress bars, and with a chapter what it will take.
        tasks: Only these tasks of the suite, one or several names, or `"all"` of them.
        own: Tasks of your own (`tasklab.tasks.own`), in place of the suite's.
        needs: Roles (`zoo.family`) of further models that will be compared with this one.
        trains: Whether there will be fine-tuning here: memory and disk must suffice for it, and a
            rehearsal is pointed out.
        computes: Whether the model will be called; without, a shipped one is not built, and the lab
            only tells which runs there are and whether they are in the store.
        images_of: Only the images of these tasks, or of the control task, will be looked at, and
            must be there; `None` for all.
        base: A checkpoint whose weights stand in for the model's published ones, which then need
            not be on this machine; the text tower too, if it has one.
        **given: Single parameters in place of `parameters`, as in `Lab(model="mini", steps=60)`.

    Raises:
        TasklabError: If weights or images are missing, or memory or disk do not suffice; it names
            all of that, within seconds.
    """

    @isolated
    def __init__(
        self,
        parameters: Parameters | str | None = None,
        *,
        chapter: str | None = None,
        progress: bool = True,
        tasks: Sequence[str] | str | None = None,
        own: Sequence[Task] | Task = (),
        needs: Sequence[str] | str = (),
        trains: bool = True,
        computes: bool = True,
        images_of: Sequence[str] | None = None,
        base: Path | str | None = None,
        **given: Any,
    ) -> None:
        parameters = Parameters.read(parameters, given)
        needs = texts("needs", needs) if needs else ()
        if chapter is not None:
            chapters.check(chapter, parameters.model)
            # else the chapter takes shipped ones
            if not parameters.light and parameters.vectors is None:
                terms = parameters.preset, parameters.live or "all", chapters.page_of(chapter)
                needs = (*needs, *chapters.chapter(chapter).needs(*terms))
            if chapters.page_of(chapter) == "more" and parameters.live != "all":
                computes = False  # recorded results alone: the network's libraries take seconds
        own = own_tasks.listed(own)
        machine.keep_freed_memory(small(parameters.model))
        self.began = time.perf_counter()
        if own:
            parameters = dataclasses.replace(parameters, suite=OWN)  # type: ignore[arg-type]  # no choice
        device, root = parameters.device, parameters.data_root
        assert parameters.suite and device and not isinstance(root, str), "they are settled"
        self.parameters, self.progress, self.own = parameters, progress, own
        self.chapter, self.scale = chapter, scale_of(parameters)
        self.suite = Suite.from_tasks(*own) if own else suite(parameters.suite)
        if tasks is not None:
            every = self.suite.names  # without the control task
            names = every if tasks == "all" else texts("tasks", tasks, every)
            chosen = tuple(self.suite[name] for name in dict.fromkeys(names))
            sets = self.suite.sets if len(chosen) == len(every) else {}
            self.suite = dataclasses.replace(self.suite, tasks=chosen, sets=sets)
        else:
            self.suite = self.suite.by_default()
            if self.light and not own:
                few = dict.fromkeys((*pairs_of(self.suite)[0], *self.suite.names))
                chosen = tuple(map(self.suite.__getitem__, list(few)[:REHEARSED_TASKS]))
                self.suite = dataclasses.replace(self.suite, tasks=chosen)
        self.store = Store(parameters.store_root)
        self.published = PublishedVectors.of(self)
        pictures = DecodedImages(suite=self.suite, root=root, progress=progress)
        trains = trains and self.published is None
        about: dict[str, Any] = {"images_of": images_of, "weights": base is None}
        complete(parameters, pictures, needs, computes=computes, trains=trains, **about)
        self.base = base
        if base is None:
            name, how = parameters.model, {"init": parameters.init, "device": device}
            if self.light and self.published is None:
                self.clip = loading.shared(name, **how, blocks=REHEARSED_BLOCKS)
            else:
                self.clip = (loading.shared if computes else loading.outline)(name, **how)
        else:
            zero_shot = parameters.vocabulary == "open"
            self.clip = bases.clip_of(base, parameters.model, texts=zero_shot, device=device)
        if pictures.sources:
            pictures = pictures.at(self.clip.encoder.image_size, self.clip.encoder.shorter)
            self.suite = dataclasses.replace(self.suite, data=pictures)
        elif self.clip.encoder.image_size != drawn.SIDE and parameters.suite in drawn.PICTURES:
            encoder = self.clip.encoder
            images = drawn.images_of(self.suite, encoder.image_size, encoder.shorter)
            self.suite = dataclasses.replace(self.suite, data=images)
        self.evaluator = evaluation.Evaluator(
            self.clip, self.suite, self.store, counts=self.scale.counts
        )
        trainer = finetune.Trainer if self.published is None else NoTrainer
        self.trainer = trainer(self.clip, self.store, self.suite, progress=progress)
        if chapter is not None and chapters.chapter(chapter).attention:  # of a model no table has
            finetune.trainable(self.clip.encoder.params, "attention", parameters.model)
        if self.rehearsal and trains:
            beside = chapter is not None and parameters.live == "example"
            _say_once(
                f"steps={parameters.steps} is a rehearsal: every cell runs, on a few images"
                + " and two blocks of each tower" * self.light
                + ", and no number that is computed here means anything."
                + " Recorded results do not change." * beside
            )
        if chapter is not None and trains and progress:
            tell(outlook.describe(self, chapter))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of fine-tuning."""
        return cast("tuple[int, ...]", self.parameters.seeds)  # settled when they were checked

    @property
    def rehearsal(self) -> bool:
        """Whether only the code path is tried."""
        return self.parameters.rehearsal

    @property
    def light(self) -> bool:
        """Whether a full-size model is rehearsed: its first blocks, on few tasks."""
        return self.parameters.light

    @property
    def family(self) -> dict[str, str]:
        """The models that this one is compared with, by role; in a light rehearsal shipped ones.

        What they show is the same code, and a ViT-L/14 needs gigabytes for a step.
        """
        roles, own = family(self.parameters.model), self.parameters.model
        if not self.light:
            return roles
        return {role: own if name == own else FAMILIES[0][role] for role, name in roles.items()}

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
            f"images per task: {images}\ndevice {p.device}, {training}"
        )

    def image_counts(self) -> dict[str, str]:
        """Return how many images are evaluated, by split and of the control task.

        Tasks may have fewer images than the preset asks for; where they differ it is a range.
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
        """Return the fine-tuning run behind a method's vector; by default of the first seed."""
        seed = self.seeds[0] if seed is None else seed
        method = POSTHOC.get(method, method)
        others = self.suite.names if method_of(method).others else None
        return self.parameters.recipe(task, method, seed, others)

    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of tasks that are added: the preset's, and all if there are fewer.

        Of a suite with drawn sets, all of whose tasks are here, they are the sizes of these.
        """
        if self.suite.sets:
            return tuple(self.suite.sets)
        count = len(self.suite.names)
        return tuple(n for n in self.scale.n_tasks if n <= count and count % n == 0) or (count,)

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
        texts = self.parameters.suite in ("mini_text", "wordnet")
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

    @isolated
    def evaluator_of(
        self, method: str = "nonlinear", seed: int | None = None, tasks: Iterable[str] | None = None
    ) -> evaluation.Evaluator:
        """Return the evaluator with the heads that belong to a method's vectors.

        They are its own where heads were trained with the encoder or probed, and else the same
        for all. A probe is fitted before its vector, which is not asked for.

        Args:
            tasks: Only their heads; `None` is the whole suite.
        """
        own, names = {}, [*(tasks or self.suite.names)]
        for task in track(names, len(names), "heads", unit="task", on=self.progress):
            run = self.run(task, method, seed)
            if run.head == "probe":
                own[task] = probes.fit(run.probe, self.clip, self.suite, task, self.store).head
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
        """Return the task vectors of a method, fine-tuning what is not in the store.

        Args:
            seed: By default the lab's first.
            tasks: Only these; `None` is the whole suite.
        """
        if not isinstance(method, str) or method in self.suite.names:
            raise TasklabError("method is a name; tasks are named by lab.vectors(tasks=[...]).")
        chosen = texts("tasks", tasks) if tasks else self.suite.names
        if self.published is not None:
            found = {task: self.published.vector(task, method) for task in chosen}
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
        """Return the run behind a method's vector, from the store if it is there."""
        if self.published is not None:
            raise LeftOutError(
                f"needs the whole run of {task} ({method}), and only its vector is published"
            )
        if isinstance(self.suite.data, DecodedImages):  # bad images of any task are found before
            self.suite.data.prepare(*self.suite.names)
        return self.trainer(self.run(task, method, seed))

    @isolated
    def identity(
        self, task: str, method: str = "nonlinear", seed: int | None = None
    ) -> dict[str, Any]:
        """Return all that determines the run behind a method's vector: its key in the store."""
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
        }
        about: dict[str, Any] = {"threads": machine.threads(), "preset": p.preset}
        about["gpu"] = machine.gpu_name(p.device or "cpu")
        seconds = round(time.perf_counter() - self.began, 1)
        return records.provenance(extra, **about, seconds=seconds)


def _edited_by(vector: TaskVector, method: str, run: Mapping[str, Any]) -> TaskVector:
    """Return a vector with a label and the method by which a model is edited with it."""
    if method in POSTHOC and vector.base:
        vector = vector.starting_from(vector.base._replace(method=method))
    vector.label = ", seed ".join(str(run[key]) for key in ("task", "seed") if key in run)
    return vector


def several(suite: Suite) -> tuple[str, ...]:
    """Return the names of a suite's tasks, or raise if there are no two to compare or merge."""
    if len(suite.names) < 2:
        raise TasklabError(f"this takes at least two tasks, not {', '.join(suite.names)} alone.")
    return suite.names


Lab.__init__.__signature__ = with_parameters(Lab.__init__)  # type: ignore[attr-defined]
